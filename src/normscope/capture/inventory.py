"""Find what matters in a model: its layer lists, attention modules, norms and linear maps."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from normscope.capture.projection import is_linear
from normscope.errors import UnsupportedModelError
from normscope.models.walk import has, modules, named_modules

_TABLE = "ALL_ATTENTION_FUNCTIONS"  # what transformers' modules call their AttentionInterface


@dataclass(frozen=True)
class Location:
    """The path of a module and of the layer lists (outermost and innermost) around it."""

    name: str
    stack: str  # path of the outermost ModuleList around it
    element: str  # path of its element of the outermost list
    block: str  # path of its element of the innermost list


class Inventory:
    """The modules of a model that a capture needs; ``inventory[module]`` is their location."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.configs = configs_of(model)
        self.named = named = dict(named_modules(model))
        lists = frozenset(name for name, m in named.items() if isinstance(m, nn.ModuleList))
        self.locations: dict[nn.Module, Location] = {}
        for name, module in named.items():
            self.locations.setdefault(module, _locate(name, lists))
        attending = [m for m in self.locations if _is_attention(type(m))]
        stacks = {self.locations[m].stack for m in attending if self.locations[m].stack}
        self.linear = [m for m in self.locations if is_linear(m)]
        self.norms = [m for m in self.locations if "norm" in type(m).__name__.lower()]
        self.attention = [m for m in attending if self.locations[m].stack]
        self.blocks = {named[self.locations[m].block] for m in self.attention}
        self.elements = {child: stack for stack in stacks for child in named[stack].children()}
        self.owners: dict[nn.Module, list[str]] = {}  # the modules that hold stacks
        for stack in stacks:
            self.owners.setdefault(named[stack.rpartition(".")[0]], []).append(stack)
        # Innermost attention modules that do not call transformers' attention interface.
        self.handmade = [
            m
            for m in self.attention
            if not uses_interface(type(m))
            and not any(_is_attention(type(child)) for child in modules(m) if child is not m)
        ]

    def __getitem__(self, module: nn.Module) -> Location:
        return self.locations[module]

    def __contains__(self, module: nn.Module) -> bool:
        return module in self.locations

    def described(self, module: nn.Module) -> str:
        """Return the path and the class of a module, for error messages."""
        return f"{self.locations[module].name} ({type(module).__name__})"


@functools.lru_cache(2**14)
def _locate(name: str, lists: frozenset[str]) -> Location:
    parts = name.split(".")
    inside = [i for i in range(1, len(parts)) if ".".join(parts[:i]) in lists]
    if not inside:
        return Location(name, "", "", "")
    outer, inner = inside[0], inside[-1]
    return Location(
        name, ".".join(parts[:outer]), ".".join(parts[: outer + 1]), ".".join(parts[: inner + 1])
    )


def _is_attention(cls: type) -> bool:
    return "attention" in cls.__name__.lower() or uses_interface(cls)


@functools.cache
def _functions(cls: type) -> tuple[Any, ...]:
    """The plain functions of a class and its bases, without decorators.

    Those of transformers' common base classes are left out: they mention every kind of attention.
    """
    bases = [
        base
        for base in cls.__mro__
        if base.__module__ not in ("transformers.modeling_utils", "builtins")
    ]
    members = (member for base in bases if base is not nn.Module for member in vars(base).values())
    functions = (inspect.unwrap(member) for member in members if callable(member))
    return tuple(function for function in functions if inspect.isfunction(function))


@functools.cache
def _names(cls: type) -> frozenset[str]:
    """Every global and attribute that the functions of a class mention."""
    functions = _functions(cls)
    return frozenset(name for function in functions for name in function.__code__.co_names)


def uses_interface(cls: type) -> bool:
    """Return whether a module class calls transformers' attention interface."""
    return _TABLE in _names(cls)


def attention_of(module: nn.Module) -> tuple[Any, Callable[..., tuple[Tensor, Tensor | None]]]:
    """Return the table of attention functions that a module reads, and its eager function."""
    cls: type = type(module)
    return _attention_of(cls)


@functools.cache
def _attention_of(cls: type) -> tuple[Any, Callable[..., tuple[Tensor, Tensor | None]]]:
    for function in _functions(cls):
        code, scope = function.__code__, function.__globals__
        if _TABLE in code.co_names:
            names = [n for n in code.co_names if "eager" in n and callable(scope.get(n))]
            if len(names) == 1:
                return scope[_TABLE], scope[names[0]]
    raise UnsupportedModelError(
        f"{cls.__name__} does not name exactly one eager attention function, so its attention "
        "weights cannot be computed"
    )


def configs_of(model: nn.Module) -> dict[int, Any]:
    """Return every configuration that a module of the model may read, by its id."""
    configs: dict[int, Any] = {}
    waiting: list[Any] = [m.config for m in modules(model) if has(m, "config")]
    while waiting:
        config = waiting.pop()
        if id(config) not in configs and hasattr(config, "_attn_implementation_internal"):
            configs[id(config)] = config
            waiting += [getattr(config, name, None) for name in config.sub_configs]
    return configs
