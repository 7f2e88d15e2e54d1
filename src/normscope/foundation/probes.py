"""Tell whether tensors have changed, without reading all of them.

torch counts changes in place, but not those made through ``.data``. Two probes notice these:
:func:`samples` reads some numbers of every tensor and costs next to nothing, and :func:`bit_sums`
reads everything. Samples depend on the place of a number and sums do not, so that together they
notice a row that was moved as well as a single number that was changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from normscope.foundation.torch_settings import without_grad

WHOLE = 4096  # numbers of a tensor that are all read
MOST = 2**16  # numbers that are read of a larger one

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor as a flat tensor of integers."""
    flat = tensor.detach().contiguous().flatten()
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten()
    return flat.view(_INTEGERS[flat.element_size()])


@without_grad
def samples(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return numbers of every tensor: one tensor for each device and dtype.

    Of a large matrix a number in every row and every column is read, up to ``MOST`` numbers. What
    has no memory of its own that can be read (tensors on "meta", sparse ones, subclasses of a
    quantiser) is left out.
    """
    pieces: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() and _readable(tensor):
            pieces.setdefault((tensor.device, tensor.dtype), []).append(_sample(tensor))
    return [torch.cat(parts) for parts in pieces.values()]


def same_samples(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """Return whether two lists of samples are equal bit for bit."""
    return len(first) == len(second) and all(map(_same, first, second))


def _same(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.device != second.device:
        first, second = first.cpu(), second.cpu()
    return torch.equal(bits_of(first), bits_of(second))


def bit_sums(tensors: Iterable[Tensor]) -> list[int]:
    """Return the sum of the bits of every tensor, read as integers; waits for the device."""
    sums: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() and _readable(tensor):
            sums.setdefault(tensor.device, []).append(_bit_sum(tensor))
    return [total for parts in sums.values() for total in torch.stack(parts).tolist()]


def _readable(tensor: Tensor) -> bool:
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    return plain and not tensor.is_quantized and tensor.device.type != "meta"


def _sample(tensor: Tensor) -> Tensor:
    count = tensor.numel()
    if count <= WHOLE:
        return tensor.reshape(-1)
    width = tensor.shape[-1]
    # A step of one less than a row (or a column) reads a number in every row (or column).
    step = max(1, min(width, count // width) - 1, -(-count // MOST))
    if not tensor.is_contiguous():
        return tensor.reshape(-1)[::step]
    return tensor.as_strided((-(-count // step),), (step,))


def _bit_sum(tensor: Tensor) -> Tensor:
    bits = bits_of(tensor)
    together = 8 // bits.element_size()  # int64 is summed several times faster than other integers
    if bits.storage_offset() % together:
        return bits.sum(dtype=torch.int64)
    end = bits.numel() // together * together
    return bits[:end].view(torch.int64).sum() + bits[end:].sum(dtype=torch.int64)
