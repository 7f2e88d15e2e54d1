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
    COLOUR_MAP,
    PALETTE,
    brief,
    chosen,
    columns_of,
    distinct,
    label_of,
    legend,
    panels,
    set_title,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = ("alpha", "transformed_norm", "weighted_norm", "cv")
PAIR_LETTERS = 14  # of each token in the label of a pair


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
    size = (max(2.4, 0.24 * len(numbers) + 1.2), max(2.2, 0.24 * len(layers) + 1.0))
    drawn = panels(axes, len(wanted) * len(groups), size, len(groups)).reshape(len(wanted), -1)
    for row, measure in zip(drawn, wanted, strict=True):
        images = []
        for ax, group in zip(row, groups, strict=True):
            rows = slice(None) if group is None else data["category"] == group
            values = _grid(data["layer"][rows], data["head"][rows], data[measure][rows])
            # Where there is one category, panels differ in what they measure.
            title = [] if group is None else [brief(str(group))]
            title += [label_of(measure)] if len(groups) == 1 else []
            images.append(_head_map(ax, values, layers, numbers, ": ".join(title)))
        _share_scale(images, list(row), label_of(measure))
    return drawn if len(wanted) > 1 and axes is None else drawn.ravel()


def _grid(layer: NDArray[Any], head: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Return long columns as (layer, head), with NaN where the table has no row."""
    layers, down = np.unique(layer, return_inverse=True)
    numbers, across = np.unique(head, return_inverse=True)
    grid = np.full((len(layers), len(numbers)), np.nan)
    grid[down.ravel(), across.ravel()] = values
    return grid


def _head_map(
    ax: Axes, values: NDArray[Any], layers: list[Any], numbers: list[Any], title: str
) -> Any:
    image = ax.imshow(
        np.ma.masked_invalid(values), cmap=COLOUR_MAP, interpolation="nearest", origin="upper"
    )
    for set_ticks, labels in ((ax.set_xticks, numbers), (ax.set_yticks, layers)):
        step = 1 + (len(labels) - 1) // 16
        set_ticks(range(0, len(labels), step), [str(label) for label in labels[::step]], fontsize=8)
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    set_title(ax, title)
    return image


def _share_scale(images: list[Any], axes: list[Axes], label: str) -> None:
    """Give a row of images one colour scale from 0, with one colour bar."""
    top = np.nanmax([image.get_array().max() for image in images])
    for image in images:
        image.set_clim(0, top if top > 0 else 1)
    figure: Any = axes[0].figure
    bar = figure.colorbar(images[-1], ax=axes, shrink=0.85, aspect=24, pad=0.02)
    bar.set_label(label)
    bar.outline.set_visible(False)


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
    drawn = panels(axes, len(groups), (3.4, 3.0), 2, sharex=True, sharey=True)
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
            color=PALETTE[number % len(PALETTE)],
            rasterized=True,  # thousands of points make a vector file slow
        )
        correlation = f"   ρ = {_two_digits(rho[group])}" if group in rho else ""
        set_title(ax, brief(str(group)) + correlation)
        if log:
            ax.set_xscale("log")
        else:
            ax.set_xlim(-0.02, 1.02)
        ax.set_ylim(0, top)
        ax.set_xlabel(label_of("alpha"))
        ax.set_ylabel(label_of("transformed_norm"))
        ax.label_outer()
        tidy(ax)
    return drawn


def _two_digits(number: float) -> str:
    """Format with two digits, a typographic minus sign, and no minus before a zero."""
    return f"{number:.2f}".replace("-0.00", "0.00").replace("-", "−")


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
    drawn = panels(axes, len(wanted), (4.2, 3.2))
    # A few among thousands: special tokens are larger, opaque and on top.
    kinds: Any = (
        (~special, "tokens", {"color": PALETTE[0], "s": 6, "alpha": 0.35}),
        (special, "special tokens", {"color": PALETTE[1], "s": 24, "marker": "D"}),
    )
    for ax, measure in zip(drawn, wanted, strict=True):
        for rows, name, style in kinds:
            if rows.any():
                points = data["rank"][rows], data[measure][rows]
                ax.scatter(*points, **style, lw=0, label=name, rasterized=True)
        ax.set_xscale("log")
        ax.set_xlabel("rank of the token's frequency")
        ax.set_ylabel(label_of(measure))
        ax.set_ylim(bottom=0)
        tidy(ax)
        if special.any():
            legend(ax, loc="best", bbox_to_anchor=None, markerscale=1.2)
    return drawn


def _correlations(data: dict[str, NDArray[Any]], axes: Any) -> NDArray[Any]:
    (ax,) = drawn = panels(axes, 1, (7.6, 1.1 + 0.36 * len(data["of"])))
    places = np.arange(len(data["of"]))
    kinds = {"spearman": ("all tokens", "o"), "spearman_without_special": ("without special", "D")}
    for number, (column, (name, marker)) in enumerate(kinds.items()):
        if column in data:
            ax.plot(
                data[column].astype(float), places, marker, color=PALETTE[number], ms=7, label=name
            )
    ax.axvline(0, color="#777777", lw=0.8)
    # Mixing ratios are listed under the names of their maps.
    labels = [
        f"mixing ratio: {label_of(name)}" if name in SCOPES else label_of(name)
        for name in map(str, data["of"])
    ]
    ax.set_yticks(places, labels)
    ax.set_xlim(-1, 1)
    ax.set_ylim(len(places) - 0.5, -0.5)
    ax.set_xlabel("Spearman's ρ with the rank (1: the most frequent)")
    tidy(ax)
    legend(ax)
    return drawn


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
    drawn = panels(axes, len(layers), (3.6, 0.8 + 0.22 * top), 4)
    for ax, at in zip(drawn, layers, strict=True):
        rows = np.flatnonzero(data["layer"] == at)
        rows = rows[np.argsort(-data["count"][rows], kind="stable")][:top]
        ax.barh(range(len(rows)), data["count"][rows], color=PALETTE[0])
        pairs = zip(data["query_token"][rows], data["key_token"][rows], strict=True)
        names = [_pair(str(query), str(key)) for query, key in pairs]
        ax.set_yticks(range(len(rows)), names, fontsize=8, parse_math=False)
        ax.set_ylim(max(top, 1) - 0.5, -0.5)
        ax.set_xlabel("cells")
        ax.set_title(f"layer {at}", fontsize=10)
        tidy(ax)
        ax.grid(visible=False, axis="y")
    return drawn


def _pair(query: str, key: str) -> str:
    """Label a pair with the query on the left, also where the letters run from right to left."""
    # Of Unicode's direction marks, only U+200E is in the fonts that come with matplotlib.
    right_to_left = any(
        unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in query + key
    )
    mark = "\u200e" if right_to_left else ""
    return f"{mark}{brief(query, PAIR_LETTERS)}{mark} ← {mark}{brief(key, PAIR_LETTERS)}"
