"""What pictures, terminals and figures show of patches: the numbers of each image as a grid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import NORMS
from normscope.errors import InputError
from normscope.results.arrays import LabelledArray
from normscope.results.attribution import Attribution
from normscope.results.contributions import Contributions
from normscope.show.headline import row_shares
from normscope.text.pictures import Picture
from normscope.text.tokens import Tokens

GREYS = {"light": (105, 0.58), "dark": (14, 0.5)}  # of the darkest pixel, and for each step


@dataclass(frozen=True)
class PictureGrid:
    """The numbers of the patches of one picture.

    Attributes:
        picture: the picture.
        values: (row, column), NaN where the picture has no patch.
        positions: (row, column): the positions of the patches; −1 where there is none.
    """

    picture: Picture
    values: NDArray[np.float64]
    positions: NDArray[np.int64]


def grids(tokens: Tokens, values: NDArray[np.float64]) -> list[PictureGrid]:
    """Return the numbers (position,) of each picture that tokens have places in."""
    found = []
    for number, picture in enumerate(tokens.pictures):
        positions = np.full((picture.rows, picture.columns), -1)
        for at, place in enumerate(tokens.places or ()):
            if place is not None and place[0] == number:
                positions[place[1], place[2]] = at
        if (positions >= 0).any():
            table = np.where(positions >= 0, values[positions], np.nan)
            found.append(PictureGrid(picture, table, positions))
    return found


def share_grids(result: Attribution, step: int | None = None) -> list[PictureGrid]:
    """Return the shares of the patches of each picture, without pictures that have none.

    Raises:
        InputError: there are several answers and none was chosen, or there are no pictures.
    """
    scores = np.atleast_2d(result.scores.values)
    if result.steps is not None and step is not None and not 0 <= step < len(scores):
        raise InputError(f"step is {step!r}; valid: 0 to {len(scores) - 1}")
    shares = scores.sum(axis=0) if step is None else scores[step]
    found = grids(result.tokens, shares)
    # The places of images in a text have no shares before its first layer.
    used = [grid for grid in found if np.nan_to_num(grid.values).any()]
    return _some(used or found)


@dataclass(frozen=True)
class RowShown:
    """One row of a map, as shares: what a query receives, or what all do on average."""

    keys: Tokens
    shares: NDArray[np.float64]
    name: str
    query: str | None
    position: int | None


def row_of_map(
    result: Contributions | LabelledArray,
    layer: int | None,
    query: Any,
    *,
    name: str = NORMS,
    head: int | None = None,
) -> RowShown:
    """Return one row of a map, divided by its sum.

    Args:
        result: a result of one part, or one of its maps.
        layer: the label of the layer; it may be left out if there is one.
        query: a token or a position; None for the mean over all.
        name: the name of the map.
        head: the label of the head, of maps with single heads.
    """
    array = result if isinstance(result, LabelledArray) else result[name]
    for axis, label in {"layer": layer, "head": head}.items():
        if axis in array.axes and label is None and len(array.labels[axis]) > 1:
            raise InputError(
                f"{array.name!r} has {len(array.labels[axis])} {axis}s; choose one with {axis}="
            )
        if axis in array.axes:
            array = array.sel(**{axis: array.labels[axis][0] if label is None else label})
    if array.axes != ("query", "key"):
        raise InputError(f"a picture needs the axes query and key, but there are {array.axes}")
    shares = row_shares(array.values)
    if query is None:
        return RowShown(array.tokens["key"], shares.mean(axis=0), array.name, None, None)
    position = array._find_label("query", query)
    text = array.tokens["query"].texts[position]
    return RowShown(array.tokens["key"], shares[position], array.name, text, position)


def _some(found: list[PictureGrid]) -> list[PictureGrid]:
    if not found:
        raise InputError(
            "this result has no pictures: none of its positions are patches of an image or frames "
            "of a recording whose places are known"
        )
    return found


def map_grids(row: RowShown) -> list[PictureGrid]:
    """Return the shares of the patches of each picture; raise InputError without pictures."""
    return _some(grids(row.keys, row.shares))


def backdrop(picture: Picture, theme: str) -> NDArray[np.uint8] | None:
    """Return the copy of a picture in grey, (row, column), so that colours are seen on it."""
    pixels = picture.pixels()
    if pixels is None:
        return None
    weights = np.array([0.299, 0.587, 0.114]) if pixels.shape[-1] == 3 else np.ones(1)
    darkest, step = GREYS[theme]
    return np.round(darkest + step * (pixels @ weights)).astype(np.uint8)


def others(tokens: Tokens) -> Iterator[int]:
    """Yield the positions that are no patches."""
    places = tokens.places or (None,) * len(tokens)
    yield from (at for at, place in enumerate(places) if place is None)
