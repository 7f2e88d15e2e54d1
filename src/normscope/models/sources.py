"""Where a model comes from: a folder, a name on the hub, or the default model."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.errors import InputError, ModelNotFoundError
from normscope.models.default import DEFAULT_MODEL, DEFAULT_REVISION, default_model_path
from normscope.models.failures import pickle_only, some

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class ModelSource:
    """What to load, and what the model is called."""

    location: str  # a folder, or a name on the hub
    label: str  # the name that is written into the model's config
    revision: str | None  # commit, tag or branch on the hub
    commit: str | None  # of the default model, whose files are known; else None


def find_source(name: str | os.PathLike[str] | None, revision: str | None) -> ModelSource:
    """Return the source that a name stands for; None stands for the default model.

    Raises:
        ModelNotFoundError: there is no such folder, or no model in it.
        InputError: name and revision do not go together.
    """
    folder = None if name is None else _folder_of(name)
    label = DEFAULT_MODEL if name is None else str(name)
    if folder is not None:
        if revision is not None:
            raise InputError(
                f"{label!r} is a folder, and a folder has no revision {revision!r}; leave revision "
                "out, or give the model's name on the hub"
            )
        check_folder(folder)
        return ModelSource(str(folder), str(folder.resolve()), None, None)
    if label == DEFAULT_MODEL and revision in (None, DEFAULT_REVISION):
        return ModelSource(str(default_model_path()), label, None, DEFAULT_REVISION)
    if name is None:
        raise InputError(
            f"the default model has one revision, {DEFAULT_REVISION}, not {revision!r}; for "
            f"another revision name the model too: {DEFAULT_MODEL!r}"
        )
    return ModelSource(label, label, revision, None)


def identity(model: PreTrainedModel | PreTrainedTokenizerBase) -> dict[str, str | None]:
    """Return the public name of a model or a tokenizer: {"name": ..., "revision": ...}.

    A folder is called by its own name, without the path to it, which may be private; a folder of
    the hub's cache by the hub's name and commit; a model that has never been saved by its class.
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
        return {"name": path.resolve().name, "revision": None}
    return {"name": origin, "revision": getattr(config, "_commit_hash", None)}


def _looks_like_path(name: str) -> bool:
    """Whether a name can only be a path: names on the hub are "name" or "owner/name"."""
    return re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is None or name.startswith(".")


def _at_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # "~name" of a user that this machine does not have
        return path


def _folder_of(name: str | os.PathLike[str]) -> Path | None:
    """The folder that is meant, or None for a name on the hub."""
    if not str(name).strip():
        raise InputError("the model's name is empty; leave it out for the default model")
    path = _at_home(Path(name))
    if path.is_dir():
        return path
    if path.is_file():
        raise InputError(f"{str(name)!r} is a file; give the folder it is in: {str(path.parent)!r}")
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
