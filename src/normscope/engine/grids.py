"""The pixels of a model's inputs as images, and the grids that positions form over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from normscope.text.pictures import PatchPlace

IMAGES = ("pixel_values", "pixel_values_videos")
# Numbers of rows and columns of patches, beside images that are given as a list of patches.
_SHAPES = {
    "pixel_values": ("image_grid_thw", "spatial_shapes"),
    "pixel_values_videos": ("video_grid_thw",),
}
Box = tuple[int, int, int, int]  # top, left, bottom, right


@dataclass(frozen=True)
class Grid:
    """The patches of one image in one stack: how many, and which part of the image they are."""

    rows: int
    columns: int
    covers: Box


@dataclass(frozen=True)
class PixelLayout:
    """Where the entries of a tensor of pixels are in its images.

    An entry is a pixel, or a patch of an image that is given as a list of patches.

    Attributes:
        cells: image, row and column of each entry; an image that is −1 is padding.
        patch: the shape of a patch, (channel, time, row, column) or (row, column, channel); empty
            for pixels.
    """

    cells: NDArray[np.int64]
    patch: tuple[int, ...] = ()

    def entries(self, values: Tensor) -> NDArray[np.float64]:
        """Return a tensor of the shape of the inputs as (entry, channel)."""
        array = values.detach().double().cpu()
        if not self.patch:
            array = array.movedim(-3, -1)
        return array.reshape(len(self.cells), -1).numpy()

    def image(self, values: Tensor, number: int) -> NDArray[np.float64]:
        """Return an image of the inputs as (row, column, channel)."""
        entries = self.entries(values)
        own = np.flatnonzero(self.cells[:, 0] == number)
        rows, columns = self.cells[own, 1], self.cells[own, 2]
        blocks = entries[own].reshape(len(own), *(self.patch or (1, 1, -1)))
        if blocks.ndim == 5:  # the first of the frames that are read together
            blocks = blocks[:, :, 0].transpose(0, 2, 3, 1)
        side = blocks.shape[1], blocks.shape[2]
        table = np.zeros((rows.max() + 1, columns.max() + 1, *blocks.shape[1:]))
        table[rows, columns] = blocks
        whole = table.transpose(0, 2, 1, 3, 4)
        return whole.reshape(table.shape[0] * side[0], table.shape[1] * side[1], -1)

    def scale(self) -> tuple[int, int]:
        """Return the pixels of an entry, from top to bottom and from left to right."""
        return self.patch[-2:] if len(self.patch) == 4 else self.patch[:2] or (1, 1)  # type: ignore[return-value]

    def places(
        self, readers: NDArray[np.int64], count: int
    ) -> tuple[tuple[PatchPlace | None, ...], dict[int, Grid]] | None:
        """Return the patch of each position, and the grid of each image.

        Args:
            readers: the position that reads each entry; −1 for none.
            count: the number of positions.

        Returns:
            None if what positions read are not rectangles of one size, side by side.
        """
        kept = (readers >= 0) & (self.cells[:, 0] >= 0)
        who, cells = readers[kept], self.cells[kept]
        if not len(who):
            return None
        image = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(image, who, cells[:, 0])
        first = cells[:, 0] == image[who]  # several frames of a video may be read together
        who, cells = who[first], cells[first]
        low = np.full((count, 2), np.iinfo(np.int64).max)
        high = np.full((count, 2), -1)
        for axis in (0, 1):
            np.minimum.at(low[:, axis], who, cells[:, 1 + axis])
            np.maximum.at(high[:, axis], who, cells[:, 1 + axis] + 1)
        real = np.unique(who)
        sizes = high[real] - low[real]
        if (np.bincount(who, minlength=count)[real] != sizes.prod(axis=1)).any():
            return None
        places: list[PatchPlace | None] = [None] * count
        grids: dict[int, Grid] = {}
        for number in np.unique(image[real]).tolist():
            own = real[image[real] == number]
            size = high[own[0]] - low[own[0]]
            start, end = low[own].min(axis=0), high[own].max(axis=0)
            if (high[own] - low[own] != size).any() or ((low[own] - start) % size).any():
                return None
            at = (low[own] - start) // size
            if len(np.unique(at, axis=0)) != len(own):
                return None
            rows, columns = ((end - start) // size).tolist()
            down, across = self.scale()
            factor = np.array([down, across, down, across])
            box: Any = tuple((np.concatenate([start, end]) * factor).tolist())
            grids[number] = Grid(rows, columns, box)
            for position, (row, column) in zip(own.tolist(), at.tolist(), strict=True):
                places[position] = (number, row, column)
        return tuple(places), grids


def layouts_of_pixels(model: Any, inputs: Mapping[str, Any], name: str) -> list[PixelLayout]:
    """Return where the entries of a tensor of pixels may be; the most usual layout comes first."""
    pixels = inputs[name]
    if pixels.dim() >= 4:
        *images, _, high, wide = pixels.shape
        places = np.indices((int(np.prod(images)), high, wide))
        return [PixelLayout(places.reshape(3, -1).T)]
    for shapes in _SHAPES[name]:
        if isinstance(inputs.get(shapes), Tensor):
            table = inputs[shapes].tolist()
            if shapes == "spatial_shapes":
                return list(_flat_images(pixels, table))
            return list(_flat_grids(model, pixels, table))
    return []


def _flat_grids(model: Any, pixels: Tensor, table: list[list[int]]) -> Iterator[PixelLayout]:
    """Yield layouts of patches that follow each other, with (time, rows, columns) of each image."""
    config: Any = getattr(model.config, "vision_config", model.config)
    merge = int(getattr(config, "spatial_merge_size", 1) or 1)
    side = int(getattr(config, "patch_size", 0) or 0)
    frames = int(getattr(config, "temporal_patch_size", 1) or 1)
    channels = pixels.shape[-1] // max(1, frames * side * side)
    if channels * frames * side * side != pixels.shape[-1]:
        return
    for block in dict.fromkeys((merge, 1)):  # patches that are merged follow each other, or rows
        cells, before = [], 0
        for times, rows, columns in table:
            if rows % block or columns % block:
                return
            places = np.indices((times, rows, columns)).reshape(
                3, times, rows // block, block, columns // block, block
            )
            ordered = places.transpose(0, 1, 2, 4, 3, 5).reshape(3, -1).T.copy()
            ordered[:, 0] += before
            cells.append(ordered)
            before += times
        together = np.concatenate(cells)
        if len(together) == len(pixels):
            yield PixelLayout(together, (channels, frames, side, side))


def _flat_images(pixels: Tensor, table: list[list[int]]) -> Iterator[PixelLayout]:
    """Yield the layout of (image, patch, values), with rows and columns of each image."""
    if pixels.dim() != 3 or len(table) != len(pixels):
        return
    side = round((pixels.shape[-1] / 3) ** 0.5)
    if 3 * side * side != pixels.shape[-1]:
        return
    cells = np.full((*pixels.shape[:2], 3), -1)
    for number, (rows, columns) in enumerate(table):
        places = np.indices((rows, columns)).reshape(2, -1).T
        cells[number, : len(places), 0] = number
        cells[number, : len(places), 1:] = places
    yield PixelLayout(cells.reshape(-1, 3), (side, side, 3))
