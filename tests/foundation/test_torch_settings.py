"""Settings of torch are restored by value, whatever contexts were never left."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import BaseTorchFunctionMode, _pop_mode_temporarily
from torch.utils._python_dispatch import BaseTorchDispatchMode

from normscope.foundation.torch_settings import (
    LeavableMode,
    torch_settings,
    torch_settings_kept,
    without_grad,
)


class Mode(LeavableMode, BaseTorchFunctionMode):
    """A mode that does nothing."""


CONTEXTS: dict[str, Any] = {
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu"),
    "function mode": BaseTorchFunctionMode,
    "dispatch mode": BaseTorchDispatchMode,
    "hooks": lambda: saved_tensors_hooks(torch.clone, torch.clone),
    "dual level": forward_ad.dual_level,
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_contexts_that_were_never_left_are_undone(name: str) -> None:
    before = torch_settings()
    with torch_settings_kept():
        for _ in range(1 if name == "dual level" else 2):  # which cannot be nested
            CONTEXTS[name]().__enter__()
        assert torch_settings() != before
    assert torch_settings() == before


@pytest.mark.parametrize("name", CONTEXTS)
def test_contexts_around_stay(name: str) -> None:
    with CONTEXTS[name]():
        before = torch_settings()
        with torch_settings_kept():
            torch.autocast("cpu", enabled=False).__enter__()
            torch.enable_grad().__enter__()
        assert torch_settings() == before


def test_a_mode_that_torch_has_lost_is_put_back() -> None:
    """torch takes the innermost mode away while it calls a function, and may be interrupted."""
    with BaseTorchFunctionMode(), Mode():
        before = torch_settings()
        with torch_settings_kept():
            torch._C._pop_torch_function_stack()
        assert torch_settings() == before
    with Mode():
        torch._C._pop_torch_function_stack()


def test_generators_that_were_not_resumed_do_not_end_later() -> None:
    """torch puts a mode back when its generator is closed, which may be long after an interrupt."""
    before = torch_settings()
    caught: list[BaseException] = []
    try:
        with torch_settings_kept(), Mode():
            manager: Any = _pop_mode_temporarily()
            manager.__enter__()
            _interrupted_exit(manager)
    except KeyboardInterrupt as error:
        caught.append(error)
    assert torch_settings() == before
    caught.clear()
    del manager
    gc.collect()
    assert torch_settings() == before


def _interrupted_exit(manager: Any) -> None:
    """Have the interrupt come when `__exit__` has been called, and has not begun."""

    def press(frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code is type(manager).__exit__.__code__:
            raise KeyboardInterrupt

    sys.settrace(press)
    try:
        manager.__exit__(None, None, None)
    finally:
        sys.settrace(None)


def test_without_grad() -> None:
    @without_grad
    def enabled() -> bool:
        """Whether gradients are recorded."""
        return torch.is_grad_enabled()

    assert not enabled()
    assert torch.is_grad_enabled()
    assert enabled.__doc__
