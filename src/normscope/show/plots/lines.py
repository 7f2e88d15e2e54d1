"""Plots of what changes from layer to layer: lines, with bands for intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import NORMS
from normscope.errors import InputError
from normscope.results.contributions import Contributions
from normscope.show.plots.style import (
    DASHES,
    MARKERS,
    PAGE,
    brief,
    category_label,
    chosen,
    colour,
    columns_of,
    distinct,
    headline,
    label_of,
    legend,
    panels,
    sequential,
    set_title,
    styled,
    tidy,
)
from normscope.show.wording import describe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL = (3.4, 2.8)  # inches
LEGEND = 1.6  # inches beside a panel
CATEGORY_COLUMNS = 3  # panels in a row of `mixing_by_category`
_KINDS = {"preserved": "from the token itself", "mixed": "from other tokens"}


@styled
def categories(
    table: Any,
    measures: Sequence[str] = ("alpha", "weighted_norm"),
    names: Sequence[str] | None = None,
    axes: Any = None,
) -> NDArray[Any]:
    """Draw weight and norm by layer, with a line for each category of tokens.

    Args:
        table: Columns category, layer and the measures, as in the table "layers" of the statistic
            "categories".
        measures: The columns to draw, a panel for each.
        names: The categories to draw; all by default.
        axes: Axes to draw into, one for each measure; by default those of a new figure.
    """
    data = columns_of(table, "category", "layer", *measures)
    groups = chosen(names, distinct(data["category"]), "category")
    drawn = panels(axes, len(measures), (_width(len(measures)), PANEL[1]))
    for ax, measure in zip(drawn, measures, strict=True):
        for number, group in enumerate(groups):
            _line(ax, data, data["category"] == group, measure, category_label(group), number)
        _finish(ax, data["layer"], label_of(measure))
        ax.set_ylim(bottom=0)
    legend(drawn[-1])
    if axes is None:
        headline(drawn[0].figure, f"{_listed(measures)} by layer and category of token")
    return drawn


def _width(count: int) -> float:
    """Return the inches of each of `count` panels that have one legend beside them."""
    return min(PANEL[0] + LEGEND / count, max(PAGE / count, 2.2))


def _listed(measures: Sequence[str]) -> str:
    """Return the labels of some measures as the beginning of a sentence."""
    *first, last = [label_of(name) for name in measures]
    listed = f"{', '.join(first)} and {last}" if first else last
    return listed[0].upper() + listed[1:]


@styled
def mixing_ratio(
    source: Any,
    maps: Sequence[str] | None = None,
    category: str = "all",
    ax: Axes | None = None,
) -> Axes:
    """Draw how much comes from other tokens, by layer and in percent, with a line for each map.

    Args:
        source: A result, of which the mean over its tokens is drawn; or a table with the columns
            layer, analysis and mean, as in the table "layers" of the statistic "mixing".
        maps: The maps to draw; all by default.
        category: The category of tokens to draw, of a table with a column category.
        ax: Axes to draw into; by default those of a new figure.
    """
    data = _ratios(source) if isinstance(source, Contributions) else columns_of(source)
    data = columns_of(data, "layer", "analysis", "mean")
    rows = np.ones(len(data["layer"]), dtype=bool)
    if "category" in data:
        chosen(category, distinct(data["category"]), "category")
        rows = data["category"] == category
    given = ax
    (ax,) = panels(ax, 1, (PANEL[0] + LEGEND, PANEL[1]))
    for number, name in enumerate(chosen(maps, distinct(data["analysis"]), "map")):
        _line(ax, data, rows & (data["analysis"] == name), "mean", label_of(name), number)
    _finish(ax, data["layer"], "mixing ratio, %")
    ax.set_ylim(0, 103)  # a line at 100 stays whole
    ax.set_yticks(range(0, 101, 20))
    legend(ax)
    if given is None:
        headline(_figure(ax), "How much comes from other tokens, by layer")
    return ax


def _figure(ax: Axes) -> Any:
    return ax.figure


@styled
def mixing_by_category(table: Any, names: Mapping[str, str] | None = None) -> NDArray[Any]:
    """Draw the mixing ratio of a corpus, with a panel for each category of tokens.

    Args:
        table: A table for `mixing_ratio` with a column category.
        names: Entries of the legend by map, where the usual ones do not fit.
    """
    data = columns_of(table, "category", "analysis")
    groups = distinct(data["category"])
    across = min(CATEGORY_COLUMNS, len(groups))
    size = (max(2.3, PAGE / across) if across > 1 else PANEL[0], 2.3)
    drawn = panels(None, len(groups), size, CATEGORY_COLUMNS, sharey=True)
    for number, (ax, category) in enumerate(zip(drawn, groups, strict=True)):
        mixing_ratio(table, category=category, ax=ax)
        for line, name in zip(ax.lines, distinct(data["analysis"]), strict=True):
            line.set_label((names or {}).get(name, label_of(name)))
        ax.get_legend().remove()
        set_title(ax, category_label(category))
        if number % CATEGORY_COLUMNS:
            ax.set_ylabel("")
        if number + CATEGORY_COLUMNS < len(groups):
            ax.set_xlabel("")
    figure = drawn[0].figure
    if len(groups) > CATEGORY_COLUMNS and len(groups) % CATEGORY_COLUMNS:
        # The last row of panels has an empty place.
        place: Any = {"loc": "lower right", "bbox_to_anchor": (0.995, 0.12)}
        figure.legend(handles=drawn[0].lines, **place, fontsize=8, handlelength=2.4)
    else:
        figure.set_figwidth(figure.get_figwidth() + LEGEND)
        legend(drawn[across - 1])
    headline(figure, "How much comes from other tokens, by layer and category of token")
    return drawn


def _ratios(result: Contributions) -> dict[str, Any]:
    """Return the mixing ratios of a result as columns: means over its tokens, in percent."""
    ratios = result.mixing_ratio
    if not ratios:
        raise InputError(
            "this result has no mixing ratios; they come with maps of summed heads, as in "
            f'analyze(…, maps=["{NORMS}"], heads="sum")'
        )
    rows = [
        (layer, name, 100 * float(array.to_numpy()[at].mean()))
        for name, array in ratios.items()
        for at, layer in enumerate(array.labels["layer"])
    ]
    layers, names, means = zip(*rows, strict=True)
    return {"layer": layers, "analysis": names, "mean": means}


@styled
def preserved_and_mixed(table: Any, axes: Any = None) -> NDArray[Any]:
    """Draw what a token keeps of itself and what others mix in, by layer.

    Args:
        table: A column layer, and for each map the columns …_preserved and …_mixed, as in the table
            of the statistic "preserve_mix".
        axes: Axes to draw into, one for each map; by default those of a new figure.
    """
    data = columns_of(table, "layer")
    names = [name.removesuffix("_preserved") for name in data if name.endswith("_preserved")]
    columns_of(data, *[f"{name}_mixed" for name in names] or [f"{NORMS}_preserved"])
    drawn = panels(axes, len(names), (_width(len(names)), PANEL[1]))
    for ax, name in zip(drawn, names, strict=True):
        for number, (kind, words) in enumerate(_KINDS.items()):
            _line(ax, data, slice(None), f"{name}_{kind}", words, number)
        _finish(ax, data["layer"], "norm" if ax is drawn[0] else "")
        set_title(ax, describe(name).title)
        ax.set_ylim(bottom=0)
    legend(drawn[-1])
    if axes is None:
        headline(drawn[0].figure, "What a token keeps of itself and what others mix in, by layer")
    return drawn


@styled
def change(table: Any, ax: Axes | None = None) -> Axes:
    """Draw how much each step along the layer changes the map, with a line for each step.

    Args:
        table: Columns layer, step and change, as in the table of the statistic "change".
        ax: Axes to draw into; by default those of a new figure.
    """
    data = columns_of(table, "layer", "step", "change")
    given = ax
    (ax,) = panels(ax, 1, (PAGE, PANEL[1]))
    for number, step in enumerate(distinct(data["step"])):
        before, _, after = str(step).partition(" → ")
        name = f"{label_of(before)} → {label_of(after)}" if after else step
        _line(ax, data, data["step"] == step, "change", name, number)
    _finish(ax, data["layer"], "change of the map, 1 − ρ")
    ax.set_ylim(bottom=0)
    legend(ax)
    if given is None:
        headline(_figure(ax), "How much each step through a layer changes the map")
    return ax


@styled
def singular_values(values: Any, ax: Axes | None = None) -> Axes:
    """Draw the singular values of f, sorted, with a line for each head.

    Args:
        values: What `normscope.properties.singular_values` returns: (rank,) for one head, or
            several as (head, rank) or (layer, head, rank), where layers differ in colour; or a
            mapping of such arrays by name.
        ax: Axes to draw into; by default those of a new figure.
    """
    given = ax
    (ax,) = panels(ax, 1, (PANEL[0] + LEGEND, PANEL[1]))
    if isinstance(values, Mapping):
        _named_spectra(ax, values)
    else:
        _spectra_by_layer(ax, _spectra(values))
    ax.set_xlabel("number of the singular value, from the largest")
    ax.set_ylabel("singular value")
    ax.set_ylim(bottom=0)
    tidy(ax)
    if given is None:
        headline(_figure(ax), "Singular values of f, a line for each head")
    return ax


def _named_spectra(ax: Axes, arrays: Mapping[Any, Any]) -> None:
    for number, (name, values) in enumerate(arrays.items()):
        style: Any = {"color": colour(number), "ls": DASHES[number % len(DASHES)]}
        lines = _spectra(values).reshape(-1, np.shape(values)[-1])
        for at, line in enumerate(lines):
            ax.plot(_ranks(line), line, label=None if at else brief(str(name)), lw=1.2, **style)
    legend(ax)


def _spectra_by_layer(ax: Axes, spectra: NDArray[Any]) -> None:
    """Draw thin lines, from light for the first layer to dark for the last."""
    count = len(spectra)
    ramp = sequential()
    shades = ramp(np.linspace(0.35, 1, count) if count > 1 else [0.7])
    for layer, lines in enumerate(spectra):
        for head, line in enumerate(lines):
            name = f"layer {layer}" if head == 0 and count > 1 else None
            ax.plot(_ranks(line), line, color=shades[layer], lw=0.8, label=name)
    if count > 1:
        legend(ax, ncols=1 + count // 13)


def _spectra(values: Any) -> NDArray[Any]:
    """Return singular values as (layer, head, rank)."""
    array = np.asarray(values, dtype=float)
    if not 1 <= array.ndim <= 3 or not array.size:
        raise InputError(
            "singular values must have the shape (rank,), (head, rank) or (layer, head, rank), "
            f"but were given with the shape {array.shape}"
        )
    return array.reshape((1,) * (3 - array.ndim) + array.shape)


def _ranks(line: NDArray[Any]) -> NDArray[Any]:
    return np.arange(1, len(line) + 1)


def _line(
    ax: Axes, data: Mapping[str, NDArray[Any]], rows: Any, column: str, name: Any, number: int
) -> None:
    """Draw one line, and a band where the table has the column's interval."""
    order = np.argsort(data["layer"][rows], kind="stable")
    layer = data["layer"][rows][order]
    hue = colour(number)
    ax.plot(
        layer,
        data[column][rows][order],
        color=hue,
        marker=MARKERS[number % len(MARKERS)],
        ls=DASHES[number % len(DASHES)],
        ms=4.5,
        lw=1.6,
        label=str(name),
    )
    if f"{column}_low" in data and f"{column}_high" in data:
        low, high = (data[f"{column}_{end}"][rows][order].astype(float) for end in ("low", "high"))
        ax.fill_between(layer, low, high, color=hue, alpha=0.18, lw=0)


def _finish(ax: Axes, layers: NDArray[Any], label: str) -> None:
    """Label the axes, with at most 13 or so layers named."""
    numbers = np.unique(layers)
    step = 1 + (len(numbers) - 1) // 13
    ax.set_xticks(numbers[::step])
    ax.set_xlabel("layer")
    ax.set_ylabel(label)
    tidy(ax)
