"""CUDA graphs of a model, kept from one call to the next.

A recorded graph repeats the kernels of one pass on the same memory, and none of the Python code
around them. It is replayed only while all that the code depended on is the same: the modules, their
attributes, the configuration, the place and version of every tensor
(:class:`~normscope.results.state.ModelState`), torch's own settings (:func:`settings`), and the
shapes of the inputs.

Nothing that is kept refers to the model, so that it is freed with its graphs when it is deleted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from normscope.capture.active import ACTIVE
from normscope.engine.passes import RecordedPass
from normscope.foundation.interrupts import shielded
from normscope.results.state import ModelState

SEEN = 2  # batches of a shape that run normally before it is recorded
KEPT = 32  # graphs of one model that are kept; the least recently used are dropped
SHARE = 8  # those of one model may use this part of a GPU's memory: 1/8
COUNTED = 256  # shapes whose batches are counted


class Recordings:
    """The graphs of one model, by what their batches have in common."""

    def __init__(self, kept: int | None = None) -> None:
        self.kept = kept  # None: no limit
        self.lock = threading.RLock()  # held while a graph is filled, replayed and read
        self.state: ModelState | None = None
        self.sums: object = None
        self.seen: OrderedDict[Hashable, int] = OrderedDict()
        # None: this shape cannot be recorded, or takes too much memory.
        self.graphs: OrderedDict[Hashable, RecordedPass | None] = OrderedDict()

    def renew(self, state: ModelState, sums: object = None) -> None:
        """Drop all graphs if the model is no longer as it was when they were recorded.

        ``sums`` is another object after a change of the weights that torch does not count.
        """
        if self.state is None or self.sums is not sums or self.state != state:
            self.clear()
            self.state, self.sums = state.kept(), sums

    def graph(
        self, key: Hashable, record: Callable[[], RecordedPass | None]
    ) -> RecordedPass | None:
        """Return the graph for a batch, recorded if it is time; None to run the batch normally."""
        count = self.seen[key] = self.seen.pop(key, 0) + 1
        if self.kept is not None and len(self.seen) > COUNTED:
            self.seen.popitem(last=False)
        if count <= SEEN:
            return None
        graph = self.graphs.pop(key) if key in self.graphs else record()
        if self.kept is not None and graph is not None and graph.size > _largest():
            graph = None
        self.graphs[key] = graph
        if self.kept is not None:
            self._drop(self.kept)
        return graph

    def _drop(self, most: int) -> None:
        """Drop the least recently used graphs beyond a number, or beyond their share of memory."""
        kept = {key: graph for key, graph in self.graphs.items() if graph is not None}
        while len(kept) > most or sum(graph.size for graph in kept.values()) > _largest():
            key = next(iter(kept))
            del kept[key], self.graphs[key]
            self.seen.pop(key, None)  # not recorded again at once
        while len(self.graphs) > COUNTED:
            self.graphs.popitem(last=False)

    def clear(self) -> bool:
        """Drop all graphs; return whether there were any."""
        with self.lock:
            any_graph = any(graph is not None for graph in self.graphs.values())
            self.state = None
            self.seen.clear()
            self.graphs.clear()
        return any_graph


_RECORDINGS: WeakKeyDictionary[nn.Module, Recordings] = WeakKeyDictionary()


def recordings_of(model: nn.Module) -> Recordings:
    """Return the graphs that are kept for a model."""
    return _RECORDINGS.setdefault(model, Recordings(KEPT))


def free_recordings() -> bool:
    """Drop the graphs of all models, because memory is short; return whether there were any."""
    freed = False
    for recordings in list(_RECORDINGS.values()):
        with _held_if_free(recordings.lock) as held:  # otherwise another thread is using them
            if held:
                freed |= recordings.clear()
    if freed:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return freed


@shielded
def _held_if_free(lock: Any) -> Iterator[bool]:
    """Hold a lock inside the context unless another thread does; yield whether it is held."""
    held = lock.acquire(blocking=False)
    try:
        yield held
    finally:
        if held:
            lock.release()


def _largest() -> int:
    """The bytes that the graphs of one model may use."""
    return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory // SHARE


def settings() -> tuple[Hashable, ...]:
    """Return the settings of torch that decide which kernels run, and the stream they run on."""
    cuda = torch.backends.cuda
    return (
        torch.cuda.current_device(),
        torch.cuda.current_stream().cuda_stream,
        cuda.matmul.allow_tf32,
        cuda.matmul.allow_fp16_reduced_precision_reduction,
        cuda.matmul.allow_bf16_reduced_precision_reduction,
        torch.backends.cudnn.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
        torch.is_inference_mode_enabled(),
    )


def watched() -> bool:
    """Return whether Python code outside the model watches what runs; a graph would not call it."""
    return bool(
        ACTIVE.get()
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
    )
