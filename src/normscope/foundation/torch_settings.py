"""Settings of torch that belong to the running thread, restored by their values.

torch's own contexts (``no_grad``, ``autocast``, function modes) can be interrupted between the end
of their block and the first line of their ``__exit__``, also those that a model enters by itself.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator
from contextlib import _GeneratorContextManager, suppress
from typing import Any, ParamSpec, TypeVar

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from normscope.foundation.interrupts import shielded

Returned = TypeVar("Returned")
CallArguments = ParamSpec("CallArguments")

_manager: Any = _GeneratorContextManager
_GENERATED = (_manager.__enter__.__code__, _manager.__exit__.__code__)

_private: Any = torch._C  # mypy does not know all of its functions


@shielded
def torch_settings_kept() -> Iterator[None]:
    """Restore when the context ends what torch's contexts have set in this thread.

    These are gradients, autocast, function and dispatch modes, hooks of saved tensors and the
    level of forward-mode differentiation.
    """
    before = torch_settings()
    try:
        yield
    except BaseException as error:
        _close_contexts(error)
        raise
    finally:
        _restore(before)


class LeavableMode(TorchFunctionMode):
    """A function mode that is left without an error if an interrupt in torch has lost it."""

    def __exit__(self, *exception: Any) -> None:
        if _function_modes():
            super().__exit__(*exception)


def without_grad(function: Callable[CallArguments, Returned]) -> Callable[CallArguments, Returned]:
    """Make a function record no gradients."""

    @functools.wraps(function)
    def call(*args: CallArguments.args, **kwargs: CallArguments.kwargs) -> Returned:
        with _no_grad():
            return function(*args, **kwargs)

    return call


@shielded
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def torch_settings() -> dict[str, Any]:
    """Return the settings of this thread, by name."""
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": tuple(
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in ("cpu", "cuda")
        ),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "autocast nesting": nesting,
        "torch functions": _private._is_torch_function_enabled(),
        "function modes": _function_modes(),
        "dispatch modes": _private._len_torch_dispatch_stack(),
        "saved tensor hooks": _private._autograd._top_saved_tensors_default_hooks(True),
        "dual level": forward_ad._current_level,
    }


def _close_contexts(error: BaseException) -> None:
    """Close the contexts that an interrupt kept from ending, or they end with the traceback.

    They are generators, such as the one with which torch takes a mode away and puts it back.
    """
    seen: BaseException | None = error
    while seen is not None:
        frames = [frame for frame, _ in traceback.walk_tb(seen.__traceback__)]
        for frame in reversed(frames):
            if frame.f_code in _GENERATED:
                with suppress(Exception):
                    frame.f_locals["self"].gen.close()
        seen = seen.__context__


def _function_modes() -> tuple[Any, ...]:
    count = _private._len_torch_function_stack()
    return tuple(_private._get_function_stack_at(at) for at in range(count))


def _restore(before: dict[str, Any]) -> None:
    """Set what differs; inference mode can only be left by the context that has entered it."""
    while forward_ad._current_level > before["dual level"]:
        forward_ad.exit_dual_level()
    hooks = _private._autograd
    while (top := hooks._top_saved_tensors_default_hooks(True)) != before["saved tensor hooks"]:
        if top is None:
            break
        hooks._pop_saved_tensors_default_hooks()
    while _private._len_torch_dispatch_stack() > before["dispatch modes"]:
        _private._pop_torch_dispatch_stack(None)
    modes = before["function modes"]
    while (present := _function_modes()) != modes[: len(present)]:
        _private._pop_torch_function_stack()
    for mode in modes[len(present) :]:  # torch takes the innermost away while it calls a function
        _private._push_on_torch_function_stack(mode)
    for kind, enabled, dtype in before["autocast"]:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(before["autocast cache"])
    while torch.autocast_increment_nesting() - 1 > before["autocast nesting"]:
        torch.autocast_decrement_nesting()
        torch.autocast_decrement_nesting()
    torch.autocast_decrement_nesting()
    torch.set_grad_enabled(before["grad mode"])
