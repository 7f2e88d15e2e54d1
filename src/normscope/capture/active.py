"""Which captures are open in the running thread, and which backward passes belong to them.

Recorders belong to a thread (a context variable). Hooks and the attention's name belong to the
model, are shared by all captures that are open on it, and look up the recorders of the thread
that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from normscope.capture.recorder import Recorder
from normscope.foundation.interrupts import shielded

ACTIVE: ContextVar[tuple[Recorder, ...]] = ContextVar("normscope_active", default=())
# While a CUDA graph of a batch without padding is recorded in this thread: the shapes of the masks
# that were looked at.
UNPADDED: ContextVar[frozenset[tuple[int, ...]] | None] = ContextVar(
    "normscope_unpadded", default=None
)


def active(condition: Callable[[Recorder], bool]) -> list[Recorder]:
    """Return the open recorders of the running thread for which ``condition`` is true."""
    return [recorder for recorder in ACTIVE.get() if recorder.open and condition(recorder)]


# Gradient checkpointing runs layers a second time in the backward pass, possibly in a thread of
# torch's own. They must then do what they did the first time, and are not recorded again. So the
# outputs of a recorded stack note the numbers of the backward passes that go through them.
_REPLAYS: set[int] = set()


def recomputing() -> bool:
    """Return whether a backward pass is running in this thread."""
    return torch._C._current_graph_task_id() != -1


def replaying() -> bool:
    """Return whether that backward pass goes through a recorded stack."""
    return torch._C._current_graph_task_id() in _REPLAYS


def note_replays(output: Any) -> None:
    """Have every tensor in a stack's output note the backward passes that reach it."""
    if isinstance(output, Tensor) and output.requires_grad:
        output.register_hook(lambda _: _REPLAYS.add(torch._C._current_graph_task_id()))
    elif isinstance(output, Mapping):
        note_replays(list(output.values()))
    elif isinstance(output, list | tuple):
        for part in output:
            note_replays(part)


def forget_replays() -> None:
    """Forget all backward passes; called when the last capture has closed."""
    _REPLAYS.clear()


@shielded
def unseen() -> Iterator[None]:
    """Let this thread run a model inside the context without any capture seeing it."""
    token = ACTIVE.set(())
    try:
        yield
    finally:
        ACTIVE.reset(token)


def left_to_model(recorders: list[Recorder]) -> bool:
    """Return whether plain attention is left to the model's own function.

    False while gradients are recorded: some calls may have to run eagerly, and a backward pass
    that recomputes layers must repeat exactly what they did.
    """
    return all(recorder.fused for recorder in recorders) and not torch.is_grad_enabled()
