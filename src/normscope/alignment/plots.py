"""Plots of alignments (extra ``plots``): soft matrices with gold links, AER by layer and head.

``normscope.plots.alignment`` draws the links themselves, between the words of two sentences.

Every function draws into ``ax``, or into a new figure, and returns the axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscope.alignment.links import Links
from normscope.alignment.result import Alignment
from normscope.errors import InputError
from normscope.show.plots.style import (
    brief,
    colour,
    colour_bar,
    figure,
    ink,
    room,
    sequential,
    set_title,
    styled,
    tidy,
    write_values,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FRAME = "</s>"
GOLD = 1  # the vermilion of the categories, distinct from blue cells in any colour vision
# Number of the colour, marker and dashes.
LINES = {
    "norms": (0, "o", "-"),
    "weights": (1, "s", "-"),
    "published norms": (0, "o", "--"),
    "published weights": (1, "s", "--"),
}


@styled
def soft_alignment(
    alignment: Alignment, gold: Links | None = None, ax: Axes | None = None, *, shares: bool = True
) -> Axes:
    """Draw a soft alignment: target words as rows, source words and </s> as columns.

    Args:
        alignment: an alignment made with ``soft=True``.
        gold: gold links to mark: sure links with a solid frame, possible ones with a dashed frame.
        ax: the axes to draw into.
        shares: divide each row by its sum.
    """
    if alignment.soft is None:
        raise InputError("this alignment has no matrix; make it with soft=True (--soft)")
    if alignment.source is None:
        columns = [str(frame) for frame in range(alignment.soft.shape[1])]
    else:
        columns = [*alignment.source, FRAME]
    values: NDArray[Any] = alignment.soft
    if shares:
        values = values / np.maximum(values.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    across, down = len(columns), len(alignment.target)
    size = 0.32 * across + 2 + room(alignment.target), 0.32 * down + 1.6 + room(columns)
    ax = _axes(size) if ax is None else ax
    shown: Any = {"cmap": sequential(), "vmin": 0, "vmax": None if values.any() else 1}
    image = ax.imshow(values, **shown, aspect="equal", interpolation="nearest")
    plain: dict[str, Any] = {"parse_math": False, "usetex": False}
    ax.set_xticks(range(len(columns)), [brief(w) for w in columns], rotation=90, **plain)
    ax.set_yticks(range(len(alignment.target)), [brief(w) for w in alignment.target], **plain)
    ax.tick_params(length=0, labelcolor=ink("ink"))
    ax.spines[:].set_color(ink("line"))
    for link in gold or ():
        _frame(ax, link, "-" if gold is not None and link in gold.sure else "--")
    label = "share of the row" if shares else "value"
    colour_bar(image, ax, label)
    return ax


def _frame(ax: Axes, link: tuple[int, int], style: str) -> None:
    from matplotlib.patches import Rectangle

    source, target = link
    corner = source - 0.46, target - 0.46
    look: Any = {"edgecolor": colour(GOLD), "linewidth": 1.8, "linestyle": style}
    ax.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, **look))


@styled
def aer_by_layer(
    curves: Mapping[str, Sequence[float]], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Draw the AER by layer, one line per entry.

    Args:
        curves: the AER (0 to 1) of every layer, by name. "norms", "weights", "published norms" and
            "published weights" have their own colours and markers.
        ax: the axes to draw into.
        title: the title.
    """
    if not curves:
        raise InputError("no curves were given; give for example {'norms': [0.5, 0.4]}")
    ax = _axes((5.2, 3.6)) if ax is None else ax
    for number, (name, rates) in enumerate(curves.items()):
        hue, marker, dashes = LINES.get(name, (number + 2, "^", "-"))
        percent = [100 * rate for rate in rates]
        look: Any = {"color": colour(hue), "marker": marker, "ls": dashes}
        look["markerfacecolor"] = ink("panel") if name.startswith("published") else colour(hue)
        ax.plot(range(len(percent)), percent, **look, label=brief(name))
    longest = max(len(rates) for rates in curves.values())
    ax.set_xticks(range(longest))
    ax.set_xlabel("layer")
    ax.set_ylabel("alignment error rate, %")
    set_title(ax, title)
    tidy(ax)
    ax.legend()
    return ax


@styled
def aer_by_head(rates: ArrayLike, ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw the AER (0 to 1) by (layer, head) as a heat map with numbers."""
    return _numbers(100 * _table(rates), "alignment error rate, %", ax, title, darker_is_less=True)


@styled
def norm_by_head(norms: ArrayLike, ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw the mean norm by (layer, head) as a heat map with numbers."""
    return _numbers(_table(norms), "mean norm", ax, title, darker_is_less=False)


def _table(table: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(table, dtype=np.float64)
    if values.ndim != 2:
        raise InputError(f"a table must have two axes (layer, head), not {values.ndim}")
    return values


def _numbers(
    values: NDArray[np.float64], label: str, ax: Axes | None, title: str, *, darker_is_less: bool
) -> Axes:
    layers, heads = values.shape
    ax = _axes((0.62 * heads + 2.2, 0.42 * layers + 1.6)) if ax is None else ax
    colours = sequential(reverse=darker_is_less)
    image = ax.imshow(values, cmap=colours, aspect="auto", interpolation="nearest")
    write_values(image, 1)
    ax.set_xticks(range(heads))
    ax.set_yticks(range(layers))
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.tick_params(length=0, labelcolor=ink("ink"))
    ax.spines[:].set_visible(False)
    set_title(ax, title)
    colour_bar(image, ax, label)
    return ax


def _axes(size: tuple[float, float]) -> Axes:
    """Make a figure of this size in inches, within bounds."""
    width, height = (min(max(inches, 3.2), 24.0) for inches in size)
    return figure(width, height, "compressed").subplots()
