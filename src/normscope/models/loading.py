"""Load models and their tokenizers, and refuse those that are not what their name promises.

A model is a folder, a name on the hub, or the default model, which is known by the hash of its
weights. Loading reads safetensors only and never runs code that came with a model.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from normscope.errors import InputError, ModelNotFoundError
from normscope.models.default import DEFAULT_REVISION, default_model_path
from normscope.models.failures import attempt, first_line, remote_code, some
from normscope.models.sources import find_source

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

# The files that a tokenizer can be built from. Without any of them transformers does not fail, but
# returns a tokenizer that knows its special tokens and nothing else.
_TOKENIZER_FILES = {
    *("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.txt", "vocab.json"),
    *("spiece.model", "sentencepiece.bpe.model"),
}

# Parameters that a checkpoint may lack without any effect on attention: heads that are kept inside
# the base model, and stand-ins for input that is masked in training only.
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
        device: where to put the model: "cpu", "cuda", "cuda:1", "mps". None is the CPU.
        tokenizer: False for a model that reads no text.

    Returns:
        The model and its tokenizer, or None in place of the tokenizer.

    Raises:
        ModelNotFoundError: there is no such model, or it may not or cannot be loaded as it is.
        InputError: an argument is wrong.
    """
    chosen_dtype, chosen_device = _dtype_of(dtype), _device_of(device)
    source = find_source(name, revision)
    location, pinned, commit = source.location, source.revision, source.commit
    config = attempt(location, _load_config, location, pinned)
    if not Path(location).is_dir():
        pinned = commit = _commit_of(location, pinned)
    model: Any = attempt(location, _load_model, location, pinned, config, chosen_dtype)
    reader = attempt(location, _load_tokenizer, location, pinned) if tokenizer else None
    # transformers keeps where a model came from in its config; `identity` reads it back.
    model.config._name_or_path = source.label
    model.config._commit_hash = commit
    if reader is not None:
        reader.name_or_path = source.label
    return model.to(chosen_device).eval(), reader


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
        chosen = torch.device("cpu" if device is None else device)
        torch.empty(0, device=chosen)  # the only sure way to know that it exists
    except Exception as error:  # torch raises RuntimeError, AssertionError, AcceleratorError
        devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        if torch.backends.mps.is_available():
            devices.append("mps")
        raise InputError(
            f"cannot use the device {str(device)!r} ({first_line(error)}); this machine has: "
            f"{', '.join(devices)}"
        ) from error
    return chosen


def _load_config(source: str, revision: str | None) -> PreTrainedConfig:
    from transformers import AutoConfig

    config: PreTrainedConfig = AutoConfig.from_pretrained(
        source, revision=revision, trust_remote_code=False
    )
    return config


def _commit_of(source: str, revision: str | None) -> str | None:
    """The commit that a hub name stands for now, from where its config was just cached.

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
            # Both set here so that config.json cannot ask for code from the hub: a model class,
            # or a compiled attention kernel.
            trust_remote_code=False,
            attn_implementation="eager",
            # Mismatched and missing weights are refused below, in words.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    if mismatched := sorted(info["mismatched_keys"]):
        shapes = [f"{key}: {[*saved]} saved, {[*size]} expected" for key, saved, size in mismatched]
        raise ModelNotFoundError(
            f"the weights of {source!r} do not have the shapes that its config.json describes "
            f"({some(shapes, 3)}); one of the two belongs to another model"
        )
    if lacking := _untrained(model, info["missing_keys"]):
        raise ModelNotFoundError(
            f"the weights of {source!r} lack {len(lacking)} parameters of {type(model).__name__}, "
            f"which would be random numbers: {some(lacking, 4)}; save the whole model, or correct "
            'its config.json ("architectures", the number of layers)'
        )
    loaded: PreTrainedModel = model
    if loaded._supports_sdpa:  # what transformers itself would choose
        loaded.set_attn_implementation("sdpa")
    return loaded


def _class_of(source: str, config: PreTrainedConfig) -> Any:
    """The class that the checkpoint was saved from, head and decoder included; else AutoModel."""
    import transformers

    name = (config.architectures or [""])[0]
    model_class = getattr(transformers, name, None) if name else None
    if isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel):
        expected = model_class.config_class
        if expected is None or isinstance(config, expected):
            return model_class
    elif name and any(
        key.startswith("AutoModel") for key in getattr(config, "auto_map", None) or ()
    ):
        # The base class might load, but would not be the model that its authors mean.
        raise remote_code(source)
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
        # transformers silently replaces a tokenizer's own class by a general one.
        own = get_tokenizer_config(source, revision=revision).get("auto_map") or ()
        own = own.get("AutoTokenizer") or () if isinstance(own, dict) else own
        own = [own] if isinstance(own, str) else [name for name in own if name]
        if own and not any(hasattr(transformers, name.rpartition(".")[2]) for name in own):
            raise remote_code(source)
        tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
            source, revision=revision, trust_remote_code=False
        )
    except ModelNotFoundError:
        raise
    except Exception as error:
        raise ModelNotFoundError(
            f"no tokenizer can be loaded from {source!r} ({first_line(error)}); save it there "
            "with tokenizer.save_pretrained(), or load both yourself and pass them in"
        ) from error
    files = set(type(tokenizer).vocab_files_names.values())
    if files and not any(has(file) for file in files | _TOKENIZER_FILES):
        raise ModelNotFoundError(
            f"{source!r} has no tokenizer: none of {', '.join(sorted(files))}; save it there with "
            "tokenizer.save_pretrained(), or load both yourself and pass them in"
        )
    return tokenizer


@contextmanager
def _without_load_report() -> Iterator[None]:
    """Silence transformers' report of missing weights: where it matters, it is an error here.

    Only for records of this thread, so that other threads' reports are kept.
    """
    logger = logging.getLogger("transformers.modeling_utils")
    thread = threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        report = "LOAD REPORT" in message or "tied weights mapping" in message
        return record.thread != thread or not report

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
