"""Walks over a model's modules.

torch's own are recursive generators: at a hundred modules each costs as much as a small layer, and
one analysis needs several.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


def named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every path and the module there, the model itself first; a shared module has several."""
    found: list[tuple[str, nn.Module]] = []
    todo = [("", model)]
    while todo:
        here = todo.pop()
        found.append(here)
        children = here[1]._modules
        if children:
            prefix = f"{here[0]}." if here[0] else ""
            inside = reversed(children.items())
            todo += [(prefix + name, child) for name, child in inside if child is not None]
    return found


def modules(model: nn.Module) -> list[nn.Module]:
    """Every module once, the model itself first."""
    return list(dict.fromkeys(module for _, module in named_modules(model)))


def tensors(model: nn.Module) -> Iterator[Tensor]:
    """Every parameter and buffer, once."""
    seen: set[int] = set()
    for module in modules(model):
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor


def has(module: nn.Module, name: str) -> bool:
    """Like hasattr, for what is set in ``__init__`` or by the class: torch's is slow to say no."""
    cls = type(module)
    if name in vars(module) or hasattr(cls, name):
        return True
    plain = cls.__getattr__ is nn.Module.__getattr__
    return name in module._modules if plain else hasattr(module, name)
