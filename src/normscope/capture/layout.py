"""Where things are in a model: its layer lists, attention modules, norms and linear maps."""

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
class Place:
    """Where a module stands: its path, and the layer list (outermost and innermost) around it."""

    name: str
    stack: str  # path of the outermost ModuleList around it
    element: str  # path of its element of the outermost list
    block: str  # path of its element of the innermost list


class Layout:
    """The modules of a model that matter here, found once per installation."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.configs = configs_of(model)
        self.named = named = dict(named_modules(model))
        lists = frozenset(name for name, m in named.items() if isinstance(m, nn.ModuleList))
        self.places: dict[nn.Module, Place] = {}
        for name, module in named.items():
            self.places.setdefault(module, _place(name, lists))
        attending = [m for m in self.places if _is_attention(type(m))]
        stacks = {self.places[m].stack for m in attending if self.places[m].stack}
        self.linear = [m for m in self.places if is_linear(m)]
        self.norms = [m for m in self.places if "norm" in type(m).__name__.lower()]
        self.attention = [m for m in attending if self.places[m].stack]
        self.blocks = {named[self.places[m].block] for m in self.attention}
        self.elements = {child: stack for stack in stacks for child in named[stack].children()}
        self.owners: dict[nn.Module, list[str]] = {}
        for stack in stacks:
            self.owners.setdefault(named[stack.rpartition(".")[0]], []).append(stack)
        # Attention written out by hand: innermost, and never asking for the interface.
        self.handmade = [
            m
            for m in self.attention
            if not uses_interface(type(m))
            and not any(_is_attention(type(child)) for child in modules(m) if child is not m)
        ]

    def __getitem__(self, module: nn.Module) -> Place:
        return self.places[module]

    def __contains__(self, module: nn.Module) -> bool:
        return module in self.places


@functools.lru_cache(2**14)
def _place(name: str, lists: frozenset[str]) -> Place:
    parts = name.split(".")
    inside = [i for i in range(1, len(parts)) if ".".join(parts[:i]) in lists]
    if not inside:
        return Place(name, "", "", "")
    outer, inner = inside[0], inside[-1]
    return Place(
        name, ".".join(parts[:outer]), ".".join(parts[: outer + 1]), ".".join(parts[: inner + 1])
    )


def _is_attention(cls: type) -> bool:
    return "attention" in cls.__name__.lower() or uses_interface(cls)


@functools.cache
def _functions(cls: type) -> tuple[Any, ...]:
    """The plain functions of a class and its bases, decorators taken off.

    Not those of the library's common base classes, which speak of every attention there is.
    """
    own = [
        b for b in cls.__mro__ if b.__module__ not in ("transformers.modeling_utils", "builtins")
    ]
    found = (f for base in own if base is not nn.Module for f in vars(base).values())
    plain = (inspect.unwrap(f) for f in found if callable(f))
    return tuple(f for f in plain if inspect.isfunction(f))


@functools.cache
def _names(cls: type) -> frozenset[str]:
    """Every global and attribute that the functions of a class mention."""
    functions = _functions(cls)
    return frozenset(name for function in functions for name in function.__code__.co_names)


def uses_interface(cls: type) -> bool:
    """Whether a module class asks transformers' attention interface for its function."""
    return _TABLE in _names(cls)


def attention_of(module: nn.Module) -> tuple[Any, Callable[..., tuple[Tensor, Tensor | None]]]:
    """The table of attention functions that a module reads, and the eager one it falls back on."""
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
        f"{cls.__name__} does not name one eager attention function to fall back on, so its "
        "attention weights cannot be had"
    )


def configs_of(model: nn.Module) -> dict[int, Any]:
    """Every configuration that a module of the model may read, by its id."""
    found: dict[int, Any] = {}
    todo: list[Any] = [m.config for m in modules(model) if has(m, "config")]
    while todo:
        config = todo.pop()
        if id(config) not in found and hasattr(config, "_attn_implementation_internal"):
            found[id(config)] = config
            todo += [getattr(config, name, None) for name in config.sub_configs]
    return found
