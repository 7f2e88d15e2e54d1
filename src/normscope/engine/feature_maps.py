"""Where positions behind a convolutional backbone stand: on a grid of regions that overlap."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.engine.grids import Grid
from normscope.foundation.shapes import Float
from normscope.text.pictures import PatchPlace

STRIDES = (2, 4, 8, 16, 32, 64, 128)  # of backbones, in pixels
# Between the centres of the first and the last line, as a part of what it is between their cells.
APART = 0.4


def feature_map(
    products: Float[Tensor, "row position"], pixels: Tensor
) -> tuple[tuple[PatchPlace, ...], dict[int, Grid]] | None:
    """Return the cell of each position, and the grid of each image.

    A backbone of convolutions divides height and width by a power of two. Each of its positions
    reads more than the cell that it stands at, down to the whole image, but most from around it: so
    the lines of the grid must be apart where the gradients of their positions have their centres.

    Args:
        products: a combination of each state that enters a stack of layers.
        pixels: (image, channel, row, column), on which they depend; one image for each row.

    Returns:
        None if the positions are no grid, line by line.
    """
    if pixels.dim() != 4 or len(products) != len(pixels):
        return None
    high, wide = pixels.shape[-2:]
    for stride in STRIDES:
        rows, columns = -(-high // stride), -(-wide // stride)
        if rows * columns == products.shape[1]:
            lines = products.unflatten(1, (rows, columns))
            if not (_is_spread(lines, pixels, 0) and _is_spread(lines, pixels, 1)):
                continue
            cells = [(row, column) for row in range(rows) for column in range(columns)]
            numbers = range(len(products))
            places = tuple((number, *cell) for number in numbers for cell in cells)
            covers = (0, 0, rows * stride, columns * stride)
            return places, {number: Grid(rows, columns, covers) for number in numbers}
    return None


def _is_spread(lines: Float[Tensor, "row down across"], pixels: Tensor, axis: int) -> bool:
    """Return whether the first line of a grid reads other pixels than the last, along an axis."""
    count = lines.shape[1 + axis]
    if count == 1:
        return True
    first, last = (_centre(lines.select(1 + axis, at).sum(), pixels, axis) for at in (0, -1))
    return first is not None and last is not None and last - first > APART * (count - 1) / count


def _centre(total: Tensor, pixels: Tensor, axis: int) -> float | None:
    """Return where along an axis a number reads the pixels, from 0 to 1."""
    (grad,) = torch.autograd.grad(total, [pixels], retain_graph=True, allow_unused=True)
    if grad is None:
        return None
    energy = grad.double().square().sum(dim=(0, 1, 3 - axis))
    size = len(energy)
    at = (torch.arange(size, device=energy.device, dtype=energy.dtype) + 0.5) / size
    whole = float(energy.sum())
    return float((energy * at).sum()) / whole if whole > 0 else None
