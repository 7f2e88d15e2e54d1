"""The BERT part of Kobayashi et al. (2020): Tables 1, 2 and 4, Figures 3 to 6 and 9 to 12."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.measures.statistics import Statistic, StatisticSettings, Table, choose
from normscope.reproduce.exhibits import (
    Finding,
    format_value,
    published,
    rows_with,
    table_of,
    titled,
)
from normscope.reproduce.frequency import frequency_figure, frequency_table
from normscope.reproduce.measure import CLARK, CorpusExperiment
from normscope.reproduce.measurements import ExhibitPlan, Measurements
from normscope.reproduce.statistics import FrequencyPoints
from normscope.show import plots
from normscope.show.plots.style import PAGE, panels, set_title, styled
from normscope.show.wording import category_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = (
    "Kobayashi, Kuribayashi, Yokoi and Inui: Attention is Not Only a Weight: Analyzing "
    "Transformers with Vector Norms. EMNLP 2020. The BERT part"
)
PUBLISHED = published()["emnlp2020"]
MEASURES = ("alpha", "transformed_norm", "weighted_norm")
QUANTITIES = {
    "alpha": "weight",
    "transformed_norm": "length of the vector",
    "weighted_norm": "norm: their product",
}
RANKED = ("alpha", "transformed_norm")  # compared with frequency ranks
NEAR_ZERO, STRONG = 0.2, 0.5  # |ρ| below and above which a correlation is called so


def _statistics(settings: StatisticSettings) -> list[Statistic]:
    return [
        *choose(["dispersion", "categories", "alpha_vs_norm"], settings),
        FrequencyPoints(settings),
    ]


def _categories(measurements: Measurements) -> dict[str, str]:
    """Return the paper's categories that the text has, with this tokenizer's names for them."""
    present = set(measurements["categories_layers"].lists()["category"])
    names = {name: measurements.category(name) for name in PUBLISHED["table2"]}
    return {name: own for name, own in names.items() if own in present}


# ----------------------------------------------------------------------------------------- tables


def _dispersion(
    measurements: Measurements, quantity: str, published_rows: list[dict[str, Any]]
) -> Table:
    table = measurements[f"dispersion_{quantity}"].rows()
    measured_rows = {
        "largest CV": max(table, key=lambda row: row["cv"]),
        "smallest CV": min(table, key=lambda row: row["cv"]),
        "average": rows_with(measurements["dispersion_average"], of=quantity)[0],
    }
    rows: list[dict[str, Any]] = []
    for published_row in published_rows:
        name = published_row["row"]
        measured = measured_rows[name]
        if published_row["layer"] is not None:
            place = {"published": _place(published_row), "measured": _place(measured)}
            rows.append({"": name, "number": "of", **place})
        for column, value in zip(PUBLISHED["columns"], published_row["values"], strict=True):
            if value is not None:
                numbers = {"published": value, "measured": measured[column]}
                rows.append({"": name, "number": column, **numbers})
    return table_of(rows)


def _place(row: Mapping[str, Any]) -> str:
    head = "" if row.get("head") is None else f", head {row['head']}"
    return f"layer {row['layer']}{head}"


def _correlations(measurements: Measurements) -> Table:
    measured = {row["category"]: row for row in measurements["alpha_vs_norm_spearman"].rows()}
    categories = _categories(measurements)
    rows = []
    for name, numbers in PUBLISHED["table2"].items():
        own = measured.get(categories.get(name, ""), {})
        rows.append(
            {
                "category": category_name(name),
                "ρ published": numbers["rho"],
                "ρ measured": own.get("spearman"),
                "bound": f"{own['bound']:.4f}" if "bound" in own else None,
                "pairs published": numbers["pairs"],
                "pairs measured": own.get("pairs"),
            }
        )
    return table_of(rows)


def _shares(measurements: Measurements) -> Table:
    rows = measurements["categories"].rows()
    sums = {name: sum(row[name] for row in rows) for name in ("alpha", "weighted_norm")}
    return table_of(
        {
            "category": category_name(row["category"]),
            "α": row["alpha"],
            "‖αf(x)‖": row["weighted_norm"],
            "‖f(x)‖": row["transformed_norm"],
            "share of α, %": 100 * row["alpha"] / sums["alpha"],
            "share of ‖αf(x)‖, %": 100 * row["weighted_norm"] / sums["weighted_norm"],
            "tokens": row["tokens"],
        }
        for row in rows
    )


def _ratios(measurements: Measurements) -> Table:
    values = measurements.singular_values
    ratios = values[..., 0] / values[..., -1]
    return table_of(
        [
            {
                "largest / smallest": "minimum over all heads",
                "published": f"at least {PUBLISHED['figure9']['least_ratio']}, of the heads shown",
                "measured": float(ratios.min()),
            },
            {
                "largest / smallest": "median over all heads",
                "published": None,
                "measured": float(np.median(ratios)),
            },
        ]
    )


def _spectra(measurements: Measurements) -> Table:
    values = measurements.singular_values
    layers, heads, ranks = values.shape
    grid = np.indices(values.shape).reshape(3, layers * heads * ranks) + 1
    names = ("layer", "head", "number")
    return Table({**dict(zip(names, grid, strict=True)), "singular_value": values.ravel()})


# ---------------------------------------------------------------------------------------- figures


@styled
def _draw_separator(measurements: Measurements) -> Figure:
    separator = _categories(measurements).get("[SEP]", "others")
    layers, heads = (
        len(set(measurements["categories_heads"].lists()[name])) for name in ("layer", "head")
    )
    height = 0.95 + layers * 1.5 / heads
    axes = panels(None, len(MEASURES), (PAGE / len(MEASURES), height), layout="compressed")
    for ax, measure in zip(axes, MEASURES, strict=True):
        plots.heads(measurements["categories_heads"], measure, [separator], ax)
        set_title(ax, QUANTITIES[measure])
    name = category_name(separator)
    return titled(axes, f"{name} in each head: its weight, the length of its vector, and the norm")


def _draw_scatter(measurements: Measurements) -> Figure:
    rho = measurements["alpha_vs_norm_spearman"]
    axes = plots.alpha_and_norm(measurements["alpha_vs_norm_scatter"], correlations=rho)
    return titled(axes, "Weight of a token and length of its vector f(x), by category of token")


@styled
def _draw_spectra(measurements: Measurements) -> Figure:
    values = measurements.singular_values
    columns = 3 if len(values) < 8 else 4
    axes = panels(None, len(values), (PAGE / columns, 1.7), columns, sharex=True, sharey=True)
    for layer, (ax, spectra) in enumerate(zip(axes, values, strict=True), 1):
        plots.singular_values(spectra, ax)
        set_title(ax, f"layer {layer}")
        ax.label_outer()
        ax.set_xlabel("")
        ax.set_ylim(0, 1.05 * values.max())
    figure = titled(axes, "Singular values of f in each layer: a line for each head")
    figure.supxlabel("number of the singular value, from the largest", fontsize=9)
    return figure


_SPREAD = (
    "σ is the standard deviation of the population, CV = σ / mean; layers and heads are counted "
    "from 1"
)

EXHIBITS = (
    ExhibitPlan(
        "Table 1",
        "Dispersion of ‖f(x)‖",
        "‖f(x)‖ of all tokens, pooled for each head; f includes b_V but not b_O; "
        f"{_SPREAD}; the average is over all heads of all layers",
        lambda m: _dispersion(m, "transformed_norm", PUBLISHED["table1"]),
        data="dispersion_transformed_norm",
    ),
    ExhibitPlan(
        "Table 2",
        "Spearman ρ of α and ‖f(x)‖",
        "All (query, key) pairs of all layers and heads, by the category of the key; the measured "
        "ρ comes from a sketch of the joint distribution, and the exact ρ differs from it by at "
        "most the bound",
        _correlations,
        data="alpha_vs_norm_spearman",
    ),
    ExhibitPlan(
        "Table 4",
        "Dispersion of ‖x‖",
        f"‖x‖ of all tokens, pooled for each layer, where x is the layer's input; {_SPREAD}",
        lambda m: _dispersion(m, "input_norm", PUBLISHED["table4"]),
        data="dispersion_input_norm",
    ),
    ExhibitPlan(
        "Figure 3",
        "Weight and norm by layer and category",
        "For each sequence and head, α and ‖αf(x)‖ are summed over the keys of a category and "
        "averaged over queries; then they are averaged over the sequences that contain the "
        "category, and over heads; the band is the 95% interval of a bootstrap over sequences. The "
        "paper shows curves without numbers. The table shows the means over layers, and their "
        "shares of the sum",
        _shares,
        lambda m: titled(
            plots.categories(m["categories_layers"], ("alpha", "weighted_norm")),
            "What a category of tokens gets of the weight and of the norm, by layer",
        ),
        "categories_layers",
    ),
    ExhibitPlan(
        "Figure 4",
        "[SEP] in each head",
        "As Figure 3, but without the mean over heads; ‖f(x)‖ is the mean over the tokens of the "
        "category. The paper shows colours without numbers",
        draw=_draw_separator,
    ),
    ExhibitPlan(
        "Figure 5",
        "α against ‖f(x)‖",
        "A sample of one pair in 100, at most 5,000 for each category, selected by a seeded hash; "
        "ρ is that of all pairs, as in Table 2",
        draw=_draw_scatter,
        data="alpha_vs_norm_scatter",
    ),
    ExhibitPlan(
        "Figure 6",
        "α and ‖f(x)‖ against the frequency rank of a token",
        "For each token, α is averaged over queries, heads and layers, and ‖f(x)‖ over heads and "
        "layers; ρ is over all tokens, including special ones. The published ρ use tokenizer ids "
        "as ranks. The figure has one point for each rank, the mean over its tokens",
        lambda m: frequency_table(m, {name: [PUBLISHED["figure6"][name]] for name in RANKED}),
        lambda m: frequency_figure(m, RANKED),
        "frequency_points",
    ),
    ExhibitPlan(
        "Figure 9",
        "Singular values of f in each head",
        "The map is (x, 1) ↦ (f(x), 1), without b_O; its rank is at most e + 1, where e is the "
        "head size, and that many values are compared",
        _ratios,
        _draw_spectra,
        _spectra,
    ),
    ExhibitPlan(
        "Figures 10–12",
        "All categories in each head",
        "As Figure 4; α, ‖f(x)‖ and ‖αf(x)‖ have one row of maps and one colour scale each",
        draw=lambda m: titled(
            plots.heads(m["categories_heads"], MEASURES),
            "Weight, length of f(x) and norm in each head, by category of token",
        ),
        data="categories_heads",
    ),
)


# --------------------------------------------------------------------------------------- findings


def _findings(measurements: Measurements) -> list[Finding]:
    return [
        _dispersion_finding(measurements),
        *_correlation_findings(measurements),
        *_share_findings(measurements),
        *_frequency_findings(measurements),
        _stretch_finding(measurements),
    ]


def _dispersion_finding(measurements: Measurements) -> Finding:
    cv = PUBLISHED["columns"].index("cv")
    transformed, inputs = (PUBLISHED[table][-1]["values"][cv] for table in ("table1", "table4"))
    measured = {row["of"]: row["cv"] for row in measurements["dispersion_average"].rows()}
    return Finding(
        "‖f(x)‖ is more dispersed than ‖x‖ (average CV)",
        f"{transformed} > {inputs}",
        f"{measured['transformed_norm']:.3f} against {measured['input_norm']:.3f}",
        measured["transformed_norm"] > measured["input_norm"],
    )


def _correlation_findings(measurements: Measurements) -> Iterator[Finding]:
    rows = measurements["alpha_vs_norm_spearman"].rows()
    by_category = {row["category"]: row["spearman"] for row in rows}
    measured = {name: by_category[own] for name, own in _categories(measurements).items()}
    for name, rho in measured.items():
        expected = PUBLISHED["table2"][name]["rho"]
        if abs(expected) < NEAR_ZERO:
            kind, agrees = "near zero", abs(rho) < NEAR_ZERO
        elif abs(expected) >= STRONG:
            kind, agrees = "strongly negative", rho <= -STRONG
        else:
            kind, agrees = "negative", rho <= -NEAR_ZERO
        yield Finding(
            f"ρ of α and ‖f(x)‖ is {kind} for {category_name(name)}",
            f"{expected}",
            f"{rho:.3f}",
            bool(agrees),
        )
    if "[SEP]" in measured:
        lowest = min(measured, key=lambda name: measured[name])
        yield Finding("ρ of α and ‖f(x)‖ is lowest for [SEP]", "[SEP]", lowest, lowest == "[SEP]")


def _share_findings(measurements: Measurements) -> Iterator[Finding]:
    shares = {row["category"]: row for row in _shares(measurements).rows()}
    for name, own in _categories(measurements).items():
        if name == "others":
            continue
        row = shares[category_name(own)]
        weight, norm = (row[f"share of {quantity}, %"] for quantity in ("α", "‖αf(x)‖"))
        yield Finding(
            f"{category_name(name)} has a smaller share of the norm than of the weight",
            "smaller",
            f"{norm:.1f}% of ‖αf(x)‖, {weight:.1f}% of α",
            bool(norm < weight),
        )


def _frequency_findings(measurements: Measurements) -> Iterator[Finding]:
    expected = PUBLISHED["figure6"]
    for table, source in measurements.ranks.items():
        rho = {row["of"]: row["spearman"] for row in measurements[table].rows()}
        yield Finding(
            f"rarer tokens have longer ‖f(x)‖: ρ with the rank is above {STRONG} (ranks: {source})",
            str(expected["transformed_norm"]),
            format_value(rho["transformed_norm"]),
            bool(rho["transformed_norm"] > STRONG),
        )
        yield Finding(
            f"α hardly depends on frequency: |ρ| is below {NEAR_ZERO} (ranks: {source})",
            str(expected["alpha"]),
            format_value(rho["alpha"]),
            bool(abs(rho["alpha"]) < NEAR_ZERO),
        )


def _stretch_finding(measurements: Measurements) -> Finding:
    expected = PUBLISHED["figure9"]["least_ratio"]
    values = measurements.singular_values
    least = float((values[..., 0] / values[..., -1]).min())
    return Finding(
        "f stretches some directions more than others in every head (Figure 9)",
        f"largest / smallest ≥ {expected}",
        f"≥ {least:.2f}",
        least >= expected,
    )


EXPERIMENT = CorpusExperiment("emnlp2020-bert", PAPER, _statistics, EXHIBITS, _findings, text=CLARK)
