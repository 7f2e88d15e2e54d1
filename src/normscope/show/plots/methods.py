"""Plots of a comparison of methods: how much they agree, and which is more faithful."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.errors import InputError
from normscope.faithfulness.agreement import Agreement
from normscope.faithfulness.result import MethodFigures
from normscope.foundation.texts import printable
from normscope.show.plots.style import (
    brief,
    colour_bar,
    diverging,
    figure,
    ink,
    plain,
    styled,
    tidy,
    write_values,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL = 0.62  # inches
ROW = 0.34


@styled
def agreement(result: Agreement, ax: Axes | None = None) -> Axes:
    """Draw the rank correlations of methods as a heat map: means over the texts.

    Args:
        result: What `compare` returns.
        ax: Axes to draw into; by default those of a new figure.
    """
    names = [brief(printable(name)) for name in result.methods]
    if ax is None:
        side = 2.4 + CELL * len(names)
        ax = figure(side + 1.0, side).subplots()
    style: dict[str, Any] = {"cmap": diverging(), "vmin": -1, "vmax": 1}
    image = ax.imshow(result.means, **style, interpolation="nearest")
    ax.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(names)), names)
    for label in (*ax.get_xticklabels(), *ax.get_yticklabels()):
        label.set_parse_math(False)
    ax.tick_params(length=0, labelcolor=ink("ink"))
    ax.spines[:].set_visible(False)
    write_values(image, 2)
    colour_bar(image, ax, "Spearman's ρ, mean over texts")
    title = ax.set_title("", fontsize=11, fontweight="bold", loc="left", pad=10)
    title.update(plain(f"How much methods agree on {len(result)} texts"))
    return ax


@styled
def faithfulness(result: MethodFigures, name: str, ax: Axes | None = None) -> Axes:
    """Draw one figure of all methods: means with their intervals, the best first.

    Args:
        result: What `faithfulness` or `evidence` returns.
        name: The figure, such as "aopc".
        ax: Axes to draw into; by default those of a new figure.
    """
    found = [entry for entry in result.figures if entry.name == name]
    if not found:
        names = ", ".join(entry.name for entry in result.figures)
        raise InputError(f"there is no figure {name!r}; the figures are: {names}")
    (entry,) = found
    rows = [row for row in result.rows() if row["figure"] == name and not np.isnan(row["mean"])]
    if not rows:
        raise InputError(f"the figure {name!r} is not defined for any text")
    rows.sort(key=lambda row: row["mean"], reverse=entry.higher_is_better)
    if ax is None:
        ax = figure(6.4, 1.3 + ROW * len(rows)).subplots()
    means = np.array([row["mean"] for row in rows])
    ends = np.array([[row["low"], row["high"]] for row in rows])
    places = np.arange(len(rows))
    if np.isfinite(ends).all():
        ax.hlines(places, ends[:, 0], ends[:, 1], color=ink("accent"), linewidth=2)
    ax.plot(means, places, "o", color=ink("accent"))
    ax.set_yticks(places, [brief(printable(row["method"])) for row in rows])
    for label in ax.get_yticklabels():
        label.set_parse_math(False)
    ax.invert_yaxis()
    ax.margins(y=0.15)
    tidy(ax)
    better = "higher" if entry.higher_is_better else "lower"
    ax.set_xlabel(f"{name} ({better} is better), {100 * result.confidence:g}% interval")
    title = ax.set_title("", fontsize=11, fontweight="bold", loc="left", pad=10)
    title.update(plain(entry.title[0].upper() + entry.title[1:]))
    return ax
