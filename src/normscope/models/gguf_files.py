"""Read GGUF files: llama.cpp's format, one file with configuration, weights and tokenizer.

GGUF holds no code, so it may be read like safetensors. transformers converts it, with the package
``gguf``: the weights are dequantised, and the tokenizer is built from the vocabulary. What
transformers leaves out of the tokenizer is read from the file and added here.
"""

from __future__ import annotations

import importlib.util
import mmap
import re
import struct
import tempfile
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.errors import MissingExtraError, ModelNotFoundError
from normscope.foundation.interrupts import shielded
from normscope.models.failures import some

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

SUFFIX = ".gguf"
_VERSIONS = (2, 3)
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9

_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}

# How llama.cpp calls the tokenizers that make each digit a token before anything else.
# transformers knows none of them and reads them like GPT-2's.
_SINGLE_DIGITS = {
    *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
}

READING = threading.Lock()  # held by whoever enters `reading`


@shielded
def reading() -> Iterator[None]:
    """Let transformers do once what it does again and again while it reads a GGUF file.

    Without this, it parses the file for the configuration, the tokenizer and the weights, and
    makes the table of names for each module: 15 seconds for a small model instead of 6. Its bar of
    dequantised tensors obeys transformers' switch for progress bars, as other bars do.

    Raises:
        MissingExtraError: the package ``gguf`` is not installed.
    """
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtraError("gguf", "gguf")
    import gguf
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging

    replaced: list[tuple[Any, str, Any]] = [
        (gguf, "GGUFReader", lru_cache(maxsize=1)(gguf.GGUFReader)),
        (gguf, "get_tensor_name_map", lru_cache(maxsize=1)(gguf.get_tensor_name_map)),
        (modeling_gguf_pytorch_utils, "tqdm", logging.tqdm),
    ]
    before = [getattr(module, name) for module, name, _ in replaced]
    try:
        for module, name, replacement in replaced:
            setattr(module, name, replacement)
        yield
    finally:
        for (module, name, _), original in zip(replaced, before, strict=True):
            setattr(module, name, original)


def read_metadata(file: Path) -> dict[str, Any]:
    """Return the numbers and strings at the start of a GGUF file, without its arrays.

    Raises:
        ModelNotFoundError: the file is cut short, or is not a GGUF file.
    """
    try:
        with file.open("rb") as opened:
            if opened.read(4) != b"GGUF":
                raise ValueError("it does not start with GGUF")
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _metadata(content)
    except (ValueError, KeyError, OverflowError, struct.error) as error:
        raise ModelNotFoundError(
            f"{str(file)!r} is cut short or is not a GGUF file of version 2 or 3 ({error}); "
            "download it again"
        ) from error


def gguf_config(file: Path) -> PreTrainedConfig:
    """Return the configuration in a GGUF file.

    Raises:
        ModelNotFoundError: the file is damaged, or is one of several that belong together.
    """
    from transformers import AutoConfig

    if (parts := read_metadata(file).get("split.count", 0)) > 1:
        raise ModelNotFoundError(
            f"{str(file)!r} is one of the {parts} files of a model; join them first, with "
            "llama-gguf-split --merge"
        )
    config: PreTrainedConfig = _from_file(AutoConfig, file)
    return config


def gguf_class(file: Path, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Return the class of the language model in a GGUF file.

    Raises:
        ModelNotFoundError: it is not a language model.
    """
    import transformers

    tables: tuple[Any, ...] = (
        transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
        transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    )
    for classes in tables:
        if type(config) in classes:
            model_class: type[PreTrainedModel] = classes[type(config)]
            return model_class
    raise ModelNotFoundError(
        f"{str(file)!r} is a {config.model_type} model, and transformers has no language model of "
        "this kind; give a model in safetensors"
    )


def gguf_weights(
    file: Path, config: PreTrainedConfig, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return the dequantised weights in a GGUF file, by the names of transformers' parameters."""
    import torch
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with torch.device("meta"):
        empty = gguf_class(file, config)(config)
    # Not by from_pretrained(gguf_file=...): it insists on accelerate, which it does not use here,
    # and may leave weights quantised and load compiled kernels from the hub.
    parts = load_gguf_checkpoint(
        str(file.resolve()), return_tensors=True, model_to_load=empty, torch_dtype=dtype
    )
    weights: dict[str, torch.Tensor] = parts["tensors"]
    return weights


def check_layers_used(file: Path, config: PreTrainedConfig) -> None:
    """Raise an error if a GGUF file has more layers than its configuration says.

    transformers leaves them out without a word.

    Raises:
        ModelNotFoundError: it has.
    """
    import gguf

    layers = config.get_text_config().num_hidden_layers
    names = [tensor.name for tensor in gguf.GGUFReader(str(file.resolve())).tensors]
    found = [match for name in names if (match := re.match(r"blk\.(\d+)\.", name))]
    blocks = {int(match[1]) for match in found}
    if more := sorted(block for block in blocks if block >= layers):
        raise ModelNotFoundError(
            f"{str(file)!r} has layers that would be left out, because its configuration "
            f"(block_count) says that there are {layers}: "
            f"{some([f'blk.{block}' for block in more], 4)}; convert the model again. To load it "
            "without them, use strict=False (--no-strict)"
        )


def gguf_tokenizer(file: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer in a GGUF file.

    Raises:
        ModelNotFoundError: the file is damaged.
    """
    import transformers

    tokenizer = _from_file(transformers.AutoTokenizer, file)
    metadata = read_metadata(file)
    for name, key in _SPECIAL_TOKENS.items():
        index = metadata.get(f"tokenizer.ggml.{key}")
        if index is not None and index < len(tokenizer):
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(index))
    tokenizer.clean_up_tokenization_spaces = False
    _split_digits(tokenizer, metadata)
    _add_bos(tokenizer, metadata)
    completed: PreTrainedTokenizerBase = tokenizer
    return completed


def _from_file(auto: Any, file: Path) -> Any:
    """What a class of transformers makes of a GGUF file, and of nothing that lies beside it."""
    with tempfile.TemporaryDirectory(prefix="normscope-") as empty:
        return auto.from_pretrained(empty, gguf_file=str(file.resolve()), trust_remote_code=False)


def _split_digits(tokenizer: Any, metadata: dict[str, Any]) -> None:
    """Make each digit a token, where the model was trained so."""
    from tokenizers import pre_tokenizers

    if metadata.get("tokenizer.ggml.pre") in _SINGLE_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )


def _add_bos(tokenizer: Any, metadata: dict[str, Any]) -> None:
    """Let a text begin with the first token of all texts, where the file says that it does."""
    from tokenizers import processors

    first = tokenizer.bos_token
    wanted = metadata.get("tokenizer.ggml.add_bos_token") is True and first is not None
    if wanted and tokenizer("a")["input_ids"][:1] != [tokenizer.bos_token_id]:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A",
            pair=f"{first} $A {first}:1 $B:1",
            special_tokens=[(first, tokenizer.bos_token_id)],
        )


def _metadata(content: mmap.mmap) -> dict[str, Any]:
    version, _, count = struct.unpack_from("<IQQ", content, 4)
    if version not in _VERSIONS:
        raise ValueError(f"its version is {version}")
    metadata: dict[str, Any] = {}
    position = 24
    for _ in range(count):
        key, position = _string(content, position)
        (kind,) = struct.unpack_from("<I", content, position)
        if kind == _ARRAY:
            position = _after_array(content, position + 4)
        else:
            metadata[key], position = _value(content, position + 4, kind)
    return metadata


def _value(content: mmap.mmap, position: int, kind: int) -> tuple[Any, int]:
    """A value, and where it ends."""
    if kind == _STRING:
        return _string(content, position)
    layout = f"<{_SCALARS[kind]}"
    (value,) = struct.unpack_from(layout, content, position)
    return value, position + struct.calcsize(layout)


def _after_array(content: mmap.mmap, position: int) -> int:
    """Where an array ends; those of strings have to be walked through."""
    kind, count = struct.unpack_from("<IQ", content, position)
    position += 12
    if kind != _STRING:
        return position + int(count) * struct.calcsize(f"<{_SCALARS[kind]}")
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", content, position)
        position += 8 + length
    return position


def _string(content: mmap.mmap, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", content, position)
    end = position + 8 + length
    if end > len(content):
        raise ValueError("a string is longer than the file")
    return content[position + 8 : end].decode("utf-8"), end
