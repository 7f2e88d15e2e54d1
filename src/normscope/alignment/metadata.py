"""The file ``normscope.json`` in a model's folder: what the aligner must know about the model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normscope.alignment.extract import Choice
from normscope.alignment.words import Normalization
from normscope.errors import InputError

METADATA_FILE = "normscope.json"
_UNICODE_FORMS = ("NFC", "NFD", "NFKC", "NFKD")


@dataclass(frozen=True)
class ModelMetadata:
    """The contents of ``normscope.json``; the defaults stand for a model without the file."""

    normalization: Normalization = field(default_factory=Normalization)
    target_tokenizer: str | None = None  # subfolder with the target's tokenizer
    languages: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    """The best soft alignments of this model on a large text, the best first."""


def read_metadata(folder: str | Path) -> ModelMetadata:
    """Read ``normscope.json`` from a folder; return the defaults if there is none."""
    path = Path(folder) / METADATA_FILE
    if not path.is_file():
        return ModelMetadata()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return ModelMetadata(
            _normalization(data),
            data.get("target_tokenizer"),
            tuple(str(language) for language in data.get("languages", ())),
            tuple(_choice(entry) for entry in data.get("choices", ())),
        )
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(f"cannot use {path}: {error}") from None


def _normalization(data: Any) -> Normalization:
    form = data.get("unicode")
    if form is not None and form not in _UNICODE_FORMS:
        raise ValueError(f"unknown Unicode form {form!r}; valid: {', '.join(_UNICODE_FORMS)}")
    return Normalization(
        form,
        bool(data.get("lowercase", False)),
        tuple((str(old), str(new)) for old, new in data.get("replace", ())),
    )


def _choice(entry: Any) -> Choice:
    head = entry["head"]
    return Choice(int(entry["layer"]), None if head is None else int(head), str(entry["reading"]))
