"""Working memory that is kept from layer to layer.

A large temporary array that is freed goes back to the operating system, and the next one is fetched
from it page by page, which costs more than the arithmetic on it. What cannot be kept here, the C
library is led to keep: glibc takes the largest block freed so far, up to 32 MiB, as the size from
which it gives memory back.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

KEPT = 31 * 2**20  # bytes


@functools.cache
def keep_freed_memory() -> None:
    """Free one large block, once; its memory is never touched, so it costs nothing."""
    torch.empty(KEPT, dtype=torch.uint8)


class Scratch:
    """Arrays by name; taking one again overwrites what it held."""

    def __init__(self) -> None:
        keep_freed_memory()
        self._kept: dict[str, Tensor] = {}

    def take(
        self, name: str, shape: Sequence[int], like: Tensor, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """An array of this shape on the device of ``like``, its contents undefined."""
        size = prod(shape)
        kept = self._kept.get(name)
        if kept is None or (kept.device, kept.dtype) != (like.device, dtype) or len(kept) < size:
            kept = self._kept[name] = torch.empty(size, dtype=dtype, device=like.device)
        return kept[:size].view(*shape)

    def copy(self, name: str, tensor: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """``tensor`` in another dtype, its axes in the same order in memory."""
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        laid = tensor.permute(order)
        back = [order.index(axis) for axis in range(tensor.dim())]
        return self.take(name, laid.shape, tensor, dtype).copy_(laid).permute(back)
