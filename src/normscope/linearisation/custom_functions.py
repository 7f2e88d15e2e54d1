"""A model's own autograd functions and scripts, run as the torch functions that they consist of.

An autograd function has a backward pass of its own, which is a derivative and no rule of a method,
and a forward pass without gradients. Where a linearised network runs, only the forward pass is
called, in its function mode, and every torch function in it gets its rule. A function that
`torch.jit.script` compiled is called as the Python function that it was.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from normscope.foundation.interrupts import shielded

_OTHERS = ("torch.", "normscope.")  # their functions are derivatives that are meant as such
_LOCK = threading.Lock()
_USERS = [0]
_APPLY: Any = torch.autograd.Function.__dict__["apply"]


class _Context:
    """What a forward pass keeps for a backward pass that does not run."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (False,) * count

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None  # save_for_backward, mark_dirty, …


@shielded
def taken_apart(model: nn.Module, active: Callable[[], Any]) -> Iterator[None]:
    """Run functions of a model's own as what they consist of, in threads that are active.

    Args:
        model: the model, in whose Python modules compiled functions are replaced.
        active: returns whether a linearised network runs in the thread that asks.
    """
    scripts = list(_scripts(model))
    with _LOCK:
        for names, name, script in scripts:
            names[name] = functools.partial(_unscripted, active, script)
        _USERS[0] += 1
        if _USERS[0] == 1:
            apply = functools.partial(_applied, active)
            torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
    try:
        yield
    finally:
        with _LOCK:
            for names, name, script in scripts:
                names[name] = script
            _USERS[0] -= 1
            if not _USERS[0]:
                torch.autograd.Function.apply = _APPLY  # type: ignore[method-assign]


def _scripts(model: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield the compiled functions of the Python modules that a model's classes are in."""
    for home in {type(module).__module__ for module in model.modules()}:
        names = vars(sys.modules[home]) if home in sys.modules else {}
        for name, value in list(names.items()):
            compiled = isinstance(value, torch.jit.ScriptFunction)
            if compiled and hasattr(value, "_torchdynamo_inline"):
                yield names, name, value


def _unscripted(active: Callable[[], Any], script: Any, *args: Any, **kwargs: Any) -> Any:
    return (script._torchdynamo_inline if active() else script)(*args, **kwargs)


def _applied(active: Callable[[], Any], cls: Any, *args: Any, **kwargs: Any) -> Any:
    if not active() or f"{cls.__module__}.".startswith(_OTHERS):
        return _APPLY.__get__(None, cls)(*args, **kwargs)
    if cls.setup_context is not torch.autograd.Function.setup_context:
        return cls.forward(*args, **kwargs)
    return cls.forward(_Context(len(args)), *args, **kwargs)
