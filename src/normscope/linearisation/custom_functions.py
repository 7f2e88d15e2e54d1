"""Autograd functions of a model's own, run as the torch functions that they consist of.

Such a function has a backward pass of its own, which is a derivative and no rule of a method, and a
forward pass without gradients. Where a linearised network runs, only the forward pass is called, in
its function mode, and every torch function in it gets its rule.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

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
def taken_apart(active: Callable[[], Any]) -> Iterator[None]:
    """Run autograd functions of models as what they consist of, in threads that are active.

    Args:
        active: returns whether a linearised network runs in the thread that asks.
    """
    with _LOCK:
        _USERS[0] += 1
        if _USERS[0] == 1:
            apply = functools.partial(_applied, active)
            torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
    try:
        yield
    finally:
        with _LOCK:
            _USERS[0] -= 1
            if not _USERS[0]:
                torch.autograd.Function.apply = _APPLY  # type: ignore[method-assign]


def _applied(active: Callable[[], Any], cls: Any, *args: Any, **kwargs: Any) -> Any:
    if not active() or f"{cls.__module__}.".startswith(_OTHERS):
        return _APPLY.__get__(None, cls)(*args, **kwargs)
    if cls.setup_context is not torch.autograd.Function.setup_context:
        return cls.forward(*args, **kwargs)
    return cls.forward(_Context(len(args)), *args, **kwargs)
