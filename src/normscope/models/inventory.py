"""Find what matters in a model: its layer lists, attention modules, norms and linear maps."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import UnsupportedModelError
from normscope.foundation.caching import ModuleCache
from normscope.models.walk import ModuleTree, has, modules, named_modules

_TABLE = "ALL_ATTENTION_FUNCTIONS"  # what transformers' modules call their AttentionInterface


@dataclass(frozen=True)
class Location:
    """The path of a module and of the layer lists (outermost and innermost) around it."""

    name: str
    stack: str  # path of the outermost ModuleList around it
    element: str  # path of its element of the outermost list
    block: str  # path of its element of the innermost list


class Inventory:
    """The modules of a model that a capture needs; ``inventory[module]`` is their location.

    The search is made once for each model and repeated if its structure has changed.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        structure = ModuleTree(model)
        places, search = structure.places, search_of(model, structure)
        self.configs = search.configs(places)
        self.named = {path: places[at] for path, at in search.paths}
        self.locations = {places[at]: location for at, location in search.locations}
        self.linear = [places[at] for at in search.linear]
        self.pointwise = [places[at] for at in search.pointwise]
        self.norms = [places[at] for at in search.norms]
        self.attention = [places[at] for at in search.attention]
        self.handmade = [places[at] for at in search.handmade]
        self.blocks = {places[at] for at in search.blocks}
        self.elements = {places[at]: stack for at, stack in search.elements}
        self.bare = {places[at] for at in search.bare}
        self.owners = {places[at]: list(stacks) for at, stacks in search.owners}
        self.straight = {places[at] for at in search.straight}
        self._search, self._places = search, places

    def __getitem__(self, module: nn.Module) -> Location:
        return self.locations[module]

    def __contains__(self, module: nn.Module) -> bool:
        return module in self.locations

    @property
    def followed(self) -> bool:
        """Whether torch functions must be seen: attention by hand, or what acts on its heads."""
        attending = (m for m in self.attention if uses_interface(type(m)))
        by_hand = bool(self.handmade or self.bare)
        return by_hand or any(m not in self.straight for m in attending)

    def note_straight(self, module: nn.Module) -> None:
        """Note that the output of a module's heads goes straight into a linear projection."""
        if module not in self.straight:
            self.straight.add(module)
            self._search.straight.add(self._places.index(module))

    def described(self, module: nn.Module) -> str:
        """Return the path and the class of a module, for error messages."""
        return f"{self.locations[module].name} ({type(module).__name__})"


class Search:
    """What was found in a model, by place (an index in ``ModuleTree.places``).

    It does not refer to the model, so that it may be kept as long as the structure is the same.
    """

    def __init__(self, structure: ModuleTree) -> None:
        places = structure.places
        model = places[0]
        # Every module at its first place.
        index = {module: at for at, module in reversed(list(enumerate(places)))}
        named = dict(named_modules(model))
        lists = frozenset(name for name, m in named.items() if isinstance(m, nn.ModuleList))
        found: dict[nn.Module, Location] = {}
        for name, module in named.items():
            found.setdefault(module, _locate(name, lists))
        attending = [m for m in found if _is_attention(type(m))]
        attention = [m for m in attending if found[m].stack]
        stacks = {found[m].stack: None for m in attention}
        owners: dict[int, list[str]] = {}
        for stack in stacks:
            owners.setdefault(index[named[stack.rpartition(".")[0]]], []).append(stack)

        def at(listed: Iterable[nn.Module]) -> list[int]:
            return [index[module] for module in listed]

        self.paths = [(name, index[module]) for name, module in named.items()]
        self.locations = [(index[module], location) for module, location in found.items()]
        self.linear = at(m for m in found if is_linear(m))
        self.pointwise = at(m for m in found if is_pointwise(m))
        self.norms = at(m for m in found if "norm" in type(m).__name__.lower())
        self.attention = at(attention)
        self.blocks = list(dict.fromkeys(at(named[found[m].block] for m in attention)))
        self.elements = [(index[m], stack) for stack in stacks for m in named[stack].children()]
        self.owners = list(owners.items())  # the modules that hold stacks
        # Elements without attention, in lists where others have it: state spaces, convolutions.
        self.bare = [
            at
            for at, _ in self.elements
            if not any(_is_attention(type(part)) for part in modules(places[at]))
        ]
        # Innermost attention modules that do not call transformers' attention interface.
        self.handmade = at(
            m
            for m in attention
            if not uses_interface(type(m))
            and not any(_is_attention(type(child)) for child in modules(m) if child is not m)
        )
        self.straight: set[int] = set()  # attention modules whose heads go straight into W_O
        self._configured = at(m for m in found if has(m, "config"))
        self._classes = list({type(m) for m in found})
        # Apart from those of a compiled class, only modules with these attributes can
        # become compiled while the structure stays the same.
        own = {"forward", "_compiled_call_impl"}
        self._patched = any(_is_compiled(m) or not own.isdisjoint(vars(m)) for m in found)

    def configs(self, places: Sequence[nn.Module]) -> dict[int, Any]:
        """Return every configuration that a module may read, by its id."""
        configs: dict[int, Any] = {}
        waiting: list[Any] = [places[at].config for at in self._configured]
        while waiting:
            config = waiting.pop()
            if id(config) not in configs and hasattr(config, "_attn_implementation_internal"):
                configs[id(config)] = config
                waiting += [getattr(config, name, None) for name in config.sub_configs]
        return configs

    def compiled(self, places: Sequence[nn.Module]) -> str | None:
        """Return the path of the first module that is compiled, or None."""
        mark = "_torchdynamo_orig_callable"
        by_class = any(hasattr(getattr(cls, "forward", None), mark) for cls in self._classes)
        for path, at in self.paths if by_class or self._patched else ():
            if _is_compiled(places[at]):
                return path
        return None


_SEARCHES: ModuleCache[Search] = ModuleCache()


def search_of(model: nn.Module, structure: ModuleTree) -> Search:
    """Return what is found in a model of this structure; searched again only if that changes."""
    return _SEARCHES.get(model, structure.kept(), lambda: Search(structure))


def compiled_part(model: nn.Module) -> str | None:
    """Return the path of a compiled part of a model, "" for the model itself; None without one."""
    structure = ModuleTree(model)
    return search_of(model, structure).compiled(structure.places)


def _is_compiled(module: nn.Module) -> bool:
    return (
        "_orig_mod" in module._modules
        or module._compiled_call_impl is not None
        or hasattr(module.forward, "_torchdynamo_orig_callable")
        or isinstance(module, torch.jit.ScriptModule)
    )


def is_linear(module: nn.Module) -> bool:
    """Return whether a module looks like a linear map of its last axis.

    This covers torch's Linear, transformers' Conv1D and the modules that adapters and quantisers
    put in their place. Whether the map is really linear is checked when its weight is read.
    """
    sized = has(module, "in_features") and has(module, "out_features")
    return sized or is_conv1d(module)


def is_pointwise(module: nn.Module) -> bool:
    """Return whether a module is a convolution of one position: a linear map of its second axis."""
    return type(module) is nn.Conv1d and module.kernel_size == (1,) and module.stride == (1,)


def is_conv1d(module: nn.Module) -> bool:
    """Return whether a module is transformers' Conv1D: a linear map with a transposed weight."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


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
    structure = ModuleTree(model)
    return search_of(model, structure).configs(structure.places)


_CROSS_INPUTS = ("key_value_states", "encoder_hidden_states")
_CROSS_FLAGS = ("is_cross_attention", "encoder_decoder_attention")


def reads_other_states(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Tensor | None, bool]:
    """Return the input of an attention module, and whether it is a cross-attention."""
    parameters = _parameters_of(type(module).forward)
    named = {**dict(zip(parameters, args, strict=False)), **kwargs}
    # In the order of the signature: callers may name their arguments in any order.
    ordered = [named.get(parameter) for parameter in parameters]
    states = next((t for t in ordered if isinstance(t, Tensor)), None)
    cross = any(named.get(k) is not None for k in _CROSS_INPUTS) or any(
        getattr(module, flag, False) is True for flag in _CROSS_FLAGS
    )
    return states, cross


@functools.cache
def _parameters_of(method: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(method).parameters)[1:]  # without self
