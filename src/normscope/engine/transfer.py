"""Copy tensors to the CPU: from a GPU in the background, and many small ones at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

LARGE = 1 << 20  # bytes; smaller tensors share one transfer


class Transfer:
    """Tensors that are on the CPU, or on their way from a GPU.

    Tensors of the CPU are used as they are. Those of a GPU are copied to pinned memory: large
    stacks one by one, everything else packed into one buffer. The copies run on a stream of their
    own, while the GPU computes the next batch.
    """

    def __init__(self) -> None:
        self._sources: dict[int, Tensor] = {}  # what is copied, by id
        self._copies: dict[int, Tensor] = {}  # the tensors of the CPU, by the id of their source
        self._stacks: set[int] = set()  # ids of sources in memory of their own
        self._packed: list[Tensor] = []
        self._arrivals: list[torch.cuda.Event] = []

    def add(self, tensor: Tensor) -> Tensor:
        """Add a tensor and return it; a tensor that is added twice is copied once."""
        if id(tensor) not in self._sources:
            self._sources[id(tensor)] = tensor
            if not tensor.is_cuda:
                self._copies[id(tensor)] = tensor.cpu()
        return tensor

    def add_stack(self, layers: Sequence[Tensor]) -> Tensor:
        """Stack the tensors of all layers, (row, layer, …), and add the result."""
        stack = self.add(torch.stack(list(layers), dim=1))
        self._stacks.add(id(stack))
        return stack

    def __getitem__(self, tensor: Tensor) -> Tensor:
        """Return the copy of a tensor that was added; complete after :meth:`wait`."""
        return self._copies[id(tensor)]

    def start(self) -> None:
        """Start copying, and return without waiting."""
        for device in {tensor.device for tensor in self._sources.values() if tensor.is_cuda}:
            self._start(device)

    def _start(self, device: torch.device) -> None:
        """Start copying the tensors of one GPU.

        A recorded CUDA graph writes its results to the same memory in each replay. Only stacks and
        the packed buffer are copied in the background: both are copies of these results, made on
        the stream of the replays, so that the next replay need not wait for the transfer.
        """
        large: list[Tensor] = []
        small: list[Tensor] = []
        for key, tensor in self._sources.items():
            if tensor.device == device:
                alone = key in self._stacks and tensor.nbytes >= LARGE
                (large if alone else small).append(tensor)
        packed = [pack(small)] if small else []
        self._packed += packed
        copies, arrival = _copy_in_background(device, [*large, *packed])
        if packed:
            copies += unpack(copies.pop(), small)
        for tensor, copy in zip([*large, *small], copies, strict=True):
            self._copies[id(tensor)] = copy
        self._arrivals.append(arrival)

    def wait(self) -> None:
        """Wait until everything is on the CPU; the sources are then released."""
        for arrival in self._arrivals:
            arrival.synchronize()
        # Not before: their memory could be used for something else while it is being copied.
        self._sources, self._copies, self._packed = {}, {}, []


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """Return the bytes of some tensors of one device in one new tensor."""
    flat = [tensors[index].reshape(-1).view(torch.uint8) for index in _order(tensors)]
    return torch.cat(flat)


def unpack(packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return views of a packed buffer, with the shapes and dtypes of the tensors in it."""
    views: dict[int, Tensor] = {}
    start = 0
    for index in _order(like):
        end = start + like[index].nbytes
        views[index] = packed[start:end].view(like[index].dtype).view(like[index].shape)
        start = end
    return [views[index] for index in range(len(like))]


def _order(tensors: Sequence[Tensor]) -> list[int]:
    """Return the order in a packed buffer: by the size of an element, so that all are aligned."""
    return sorted(range(len(tensors)), key=lambda index: -tensors[index].itemsize)


# ---- CUDA


@cache
def _copy_stream(device: torch.device) -> Any:
    """Return the stream on which a GPU copies to the CPU."""
    return torch.cuda.Stream(device)


def _copy_in_background(
    device: torch.device, sources: Sequence[Tensor]
) -> tuple[list[Tensor], torch.cuda.Event]:
    """Copy tensors of a GPU to pinned memory; return them and the event of their arrival.

    The caller keeps the sources until then.
    """
    copies = [torch.empty(s.shape, dtype=s.dtype, pin_memory=True) for s in sources]
    stream = _copy_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))  # the sources are computed there
    with torch.cuda.stream(stream):
        for copy, source in zip(copies, sources, strict=True):
            copy.copy_(source, non_blocking=True)
    return copies, stream.record_event()
