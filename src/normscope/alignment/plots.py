"""Pictures of alignments (extra ``plots``): soft matrices with gold frames, AER by layer and head.

Every function draws into the axes given, or into a figure of its own, and returns the axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscope.alignment.api import Alignment
from normscope.alignment.links import Links
from normscope.errors import InputError, MissingExtraError
from normscope.show.plots import COLOURS
from normscope.show.plots.style import brief, room

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FRAME = "</s>"
GOLD = "#D55E00"  # Okabe and Ito's vermilion: told from the blues of the cells with any eyes
LINES = {
    "norms": ("#0072B2", "o", "-"),
    "weights": ("#E69F00", "s", "-"),
    "published norms": ("#56B4E9", "o", "--"),
    "published weights": ("#CC79A7", "s", "--"),
}


def soft_alignment(
    alignment: Alignment, gold: Links | None = None, ax: Axes | None = None, *, shares: bool = True
) -> Axes:
    """Draw a soft alignment: target words from top to bottom, source words and </s> across.

    Args:
        alignment: made with ``soft=True``.
        gold: sure links get a solid frame, possible ones a dashed one.
        ax: where to draw.
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
    figure: Any = ax.figure
    label = "share of the row" if shares else "value"
    figure.colorbar(image, ax=ax, shrink=0.9, label=label).outline.set_visible(False)
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
    """Draw AER against the layer, a line for each entry.

    Args:
        curves: AER between 0 and 1 of every layer, by name; "norms", "weights", "published norms"
            and "published weights" have colours and marks of their own.
        ax: where to draw.
        title: what goes above.
    """
    if not curves:
        raise InputError("no curve was given: {'norms': [AER of layer 0, …]}")
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
    """Draw the AER (layer, head), between 0 and 1, as a heat map with its numbers."""
    values = _table(rates)
    ax = _numbers(100 * values, "AER (%)", ax, title, darker_is_less=True)
    return ax


def norm_by_head(norms: ArrayLike, ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw the mean norm (layer, head) as a heat map with its numbers."""
    return _numbers(_table(norms), "mean norm", ax, title, darker_is_less=False)


def _table(given: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(given, dtype=np.float64)
    if values.ndim != 2:
        raise InputError(f"a table by layer and head has two axes, not {values.ndim}")
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
            # Where the cell is dark its number is white.
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
    figure: Any = ax.figure
    figure.colorbar(image, ax=ax, label=label).outline.set_visible(False)
    return ax


def _axes(size: tuple[float, float]) -> Axes:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error

    width, height = (min(max(one, 3.2), 24.0) for one in size)
    return Figure(figsize=(width, height), layout="compressed").subplots()
