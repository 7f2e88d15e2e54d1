"""Small models of every model type that transformers has, made from their default configurations."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from normscope.models.architectures import randomize_
from normscope.models.sizes import EXCEPTIONS, KEPT, SIZES, TOKENS


def tiny_config(model_type: str) -> Any:
    from transformers import CONFIG_MAPPING

    cls = CONFIG_MAPPING[model_type]
    exceptions = dict(EXCEPTIONS.get(model_type, {}))
    return _shrunk(cls(), exceptions)


def _shrunk(config: Any, exceptions: Mapping[str, Any]) -> Any:
    cls = type(config)
    own = {k: v for k, v in exceptions.items() if "." not in k}
    arguments = {**_arguments(config, exceptions), **copy.deepcopy(own)}
    small = cls(**arguments)
    small._experts_implementation = "eager"
    return small


def _arguments(config: Any, exceptions: Mapping[str, Any]) -> dict[str, Any]:
    from transformers import PreTrainedConfig

    cls = type(config)
    try:
        plain: Any = vars(cls())
    except Exception:
        plain = {}
    defaults = _defaults(cls)
    depth = _depth(config)
    arguments: dict[str, Any] = {}
    for name, value in vars(config).items():
        if name.startswith("_") or name in KEPT or name == "model_type":
            continue
        if isinstance(value, PreTrainedConfig):
            inner = {
                k.removeprefix(f"{name}."): v
                for k, v in exceptions.items()
                if k.startswith(f"{name}.")
            }
            inner = {**EXCEPTIONS.get(value.model_type, {}), **inner}
            arguments[name] = _shrunk(value, inner)
            continue
        derived = name not in defaults or defaults[name] is None
        given = name not in plain or not _same(value, plain[name])
        if derived and not given:
            continue
        small = _small(name, value, depth)
        if small is not None:
            arguments[name] = small
        elif given:
            arguments[name] = value
    return arguments


def _same(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:
        return False


def _defaults(cls: type) -> dict[str, Any]:
    if dataclasses.is_dataclass(cls):
        return {
            f.name: f.default
            if f.default is not dataclasses.MISSING
            else (f.default_factory() if f.default_factory is not dataclasses.MISSING else None)
            for f in dataclasses.fields(cls)
        }
    return {n: p.default for n, p in inspect.signature(cls).parameters.items()}


def _depth(config: Any) -> int | None:
    for name in ("num_hidden_layers", "n_layers", "num_layers"):
        try:
            value = getattr(config, name, None)
        except Exception:
            continue
        if isinstance(value, int):
            return value
    return None


def _small(name: str, value: Any, depth: int | None) -> Any:
    """Return the small value of an attribute, or None to leave it alone."""
    if isinstance(value, bool):
        return None
    if name in TOKENS:
        return (
            None if value is None else ([TOKENS[name]] if isinstance(value, list) else TOKENS[name])
        )
    if isinstance(value, Mapping) and "mrope_section" in value:
        return {**value, "mrope_section": [2, 3, 3] if len(value["mrope_section"]) == 3 else [4, 4]}
    if isinstance(value, list | tuple) and depth is not None and len(value) == depth > 4:
        return _pick(value)
    for pattern, small in SIZES:
        if re.fullmatch(pattern, name):
            if isinstance(value, int):
                if isinstance(small, int):
                    return min(small, value) if value > 0 else None
                return small(value)
            return None
    return None


def _pick(values: Any) -> Any:
    """Shorten a list with an entry for each layer to 2, of different kinds if there are."""
    kinds: list[Any] = []
    for value in values:
        if value not in kinds:
            kinds.append(value)
    first = values[0]
    second = next((v for v in values if v != first), first)
    return type(values)([first, second])


def tiny_of(model_type: str, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Any:
    cls = model_class(model_type)
    config = tiny_config(model_type)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = cls(config)
    module: nn.Module = model
    module.to(dtype).eval()
    randomize_(model, seed)
    return model


MAPPINGS = (
    "MODEL_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "MODEL_FOR_PRETRAINING_MAPPING",
    "MODEL_FOR_MASKED_LM_MAPPING",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING",
    "MODEL_FOR_BACKBONE_MAPPING",
)


def model_class(model_type: str) -> Any:
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    config = CONFIG_MAPPING[model_type]
    for name in dir(modeling_auto):
        pass
    ordered = list(MAPPINGS) + sorted(
        n for n in vars(modeling_auto) if n.endswith("_MAPPING") and n not in MAPPINGS
    )
    for name in ordered:
        mapping = getattr(modeling_auto, name, {})
        names = getattr(modeling_auto, f"{name}_NAMES", {})
        if model_type in names:
            import transformers

            found = names[model_type]
            found = found if isinstance(found, str) else found[0]
            try:
                return mapping[config]
            except KeyError:
                return getattr(transformers, found)
    return None
