"""Show patches in the terminal: a small grid of colours, or of digits where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normscope.foundation.texts import printable
from normscope.show.palette import SEQUENTIAL, diverging_levels, levels
from normscope.show.pictures import PictureGrid

if TYPE_CHECKING:
    from rich.console import Console

CELL = 2  # columns of a cell
MOST_ROWS = 24
_COUNT = 6
NEGATIVE, POSITIVE = diverging_levels(_COUNT)
LARGER = levels(SEQUENTIAL["light"], _COUNT)


def print_grid(grid: PictureGrid, console: Console, width: int, *, signed: bool, what: str) -> None:
    """Print the numbers of a picture; of many patches, the means of blocks.

    Args:
        grid: the numbers.
        console: where to print.
        width: the most columns.
        signed: whether numbers may be negative.
        what: what the numbers are, for the line above.
    """
    from rich.text import Text

    values = _pooled(np.nan_to_num(grid.values), MOST_ROWS, max(1, width // CELL))
    largest = float(np.abs(values).max(initial=0.0))
    rows, columns = grid.values.shape
    size = f"{columns} frames" if grid.picture.recording else f"{rows} × {columns} patches"
    blocks = "" if values.shape == (rows, columns) else ", means of blocks"
    coloured = console.color_system is not None
    digits = "" if coloured else "; 9 is the largest"
    text = f"{printable(grid.picture.name)}, {size}{blocks}: {what}{digits}"
    console.print(Text(text, style="dim"), width=width)
    for row in values:
        line = Text()
        for value in row.tolist():
            part = value / largest if largest else 0.0
            line.append(*_cell(part, signed=signed, coloured=coloured))
        console.print(line, no_wrap=True, crop=True)
    console.print()


def _cell(part: float, *, signed: bool, coloured: bool) -> tuple[str, str]:
    """Return the text of a cell and its style."""
    if not coloured:
        digit = round(9 * abs(part))
        sign = ("-" if part < 0 else "+") if signed and digit else " "
        return (f"{sign}{digit}" if digit else " ·"), ""
    level = round(_COUNT * abs(part))
    if not level:
        return "· ", "dim"
    colours = (NEGATIVE if part < 0 else POSITIVE) if signed else LARGER
    return " " * CELL, f"on {colours[level - 1]}"


def _pooled(values: NDArray[np.float64], rows: int, columns: int) -> NDArray[np.float64]:
    """Return the means of blocks, so few that they fit."""
    down, across = (
        max(1, -(-n // most)) for n, most in zip(values.shape, (rows, columns), strict=True)
    )
    if values.shape[0] > 1:
        down = across = max(down, across)  # patches stay square
    high, wide = -(-values.shape[0] // down), -(-values.shape[1] // across)
    padded = np.full((high * down, wide * across), np.nan)
    padded[: values.shape[0], : values.shape[1]] = values
    blocks: NDArray[np.float64] = np.nanmean(padded.reshape(high, down, wide, across), axis=(1, 3))
    return blocks
