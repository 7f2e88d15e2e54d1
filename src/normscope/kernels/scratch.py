"""Working memory that is reused from layer to layer.

A large temporary array that is freed goes back to the operating system, and fetching the next one
page by page costs more than the arithmetic on it. Arrays that cannot be reused here still profit
from one trick: glibc keeps freed blocks up to the size of the largest block freed so far (at most
32 MiB), so freeing one large block early makes it keep all later ones.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

LARGE_BLOCK = 31 * 2**20  # bytes


@functools.cache
def keep_freed_memory() -> None:
    """Allocate and free one large block, once; its memory is never touched, so it costs nothing."""
    torch.empty(LARGE_BLOCK, dtype=torch.uint8)


class Scratch:
    """Arrays by name; taking one again overwrites what it held."""

    def __init__(self) -> None:
        keep_freed_memory()
        self._arrays: dict[str, Tensor] = {}

    def take(
        self, name: str, shape: Sequence[int], like: Tensor, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """Return an array of this shape on the device of ``like``; its contents are undefined."""
        size = prod(shape)
        array = self._arrays.get(name)
        if (
            array is None
            or (array.device, array.dtype) != (like.device, dtype)
            or len(array) < size
        ):
            array = self._arrays[name] = torch.empty(size, dtype=dtype, device=like.device)
        return array[:size].view(*shape)

    def copy(self, name: str, tensor: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return ``tensor`` in another dtype, with its axes in the same order in memory."""
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        contiguous = tensor.permute(order)
        back = [order.index(axis) for axis in range(tensor.dim())]
        return self.take(name, contiguous.shape, tensor, dtype).copy_(contiguous).permute(back)
