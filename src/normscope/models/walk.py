"""Walk over a model's modules, faster than torch's own recursive generators.

For a hundred modules each of torch's walks takes as long as a small layer, and one analysis needs
several. What they find is therefore kept with a :class:`ModuleTree`, which tells whether it is
still right.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn


def named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return every path and the module there, the model first; a shared module has several."""
    named: list[tuple[str, nn.Module]] = []
    waiting = [("", model)]
    while waiting:
        path, module = waiting.pop()
        named.append((path, module))
        if module._modules:
            prefix = f"{path}." if path else ""
            inside = reversed(module._modules.items())
            waiting += [(prefix + name, child) for name, child in inside if child is not None]
    return named


def modules(model: nn.Module) -> list[nn.Module]:
    """Return every module once, the model itself first."""
    return list(dict.fromkeys(module for _, module in named_modules(model)))


def tensors(model: nn.Module) -> list[Tensor]:
    """Return every parameter and buffer, once."""
    listed: list[Tensor | None] = []
    for module in places(model):
        if parameters := module._parameters:
            listed += parameters.values()
        if buffers := module._buffers:
            listed += buffers.values()
    return list({id(tensor): tensor for tensor in listed if tensor is not None}.values())


def weights(model: nn.Module) -> list[Tensor]:
    """Return every parameter, and every buffer that is saved with them, once."""
    listed: dict[int, Tensor] = {}
    for module in places(model):
        if parameters := module._parameters:
            listed.update((id(t), t) for t in parameters.values() if t is not None)
        if buffers := module._buffers:
            passing = module._non_persistent_buffers_set
            kept = (t for name, t in buffers.items() if t is not None and name not in passing)
            listed.update((id(t), t) for t in kept)
    return list(listed.values())


def places(model: nn.Module) -> list[nn.Module]:
    """Return the module at every place of the tree, parents first; a shared one several times.

    This is the fastest of the walks; it does not collect the paths.
    """
    listed = [model]
    for module in listed:  # grows while it is read
        if children := module._modules:
            listed += [child for child in children.values() if child is not None]
    return listed


class ModuleTree:
    """The tree of a model's modules at one moment.

    Two trees are equal as long as no module was replaced, added, removed or renamed, changed
    its class, or gained or lost an attribute. A tree refers to the modules weakly, so that it
    may be kept in a cache: the id of a module that was replaced may be used again, but a weak
    reference to it never equals another.

    Attributes:
        places: the module at every place; not kept, see :meth:`kept`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.places: list[nn.Module] = [model]
        names: list[tuple[Any, ...]] = []  # of the children, for the modules that have any
        for index, module in enumerate(self.places):  # as in places()
            if children := module._modules:
                names.append((index, *children.keys()))
                self.places += [child for child in children.values() if child is not None]
        self._state: tuple[Any, ...] = (
            list(map(weakref.ref, self.places)),
            list(map(type, self.places)),
            names,
            list(map(len, map(vars, self.places))),
        )

    def kept(self) -> ModuleTree:
        """Return the same tree without strong references, for a cache."""
        kept = object.__new__(ModuleTree)
        kept.places, kept._state = [], self._state
        return kept

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModuleTree) and self._state == other._state

    __hash__ = None  # type: ignore[assignment]


def has(module: nn.Module, name: str) -> bool:
    """Return whether a module has an attribute or a submodule; parameters and buffers not included.

    Unlike hasattr it is fast for attributes that are missing.
    """
    cls = type(module)
    if name in vars(module) or hasattr(cls, name):
        return True
    plain = cls.__getattr__ is nn.Module.__getattr__
    return name in module._modules if plain else hasattr(module, name)
