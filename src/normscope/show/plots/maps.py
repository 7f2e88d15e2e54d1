"""Maps of one result: one, some side by side, or all scopes of a sentence on one scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.results.arrays import LabelledArray
from normscope.results.contributions import Contributions
from normscope.show.plots.style import brief, figure, panels, room, short, wrap
from normscope.show.terminal import row_shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From white to dark in lightness alone, so that it reads without colour vision and in print.
COLOURS = "Blues"
SMALL_CELL, PANEL, READABLE = 0.15, 8.0, 4.5  # inches, inches, points: where there are several
NARROW = 3.2  # inches
CELL, FRAME, LARGEST = 0.21, 1.7, 24.0  # inches: a cell, what is around the cells, a whole panel
# Inches that a map has at least for what is above and below it, however few its keys: layouts take
# no notice of how wide titles are.
ROOM, SMALL_ROOM, BESIDE = 2.5, 1.3, 1.1  # the last: labels and colour bar beside a map

# Title and colour bar of a map: with its heads taken together, and of one head.
TITLES = {
    "attn_w": (r"attention weight  $\alpha$  (mean over heads)", r"attention weight  $\alpha$"),
    "attn_n": (
        r"norm  $\Vert\Sigma_h\,\alpha f(x)\Vert$  (heads summed)",
        r"norm  $\Vert\alpha f(x)\Vert$",
    ),
    **{
        name: (f"norm, {what}", "")
        for name, what in {
            "attn_res_n": "with the residual",
            "attn_res_ln_n": "with residual and layer norm",
            "atb": "the attention block",
            "atb_ln": "the attention block and the norm after it",
            "atb_ff": "through the feed-forward",
            "atb_ff_res": "through the feed-forward, with its residual",
            "atb_ff_res_ln": "the whole layer",
            "atb_ln_ff": "through norm and feed-forward",
            "atb_ln_ff_res": "the whole layer",
        }.items()
    },
    "attn_res_w": (r"$\frac{1}{2}\alpha + \frac{1}{2}$ identity  (mean over heads)", ""),
}
UNITS = {"attn_w": "weight", "attn_res_w": "weight"}


def compare(
    result: Contributions,
    layer: int,
    maps: Sequence[str] = ("attn_w", "attn_n"),
    axes: Any = None,
    *,
    head: int | None = None,
    normalise: bool = False,
) -> NDArray[Any]:
    """Draw maps of one layer side by side, each with its own colour scale.

    Returns the array of their Axes; `axes[0].figure` is the figure. `axes` gives Axes to draw
    into, one for each map. See `heatmap` for `head` and `normalise`.
    """
    chosen = [maps] if isinstance(maps, str) else list(maps)
    if not chosen:
        raise InputError(f"no map was named; there is: {', '.join(result)}")
    arrays = [result[name] for name in chosen]
    if axes is None:
        axes = _figure(len(arrays), arrays[0]).subplots(1, len(arrays), squeeze=False)
    given = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
    if len(given) != len(arrays):
        raise InputError(f"{len(arrays)} maps need {len(arrays)} axes, but {len(given)} were given")
    for array, ax in zip(arrays, given, strict=True):
        heatmap(array, layer=layer, head=head, ax=ax, normalise=normalise)
    return given


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

    Cells are shares of what a query takes. The scale is that of their square roots, so that what
    a residual leaves of the other tokens can still be seen; the colour bar says which is which.
    Without `maps`, all of the result are drawn, `columns` in a row.
    """
    chosen = list(result) if maps is None else list(maps)
    if not chosen:
        raise InputError(f"no map was named; there is: {', '.join(result)}")
    arrays = [_selected(result[name], layer, head) for name in chosen]
    shares = [row_shares(array) for array in arrays]
    queries, keys = shares[0].shape
    cell = min(SMALL_CELL, PANEL / max(queries, keys))
    size = (max(2.6, cell * keys + 0.4), max(2.8, cell * queries + 1.3))
    width = min(size[0] - 0.4, (size[1] - 1.3) * keys / queries)
    beside, below = (room(arrays[0].tokens[axis].strings) for axis in ("query", "key"))
    size = (size[0] + beside / min(len(arrays), columns), size[1] + below)
    drawn = panels(axes, len(arrays), size, columns, "compressed")
    if axes is None:
        _spread(drawn[0].figure, size[0], SMALL_ROOM + 0.1 - width)
    from matplotlib.colors import PowerNorm

    scale = PowerNorm(0.5, 0, max(float(share.max()) for share in shares) or 1.0)
    for number, (ax, array, share) in enumerate(zip(drawn, arrays, shares, strict=True)):
        image = ax.imshow(share, cmap=COLOURS, norm=scale, aspect="equal", interpolation="nearest")
        _name_some(ax, array, cell, rows=axes is not None or number % columns == 0)
        wrap(ax.set_title(short(chosen[number]), fontsize=10), max(SMALL_ROOM, width))
    whole: Any = drawn[0].figure
    bar = whole.colorbar(image, ax=list(drawn), shrink=0.7, aspect=30, pad=0.01)
    bar.set_label("share of what the query takes")
    bar.outline.set_visible(False)
    if axes is None:
        whole.suptitle(f"layer {layer}" + ("" if head is None else f", head {head}"), fontsize=11)
    return drawn


def _selected(array: LabelledArray, layer: int, head: int | None) -> LabelledArray:
    """The map of one layer, and of one head where there are several; no residual as a key."""
    if "head" in array.axes and head is None:
        raise InputError(f"{array.name!r} has {array.shape[1]} heads; choose one with head=")
    one = array.sel(layer=layer)
    return one if head is None else one.sel(head=head)


def _name_some(ax: Axes, array: LabelledArray, cell: float, *, rows: bool) -> None:
    """Tokens as labels, as many as can be read: each where there is room, else every nth."""
    step = max(1, math.ceil(READABLE / (72 * 0.85 * cell)))
    size = min(8.0, 72 * 0.85 * cell * step)
    for axis, names in ((ax.yaxis, "query"), (ax.xaxis, "key")):
        strings = array.tokens[names].strings
        places = range(0, len(strings), step)
        style: Any = {"fontsize": size, "parse_math": False, "usetex": False}
        if names == "key":
            style["rotation"] = 90
        shown = [brief(strings[at]) for at in places] if rows or names == "key" else []
        axis.set_ticks(places if shown else [], shown, **style)
    ax.tick_params(length=0, pad=2)
    ax.spines[:].set_color("#c8c8c8")


def heatmap(
    array: LabelledArray,
    *,
    layer: int | None = None,
    head: int | None = None,
    ax: Axes | None = None,
    normalise: bool = False,
) -> Axes:
    """Draw one map: queries from top to bottom, keys from left to right.

    `layer` and `head` choose from an array that has those axes. With `normalise` each row is
    divided by its sum, so that cells are shares of what a query takes.
    """
    title, bar = _titles(array, layer, head, normalise)
    for axis, label in {"layer": layer, "head": head}.items():
        if axis in array.axes and label is None and len(array.labels[axis]) > 1:
            raise InputError(
                f"{array.name!r} has {len(array.labels[axis])} {axis}s; choose one with {axis}="
            )
        if label is not None or axis in array.axes:
            array = array.sel(**{axis: array.labels[axis][0] if label is None else label})
    if array.axes != ("query", "key"):
        raise InputError(f"a heat map needs the axes query and key; {array.name!r}: {array.axes}")
    values = row_shares(array) if normalise else array.to_numpy()
    if ax is None:
        ax = _figure(1, array).subplots()
    shown: Any = {"cmap": COLOURS, "vmin": 0, "vmax": None if values.any() else 1}
    image = ax.imshow(values, **shown, aspect="equal", interpolation="nearest", origin="upper")
    _label(ax, array)
    box, (queries, keys) = ax.get_window_extent(), values.shape
    across, down = box.width / ax.figure.dpi, box.height / ax.figure.dpi
    beside, below = (room(array.tokens[axis].strings) for axis in array.axes)
    width = min(across - beside, (down - below) * keys / queries)
    # Beside each other, titles of narrow panels would touch at the usual size.
    text = ax.set_title(title, fontsize=12 if width > NARROW else 10, pad=10)
    wrap(text, max(ROOM - 0.1, width + BESIDE))
    whole: Any = ax.figure
    colours = whole.colorbar(image, ax=ax, shrink=0.9, aspect=36, pad=0.015, label=bar)
    colours.outline.set_visible(False)
    return ax


def _titles(
    array: LabelledArray, layer: int | None, head: int | None, normalise: bool
) -> tuple[str, str]:
    several, one = TITLES.get(array.name, (array.name, array.name))
    single = head is not None or "head" in array.axes
    places = [
        f"{axis} {at}" for axis, at in {"layer": layer, "head": head}.items() if at is not None
    ]
    title = ", ".join([one if single else several, *places])
    return title, "share of the row" if normalise else UNITS.get(array.name, "norm")


def _figure(count: int, array: LabelledArray) -> Figure:
    """A figure in which every token has room for its name, up to a size that screens can show."""
    queries, keys = array.shape[-2:]
    beside, below = (room(array.tokens[axis].strings) for axis in ("query", "key"))
    width = max(4.0 + beside, min(CELL * keys + FRAME + beside, LARGEST))
    height = max(3.5 + below, min(CELL * queries + FRAME + below, LARGEST))
    made = figure(count * width, height, "compressed")
    layout: Any = made.get_layout_engine()
    layout.set(w_pad=0.12)
    cells = min(width - FRAME - beside, (height - FRAME - below) * keys / queries)
    _spread(made, width, ROOM - BESIDE - beside - cells)
    return made


def _spread(made: Figure, panel: float, gap: float) -> None:
    """So many inches between panels, or the layout's own where those are more."""
    layout: Any = made.get_layout_engine()
    layout.set(wspace=max(gap, 0) / panel, h_pad=0.14)


def _label(ax: Axes, array: LabelledArray) -> None:
    queries, keys = array.shape
    box = ax.get_window_extent()
    size = 0.75 * 72 / ax.figure.dpi * min(box.width / keys, box.height / queries)
    # Tokens may have $, _ or \ in them, which are not to be read as formulas.
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
