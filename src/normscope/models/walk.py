"""Walk over a model's modules, faster than torch's own recursive generators.

For a hundred modules each of torch's walks takes as long as a small layer, and one analysis needs
several.
"""

from __future__ import annotations

from collections.abc import Iterator

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


def tensors(model: nn.Module) -> Iterator[Tensor]:
    """Iterate over every parameter and buffer, once."""
    seen: set[int] = set()
    for module in modules(model):
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor


def has(module: nn.Module, name: str) -> bool:
    """Return whether a module has an attribute or a submodule; parameters and buffers not included.

    Unlike hasattr it is fast for attributes that are missing.
    """
    cls = type(module)
    if name in vars(module) or hasattr(cls, name):
        return True
    plain = cls.__getattr__ is nn.Module.__getattr__
    return name in module._modules if plain else hasattr(module, name)
