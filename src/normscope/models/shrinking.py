"""Small models of every type that transformers has, made from their default configurations.

A default configuration is built again with smaller numbers: those of `sizes.SIZES` by the name of
an attribute, in it and in the configurations inside it, and those of `sizes.EXCEPTIONS` by type.
What the configuration derives from its numbers it derives again.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from normscope.models.architectures import randomize_
from normscope.models.sizes import EXCEPTIONS, KEPT, PREFERRED, SINGLE, SIZES, TOKENS


def model_types() -> tuple[str, ...]:
    """Return the names of all model types of the installed transformers."""
    from transformers import CONFIG_MAPPING

    return tuple(CONFIG_MAPPING.keys())


def model_class(model_type: str) -> type[nn.Module] | None:
    """Return the class that is built for a type, or None for a part of other types.

    That is the base model, and where a type has none, the model with a head.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    found = {name for name in vars(modeling_auto) if re.fullmatch("MODEL_.*_NAMES", name)}
    for mapping in [*PREFERRED, *sorted(found.difference(PREFERRED))]:
        name = getattr(modeling_auto, mapping, {}).get(model_type)
        if name is not None:
            name = name if isinstance(name, str) else name[0]
            cls: type[nn.Module] | None = getattr(transformers, name, None)
            return cls or _hidden(model_type, name)
    return None


def _hidden(model_type: str, name: str) -> type[nn.Module]:
    """Return a class that transformers does not export at its top."""
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type].__module__
    module = __import__(config.replace("configuration_", "modeling_"), fromlist=[name])
    cls: type[nn.Module] = getattr(module, name)
    return cls


def shrunken_config(model_type: str) -> Any:
    """Return a small configuration of a type."""
    from transformers import CONFIG_MAPPING

    cls = CONFIG_MAPPING[model_type]
    exceptions = EXCEPTIONS.get(model_type, {})
    try:
        default = cls()
    except Exception:  # one that needs arguments has them as exceptions
        default = cls(**copy.deepcopy(_own(exceptions)))
    config = _shrunken(default, exceptions)
    # The faster implementations of experts do not support float64.
    config._experts_implementation = "eager"
    return config


def shrunken_model(model_type: str, *, seed: int = 0) -> Any:
    """Build the small model of a type in eval mode, every parameter random (see `randomize_`).

    It computes in float64, but for the types of `sizes.SINGLE`.
    """
    cls: Any = model_class(model_type)
    config = shrunken_config(model_type)
    with torch.random.fork_rng(devices=[]):  # transformers initialises from the global generator
        torch.manual_seed(seed)
        model: Any = cls(config)
    module: nn.Module = model  # the type hints of nn.Module are the more precise ones
    module.to(torch.float32 if model_type in SINGLE else torch.float64).eval()
    randomize_(model, seed)
    return model


def _own(exceptions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the exceptions for a configuration itself, not for those inside it."""
    return {name: value for name, value in exceptions.items() if "." not in name}


def _shrunken(config: Any, exceptions: Mapping[str, Any]) -> Any:
    """Build a configuration again with smaller numbers."""
    from transformers import PreTrainedConfig

    cls = type(config)
    plain, defaults = _plain(cls), _defaults(cls)
    layers = _layers(config)
    arguments: dict[str, Any] = {}
    for name, value in vars(config).items():
        if name.startswith("_") or name in KEPT:
            continue
        if isinstance(value, PreTrainedConfig):
            prefix = f"{name}."
            inside = {k[len(prefix) :]: v for k, v in exceptions.items() if k.startswith(prefix)}
            inside = {**EXCEPTIONS.get(value.model_type, {}), **inside}
            arguments[name] = _shrunken(value, inside)
            continue
        given = name not in plain or not _equal(value, plain[name])
        if isinstance(value, list | tuple) and len(value) == layers.depth and name in defaults:
            arguments[name] = layers.chosen(value)
        elif given or defaults.get(name) is not None:  # otherwise it is derived
            small = _small(name, value, config)
            if name == layers.name:
                small = layers.count
            if small is not None or given:
                arguments[name] = value if small is None else small
    return cls(**{**arguments, **copy.deepcopy(_own(exceptions))})


def _plain(cls: type) -> dict[str, Any]:
    try:
        return vars(cls())
    except Exception:
        return {}


def _equal(first: Any, second: Any) -> bool:
    return type(first) is type(second) and bool(first == second)


def _defaults(cls: type) -> dict[str, Any]:
    """Return the defaults of a configuration's arguments; None for those that are derived."""
    if not dataclasses.is_dataclass(cls):
        return {n: p.default for n, p in inspect.signature(cls).parameters.items()}
    defaults = {}
    for field in dataclasses.fields(cls):
        missing = field.default is dataclasses.MISSING
        factory = field.default_factory
        made = None if factory is dataclasses.MISSING else factory()
        defaults[field.name] = made if missing else field.default
    return defaults


@dataclasses.dataclass(frozen=True)
class _Layers:
    """Which layers of a configuration are kept: one of each kind, and at least two.

    Attributes:
        name: the attribute with their number.
        depth: their number; -1 where there is none.
        kept: the indices of those that are kept.
    """

    name: str
    depth: int
    kept: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of layers that are kept."""
        return len(self.kept)

    def chosen(self, values: Sequence[Any]) -> Any:
        """Return the values of the layers that are kept."""
        return type(values)([values[index] for index in self.kept])  # type: ignore[call-arg]


def _layers(config: Any) -> _Layers:
    names = ("num_hidden_layers", "n_layers", "num_layers")
    name = next((n for n in names if isinstance(vars(config).get(n), int)), "")
    depth = vars(config).get(name, -1)
    if depth < 3:
        return _Layers("", -1, ())
    lists = [v for v in vars(config).values() if isinstance(v, list | tuple) and len(v) == depth]
    kinds = [str(kind) for kind in zip(*lists, strict=True)]
    kept = sorted({kinds.index(kind) for kind in kinds})[:4] or [0]
    if len(kept) < 2:
        kept = [0, 1]
    return _Layers(name, depth, tuple(kept))


def _small(name: str, value: Any, config: Any) -> Any:
    """Return the small number for an attribute, or None to leave it as it is."""
    if isinstance(value, bool) or value is None:
        return None
    if name in TOKENS:
        return [TOKENS[name]] if isinstance(value, list) else TOKENS[name]
    for pattern, small in SIZES:
        if re.fullmatch(pattern, name):
            if isinstance(value, int) and value > 0:
                return min(small, value) if isinstance(small, int) else small(value, config)
            return None
    return None
