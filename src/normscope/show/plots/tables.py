"""Statistics that are no lines: heat maps of heads, scatters, frequency, amplified pairs."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import NAMES
from normscope.errors import InputError
from normscope.show.plots.style import (
    COLOUR_MAP,
    PALETTE,
    brief,
    chosen,
    columns_of,
    entitle,
    labels,
    legend,
    panels,
    short,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = ("alpha", "transformed_norm", "weighted_norm", "cv")
PART = 14  # letters of a token that is one of two in a label


def heads(
    table: Any,
    measures: Sequence[str] | str | None = None,
    names: Sequence[str] | None = None,
    axes: Any = None,
) -> NDArray[Any]:
    """Head × layer heat maps: a row of panels for each measure, one panel for each category.

    `table` has the columns layer, head, the measures, and category where there are several, as
    the statistics "categories" ("heads") and "dispersion" ("transformed_norm") give them. A row
    of panels has one scale.
    """
    data = columns_of(table, "layer", "head")
    wanted = chosen(measures, [name for name in data if name not in ("layer", "head")], "measure")
    if measures is None:
        wanted = [name for name in MEASURES if name in data]
    if not wanted:
        raise InputError(f"the table has no measure; it has: {', '.join(data)}")
    groups: list[Any] = [None]
    if "category" in data:
        groups = list(chosen(names, labels(data["category"]), "category"))
    layer, head = (labels(np.sort(np.unique(data[name]))) for name in ("layer", "head"))
    size = (max(2.4, 0.24 * len(head) + 1.2), max(2.2, 0.24 * len(layer) + 1.0))
    drawn = panels(axes, len(wanted) * len(groups), size, len(groups)).reshape(len(wanted), -1)
    for row, measure in zip(drawn, wanted, strict=True):
        images = []
        for ax, group in zip(row, groups, strict=True):
            rows = slice(None) if group is None else data["category"] == group
            values = _grid(data["layer"][rows], data["head"][rows], data[measure][rows])
            # Of one category, the panels differ in what they measure.
            title = [] if group is None else [brief(str(group))]
            title += [short(measure)] if len(groups) == 1 else []
            images.append(_head_map(ax, values, layer, head, ": ".join(title)))
        top = np.nanmax([image.get_array().max() for image in images])
        for image in images:
            image.set_clim(0, top if top > 0 else 1)
        figure: Any = row[0].figure
        bar = figure.colorbar(images[-1], ax=list(row), shrink=0.85, aspect=24, pad=0.02)
        bar.set_label(short(measure))
        bar.outline.set_visible(False)
    return drawn if len(wanted) > 1 and axes is None else drawn.ravel()


def _grid(layer: NDArray[Any], head: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """(layer, head) from long columns; NaN where the table has no row."""
    layers, down = np.unique(layer, return_inverse=True)
    found, across = np.unique(head, return_inverse=True)
    grid = np.full((len(layers), len(found)), np.nan)
    grid[down.ravel(), across.ravel()] = values
    return grid


def _head_map(ax: Axes, values: NDArray[Any], layer: list[Any], head: list[Any], title: str) -> Any:
    image = ax.imshow(
        np.ma.masked_invalid(values), cmap=COLOUR_MAP, interpolation="nearest", origin="upper"
    )
    for ticks, found in ((ax.set_xticks, head), (ax.set_yticks, layer)):
        step = 1 + (len(found) - 1) // 16
        ticks(range(0, len(found), step), [str(one) for one in found[::step]], fontsize=8)
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    entitle(ax, title)
    return image


def alpha_and_norm(
    table: Any,
    names: Sequence[str] | None = None,
    correlations: Any = None,
    axes: Any = None,
    *,
    log: bool = False,
) -> NDArray[Any]:
    """α against ‖f(x)‖ of a sample of pairs, one panel for each category.

    `table` has the columns category, alpha and transformed_norm ("scatter" of the statistic
    "alpha_vs_norm"); `correlations` is its "spearman", whose ρ go into the titles. With `log`,
    α is on a logarithmic axis.
    """
    data = columns_of(table, "category", "alpha", "transformed_norm")
    groups = chosen(names, labels(data["category"]), "category")
    rho: dict[Any, float] = {}
    if correlations is not None:
        found = columns_of(correlations, "category", "spearman")
        rho = dict(zip(found["category"].tolist(), found["spearman"].tolist(), strict=True))
    drawn = panels(axes, len(groups), (3.4, 3.0), 2, sharex=True, sharey=True)
    shown = np.isin(data["category"], groups)
    top = 1.05 * float(np.max(data["transformed_norm"][shown], initial=1e-12))
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
        title = brief(str(group)) + (f"   ρ = {_two(rho[group])}" if group in rho else "")
        entitle(ax, title)
        if log:
            ax.set_xscale("log")
        else:
            ax.set_xlim(-0.02, 1.02)
        ax.set_ylim(0, top)
        ax.set_xlabel(short("alpha"))
        ax.set_ylabel(short("transformed_norm"))
        ax.label_outer()
        tidy(ax)
    return drawn


def _two(number: float) -> str:
    """Two digits, a real minus sign, and no minus before a zero."""
    return f"{number:.2f}".replace("-0.00", "0.00").replace("-", "−")


def frequency(table: Any, measures: Sequence[str] | None = None, axes: Any = None) -> NDArray[Any]:
    """How α and ‖f(x)‖ go with the rank of a token's frequency.

    A table with a column rank is drawn point by point, a panel for each measure; where a column
    special says which tokens frame the text, they have another colour. The summary that the
    statistic "frequency" gives (columns of, spearman) is drawn as one ρ for each measure, with and
    without special tokens.
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
    for ax, measure in zip(drawn, wanted, strict=True):
        # A few among thousands: the special tokens are larger, whole and on top.
        kinds: Any = (
            (~special, "tokens", {"color": PALETTE[0], "s": 6, "alpha": 0.35}),
            (special, "special tokens", {"color": PALETTE[1], "s": 24, "marker": "D"}),
        )
        for rows, name, style in kinds:
            if rows.any():
                ax.scatter(
                    data["rank"][rows],
                    data[measure][rows],
                    **style,
                    lw=0,
                    label=name,
                    rasterized=True,
                )
        ax.set_xscale("log")
        ax.set_xlabel("rank of the token's frequency")
        ax.set_ylabel(short(measure))
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
    # Besides α and ‖f(x)‖ there are the mixing ratios of some maps, under the maps' names.
    ratios = {name: f"mixing ratio: {short(name)}" for name in NAMES}
    ax.set_yticks(places, [ratios.get(name, short(name)) for name in map(str, data["of"])])
    ax.set_xlim(-1, 1)
    ax.set_ylim(len(places) - 0.5, -0.5)
    ax.set_xlabel("Spearman's ρ with the rank (1: the most frequent)")
    tidy(ax)
    legend(ax)
    return drawn


def amplified(
    table: Any, layer: int | None = None, top: int = 12, axes: Any = None
) -> NDArray[Any]:
    """The pairs of tokens that the feed-forward enlarges most often, a panel for each layer."""
    data = columns_of(table, "layer", "query_token", "key_token", "count")
    there = labels(np.sort(np.unique(data["layer"])))
    if layer is not None and layer not in there:
        raise InputError(f"there is no layer {layer}; there is: {', '.join(map(str, there))}")
    layers = there if layer is None else [layer]
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
    """The query on the left and the key on the right, whichever way their letters run."""
    # Of what Unicode has for this, U+200E alone is in the fonts that matplotlib comes with.
    turned = any(unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in query + key)
    mark = "\u200e" if turned else ""
    return f"{mark}{brief(query, PART)}{mark} ← {mark}{brief(key, PART)}"
