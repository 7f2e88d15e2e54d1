"""Plots of one result's maps: one, some side by side, or all of a sentence on one scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import NORMS, WEIGHTS
from normscope.errors import InputError
from normscope.results.arrays import LabelledArray
from normscope.results.contributions import Contributions
from normscope.show.plots.style import as_array, brief, figure, label_of, panels, room, wrap
from normscope.show.terminal import row_shares
from normscope.show.wording import describe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From white to dark in lightness alone, so that it reads without colour vision and in print.
COLOURS = "Blues"

# Sizes of `heatmap` and `compare`, in inches.
CELL = 0.21
FRAME = 1.7  # around the cells: labels, title, colour bar
MAX_PANEL = 24.0
MIN_TITLE_WIDTH = 2.5  # layouts ignore how wide titles are, so a map has this much at least
BESIDE = 1.1  # labels and colour bar beside a map
NARROW = 3.2  # maps up to this width have a smaller title

# Sizes of `scopes`, in inches.
SMALL_CELL = 0.15
SMALL_PANEL = 8.0
SMALL_TITLE_WIDTH = 1.3
READABLE = 4.5  # points: the smallest font of a label


def compare(
    result: Contributions,
    layer: int,
    maps: Sequence[str] = (WEIGHTS, NORMS),
    axes: Any = None,
    *,
    head: int | None = None,
    normalise: bool = False,
) -> NDArray[Any]:
    """Draw maps of one layer side by side, each with its own colour scale.

    Args:
        result: A result of one part.
        layer: The label of the layer.
        maps: The names of the maps; by default weights and norms.
        axes: Axes to draw into, one for each map; by default those of a new figure.
        head: The head to draw, of maps with single heads.
        normalise: Divide each row by its sum, so that cells are shares of what a query takes.

    Returns:
        The array of Axes; `axes[0].figure` is the figure.
    """
    names = [maps] if isinstance(maps, str) else list(maps)
    if not names:
        raise InputError(f"no map was named; there is: {', '.join(result)}")
    arrays = [result[name] for name in names]
    if axes is None:
        axes = _new_figure(len(arrays), arrays[0]).subplots(1, len(arrays), squeeze=False)
    flat = as_array(axes)
    if len(flat) != len(arrays):
        raise InputError(f"{len(arrays)} maps need {len(arrays)} axes, but {len(flat)} were given")
    for array, ax in zip(arrays, flat, strict=True):
        heatmap(array, layer=layer, head=head, ax=ax, normalise=normalise)
    return flat


def heatmap(
    array: LabelledArray,
    *,
    layer: int | None = None,
    head: int | None = None,
    ax: Axes | None = None,
    normalise: bool = False,
) -> Axes:
    """Draw one map: queries from top to bottom, keys from left to right.

    Args:
        array: A map; its axes other than query and key must have one entry or be selected from.
        layer: The label of the layer.
        head: The label of the head.
        ax: Axes to draw into; by default those of a new figure.
        normalise: Divide each row by its sum, so that cells are shares of what a query takes.
    """
    title, bar_label = _titles(array, layer, head, normalise)
    array = _selected(array, layer, head)
    if array.axes != ("query", "key"):
        raise InputError(
            f"a heat map needs the axes query and key, but {array.name!r} has {array.axes}"
        )
    values = row_shares(array) if normalise else array.to_numpy()
    if ax is None:
        ax = _new_figure(1, array).subplots()
    scale: Any = {"cmap": COLOURS, "vmin": 0, "vmax": None if values.any() else 1}
    image = ax.imshow(values, **scale, aspect="equal", interpolation="nearest", origin="upper")
    _label_cells(ax, array)
    box, (queries, keys) = ax.get_window_extent(), values.shape
    across, down = box.width / ax.figure.dpi, box.height / ax.figure.dpi
    beside, below = _label_room(array)
    width = min(across - beside, (down - below) * keys / queries)
    # Titles of narrow panels side by side would touch at the usual size.
    text = ax.set_title(title, fontsize=12 if width > NARROW else 10, pad=10)
    wrap(text, max(MIN_TITLE_WIDTH - 0.1, width + BESIDE))
    whole: Any = ax.figure
    bar = whole.colorbar(image, ax=ax, shrink=0.9, aspect=36, pad=0.015, label=bar_label)
    bar.outline.set_visible(False)
    return ax


def scopes(
    result: Contributions,
    layer: int,
    maps: Sequence[str] | None = None,
    axes: Any = None,
    *,
    head: int | None = None,
    columns: int = 3,
) -> NDArray[Any]:
    """Draw several maps of one layer on one scale: how the picture changes from scope to scope.

    Cells are shares of what a query takes. Colours follow the square root of the share, so that
    other tokens stay visible beside a large residual; the colour bar has the shares themselves.

    Args:
        result: A result of one part.
        layer: The label of the layer.
        maps: The names of the maps; by default all of the result.
        axes: Axes to draw into, one for each map; by default those of a new figure.
        head: The head to draw, of maps with single heads.
        columns: How many maps of a new figure are in a row.
    """
    names = list(result) if maps is None else list(maps)
    if not names:
        raise InputError(f"no map was named; there is: {', '.join(result)}")
    arrays = [_selected(result[name], layer, head) for name in names]
    shares = [row_shares(array) for array in arrays]
    queries, keys = shares[0].shape
    cell = min(SMALL_CELL, SMALL_PANEL / max(queries, keys))
    width, height = max(2.6, cell * keys + 0.4), max(2.8, cell * queries + 1.3)
    map_width = min(width - 0.4, (height - 1.3) * keys / queries)
    beside, below = _label_room(arrays[0])
    panel = (width + beside / min(len(arrays), columns), height + below)
    drawn = panels(axes, len(arrays), panel, columns, "compressed")
    if axes is None:
        _spread(drawn[0].figure, panel[0], SMALL_TITLE_WIDTH + 0.1 - map_width)
    from matplotlib.colors import PowerNorm

    scale = PowerNorm(0.5, 0, max(float(share.max()) for share in shares) or 1.0)
    for number, (ax, array, share) in enumerate(zip(drawn, arrays, shares, strict=True)):
        image = ax.imshow(share, cmap=COLOURS, norm=scale, aspect="equal", interpolation="nearest")
        _label_some_cells(ax, array, cell, rows=axes is not None or number % columns == 0)
        title = ax.set_title(label_of(names[number]), fontsize=10)
        wrap(title, max(SMALL_TITLE_WIDTH, map_width))
    whole: Any = drawn[0].figure
    bar = whole.colorbar(image, ax=list(drawn), shrink=0.7, aspect=30, pad=0.01)
    bar.set_label("share of what the query takes")
    bar.outline.set_visible(False)
    if axes is None:
        whole.suptitle(f"layer {layer}" + ("" if head is None else f", head {head}"), fontsize=11)
    return drawn


def _selected(array: LabelledArray, layer: int | None, head: int | None) -> LabelledArray:
    """Return the map of one layer and one head; an axis with one entry need not be chosen."""
    for axis, label in {"layer": layer, "head": head}.items():
        if axis in array.axes and label is None and len(array.labels[axis]) > 1:
            raise InputError(
                f"{array.name!r} has {len(array.labels[axis])} {axis}s; choose one with {axis}="
            )
        if label is not None or axis in array.axes:
            array = array.sel(**{axis: array.labels[axis][0] if label is None else label})
    return array


def _titles(
    array: LabelledArray, layer: int | None, head: int | None, normalise: bool
) -> tuple[str, str]:
    """Return the title of a map, and the label of its colour bar."""
    scope = describe(array.name)
    title = scope.title
    if head is None and "head" not in array.axes:
        if scope.weight:
            title += " (mean over heads)"
        elif scope.name == NORMS:
            title += " (heads summed)"
    places = {"layer": layer, "head": head}
    title = ", ".join([title, *(f"{axis} {at}" for axis, at in places.items() if at is not None)])
    if normalise:
        return title, "share of the row"
    return title, scope.label if scope.name in (WEIGHTS, NORMS) else scope.unit


def _label_room(array: LabelledArray) -> tuple[float, float]:
    """Return the inches that the labels of queries and of keys need beyond the usual."""
    return room(array.tokens["query"].strings), room(array.tokens["key"].strings)


def _new_figure(count: int, array: LabelledArray) -> Figure:
    """Return a figure in which every token has room for its name, up to the size of a screen."""
    queries, keys = array.shape[-2:]
    beside, below = _label_room(array)
    width = max(4.0 + beside, min(CELL * keys + FRAME + beside, MAX_PANEL))
    height = max(3.5 + below, min(CELL * queries + FRAME + below, MAX_PANEL))
    empty = figure(count * width, height, "compressed")
    layout: Any = empty.get_layout_engine()
    layout.set(w_pad=0.12)
    map_width = min(width - FRAME - beside, (height - FRAME - below) * keys / queries)
    _spread(empty, width, MIN_TITLE_WIDTH - BESIDE - beside - map_width)
    return empty


def _spread(figure: Figure, panel: float, gap: float) -> None:
    """Put `gap` inches between panels that are `panel` inches wide, or the usual if more."""
    layout: Any = figure.get_layout_engine()
    layout.set(wspace=max(gap, 0) / panel, h_pad=0.14)


def _label_cells(ax: Axes, array: LabelledArray) -> None:
    """Label every row and column with its token."""
    queries, keys = array.shape
    box = ax.get_window_extent()
    size = 0.75 * 72 / ax.figure.dpi * min(box.width / keys, box.height / queries)
    # Tokens may contain $, _ or \, which must not be read as formulas.
    style: dict[str, Any] = {"fontsize": min(9.0, max(size, 2.0)), "parse_math": False}
    style["usetex"] = False
    names = {axis: [brief(s) for s in array.tokens[axis].strings] for axis in array.axes}
    ax.set_yticks(range(queries), names["query"], **style)
    ax.set_xticks(range(keys), names["key"], rotation=90, **style)
    ax.set_ylabel("query: the token that takes")
    ax.set_xlabel("key: the token that is taken from")
    ax.tick_params(length=0, pad=3)
    ax.spines[:].set_visible(False)
    # Thin lines between the cells let the eye follow a row across the picture.
    ax.set_xticks(np.arange(keys + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(queries + 1) - 0.5, minor=True)
    ax.tick_params(which="minor", length=0)
    ax.grid(which="minor", color="#e4e4e4", linewidth=0.5)


def _label_some_cells(ax: Axes, array: LabelledArray, cell: float, *, rows: bool) -> None:
    """Label columns, and rows if asked for, with tokens: every nth where cells are small."""
    step = max(1, math.ceil(READABLE / (72 * 0.85 * cell)))
    size = min(8.0, 72 * 0.85 * cell * step)
    for axis, side in ((ax.yaxis, "query"), (ax.xaxis, "key")):
        strings = array.tokens[side].strings
        places = range(0, len(strings), step)
        style: Any = {"fontsize": size, "parse_math": False, "usetex": False}
        if side == "key":
            style["rotation"] = 90
        names = [brief(strings[at]) for at in places] if rows or side == "key" else []
        axis.set_ticks(places if names else [], names, **style)
    ax.tick_params(length=0, pad=2)
    ax.spines[:].set_color("#c8c8c8")
