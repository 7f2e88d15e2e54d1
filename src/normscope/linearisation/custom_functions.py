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
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from normscope.foundation.interrupts import shielded

_OTHERS = ("torch.", "normscope.")  # their functions are derivatives that are meant as such
_LOCK = threading.Lock()
_USERS: Counter[Any] = Counter()  # of the classes and scripts that are replaced


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
        model: the model, in whose Python modules such functions are replaced.
        active: returns whether a linearised network runs in the thread that asks.
    """
    with _LOCK:
        found = list(_functions(model))
        for names, name, value in found:
            _USERS[value] += 1
            if isinstance(value, type):
                value.apply = classmethod(functools.partial(_applied, active))  # type: ignore[attr-defined]
            else:
                names[name] = functools.partial(_unscripted, active, value)
    try:
        yield
    finally:
        with _LOCK:
            for names, name, value in found:
                _USERS[value] -= 1
                if _USERS[value]:
                    continue
                del _USERS[value]
                if isinstance(value, type):
                    del value.apply  # type: ignore[attr-defined]
                else:
                    names[name] = value


def _functions(model: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield autograd functions and compiled ones of the Python modules of a model's classes.

    A function that is replaced already is yielded as what it was.
    """
    for home in {type(module).__module__ for module in model.modules()}:
        names = vars(sys.modules[home]) if home in sys.modules else {}
        for name, value in list(names.items()):
            if isinstance(value, functools.partial) and value.func is _unscripted:
                yield names, name, value.args[1]
            elif isinstance(value, torch.jit.ScriptFunction):
                if hasattr(value, "_torchdynamo_inline"):
                    yield names, name, value
            elif isinstance(value, type) and issubclass(value, torch.autograd.Function):
                own = not f"{value.__module__}.".startswith(_OTHERS)
                if own and ("apply" not in vars(value) or value in _USERS):
                    yield names, name, value


def _unscripted(active: Callable[[], Any], script: Any, *args: Any, **kwargs: Any) -> Any:
    return (script._torchdynamo_inline if active() else script)(*args, **kwargs)


def _applied(active: Callable[[], Any], cls: Any, *args: Any, **kwargs: Any) -> Any:
    if not active():
        return torch.autograd.Function.apply.__func__(cls, *args, **kwargs)  # type: ignore[attr-defined]
    if cls.setup_context is not torch.autograd.Function.setup_context:
        return cls.forward(*args, **kwargs)
    return cls.forward(_Context(len(args)), *args, **kwargs)
