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
from normscope.show.plots import COLOURS
from normscope.show.plots.style import brief, figure, room

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FRAME = "</s>"
GOLD = "#D55E00"  # Okabe and Ito's vermilion, distinct from the blue cells in any colour vision
LINES = {
    "norms": ("#0072B2", "o", "-"),
    "weights": ("#E69F00", "s", "-"),
    "published norms": ("#56B4E9", "o", "--"),
    "published weights": ("#CC79A7", "s", "--"),
}


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
    shown: Any = {"cmap": COLOURS, "vmin": 0, "vmax": None if values.any() else 1}
    image = ax.imshow(values, **shown, aspect="equal", interpolation="nearest")
    plain: dict[str, Any] = {"parse_math": False, "usetex": False}
    ax.set_xticks(range(len(columns)), [brief(w) for w in columns], rotation=90, **plain)
    ax.set_yticks(range(len(alignment.target)), [brief(w) for w in alignment.target], **plain)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    for link in gold or ():
        _frame(ax, link, "-" if gold is not None and link in gold.sure else "--")
    label = "share of the row" if shares else "value"
    _colour_bar(ax, image, label, shrink=0.9)
    return ax


def _frame(ax: Axes, link: tuple[int, int], style: str) -> None:
    from matplotlib.patches import Rectangle

    source, target = link
    corner = source - 0.46, target - 0.46
    ax.add_patch(
        Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=GOLD, linewidth=1.8, linestyle=style)
    )


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
    for name, rates in curves.items():
        colour, marker, style = LINES.get(name, (None, "^", "-"))
        percent = [100 * rate for rate in rates]
        ax.plot(
            range(len(percent)), percent, color=colour, marker=marker, ls=style, label=brief(name)
        )
    longest = max(len(rates) for rates in curves.values())
    ax.set_xticks(range(longest))
    ax.set_xlabel("layer")
    ax.set_ylabel("AER (%)")
    ax.set_title(title)
    ax.grid(alpha=0.3)
    ax.legend()
    return ax


def aer_by_head(rates: ArrayLike, ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw the AER (0 to 1) by (layer, head) as a heat map with numbers."""
    return _numbers(100 * _table(rates), "AER (%)", ax, title, darker_is_less=True)


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
    colours = f"{COLOURS}_r" if darker_is_less else COLOURS
    image = ax.imshow(values, cmap=colours, aspect="auto", interpolation="nearest")
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    for layer in range(layers):
        for head in range(heads):
            # White numbers on dark cells.
            depth = (values[layer, head] - low) / max(high - low, 1e-12)
            depth = 1 - depth if darker_is_less else depth
            text = f"{values[layer, head]:.1f}"
            colour = "white" if depth > 0.55 else "black"
            ax.text(head, layer, text, ha="center", va="center", fontsize=8, color=colour)
    ax.set_xticks(range(heads))
    ax.set_yticks(range(layers))
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.set_title(title)
    _colour_bar(ax, image, label)
    return ax


def _colour_bar(ax: Axes, image: Any, label: str, **more: Any) -> None:
    drawn: Any = ax.figure
    drawn.colorbar(image, ax=ax, label=label, **more).outline.set_visible(False)


def _axes(size: tuple[float, float]) -> Axes:
    """Make a figure of this size in inches, within bounds."""
    width, height = (min(max(inches, 3.2), 24.0) for inches in size)
    return figure(width, height, "compressed").subplots()
