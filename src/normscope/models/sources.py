"""Where a model comes from: a folder, a GGUF file, a name on the hub, or a default model."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.errors import InputError, ModelNotFoundError
from normscope.foundation.files import check_name
from normscope.models.default import (
    DEFAULT_MODEL,
    DEFAULT_MODELS,
    DefaultKind,
    default_kind,
    default_path,
    sha256_of,
)
from normscope.models.failures import pickle_only, some
from normscope.models.gguf_files import SUFFIX
from normscope.models.hub import only_cached

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class ModelSource:
    """What to load, and what the model is called."""

    location: str  # a folder, a GGUF file, or a name on the hub
    label: str  # the name that is written into the model's config
    revision: str | None  # commit, tag or branch on the hub
    commit: str | None  # of the default model, whose files are known; of a GGUF file its hash
    shared: bool = False  # a default model, which `resolve` loads once in a process
    cpu_dtype: str | None = None  # in which to compute on a CPU by default; None: that of the file

    @property
    def gguf(self) -> bool:
        """Whether it is a GGUF file."""
        return self.location.endswith(SUFFIX) and Path(self.location).is_file()


def find_source(
    name: str | os.PathLike[str] | None, revision: str | None, kind: DefaultKind = "encoder"
) -> ModelSource:
    """Return the source that a name stands for; None stands for the default model of a kind.

    Raises:
        ModelNotFoundError: there is no such folder or file, or no model in it.
        InputError: name and revision do not go together.
    """
    path = None if name is None else _path_of(name)
    if path is not None:
        if revision is not None:
            what = "folder" if path.is_dir() else "file"
            raise InputError(
                f"{str(name)!r} is a {what}, and a {what} has no revision {revision!r}; leave "
                "revision out, or give the model's name on the hub"
            )
        if path.is_file():
            return ModelSource(str(path), str(path.resolve()), None, f"sha256={sha256_of(path)}")
        check_folder(path)
        return ModelSource(str(path), str(path.resolve()), None, None)
    wanted = kind if name is None else default_kind(name)
    if wanted is None:
        return ModelSource(str(name), str(name), revision, None)
    known = DEFAULT_MODELS[wanted]
    if revision in (None, known.revision):
        return ModelSource(
            *(str(default_path(wanted)), known.name, None, known.revision),
            shared=True,
            cpu_dtype=known.cpu_dtype,
        )
    if name == DEFAULT_MODEL:
        return ModelSource(known.name, known.name, revision, None)
    advice = "leave revision out"
    if known.name == DEFAULT_MODEL:
        advice = f"for another revision name the model too: {known.name!r}"
    raise InputError(
        f"the default model has one revision, {known.revision}, not {revision!r}; {advice}"
    )


def check_source(name: str | os.PathLike[str] | None, revision: str | None = None) -> None:
    """Raise the errors of a wrong name that can be told before torch is imported.

    Raises:
        ModelNotFoundError: there is no such folder or file, no model in it, or the hub cannot be
            reached and the model is not in its cache.
    """
    path = None if name is None else _path_of(name)
    if path is not None and path.is_dir():
        check_folder(path)
    elif path is None and name is not None and default_kind(name) is None:
        only_cached(str(name), revision)


def identity(model: PreTrainedModel | PreTrainedTokenizerBase) -> dict[str, str | None]:
    """Return the public name of a model or a tokenizer: {"name": ..., "revision": ...}.

    A folder or file is called by its own name, without the path to it, which may be private; a
    folder of the hub's cache by the hub's name and commit; a model that has never been saved by its
    class. The revision of a GGUF file is its hash.
    """
    config: Any = getattr(model, "config", None)
    origin = str(getattr(config, "_name_or_path", None) or getattr(model, "name_or_path", "") or "")
    path = _at_home(Path(origin))
    if not origin:
        return {"name": type(model).__name__, "revision": None}
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        name = path.parents[1].name.removeprefix("models--").replace("--", "/")
        return {"name": name, "revision": path.name}
    if _looks_like_path(origin) or path.is_dir():
        hashed = getattr(config, "_commit_hash", None) if origin.endswith(SUFFIX) else None
        return {"name": path.resolve().name, "revision": hashed}
    return {"name": origin, "revision": getattr(config, "_commit_hash", None)}


def _looks_like_path(name: str) -> bool:
    """Whether a name can only be a path: names on the hub are "name" or "owner/name"."""
    return re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is None or name.startswith(".")


def _at_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # "~name" of a user that this machine does not have
        return path


def _path_of(name: str | os.PathLike[str]) -> Path | None:
    """The folder or GGUF file that is meant, or None for a name on the hub."""
    if not str(name).strip():
        raise InputError("the model's name is empty; leave it out for the default model")
    path = check_name(_at_home(Path(name)))
    is_gguf = str(name).endswith(SUFFIX)
    if path.is_dir() or (path.is_file() and is_gguf):
        return path
    if path.is_file():
        raise InputError(f"{str(name)!r} is a file; give the folder it is in: {str(path.parent)!r}")
    if is_gguf and default_kind(name) is None:
        raise ModelNotFoundError(
            f"there is no file {str(name)!r}; give a GGUF file that is on this machine: it is not "
            "looked for on the hub"
        )
    if not isinstance(name, str) or _looks_like_path(name):
        raise ModelNotFoundError(
            f"there is no folder {str(name)!r}; give a folder with a model in it, or a model's "
            "name on the hub (owner/name)"
        )
    return None


def check_folder(folder: Path) -> None:
    """Raise ModelNotFoundError for a folder that has no model, or only one in a pickle."""
    files = sorted(file.name for file in folder.iterdir())
    listing = f"it has: {some(files, 12)}" if files else "it is empty"
    if "config.json" not in files:
        advice = "give the folder that save_pretrained() wrote"
        if "adapter_config.json" in files:
            advice = "it is an adapter: merge it into its model and save that"
        elif single := [file for file in files if file.endswith(SUFFIX)]:
            advice = f"give the GGUF file itself: {str(folder / single[0])!r}"
        elif inner := sorted(file.parent.name for file in folder.glob("*/config.json")):
            advice = f"did you mean a folder inside it: {some(inner, 5)}?"
        raise ModelNotFoundError(
            f"no model in the folder {str(folder)!r}: no config.json; {listing}; {advice}"
        )
    if any(file.endswith((".safetensors", ".safetensors.index.json")) for file in files):
        return
    if any(file.endswith((".bin", ".pt", ".pth", ".ckpt", ".bin.index.json")) for file in files):
        raise pickle_only(str(folder))
    raise ModelNotFoundError(
        f"no weights in the folder {str(folder)!r}: no model.safetensors; {listing}; "
        "save the model with save_pretrained()"
    )
