"""Load models and their tokenizers, and refuse those that are not what their name promises.

A model is a folder, a GGUF file, a name on the hub, or a default model, which is known by the hash
of its weights. Loading reads safetensors and GGUF only and never runs code that came with a model.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from normscope.errors import InputError, ModelNotFoundError
from normscope.foundation.interrupts import shielded
from normscope.foundation.progress import display_paused, stage
from normscope.models import gguf_files
from normscope.models.completeness import check_whole, mark_made_up
from normscope.models.default import DefaultKind
from normscope.models.failures import attempt, first_line, remote_code
from normscope.models.hub import only_cached
from normscope.models.sides import tokenizer_in
from normscope.models.sources import ModelSource, find_source
from normscope.models.unwrapping import holds_model, unwrapped
from normscope.models.weight_files import ModelFiles, check_numbers, check_weight_files

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


def load(
    name: str | os.PathLike[str] | None = None,
    *,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    tokenizer: bool = True,
    strict: bool = True,
) -> tuple[PreTrainedModel, Any]:
    """Load a model in evaluation mode, and the tokenizer or processor saved with it.

    Args:
        name: a folder, a GGUF file, a name on the hub ("owner/name"), "smollm2" for the default
            language model, "de-en" for the German-English translation model that comes with
            normscope, or None for the default model ("minilm").
        revision: commit, tag or branch of a model on the hub.
        dtype: "float64", "float32", "bfloat16", "float16" or a torch dtype. None, or "auto",
            keeps the dtype in which the weights are stored; the weights of a GGUF file are
            dequantised to float32, and those of "de-en" are float32 on a CPU.
        device: where to put the model: "cpu", "cuda", "cuda:1", "mps". None is the CPU.
        tokenizer: False to leave out the tokenizer or processor.
        strict: refuse a model that is not loaded whole: its base model lacks weights, or leaves
            some in the file, or an adapter lies beside them. Heads may be left out or be missing.
            False loads it as transformers does.

    Returns:
        The model and its tokenizer, or None in place of the tokenizer. For a model that reads
        images or recordings it is the processor (``AutoProcessor``), which has the tokenizer of a
        model that also reads text.

    Raises:
        ModelNotFoundError: there is no such model, or it may not or cannot be loaded as it is.
        MissingExtraError: a GGUF file needs the extra ``gguf``.
        InputError: an argument is wrong.
    """
    chosen_dtype, chosen_device = _dtype_of(dtype), _device_of(device)
    return _load(find_source(name, revision), chosen_dtype, chosen_device, tokenizer, strict)


def _load(
    source: ModelSource,
    dtype: torch.dtype | str,
    device: torch.device,
    tokenizer: bool,
    strict: bool,
) -> tuple[PreTrainedModel, Any]:
    location, commit = source.location, source.commit
    if dtype == "auto" and source.cpu_dtype is not None and device.type == "cpu":
        dtype = _dtype_of(source.cpu_dtype)
    name = Path(source.label).name
    stage(f"loading {'the model' if name == 'model' else name}")
    model: Any
    reader: Any = None
    if source.gguf:
        file = Path(location)
        with gguf_files.READING, gguf_files.reading():
            model = attempt(location, _load_gguf, file, dtype, strict)
            reader = attempt(location, gguf_files.gguf_tokenizer, file) if tokenizer else None
    else:
        on_hub = not Path(location).is_dir()
        files = ModelFiles(
            location, source.revision, on_hub and only_cached(location, source.revision)
        )
        # Downloads have bars of their own, which a status line must not overwrite.
        with display_paused() if on_hub and not files.cached else nullcontext():
            config = attempt(location, _load_config, files)
            if on_hub:
                commit = _commit_of(location, source.revision)
                files = replace(files, revision=commit)
            model = attempt(location, _load_model, files, config, dtype, strict)
            reader = attempt(location, _load_reader, files, config) if tokenizer else None
    # transformers keeps where a model came from in its config; `identity` reads it back.
    model.config._name_or_path = source.label
    model.config._commit_hash = commit
    own = tokenizer_in(reader)
    if own is not None and hasattr(own, "name_or_path"):
        own.name_or_path = source.label
    return model.to(device).eval(), reader


def resolve(
    model: object,
    tokenizer: Any = None,
    *,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    kind: DefaultKind = "encoder",
    strict: bool = True,
    processor: bool = False,
) -> tuple[PreTrainedModel, Any]:
    """Return a model that may have been given by name, and its tokenizer.

    Args:
        model: a model, which is returned as it is, or what :func:`load` takes: a folder, a GGUF
            file, a name on the hub, the short name of a default model, or None for the default
            model of a kind. A wrapper stands for the model inside: DataParallel, a PEFT model, a
            SentenceTransformer, a compiled model (``torch.compile``), a pipeline.
        tokenizer: returned as it is; None loads the tokenizer saved with a model that is loaded,
            or takes that of a SentenceTransformer or a pipeline.
        revision: as for :func:`load`; without effect on a model that is loaded already.
        dtype: the same.
        device: the same.
        kind: which default model None stands for: "encoder" (MiniLM) or "language" (SmolLM2).
        strict: as for :func:`load`.
        processor: whether to return a processor as it is, instead of the tokenizer in it.

    Returns:
        The model and its tokenizer. The tokenizer is None if the model was given ready and no
        tokenizer was. A default model is loaded once in a process and shared by all callers that
        ask for the same dtype and device: do not modify it. :func:`load` always returns a new
        object.

    Raises:
        InputError: ``model`` is neither a model nor a name, or another argument is wrong.
        UnsupportedModelError: its weights are offloaded, or its adapter adds positions.
        ModelNotFoundError: as for :func:`load`.
        MissingExtraError: the same.
    """
    if holds_model(model):
        loaded, own = unwrapped(model, tokenizer)
        return loaded, own if processor else tokenizer_in(own)
    if model is not None and not isinstance(model, str | os.PathLike):
        raise InputError(
            "model must be a transformers model, a folder or a name on the hub, but was given "
            f"{type(model).__name__}"
        )
    chosen_dtype, chosen_device = _dtype_of(dtype), _device_of(device)
    source = find_source(model, revision, kind)
    if source.shared:
        loaded, own = _shared(source, chosen_dtype, chosen_device)
    else:
        loaded, own = _load(source, chosen_dtype, chosen_device, tokenizer is None, strict)
    reader = own if tokenizer is None else tokenizer
    return loaded, reader if processor else tokenizer_in(reader)


@lru_cache(maxsize=4)
def _shared(
    source: ModelSource, dtype: torch.dtype | str, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Load a default model for `resolve`; its files have just been checked."""
    return _load(source, dtype, device, tokenizer=True, strict=True)


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


def _load_config(files: ModelFiles) -> PreTrainedConfig:
    from transformers import AutoConfig

    config: PreTrainedConfig = AutoConfig.from_pretrained(files.location, **files.arguments)
    return config


def _commit_of(source: str, revision: str | None) -> str | None:
    """The commit that a hub name stands for now, from where its config was just cached.

    Naming it from here on makes weights and tokenizer those of the same commit, and keeps
    transformers from taking weights that a bot has converted in somebody's pull request.
    """
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(source, "config.json", revision=revision)
    return Path(path).parent.name if isinstance(path, str) else revision


# Set at every load so that a config cannot ask for a compiled attention kernel of the hub.
# Mismatched and missing weights are refused in words.
_LOADING: dict[str, Any] = {
    "attn_implementation": "eager",
    "ignore_mismatched_sizes": True,
    "output_loading_info": True,
}


def _load_model(
    files: ModelFiles, config: PreTrainedConfig, dtype: torch.dtype | str, strict: bool
) -> PreTrainedModel:
    check_weight_files(files, config, strict=strict)
    with _without_load_report():
        model, info = _class_of(files.location, config).from_pretrained(
            files.location,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            **files.arguments,
            **_LOADING,
        )
    model = _ready(files.location, model, info, strict)
    if strict and getattr(model, "hf_quantizer", None) is None:
        check_numbers(files, config)
    return model


def _load_gguf(file: Path, dtype: torch.dtype | str, strict: bool) -> PreTrainedModel:
    config = gguf_files.gguf_config(file)
    if strict:
        gguf_files.check_layers_used(file, config)
    dequantised = torch.float32 if isinstance(dtype, str) else dtype
    weights = gguf_files.gguf_weights(file, config, dequantised)
    loader: Any = gguf_files.gguf_class(file, config)
    with _without_load_report():
        model, info = loader.from_pretrained(
            None, config=config, state_dict=weights, dtype=dequantised, **_LOADING
        )
    return _ready(str(file), model, info, strict)


def _ready(
    source: str, model: PreTrainedModel, info: dict[str, Any], strict: bool
) -> PreTrainedModel:
    """A model with all of its weights, which transformers may run as it would by itself."""
    if strict:
        check_whole(source, model, info)
        mark_made_up(model, info["missing_keys"])
    if model._supports_sdpa:  # what transformers itself would choose
        model.set_attn_implementation("sdpa")
    return model


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


def _load_reader(files: ModelFiles, config: PreTrainedConfig) -> Any:
    """Load the processor of a model that reads images or recordings, or else the tokenizer."""
    return _load_processor(files) if _has_processor(files, config) else _load_tokenizer(files)


def _has_processor(files: ModelFiles, config: PreTrainedConfig) -> bool:
    from transformers.models.auto import (
        feature_extraction_auto,
        image_processing_auto,
        processing_auto,
    )

    folder = Path(files.location)
    if folder.is_dir():
        names = ("preprocessor_config.json", "processor_config.json")
        return any((folder / name).is_file() for name in names)
    tables = {
        processing_auto: "PROCESSOR_MAPPING_NAMES",
        image_processing_auto: "IMAGE_PROCESSOR_MAPPING_NAMES",
        feature_extraction_auto: "FEATURE_EXTRACTOR_MAPPING_NAMES",
    }
    return any(config.model_type in getattr(module, name) for module, name in tables.items())


def _load_processor(files: ModelFiles) -> Any:
    import transformers

    try:
        return transformers.AutoProcessor.from_pretrained(files.location, **files.arguments)
    except ImportError as error:
        raise ModelNotFoundError(
            f"the processor of {files.location!r} needs a package that is not installed: "
            f"{first_line(error)}"
        ) from error
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise
        raise ModelNotFoundError(
            f"no processor can be loaded from {files.location!r} ({first_line(error)}); save it "
            "there with processor.save_pretrained(), or load both yourself and pass them in"
        ) from error


def _load_tokenizer(files: ModelFiles) -> PreTrainedTokenizerBase:
    import transformers
    from huggingface_hub import try_to_load_from_cache
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    source, revision = files.location, files.revision

    def has(file: str) -> bool:
        if Path(source).is_dir():
            return (Path(source) / file).is_file()
        return isinstance(try_to_load_from_cache(source, file, revision=revision), str)

    try:
        # transformers silently replaces a tokenizer's own class by a general one.
        settings = get_tokenizer_config(source, revision=revision, local_files_only=files.cached)
        own = settings.get("auto_map") or ()
        own = own.get("AutoTokenizer") or () if isinstance(own, dict) else own
        own = [own] if isinstance(own, str) else [name for name in own if name]
        if own and not any(hasattr(transformers, name.rpartition(".")[2]) for name in own):
            raise remote_code(source)
        tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
            source, **files.arguments
        )
    except ModelNotFoundError:
        raise
    except Exception as error:
        raise ModelNotFoundError(
            f"no tokenizer can be loaded from {source!r} ({first_line(error)}); save it there "
            "with tokenizer.save_pretrained(), or load both yourself and pass them in"
        ) from error
    known = set(type(tokenizer).vocab_files_names.values())
    if known and not any(has(file) for file in known | _TOKENIZER_FILES):
        raise ModelNotFoundError(
            f"{source!r} has no tokenizer: none of {', '.join(sorted(known))}; save it there with "
            "tokenizer.save_pretrained(), or load both yourself and pass them in"
        )
    return tokenizer


@shielded
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

    try:
        logger.addFilter(keep)
        yield
    finally:
        logger.removeFilter(keep)
