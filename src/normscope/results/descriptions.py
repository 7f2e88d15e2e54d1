"""Short hashes of what numbers depend on beside the weights: settings of modules, tokenizers.

Two models have the same hash if they have modules of the same classes at the same places, with the
same attributes and hooks, the same configurations, and the same buffers that are not saved with
the weights. Functions are compared by their code and by what they enclose.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normscope.foundation.probes import bits_of
from normscope.models.walk import named_modules, tensors, weights
from normscope.results.state import hooks_of, own_attributes

DIGITS = 12
DEEPEST = 6  # objects in objects
# Entries of a config that say how a model was saved or is run, not what it computes.
_NOT_COMPARED = {"transformers_version", "torch_dtype", "dtype", "attn_implementation"}
_NOT_COMPARED |= {"architectures"}
# Attributes of modules that say where a model came from, or how it was loaded.
_OF_LOADING = {"name_or_path", "generation_config", "warnings_issued", "hf_device_map"}
_OF_LOADING |= {"hf_quantizer", "kernel_config", "_is_hf_initialized"}
# Attributes of tokenizers that do not change ids: files, messages, templates of chats.
_OF_FILES = {"name_or_path", "init_kwargs", "init_inputs", "files_loaded", "chat_template"}
_OF_FILES |= {"deprecation_warnings", "verbose", "response_template", "sp_model_kwargs"}


def modules_hash(model: nn.Module) -> str:
    """Return a hash of what a model's numbers depend on beside its weights."""
    named = named_modules(model)
    saved = set(map(id, weights(model)))
    classes = {type(module): None for _, module in named}
    described = {
        "modules": [
            [path, _name_of(type(module)), _attributes_of(module)] for path, module in named
        ],
        "forward": {
            _name_of(cls): _function(cls.forward, 0) for cls in classes if hasattr(cls, "forward")
        },
        "hooks": [[at, describe(hook)] for at, _, hook in hooks_of([m for _, m in named])],
        "buffers": [describe(t) for t in tensors(model) if id(t) not in saved],
    }
    return _short(described)


def config_hash(model: Any) -> str:
    """Return a hash of the config, in which models with the same weights may differ."""
    text = json.dumps(_config(model.config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def tokenizer_name(tokenizer: Any) -> str:
    """Return the tokenizer's class, the size of its vocabulary, and a short hash of all its rules.

    The two tokenizers of a pair are joined by a plus sign.
    """
    if tokenizer is None:
        return "none"
    if isinstance(tokenizer, tuple | list):
        return "+".join(map(tokenizer_name, tokenizer))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        vocabulary = tokenizer.get_vocab()
        size = len(vocabulary)
        rules: Any = sorted(vocabulary.items(), key=lambda item: item[1])
    else:
        size, rules = backend.get_vocab_size(), _rules(backend)
    name = f"{type(tokenizer).__name__}/{size}"
    if rules is None:
        return f"{name}/unknown"
    return f"{name}/{_short([rules, tokenizer_state(tokenizer)])}"


def tokenizer_state(tokenizer: Any) -> Any:
    """Return what tells whether a tokenizer was changed, without reading its vocabulary."""
    if isinstance(tokenizer, tuple | list):
        return [tokenizer_state(each) for each in tokenizer]
    own = {k: v for k, v in getattr(tokenizer, "__dict__", {}).items() if not k.startswith("_")}
    small = {k: v for k, v in own.items() if isinstance(v, _SCALARS | list | tuple)}
    files = {name for name in small if name.endswith("_file")}
    state = [
        _attributes(small, _OF_FILES | files),
        describe(getattr(tokenizer, "special_tokens_map", None)),
    ]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        parts = (backend.normalizer, backend.pre_tokenizer, backend.post_processor)
        state += [_part(part) for part in parts]
        state += [backend.get_vocab_size(), str(backend.get_added_tokens_decoder())]
    return state


def _part(part: Any) -> str | None:
    """Describe a component of a tokenizer."""
    try:
        return None if part is None else part.__getstate__().decode()
    except Exception:  # as above
        return "unknown"


def _rules(backend: Any) -> str | None:
    """Return a hash of the vocabulary and all rules of a fast tokenizer; None if it has none.

    How long rows are cut and padded is left out, which is set anew for each call.
    """
    try:
        text: str = backend.to_str()
    except Exception:  # what tokenizers raises for parts that are written in Python
        return None
    rules = text[max(0, text.find('"added_tokens":')) :]
    return hashlib.sha256(rules.encode(errors="surrogatepass")).hexdigest()


# ---- any value as plain data

_SCALARS = bool | int | float | complex | str | bytes | None


def describe(value: Any, depth: int = 0) -> Any:
    """Return plain data that are equal for equal values, in every process."""
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, torch.dtype | torch.Size):
        return str(value)
    if isinstance(value, torch.device):
        return "device"  # the numbers are the same up to rounding
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, nn.Module):
        return _name_of(type(value))
    if depth > DEEPEST:
        return _name_of(type(value))
    inside = functools.partial(describe, depth=depth + 1)
    if isinstance(value, list | tuple):
        return [type(value).__name__, [inside(item) for item in value]]
    if isinstance(value, set | frozenset):
        return ["set", sorted(json.dumps(inside(item)) for item in value)]
    if isinstance(value, Mapping):
        return ["mapping", [[inside(key), inside(item)] for key, item in value.items()]]
    if isinstance(value, functools.partial):
        return ["partial", inside(value.func), inside(value.args), inside(value.keywords)]
    if hasattr(value, "to_dict") and hasattr(value, "sub_configs"):
        return inside(_config(value))
    if isinstance(value, type):
        return _name_of(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return _function(value, depth + 1)
    return [_name_of(type(value)), _attributes(getattr(value, "__dict__", {}), set(), depth + 1)]


def _attributes_of(module: nn.Module) -> Any:
    own = own_attributes(module)
    # transformers notes in private attributes of whole models how they were loaded.
    private = {n for n in own if n.startswith("_")} if hasattr(module, "save_pretrained") else set()
    return _attributes(own, _OF_LOADING | private)


def _attributes(values: Mapping[str, Any], without: set[str], depth: int = 0) -> Any:
    kept = sorted((name, value) for name, value in values.items() if name not in without)
    return [[name, describe(value, depth)] for name, value in kept]


def _config(config: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in config.to_dict().items()
        if not name.startswith("_") and name not in _NOT_COMPARED
    }


def _tensor(tensor: Tensor) -> Any:
    facts = [str(tensor.dtype), list(tensor.shape)]
    if tensor.device.type == "meta" or tensor.layout is not torch.strided:
        return [*facts, "unknown"]
    return [*facts, hashlib.sha256(bits_of(tensor).cpu().numpy().data).hexdigest()]


def _function(function: Callable[..., Any], depth: int) -> Any:
    """Describe a function by its code, its defaults and what it encloses."""
    inner: Any = getattr(function, "__func__", function)
    name = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', '')}"
    code = getattr(inner, "__code__", None)
    if code is None:
        return name
    cells = getattr(inner, "__closure__", None) or ()
    enclosed = [describe(_content(cell), depth + 1) for cell in cells]
    defaults = [describe(inner.__defaults__, depth), describe(inner.__kwdefaults__, depth)]
    return [name, _code(code), enclosed, defaults]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


def _code(code: Any) -> Any:
    constants = [
        _code(value) if hasattr(value, "co_code") else describe(value) for value in code.co_consts
    ]
    return [code.co_code.hex(), list(code.co_names), constants]


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _short(described: Any) -> str:
    text = json.dumps(described, sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGITS]
