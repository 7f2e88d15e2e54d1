"""What changes from layer to layer, as lines; with their intervals where the table has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.results.contributions import Contributions
from normscope.show.plots.style import (
    DASHES,
    MARKERS,
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

PANEL = (4.4, 3.2)  # inches
BESIDE = 2.0  # and for a legend


def categories(
    table: Any,
    measures: Sequence[str] = ("alpha", "weighted_norm"),
    names: Sequence[str] | None = None,
    axes: Any = None,
) -> NDArray[Any]:
    """Weight and norm by layer, a line for each category of tokens.

    `table` has the columns category, layer and the measures, as the statistic "categories" gives
    them under "layers".
    """
    data = columns_of(table, "category", "layer", *measures)
    groups = chosen(names, labels(data["category"]), "category")
    drawn = panels(axes, len(measures), (PANEL[0] + BESIDE / len(measures), PANEL[1]))
    for ax, measure in zip(drawn, measures, strict=True):
        for number, group in enumerate(groups):
            _line(ax, data, data["category"] == group, measure, brief(str(group)), number)
        _finish(ax, data["layer"], short(measure))
        ax.set_ylim(bottom=0)
    legend(drawn[-1])
    return drawn


def mixing_ratio(
    source: Any,
    maps: Sequence[str] | None = None,
    category: str = "all",
    ax: Axes | None = None,
) -> Axes:
    """How much comes from other tokens, by layer, a line for each map.

    Of a result: the mean over its tokens, in percent. Of a table of the statistic "mixing" (its
    "layers", with the columns layer, analysis and mean): the mean over a corpus, of one category.
    """
    data = _ratios(source) if isinstance(source, Contributions) else columns_of(source)
    data = columns_of(data, "layer", "analysis", "mean")
    there = np.ones(len(data["layer"]), dtype=bool)
    if "category" in data:
        chosen(category, labels(data["category"]), "category")
        there = data["category"] == category
    (ax,) = panels(ax, 1, (PANEL[0] + BESIDE, PANEL[1]))
    for number, name in enumerate(chosen(maps, labels(data["analysis"]), "map")):
        _line(ax, data, there & (data["analysis"] == name), "mean", short(name), number)
    _finish(ax, data["layer"], "mixing ratio, %")
    ax.set_ylim(0, 100)
    legend(ax)
    return ax


def mixing_by_category(table: Any, names: Mapping[str, str] | None = None) -> NDArray[Any]:
    """The mixing ratio of a corpus, a panel for each category of tokens.

    `table` is that of `mixing_ratio`, with a column category; `names` are the legend's entries by
    map, where the usual words will not do.
    """
    data = columns_of(table, "category", "analysis")
    there, across = labels(data["category"]), 3
    drawn = panels(None, len(there), (3.6, 2.9), across, sharey=True)
    for number, (ax, category) in enumerate(zip(drawn, there, strict=True)):
        mixing_ratio(table, category=category, ax=ax)
        for line, name in zip(ax.lines, labels(data["analysis"]), strict=True):
            line.set_label((names or {}).get(name, short(name)))
        ax.get_legend().remove()
        entitle(ax, brief(str(category)))
        if number % across:
            ax.set_ylabel("")
    if len(there) > across and len(there) % across:  # there is room for it
        place: Any = {"loc": "lower right", "bbox_to_anchor": (0.97, 0.15), "frameon": False}
        drawn[0].figure.legend(handles=drawn[0].lines, **place)
    else:
        drawn[0].figure.set_figwidth(drawn[0].figure.get_figwidth() + BESIDE)
        legend(drawn[min(across, len(there)) - 1])
    return drawn


def _ratios(result: Contributions) -> dict[str, Any]:
    found = result.mixing_ratio
    if not found:
        raise InputError(
            "this result has no mixing ratios; they come with maps of summed heads, as in "
            'analyze(…, maps=["attn_n", "attn_res_ln_n"])'
        )
    rows = [
        (layer, name, 100 * float(array.to_numpy()[at].mean()))
        for name, array in found.items()
        for at, layer in enumerate(array.labels["layer"])
    ]
    layers, names, means = zip(*rows, strict=True)
    return {"layer": layers, "analysis": names, "mean": means}


def preserved_and_mixed(table: Any, axes: Any = None) -> NDArray[Any]:
    """What a token keeps of itself and what others mix in, by layer, a panel for each scope.

    `table` is that of the statistic "preserve_mix".
    """
    data = columns_of(table, "layer")
    found = [name.removesuffix("_preserved") for name in data if name.endswith("_preserved")]
    columns_of(data, *[f"{name}_mixed" for name in found] or ["attn_n_preserved"])
    drawn = panels(axes, len(found), (PANEL[0] - 0.8 + 1.0 / len(found), PANEL[1]))
    for ax, name in zip(drawn, found, strict=True):
        for number, what in enumerate(("preserved", "mixed")):
            _line(ax, data, slice(None), f"{name}_{what}", what, number)
        _finish(ax, data["layer"], "norm")
        ax.set_title(short(name), fontsize=10)
        ax.set_ylim(bottom=0)
    legend(drawn[-1])
    return drawn


def change(table: Any, ax: Axes | None = None) -> Axes:
    """How much each step along the layer changes the map, a line for each step."""
    data = columns_of(table, "layer", "step", "change")
    (ax,) = panels(ax, 1, (PANEL[0] + BESIDE + 0.8, PANEL[1]))
    for number, step in enumerate(labels(data["step"])):
        before, _, after = str(step).partition(" → ")
        name = f"{short(before)} → {short(after)}" if after else step
        _line(ax, data, data["step"] == step, "change", name, number)
    _finish(ax, data["layer"], "change of the map, 1 − ρ")
    ax.set_ylim(bottom=0)
    legend(ax)
    return ax


def singular_values(values: Any, ax: Axes | None = None) -> Axes:
    """The singular values of f, sorted, a line for each head.

    `values` is what `normscope.properties.singular_values` gives: for one head (rank,), for several
    (head, rank) or (layer, head, rank), or a mapping of such arrays by name. Layers differ in
    colour.
    """
    (ax,) = panels(ax, 1, (PANEL[0] + BESIDE / 2, PANEL[1]))
    if isinstance(values, Mapping):
        for number, (name, one) in enumerate(values.items()):
            lines = _spectra(one).reshape(-1, np.shape(one)[-1])
            for at, line in enumerate(lines):
                style: Any = {"color": PALETTE[number % len(PALETTE)], "ls": DASHES[number % 4]}
                ax.plot(_ranks(line), line, label=None if at else brief(str(name)), lw=1.2, **style)
        legend(ax)
    else:
        import matplotlib

        spectra = _spectra(values)
        count = len(spectra)
        colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.92, count))
        for layer, lines in enumerate(spectra):
            for head, line in enumerate(lines):
                name = f"layer {layer}" if head == 0 and count > 1 else None
                ax.plot(_ranks(line), line, color=colours[layer], lw=0.8, alpha=0.8, label=name)
        if count > 1:
            legend(ax, ncols=1 + count // 13, fontsize=8)
    ax.set_xlabel("singular value, by size")
    ax.set_ylabel("size")
    ax.set_ylim(bottom=0)
    tidy(ax)
    return ax


def _spectra(values: Any) -> NDArray[Any]:
    """(layer, head, rank)."""
    found = np.asarray(values, dtype=float)
    if not 1 <= found.ndim <= 3 or not found.size:
        raise InputError(
            "singular values come as (rank,), (head, rank) or (layer, head, rank), but were given "
            f"with the shape {found.shape}"
        )
    return found.reshape((1,) * (3 - found.ndim) + found.shape)


def _ranks(line: NDArray[Any]) -> NDArray[Any]:
    return np.arange(1, len(line) + 1)


def _line(
    ax: Axes, data: Mapping[str, NDArray[Any]], rows: Any, column: str, name: Any, number: int
) -> None:
    """One line, and a band where the table has the column's interval."""
    order = np.argsort(data["layer"][rows], kind="stable")
    layer = data["layer"][rows][order]
    colour = PALETTE[number % len(PALETTE)]
    ax.plot(
        layer,
        data[column][rows][order],
        color=colour,
        marker=MARKERS[number % len(MARKERS)],
        ls=DASHES[number % len(DASHES)],
        ms=4.5,
        lw=1.6,
        label=str(name),
    )
    if f"{column}_low" in data and f"{column}_high" in data:
        low, high = (data[f"{column}_{end}"][rows][order].astype(float) for end in ("low", "high"))
        ax.fill_between(layer, low, high, color=colour, alpha=0.18, lw=0)


def _finish(ax: Axes, layers: NDArray[Any], title: str) -> None:
    found = np.unique(layers)
    step = 1 + (len(found) - 1) // 13
    ax.set_xticks(found[::step])
    ax.set_xlabel("layer")
    ax.set_ylabel(title)
    tidy(ax)
