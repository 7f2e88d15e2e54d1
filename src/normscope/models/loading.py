"""Find a model, load it, and refuse one that would not be the model its name promises.

A model is a folder, a name on the hub, or the default model, which is known by the hash of its
weights. Loading reads safetensors only and never runs code that came with a model.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from normscope.errors import InputError, ModelNotFoundError
from normscope.models.default import DEFAULT_MODEL, DEFAULT_REVISION, default_model_path

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

# What a tokenizer can be built from. Without any of them transformers does not fail: it returns
# a tokenizer that knows its special tokens and nothing else.
_TOKENIZER_FILES = {
    *("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.txt", "vocab.json"),
    *("spiece.model", "sentencepiece.bpe.model"),
}

# Parameters that a checkpoint may lack without changing what its attention does: heads that are
# kept inside the base model, and stand-ins for input that is masked in training only.
_UNUSED_PARTS = {"pooler", "contact_head", "mask_token", "masked_spec_embed"}


def load(
    name: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    tokenizer: bool = True,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Load a model in evaluation mode, and the tokenizer saved with it.

    Args:
        name: a folder, a name on the hub ("owner/name"), or None for the default model.
        revision: commit, tag or branch of a model on the hub.
        dtype: "float64", "float32", "bfloat16", "float16" or a torch dtype. None, or "auto",
            keeps the dtype in which the weights are stored.
        device: where the model goes: "cpu", "cuda", "cuda:1", "mps". None is the CPU.
        tokenizer: False for a model that reads no text; None is returned in its place.

    Raises:
        ModelNotFoundError: there is no such model, or it may not or cannot be loaded as it is.
        InputError: the arguments themselves are wrong.
    """
    wanted, where = _dtype_of(dtype), _device_of(device)
    folder = None if name is None else _folder_of(name)
    label, commit = DEFAULT_MODEL if name is None else str(name), revision
    if folder is not None:
        if revision is not None:
            raise InputError(
                f"{label!r} is a folder, and a folder has no revision {revision!r}; leave revision "
                "out, or give the model's name on the hub"
            )
        label = str(folder.resolve())
    elif label == DEFAULT_MODEL and revision in (None, DEFAULT_REVISION):
        folder, commit = default_model_path(), DEFAULT_REVISION
    elif name is None:
        raise InputError(
            f"the default model has one revision, {DEFAULT_REVISION}, not {revision!r}; for "
            f"another revision name the model too: {DEFAULT_MODEL!r}"
        )
    if folder is not None:
        _check_folder(folder)
        source, pinned = str(folder), None
        config = _attempt(source, _load_config, source, None)
    else:
        source = label
        config = _attempt(source, _load_config, source, revision)
        pinned = commit = _commit_of(source, revision)
    model = _attempt(source, _load_model, source, pinned, config, wanted)
    reader = _attempt(source, _load_tokenizer, source, pinned) if tokenizer else None
    # transformers keeps where a model came from in its config; `identity` reads it back.
    model.config._name_or_path = label
    model.config._commit_hash = commit
    if reader is not None:
        reader.name_or_path = label
    return model.to(where).eval(), reader


def resolve(
    model: object,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Return a model that may have been given by name, and its tokenizer.

    Args:
        model: a model, which is returned as it is, or what :func:`load` takes: a folder, a name on
            the hub, or None for the default model. A compiled model (``torch.compile``) stands
            for the model that it was compiled from.
        tokenizer: returned as it is; None loads the tokenizer saved with a model that is loaded.
        revision: as for :func:`load`; without effect on a model that is loaded already.
        dtype: the same.
        device: the same.

    Returns:
        The model and its tokenizer. The tokenizer is None if the model was given ready and no
        tokenizer was. The default model is loaded once in a process and shared by all callers
        that ask for the same dtype and device: do not modify it. :func:`load` always returns a
        new object.

    Raises:
        InputError: ``model`` is neither a module nor a name, or another argument is wrong.
        ModelNotFoundError: as for :func:`load`.
    """
    if isinstance(model, nn.Module):
        original: Any = getattr(model, "_orig_mod", model)
        return original, tokenizer
    if model is None and revision in (None, DEFAULT_REVISION):
        shared, own = _default(str(default_model_path()), _dtype_of(dtype), _device_of(device))
        return shared, own if tokenizer is None else tokenizer
    if model is None or isinstance(model, str | os.PathLike):
        loaded, own = load(
            model, revision=revision, dtype=dtype, device=device, tokenizer=tokenizer is None
        )
        return loaded, own if tokenizer is None else tokenizer
    raise InputError(
        "model must be a transformers model, a folder or a name on the hub, but was given "
        f"{type(model).__name__}"
    )


@lru_cache(maxsize=2)
def _default(
    folder: str, dtype: torch.dtype | str, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Load the default model for `resolve`; the folder is that of the files just checked."""
    return load(None, dtype=dtype, device=device)


def identity(model: PreTrainedModel | PreTrainedTokenizerBase) -> dict[str, str | None]:
    """What to call a model, or a tokenizer, in public: {"name": ..., "revision": ...}.

    One from a folder is called by the folder's name, without the path to it, which is nobody
    else's business; a folder of the hub's cache by the hub's name and commit. One that has never
    been saved is called by its class.
    """
    config: Any = getattr(model, "config", None)
    given = str(getattr(config, "_name_or_path", None) or getattr(model, "name_or_path", "") or "")
    path = _at_home(Path(given))
    if not given:
        return {"name": type(model).__name__, "revision": None}
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        name = path.parents[1].name.removeprefix("models--").replace("--", "/")
        return {"name": name, "revision": path.name}
    if _looks_like_path(given) or path.is_dir():
        return {"name": path.resolve().name, "revision": None}
    return {"name": given, "revision": getattr(config, "_commit_hash", None)}


def _dtype_of(dtype: str | torch.dtype | None) -> torch.dtype | str:
    if dtype is None or dtype == "auto":
        return "auto"
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return dtype
    if isinstance(dtype, str) and dtype in _DTYPES:
        return _DTYPES[dtype]
    raise InputError(f"unknown dtype {dtype!r}; valid: auto, {', '.join(_DTYPES)}")


def _device_of(device: str | torch.device | None) -> torch.device:
    try:
        where = torch.device("cpu" if device is None else device)
        torch.empty(0, device=where)  # the only sure way to know that it is there
    except Exception as error:  # torch raises RuntimeError, AssertionError, AcceleratorError
        there = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        if torch.backends.mps.is_available():
            there.append("mps")
        raise InputError(
            f"cannot use the device {str(device)!r} ({_first_line(error)}); this machine has: "
            f"{', '.join(there)}"
        ) from error
    return where


def _looks_like_path(name: str) -> bool:
    """Whether a name can only be meant as a path: hub names are "name" or "owner/name"."""
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


def _check_folder(folder: Path) -> None:
    """Refuse a folder that has no model, or one only as a pickle, before anything reads it."""
    files = sorted(one.name for one in folder.iterdir())
    listing = f"it has: {_some(files, 12)}" if files else "it is empty"
    if "config.json" not in files:
        advice = "give the folder that save_pretrained() wrote"
        if "adapter_config.json" in files:
            advice = "it is an adapter: merge it into its model and save that"
        elif inner := sorted(one.parent.name for one in folder.glob("*/config.json")):
            advice = f"did you mean a folder inside it: {_some(inner, 5)}?"
        raise ModelNotFoundError(
            f"no model in the folder {str(folder)!r}: no config.json; {listing}; {advice}"
        )
    if any(one.endswith((".safetensors", ".safetensors.index.json")) for one in files):
        return
    if any(one.endswith((".bin", ".pt", ".pth", ".ckpt", ".bin.index.json")) for one in files):
        raise _pickle_only(str(folder))
    raise ModelNotFoundError(
        f"no weights in the folder {str(folder)!r}: no model.safetensors; {listing}; "
        "save the model with save_pretrained()"
    )


def _pickle_only(source: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"{source!r} has its weights only as a pickle (pytorch_model.bin), which can run any code "
        "when it is read; normscope reads safetensors. If you trust it, convert it once, with the "
        f'class that config.json names under "architectures": '
        f"AutoModel.from_pretrained({source!r}, use_safetensors=False).save_pretrained(folder), "
        "and the same for its tokenizer; then give that folder"
    )


def _load_config(source: str, revision: str | None) -> PreTrainedConfig:
    from transformers import AutoConfig

    config: PreTrainedConfig = AutoConfig.from_pretrained(
        source, revision=revision, trust_remote_code=False
    )
    return config


def _commit_of(source: str, revision: str | None) -> str | None:
    """The commit a hub name stands for now, from where its config was just cached.

    Naming it from here on makes weights and tokenizer those of the same commit, and keeps
    transformers from taking weights that a bot has converted in somebody's pull request.
    """
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(source, "config.json", revision=revision)
    return Path(path).parent.name if isinstance(path, str) else revision


def _load_model(
    source: str, revision: str | None, config: PreTrainedConfig, dtype: torch.dtype | str
) -> PreTrainedModel:
    with _without_load_report():
        model, info = _class_of(source, config).from_pretrained(
            source,
            config=config,
            revision=revision,
            dtype=dtype,
            use_safetensors=True,
            # Both said here so that config.json cannot ask for code from the hub: a model class,
            # or a compiled attention kernel.
            trust_remote_code=False,
            attn_implementation="eager",
            # Mismatches and missing weights are refused below, in words.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    if mismatched := sorted(info["mismatched_keys"]):
        shown = [f"{key}: {[*saved]} saved, {[*here]} expected" for key, saved, here in mismatched]
        raise ModelNotFoundError(
            f"the weights of {source!r} do not have the shapes that its config.json describes "
            f"({_some(shown, 3)}); one of the two belongs to another model"
        )
    if lacking := _untrained(model, info["missing_keys"]):
        raise ModelNotFoundError(
            f"the weights of {source!r} lack {len(lacking)} parameters of {type(model).__name__}, "
            f"which would be random numbers: {_some(lacking, 4)}; save the whole model, or correct "
            'its config.json ("architectures", the number of layers)'
        )
    loaded: PreTrainedModel = model
    if loaded._supports_sdpa:  # what transformers itself would choose
        loaded.set_attn_implementation("sdpa")
    return loaded


def _class_of(source: str, config: PreTrainedConfig) -> Any:
    """The class the checkpoint was saved from, head and decoder included; else AutoModel."""
    import transformers

    name = (config.architectures or [""])[0]
    found = getattr(transformers, name, None) if name else None
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        expected = found.config_class
        if expected is None or isinstance(config, expected):
            return found
    elif name and any(
        key.startswith("AutoModel") for key in getattr(config, "auto_map", None) or ()
    ):
        # The base class might load, and it would not be the model that its authors mean.
        raise _remote_code(source)
    return transformers.AutoModel


def _untrained(model: PreTrainedModel, missing: Iterable[str]) -> list[str]:
    """The missing weights that attention depends on, and that are random numbers now.

    Weights of a head around the base model do not count, and buffers are computed, not learned.
    """
    learned = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    base = f"{model.base_model_prefix}."
    inside = base if hasattr(model, model.base_model_prefix) else ""
    return sorted(
        key
        for key in missing
        if key in learned and key.startswith(inside) and _UNUSED_PARTS.isdisjoint(key.split("."))
    )


def _load_tokenizer(source: str, revision: str | None) -> PreTrainedTokenizerBase:
    import transformers
    from huggingface_hub import try_to_load_from_cache
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    def has(file: str) -> bool:
        if Path(source).is_dir():
            return (Path(source) / file).is_file()
        return isinstance(try_to_load_from_cache(source, file, revision=revision), str)

    try:
        # transformers passes over a tokenizer's own class without a word, for a general one.
        own = get_tokenizer_config(source, revision=revision).get("auto_map") or ()
        own = own.get("AutoTokenizer") or () if isinstance(own, dict) else own
        own = [own] if isinstance(own, str) else [one for one in own if one]
        if own and not any(hasattr(transformers, one.rpartition(".")[2]) for one in own):
            raise _remote_code(source)
        tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
            source, revision=revision, trust_remote_code=False
        )
    except ModelNotFoundError:
        raise
    except Exception as error:
        raise ModelNotFoundError(
            f"no tokenizer can be loaded from {source!r} ({_first_line(error)}); save it there "
            "with tokenizer.save_pretrained(), or load both yourself and pass them in"
        ) from error
    wanted = set(type(tokenizer).vocab_files_names.values())
    if wanted and not any(has(file) for file in wanted | _TOKENIZER_FILES):
        raise ModelNotFoundError(
            f"{source!r} has no tokenizer: none of {', '.join(sorted(wanted))}; save it there with "
            "tokenizer.save_pretrained(), or load both yourself and pass them in"
        )
    return tokenizer


def _remote_code(source: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"{source!r} needs Python code that comes with it (trust_remote_code), and normscope never "
        "runs such code; load the model and its tokenizer yourself and pass them in"
    )


def _attempt(source: str, function: Any, *arguments: Any) -> Any:
    """Call a loader, and say what its failure means for who wants to load `source`."""
    from safetensors import SafetensorError

    try:
        return function(*arguments)
    except (ModelNotFoundError, MemoryError, torch.OutOfMemoryError):
        raise
    except SafetensorError as error:
        raise ModelNotFoundError(
            f"the weights of {source!r} are damaged: {_damaged(Path(source))} "
            f"({_first_line(error)}); download or save them again"
        ) from error
    except Exception as error:
        text = str(error)
        if "trust_remote_code" in text:
            raise _remote_code(source) from error
        if "cannot be loaded with `safetensors`" in text:
            raise _pickle_only(source) from error
        if Path(source).is_dir():
            advice = "see that config.json and the weights are whole and belong together"
        else:
            advice = (
                "check the spelling (owner/name) and the revision; with no network, or for a model "
                "that needs a login, download it first (hf download) or give a folder"
            )
        raise ModelNotFoundError(
            f"cannot load the model {source!r}: {_first_line(error)}; {advice}"
        ) from error


def _damaged(folder: Path) -> str:
    """Which of the folder's weight files cannot be read."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            if opened.read(23) == b"version https://git-lfs":
                return f"{file.name} is a Git LFS pointer, not the file (run: git lfs pull)"
        try:
            with safe_open(str(file), framework="pt"):
                pass
        except SafetensorError:
            return f"{file.name} is cut short or is not a safetensors file"
    return "a file is cut short or is not a safetensors file"


@contextmanager
def _without_load_report() -> Iterator[None]:
    """Hold back what transformers logs of missing weights: where it matters it is an error here.

    For this thread's records only, so that other loading in the process keeps its own.
    """
    logger = logging.getLogger("transformers.modeling_utils")
    thread = threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        told = record.getMessage()
        ours = "LOAD REPORT" in told or "tied weights mapping" in told
        return record.thread != thread or not ours

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def _some(names: list[str], count: int) -> str:
    more = f", and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
