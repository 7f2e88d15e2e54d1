"""The tokenizers of a model's two sides: what its encoder reads and what its decoder writes.

Most models have one tokenizer for both. A folder may hold a second one for the target, which its
``normscope.json`` names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PureWindowsPath
from typing import Any

from normscope.errors import InputError
from normscope.models.default import PACKAGED_NAME, default_path
from normscope.text.normalization import Normalization

METADATA_FILE = "normscope.json"


@dataclass(frozen=True, eq=False)
class Tokenizers:
    """The tokenizers of both sides, and the normalization that the model expects of its text."""

    source: Any
    target: Any
    normalization: Normalization = Normalization()  # noqa: RUF009

    @property
    def two(self) -> bool:
        """Whether the target has a tokenizer of its own."""
        return self.target is not self.source

    @property
    def given(self) -> Any:
        """The one tokenizer, or both as a pair, as a caller gives them."""
        return (self.source, self.target) if self.two else self.source

    def side(self, *, as_target: bool) -> Any:
        """Return the tokenizer of one side."""
        return self.target if as_target else self.source

    def normalized(self, text: str, *, as_target: bool = False) -> str:
        """Return a text as the model expects it.

        The text stays as it is if the tokenizer makes these changes itself: results then show the
        words as they were written.
        """
        changed = self.normalization(text) if isinstance(text, str) else text
        if changed == text:
            return text
        tokenizer = self.side(as_target=as_target)
        ids = [tokenizer(words, verbose=False)["input_ids"] for words in (text, changed)]
        return text if ids[0] == ids[1] else changed


def tokenizers_of(model: Any, tokenizer: Any) -> Tokenizers:
    """Return the tokenizers of a model's two sides.

    Args:
        model: a transformers model. The folder that it was loaded from may hold a tokenizer for the
            target.
        tokenizer: the model's tokenizer, a processor that has one, or a pair (source, target).

    Raises:
        InputError: ``tokenizer`` is neither one tokenizer nor two.
    """
    both = tokenizer if isinstance(tokenizer, tuple | list) else (tokenizer, None)
    if len(both) != 2:
        raise InputError(f"give one tokenizer, or two (source, target), not {len(both)}")
    source, target = map(tokenizer_in, both)
    folder = folder_of(model)
    data = {} if folder is None else read_json(folder)
    if target is None and folder is not None and data.get("target_tokenizer"):
        target = _load_tokenizer(_inside(folder, str(data["target_tokenizer"])))
    try:
        normalization = Normalization.from_dict(data)
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"cannot use {METADATA_FILE} of {folder}: {error}") from None
    return Tokenizers(source, source if target is None else target, normalization)


def tokenizer_in(processor: Any) -> Any:
    """Return the tokenizer of a processor; anything else is returned as it is."""
    inner = None if isinstance(processor, tuple | list) else getattr(processor, "tokenizer", None)
    return processor if inner is None else inner


def folder_of(model: Any) -> Path | None:
    """Return the folder that a model was loaded from, or None if it is not known."""
    name = str(getattr(model.config, "_name_or_path", "") or "")
    if not name:
        return None
    if name == PACKAGED_NAME:
        return default_path("translation")
    folder = Path(name)
    return folder if folder.is_dir() else None


def read_json(folder: str | Path) -> Mapping[str, Any]:
    """Return the contents of a folder's ``normscope.json``; empty if there is none."""
    path = Path(folder) / METADATA_FILE
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # the latter if it is nested too deeply
        raise InputError(f"cannot use {path}: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"cannot use {path}: it must be an object, not {type(data).__name__}")
    return data


def _inside(folder: Path, name: str) -> Path:
    """Return a folder inside a model's folder; raise InputError for one that is outside."""
    path = PureWindowsPath(name)  # knows the separators and roots of all systems
    if path.anchor or ".." in path.parts:
        raise InputError(
            f"cannot use {METADATA_FILE} of {folder}: target_tokenizer must be a folder inside it, "
            f"not {name!r}"
        )
    return folder / name


@lru_cache(maxsize=8)
def _load_tokenizer(folder: Path) -> Any:
    """Load a tokenizer once in a process; `state_kept` restores it after each use."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
