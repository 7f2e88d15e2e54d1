"""Plots of other statistics: heat maps of heads, scatters, frequency, amplified pairs."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import SCOPES
from normscope.errors import InputError
from normscope.show.plots.style import (
    PAGE,
    brief,
    category_label,
    chosen,
    colour,
    colour_bar,
    columns_of,
    distinct,
    headline,
    ink,
    label_of,
    legend,
    panels,
    sequential,
    set_title,
    styled,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = ("alpha", "transformed_norm", "weighted_norm", "cv")
PAIR_LETTERS = 14  # of each token in the label of a pair
BAR = 0.75  # inches of a colour bar with its label
RANK_LABEL = "frequency rank of the token (1: the most frequent)"
READABLE = 0.16  # inches: the smallest distance of two numbers along an axis


@styled
def heads(
    table: Any,
    measures: Sequence[str] | str | None = None,
    names: Sequence[str] | None = None,
    axes: Any = None,
) -> NDArray[Any]:
    """Draw head × layer heat maps: a row of panels for each measure, a panel for each category.

    A row of panels has one colour scale.

    Args:
        table: Columns layer, head, the measures and, where there are several, category, as in the
            table "heads" of the statistic "categories" and "transformed_norm" of "dispersion".
        measures: The columns to draw; by default those of alpha, transformed_norm, weighted_norm
            and cv that the table has.
        names: The categories to draw; all by default.
        axes: Axes to draw into; by default those of a new figure.
    """
    data = columns_of(table, "layer", "head")
    wanted = chosen(measures, [name for name in data if name not in ("layer", "head")], "measure")
    if measures is None:
        wanted = [name for name in MEASURES if name in data]
    if not wanted:
        raise InputError(f"the table has no measure; it has: {', '.join(data)}")
    groups: list[Any] = [None]
    if "category" in data:
        groups = list(chosen(names, distinct(data["category"]), "category"))
    layers, numbers = (np.unique(data[name]).tolist() for name in ("layer", "head"))
    size = _head_panel(len(groups), len(layers), len(numbers))
    drawn = panels(axes, len(wanted) * len(groups), size, len(groups))
    drawn = drawn.reshape(len(wanted), -1)
    if axes is None:
        drawn[0, 0].figure.set_figheight(len(wanted) * size[1] + 0.9)
    for row, measure in zip(drawn, wanted, strict=True):
        images = []
        for ax, group in zip(row, groups, strict=True):
            rows = slice(None) if group is None else data["category"] == group
            values = _grid(data["layer"][rows], data["head"][rows], data[measure][rows])
            # Where there is one category, panels differ in what they measure.
            title = [] if group is None else [category_label(group)]
            title += [label_of(measure)] if len(groups) == 1 else []
            images.append(_head_map(ax, values, layers, numbers))
            wide = axes is None and len(groups) > 1
            set_title(ax, ": ".join(title), size[0] - BAR / len(groups) if wide else None)
            if axes is None:
                _label_outer(ax, drawn)
        _share_scale(images, list(row), label_of(measure))
    if axes is None:
        whose = "" if groups == [None] else " and category of token"
        headline(drawn[0, 0].figure, f"Heads of each layer, by measure{whose}")
    return drawn if len(wanted) > 1 and axes is None else drawn.ravel()


def _head_panel(across: int, layers: int, heads: int) -> tuple[float, float]:
    """Return width and height of a panel in inches: a row of panels is as wide as a page."""
    beside = (BAR + 0.4) / across + 0.12  # the colour bar, the numbers of the layers, a gap
    width = min(max(0.24 * heads, 1.2) + beside, max(PAGE / across, 1.5))
    cell = (width - beside) / heads
    return width, max(cell * layers, 0.6) + 0.3


def _label_outer(ax: Axes, grid: NDArray[Any]) -> None:
    """Keep the labels of heads below the last row, of layers beside the first column.

    Where columns are categories, the first row alone has their names.
    """
    ((row, column),) = np.argwhere(grid == ax).tolist()
    if column:
        ax.set_ylabel("")
        ax.tick_params(labelleft=False)
    if row < len(grid) - 1:
        ax.set_xlabel("")
        ax.tick_params(labelbottom=False)
    if row and grid.shape[1] > 1:
        ax.set_title("")


def _grid(layer: NDArray[Any], head: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Return long columns as (layer, head), with NaN where the table has no row."""
    layers, down = np.unique(layer, return_inverse=True)
    numbers, across = np.unique(head, return_inverse=True)
    grid = np.full((len(layers), len(numbers)), np.nan)
    grid[down.ravel(), across.ravel()] = values
    return grid


def _head_map(ax: Axes, values: NDArray[Any], layers: list[Any], numbers: list[Any]) -> Any:
    image = ax.imshow(
        np.ma.masked_invalid(values), cmap=sequential(), interpolation="nearest", origin="upper"
    )
    box = ax.get_window_extent()
    sizes = ((ax.set_xticks, numbers, box.width), (ax.set_yticks, layers, box.height))
    for set_ticks, labels, room in sizes:
        step = 1 + int(READABLE * ax.figure.dpi * len(labels) / room)
        set_ticks(range(0, len(labels), step), [str(label) for label in labels[::step]])
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.tick_params(length=0, labelsize=7.5, labelcolor=ink("ink"))
    ax.spines[:].set(visible=True, color=ink("line"))
    return image


def _share_scale(images: list[Any], axes: list[Axes], label: str) -> None:
    """Give a row of images one colour scale from 0, with one colour bar."""
    top = np.nanmax([image.get_array().max() for image in images])
    for image in images:
        image.set_clim(0, top if top > 0 else 1)
    colour_bar(images[-1], axes, label, aspect=18)


@styled
def alpha_and_norm(
    table: Any,
    names: Sequence[str] | None = None,
    correlations: Any = None,
    axes: Any = None,
    *,
    log: bool = False,
) -> NDArray[Any]:
    """Draw α against ‖f(x)‖ for a sample of pairs, with a panel for each category.

    Args:
        table: Columns category, alpha and transformed_norm, as in the table "scatter" of the
            statistic "alpha_vs_norm".
        names: The categories to draw; all by default.
        correlations: The table "spearman" of the same statistic, whose ρ go into the titles.
        axes: Axes to draw into, one for each category; by default those of a new figure.
        log: Draw α on a logarithmic axis.
    """
    data = columns_of(table, "category", "alpha", "transformed_norm")
    groups = chosen(names, distinct(data["category"]), "category")
    rho: dict[Any, float] = {}
    if correlations is not None:
        columns = columns_of(correlations, "category", "spearman")
        rho = dict(zip(columns["category"].tolist(), columns["spearman"].tolist(), strict=True))
    drawn = panels(axes, len(groups), (3.3, 2.4), 2, sharex=True, sharey=True)
    rows_drawn = np.isin(data["category"], groups)
    top = 1.05 * float(np.max(data["transformed_norm"][rows_drawn], initial=1e-12))
    for number, (ax, group) in enumerate(zip(drawn, groups, strict=True)):
        rows = data["category"] == group
        ax.scatter(
            data["alpha"][rows],
            data["transformed_norm"][rows],
            s=4,
            alpha=0.25,
            lw=0,
            color=colour(number),
            rasterized=True,  # thousands of points make a vector file slow
        )
        correlation = f"   ρ = {_two_digits(rho[group])}" if group in rho else ""
        set_title(ax, category_label(group) + correlation)
        if log:
            ax.set_xscale("log")
        else:
            ax.set_xlim(-0.02, 1.02)
        ax.set_ylim(0, top)
        ax.set_xlabel(label_of("alpha"))
        ax.set_ylabel(label_of("transformed_norm"))
        ax.label_outer()
        tidy(ax)
    if axes is None:
        headline(drawn[0].figure, "Weight of a token and length of its vector, pair by pair")
    return drawn


def _two_digits(number: float) -> str:
    """Format with two digits, a typographic minus sign, and no minus before a zero."""
    return f"{number:.2f}".replace("-0.00", "0.00").replace("-", "−")


@styled
def frequency(table: Any, measures: Sequence[str] | None = None, axes: Any = None) -> NDArray[Any]:
    """Draw how α and ‖f(x)‖ go with the rank of a token's frequency.

    Args:
        table: Either a column rank and measures, which are drawn point by point, with special
            tokens in another colour if there is a column special; or columns of and spearman, as
            in the table of the statistic "frequency", which are drawn as one ρ for each measure.
        measures: The columns to draw, a panel for each; by default all columns of numbers.
        axes: Axes to draw into; by default those of a new figure.
    """
    data = columns_of(table)
    if "rank" not in data:
        return _correlations(columns_of(table, "of", "spearman"), axes)
    special = data.get("special", np.zeros(len(data["rank"]), dtype=bool)).astype(bool)
    numbers = [
        name
        for name, column in data.items()
        if name not in ("rank", "special", "count") and np.issubdtype(column.dtype, np.number)
    ]
    wanted = chosen(measures, numbers, "measure")
    drawn = panels(axes, len(wanted), (min(4.2, max(PAGE / len(wanted), 2.3)), 2.7))
    # A few among thousands: special tokens are larger, opaque and on top.
    kinds: Any = (
        (~special, "tokens", {"color": colour(0), "s": 6, "alpha": 0.35}),
        (special, "special tokens", {"color": colour(1), "s": 24, "marker": "D"}),
    )
    for ax, measure in zip(drawn, wanted, strict=True):
        for rows, name, style in kinds:
            if rows.any():
                points = data["rank"][rows], data[measure][rows]
                ax.scatter(*points, **style, lw=0, label=name, rasterized=True)
        ax.set_xscale("log")
        ax.set_ylabel(label_of(measure))
        ax.set_ylim(bottom=0)
        tidy(ax)
    if special.any():
        legend(drawn[-1], loc="best", bbox_to_anchor=None, markerscale=1.2)
    if axes is None:
        drawn[0].figure.supxlabel(RANK_LABEL, fontsize=9)
        headline(drawn[0].figure, "Frequent and rare tokens: one point for each rank")
    else:
        for ax in drawn:
            ax.set_xlabel(RANK_LABEL)
    return drawn


def _correlations(data: dict[str, NDArray[Any]], axes: Any) -> NDArray[Any]:
    (ax,) = drawn = panels(axes, 1, (PAGE, 1.2 + 0.3 * len(data["of"])))
    places = np.arange(len(data["of"]))
    kinds = {"spearman": ("all tokens", "o"), "spearman_without_special": ("without special", "D")}
    for number, (column, (name, marker)) in enumerate(kinds.items()):
        if column in data:
            ax.plot(
                data[column].astype(float), places, marker, color=colour(number), ms=7, label=name
            )
    ax.axvline(0, color=ink("muted"), lw=0.8)
    # Mixing ratios are listed under the names of their maps.
    labels = [
        f"mixing ratio: {label_of(name)}" if name in SCOPES else label_of(name)
        for name in map(str, data["of"])
    ]
    ax.set_yticks(places, labels)
    ax.set_xlim(-1, 1)
    ax.set_ylim(len(places) - 0.5, -0.5)
    ax.set_xlabel("Spearman's ρ with the frequency rank (1: the most frequent)")
    tidy(ax)
    legend(ax)
    if axes is None:
        headline(ax.figure, "How weights and norms go with the frequency of a token")
    return drawn


@styled
def amplified(
    table: Any, layer: int | None = None, top: int = 12, axes: Any = None
) -> NDArray[Any]:
    """Draw the pairs of tokens that the feed-forward enlarges most often.

    Args:
        table: Columns layer, query_token, key_token and count, as in the table "pairs" of the
            statistic "amplification".
        layer: The layer to draw; by default all, a panel for each.
        top: How many pairs a panel has at most.
        axes: Axes to draw into, one for each layer; by default those of a new figure.
    """
    data = columns_of(table, "layer", "query_token", "key_token", "count")
    valid = np.unique(data["layer"]).tolist()
    if layer is not None and layer not in valid:
        raise InputError(f"there is no layer {layer}; there is: {', '.join(map(str, valid))}")
    layers = valid if layer is None else [layer]
    columns = 3 if len(layers) < 7 else 4
    size = (PAGE / columns, max(0.6 + 0.2 * top, 1.5))
    drawn = panels(axes, len(layers), size, columns, sharex=True)
    for ax, at in zip(drawn, layers, strict=True):
        rows = np.flatnonzero(data["layer"] == at)
        rows = rows[np.argsort(-data["count"][rows], kind="stable")][:top]
        ax.barh(range(len(rows)), data["count"][rows], color=colour(0), height=0.72)
        pairs = zip(data["query_token"][rows], data["key_token"][rows], strict=True)
        names = [_pair(str(query), str(key)) for query, key in pairs]
        ax.set_yticks(range(len(rows)), names, parse_math=False)
        ax.set_ylim(max(top, 1) - 0.5, -0.5)
        set_title(ax, f"layer {at}")
        tidy(ax)
        ax.grid(visible=False, axis="y")
        ax.tick_params(axis="y", length=0)
    for ax in drawn if axes is not None else drawn[-min(columns, len(drawn)) :]:
        ax.set_xlabel("occurrences")
        ax.tick_params(labelbottom=True)  # also above the empty places of the last row
    if axes is None:
        headline(drawn[0].figure, "Pairs of tokens that the feed-forward enlarges most (from → to)")
    return drawn


def _pair(query: str, key: str) -> str:
    """Label a pair as "from → to", also where the letters run from right to left."""
    # Of Unicode's direction marks, only U+200E is in the fonts that come with matplotlib.
    right_to_left = any(
        unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in query + key
    )
    mark = "\u200e" if right_to_left else ""
    first, second = (f"{mark}{_quoted(token)}{mark}" for token in (key, query))
    return f"{first} → {second}"


def _quoted(token: str) -> str:
    """Return a token in quotation marks, in which a comma or a period is seen as a token."""
    special = len(token) > 2 and token[0] in "[<" and token[-1] in "]>"
    shown = brief(token, PAIR_LETTERS)
    return shown if special else f"“{shown}”"
