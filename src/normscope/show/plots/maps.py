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
from normscope.results.passages import SPACE_MARKS
from normscope.show import headline as sentences
from normscope.show.headline import row_shares
from normscope.show.plots.style import (
    PAGE,
    as_array,
    brief,
    colour_bar,
    diverging,
    figure,
    headline,
    ink,
    panels,
    plain,
    room,
    sequential,
    styled,
    wrap,
)
from normscope.show.wording import describe
from normscope.text.tokens import Tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Sizes of `heatmap` and `compare`, in inches.
CELL = 0.21
FRAME = 2.0  # above and below the cells: headline, title, labels
MAX_PANEL = 22.0
MIN_TITLE_WIDTH = 1.9  # layouts ignore how wide titles are, so a map has this much at least
LABELS = 0.9  # names of queries beside the first map
BAR = 0.8  # a colour bar with its label
SHARE_LABEL = "share of each query's total"

# Sizes of `scopes`, in inches.
SMALL_CELL = 0.13
SMALL_PANEL = 8.0
SMALL_TITLE_WIDTH = 1.3
READABLE = 4.5  # points: the smallest font of a label


@styled
def compare(
    result: Contributions,
    layer: int,
    maps: Sequence[str] = (WEIGHTS, NORMS),
    axes: Any = None,
    *,
    head: int | None = None,
    normalise: bool = True,
) -> NDArray[Any]:
    """Draw maps of one layer side by side, on one colour scale.

    Args:
        result: A result of one part.
        layer: The label of the layer.
        maps: The names of the maps; by default weights and norms.
        axes: Axes to draw into, one for each map; by default those of a new figure.
        head: The head to draw, of maps with single heads.
        normalise: Divide each row by its sum, so that equal colours are equal shares. Otherwise
            each map has its own colour scale, in its own unit.

    Returns:
        The array of Axes; `axes[0].figure` is the figure.
    """
    names = [maps] if isinstance(maps, str) else list(maps)
    if not names:
        raise InputError(f"no map was named; there is: {', '.join(result)}")
    arrays = [_selected(result[name], layer, head) for name in names]
    new = axes is None
    if new:
        empty = _new_figure(len(arrays), arrays[0], bars=1 if normalise else len(arrays))
        headline(empty, _headline(result, layer, head, names))
        axes = empty.subplots(1, len(arrays), squeeze=False)
    flat = as_array(axes)
    if len(flat) != len(arrays):
        raise InputError(f"{len(arrays)} maps need {len(arrays)} axes, but {len(flat)} were given")
    values = [row_shares(array) if normalise else array.to_numpy() for array in arrays]
    images = []
    for name, array, cells, ax in zip(names, arrays, values, flat, strict=True):
        titles = _titles(result[name], None if new else layer, None if new else head, normalise)
        largest = np.abs(values).max() if normalise else np.abs(cells).max()
        images.append(_draw_map(ax, array, cells, titles[0], float(largest)))
        _wrap_title(ax, array, 0.2)
        if not normalise:
            colour_bar(images[-1], ax, titles[1])
        if new and ax is not flat[0]:
            ax.set_ylabel("")
            ax.set_yticks([])
    if normalise:
        _share_bars(images, flat)
    return flat


@styled
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
        normalise: Divide each row by its sum, so that cells are shares of the row.
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
    image = _draw_map(ax, array, values, title, float(np.abs(values).max()))
    _wrap_title(ax, array, BAR + 0.3)
    if normalise:
        _share_bar(image, [ax])
    else:
        colour_bar(image, ax, bar_label)
    return ax


def _headline(result: Contributions, layer: int, head: int | None, names: Sequence[str]) -> str:
    """Return the sentence above a comparison."""
    if set(names) >= {WEIGHTS, NORMS}:
        return sentences.headline(result, layer, head=head)
    return f"Layer {layer}" + ("" if head is None else f", head {head}")


def _draw_map(
    ax: Axes, array: LabelledArray, values: NDArray[Any], title: str, largest: float
) -> Any:
    """Draw the cells of a map with its tokens and its title, and return the image."""
    largest = largest if largest > 0 else 1
    style: Any = {"cmap": sequential(), "vmin": 0, "vmax": largest}
    if array.signed:
        style = {"cmap": diverging(), "vmin": -largest, "vmax": largest}
    image = ax.imshow(values, **style, aspect="equal", interpolation="nearest", origin="upper")
    _label_cells(ax, array)
    ax.set_title("", fontsize=10, pad=8).update(plain(title))
    return image


def _wrap_title(ax: Axes, array: LabelledArray, spare: float) -> None:
    """Break a title into lines that are at most `spare` inches wider than the cells."""
    box, (queries, keys) = ax.get_window_extent(), array.shape
    across, down = box.width / ax.figure.dpi, box.height / ax.figure.dpi
    beside, below = _label_room(array)
    width = min(across - beside, (down - below) * keys / queries)
    wrap(ax.title, max(MIN_TITLE_WIDTH - 0.1, width + spare))


def _share_bar(image: Any, axes: Any) -> None:
    """Add a colour bar in percent for maps whose rows sum to one."""
    from matplotlib.ticker import PercentFormatter

    bar = colour_bar(image, axes, SHARE_LABEL)
    bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))


def _share_bars(images: Sequence[Any], axes: NDArray[Any]) -> None:
    """Add a colour bar for the maps without negative cells, and one for each of the others."""
    signed = [image for image in images if image.norm.vmin < 0]
    plain_maps = [at for at, image in enumerate(images) if image not in signed]
    if plain_maps:
        _share_bar(images[plain_maps[-1]], axes[plain_maps])
    for at, image in enumerate(images):
        if image in signed:
            _share_bar(image, [axes[at]])


@styled
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

    Cells are shares of the row of a query. Colours follow the square root of the share, so that
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
    across = min(len(arrays), columns)
    cell = _small_cell(queries, keys, across)
    beside, below = _label_room(arrays[0])
    gap = max(SMALL_TITLE_WIDTH - cell * keys, 0.0) + 0.15
    panel = (cell * keys + gap + (LABELS + BAR + beside) / across, cell * queries + 1.0 + below)
    drawn = panels(axes, len(arrays), panel, columns, "compressed")
    if axes is None:
        _spread(drawn[0].figure, panel[0], gap)
        drawn[0].figure.set_figheight(drawn[0].figure.get_figheight() + 0.35)
    from matplotlib.colors import FuncNorm, PowerNorm

    largest = max(float(np.abs(share).max()) for share in shares) or 1.0
    roots = (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * x**2)
    images = []
    for number, (ax, array, share) in enumerate(zip(drawn, arrays, shares, strict=True)):
        style: Any = {"cmap": sequential(), "norm": PowerNorm(0.5, 0, largest)}
        if array.signed:
            style = {"cmap": diverging(), "norm": FuncNorm(roots, -largest, largest)}
        images.append(ax.imshow(share, **style, aspect="equal", interpolation="nearest"))
        _label_some_cells(ax, array, cell, rows=axes is not None or number % columns == 0)
        title = ax.set_title(describe(names[number]).title)
        wrap(title, max(SMALL_TITLE_WIDTH, cell * keys))
    _share_bars(images, drawn)
    if axes is None:
        where = f"layer {layer}" + ("" if head is None else f", head {head}")
        headline(drawn[0].figure, f"What each token gets from each, map by map, {where}")
    return drawn


def _small_cell(queries: int, keys: int, across: int) -> float:
    """Return the inches of a cell where `across` maps share the width of a page, within bounds."""
    fitting = (PAGE - LABELS - BAR) / across / keys
    return min(max(SMALL_CELL, min(fitting, CELL)), SMALL_PANEL / max(queries, keys))


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
        return title, SHARE_LABEL
    return title, scope.label if scope.name in (WEIGHTS, NORMS) else scope.unit


def _label_room(array: LabelledArray) -> tuple[float, float]:
    """Return the inches that the labels of queries and of keys need beyond the usual."""
    return room(_names(array.tokens["query"])), room(_names(array.tokens["key"]))


def _names(tokens: Tokens) -> list[str]:
    """Return the pieces as labels: "cat" where the vocabulary has "Ġcat" or "▁cat"."""
    if not any(string.startswith(SPACE_MARKS) for string in tokens.strings):
        return list(tokens.strings)
    pieces = zip(tokens.strings, tokens.texts, tokens.special, strict=True)
    return [string if special else text.strip() or string for string, text, special in pieces]


def _new_figure(count: int, array: LabelledArray, bars: int = 1) -> Figure:
    """Return a figure in which every token has room for its name, up to the size of a screen.

    Args:
        count: How many maps are side by side; the first has the names of the queries.
        array: One of the maps.
        bars: How many colour bars there are.
    """
    queries, keys = array.shape[-2:]
    beside, below = _label_room(array)
    cell = min(CELL, MAX_PANEL / max(queries, keys))
    map_width = cell * keys
    gap = max(MIN_TITLE_WIDTH - map_width, 0.25)
    width = LABELS + beside + count * (map_width + gap) + bars * BAR
    height = max(2.6 + below, cell * queries + FRAME + below)
    empty = figure(max(width, 3.6 + beside), height, "compressed")
    layout: Any = empty.get_layout_engine()
    layout.set(w_pad=0.06)
    _spread(empty, width / count, gap)
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
    style: dict[str, Any] = {"fontsize": min(8.5, max(size, 2.0)), "parse_math": False}
    style["usetex"] = False
    names = {axis: [brief(s) for s in _names(array.tokens[axis])] for axis in array.axes}
    ax.set_yticks(range(queries), names["query"], **style)
    ax.set_xticks(range(keys), names["key"], rotation=90, **style)
    ax.set_ylabel("To these tokens (queries)")
    ax.set_xlabel("From these tokens (keys)")
    ax.tick_params(length=0, pad=3, labelcolor=ink("ink"))
    ax.spines[:].set_visible(False)
    # Thin lines between the cells let the eye follow a row across the picture.
    ax.set_xticks(np.arange(keys + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(queries + 1) - 0.5, minor=True)
    ax.tick_params(which="minor", length=0)
    ax.grid(which="minor", color=ink("line"), linewidth=0.5)


def _label_some_cells(ax: Axes, array: LabelledArray, cell: float, *, rows: bool) -> None:
    """Label columns, and rows if asked for, with tokens: every nth where cells are small."""
    step = max(1, math.ceil(READABLE / (72 * 0.85 * cell)))
    size = min(8.0, 72 * 0.85 * cell * step)
    for axis, side in ((ax.yaxis, "query"), (ax.xaxis, "key")):
        strings = _names(array.tokens[side])
        places = range(0, len(strings), step)
        style: Any = {"fontsize": size, "parse_math": False, "usetex": False}
        if side == "key":
            style["rotation"] = 90
        names = [brief(strings[at]) for at in places] if rows or side == "key" else []
        axis.set_ticks(places if names else [], names, **style)
    ax.tick_params(length=0, pad=2, labelcolor=ink("ink"))
    ax.spines[:].set_color(ink("line"))
