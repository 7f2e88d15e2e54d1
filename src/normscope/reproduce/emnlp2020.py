"""The BERT part of Kobayashi et al. (2020): Tables 1, 2 and 4, Figures 3 to 6 and 9 to 12."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.measures.properties import affine_maps
from normscope.measures.statistics import Settings, Statistic, Table, choose
from normscope.reproduce.exhibits import Exhibit, Finding, published, rows_of, shown, table_of
from normscope.reproduce.frequency import frequency_figure, frequency_table
from normscope.reproduce.measure import CLARK, Corpus, Measured
from normscope.reproduce.numbers import Points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = (
    "Kobayashi, Kuribayashi, Yokoi and Inui: Attention is Not Only a Weight: Analyzing "
    "Transformers with Vector Norms. EMNLP 2020. The BERT part"
)
MEASURES = ("alpha", "transformed_norm", "weighted_norm")
NEAR_ZERO, STRONG = 0.2, 0.5  # |ρ| below and above which a correlation is called so


def _statistics(settings: Settings) -> list[Statistic]:
    return [*choose(["dispersion", "categories", "alpha_vs_norm"], settings), Points(settings)]


def categories(measured: Measured) -> dict[str, str]:
    """The paper's categories, and what this tokenizer has in their place."""
    tokenizer = measured.tokenizer
    found = {
        "[CLS]": tokenizer.cls_token or tokenizer.bos_token,
        "[SEP]": tokenizer.sep_token or tokenizer.eos_token,
        "comma_period": "comma_period",
        "others": "others",
    }
    there = set(measured["categories"].lists()["category"])
    return {name: own for name, own in found.items() if own in there}


# ----------------------------------------------------------------------------- tables and figures


def _exhibits(measured: Measured) -> list[Exhibit]:
    paper = published()["emnlp2020"]
    layers, heads = measured["categories_layers"], measured["categories_heads"]
    spread = "σ of the population, CV = σ / mean; layers and heads count from 1"
    values = _singular_values(measured)

    def by_layer() -> Figure:
        from normscope.show import plots

        return _figure(plots.categories(layers, ("alpha", "weighted_norm")))

    def by_head() -> Figure:
        from normscope.show import plots
        from normscope.show.plots.style import panels

        separator = categories(measured).get("[SEP]", "others")
        row = panels(None, len(MEASURES), (4.4, 2.6))
        for ax, measure in zip(row, MEASURES, strict=True):
            plots.heads(heads, measure, [separator], ax)
        return _figure(row)

    def all_heads() -> Figure:
        from normscope.show import plots

        return _figure(plots.heads(heads, MEASURES))

    def scatter() -> Figure:
        from normscope.show import plots

        rho = measured["alpha_vs_norm_spearman"]
        return _figure(plots.alpha_and_norm(measured["alpha_vs_norm_scatter"], correlations=rho))

    def spectra() -> Figure:
        from normscope.show import plots

        ax = plots.singular_values(values)
        if (legend := ax.get_legend()) is not None:
            for number, text in enumerate(legend.get_texts(), 1):
                text.set_text(f"layer {number}")  # the plot counts from 0
        return _figure(ax)

    return [
        Exhibit(
            "Table 1",
            "Dispersion of ‖f(x)‖",
            f"‖f(x)‖ of all tokens pooled for each head, b_V inside f and b_O in none; {spread}; "
            "the average is over all heads of all layers",
            _dispersion(measured, "transformed_norm", paper["table1"]),
            data=measured["dispersion_transformed_norm"],
        ),
        Exhibit(
            "Table 2",
            "Spearman ρ of α and ‖f(x)‖",
            "every (query, key) of every layer and head, by the key's category; measured from a "
            "sketch of the joint distribution: the exact ρ is no farther away than the bound",
            _correlations(measured),
        ),
        Exhibit(
            "Table 4",
            "Dispersion of ‖x‖",
            f"‖x‖ of all tokens pooled for each layer, x its input; {spread}",
            _dispersion(measured, "input_norm", paper["table4"]),
            data=measured["dispersion_input_norm"],
        ),
        Exhibit(
            "Figure 3",
            "Weight and norm by layer and category",
            "per sequence and head: α and ‖αf(x)‖ summed over the category's keys, mean over "
            "queries; then the mean over the sequences that have the category, and over heads; the "
            "band is the 95% interval of a bootstrap over sequences. The paper shows curves, no "
            "numbers. The table has the means over layers, and shares of their sum",
            _shares(measured),
            by_layer,
            layers,
        ),
        Exhibit(
            "Figure 4",
            "[SEP], head by head",
            "as Figure 3, ‖f(x)‖ being the mean over the category's tokens; before the mean over "
            "heads. The paper shows colours, no numbers",
            draw=by_head,
        ),
        Exhibit(
            "Figure 5",
            "α against ‖f(x)‖",
            "a sample: one pair in 100, at most 5,000 of each category, by a seeded hash; ρ is "
            "that of Table 2, of all pairs",
            draw=scatter,
            data=measured["alpha_vs_norm_scatter"],
        ),
        Exhibit(
            "Figure 6",
            "Against the rank of a token's frequency",
            "per token: α averaged over queries, heads, layers; ‖f(x)‖ over heads, layers; ρ over "
            "all tokens, special ones included. The published ρ take tokenizer ids for ranks. In "
            "the figure one point for each rank, the mean of its tokens",
            _frequency(measured),
            lambda: frequency_figure(measured, ("alpha", "transformed_norm")),
            measured["frequency_points"],
        ),
        Exhibit(
            "Figure 9",
            "Singular values of f, head by head",
            "of (x, 1) ↦ (f(x), 1), b_O left out; the head's map has rank e + 1 at most (e the "
            "head size), and so many are compared",
            _ratios(values, paper["figure9"]["least_ratio"]),
            spectra,
            _spectrum_table(values),
        ),
        Exhibit(
            "Figures 10–12",
            "All categories, head by head",
            "as Figure 4: α, ‖f(x)‖ and ‖αf(x)‖, a row of maps for each; one scale in a row",
            draw=all_heads,
            data=heads,
        ),
    ]


def _figure(axes: Any) -> Figure:
    found: Figure = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()[0].figure
    return found


def _dispersion(measured: Measured, what: str, rows: list[dict[str, Any]]) -> Table:
    table = measured[f"dispersion_{what}"].rows()
    columns = published()["emnlp2020"]["columns"]
    own = {
        "largest CV": max(table, key=lambda row: row["cv"]),
        "smallest CV": min(table, key=lambda row: row["cv"]),
        "average": rows_of(measured["dispersion_average"], of=what)[0],
    }
    made = []
    for told in rows:
        mine = own[told["row"]]
        if told["layer"] is not None:
            made.append(
                {
                    "": told["row"],
                    "number": "of",
                    "published": _place(told),
                    "measured": _place(mine),
                }
            )
        for name, value in zip(columns, told["values"], strict=True):
            if value is not None:
                made.append(
                    {"": told["row"], "number": name, "published": value, "measured": mine[name]}
                )
    return table_of(made)


def _place(row: Mapping[str, Any]) -> str:
    head = "" if row.get("head") is None else f", head {row['head']}"
    return f"layer {row['layer']}{head}"


def _correlations(measured: Measured) -> Table:
    found = {row["category"]: row for row in measured["alpha_vs_norm_spearman"].rows()}
    own = categories(measured)
    return table_of(
        {
            "category": name,
            "ρ published": told["rho"],
            "ρ measured": mine.get("spearman"),
            "bound": None if "bound" not in mine else f"{mine['bound']:.4f}",
            "pairs published": told["pairs"],
            "pairs measured": mine.get("pairs"),
        }
        for name, told in published()["emnlp2020"]["table2"].items()
        for mine in [found.get(own.get(name, ""), {})]
    )


def _shares(measured: Measured) -> Table:
    rows = measured["categories"].rows()
    sums = {what: sum(row[what] for row in rows) for what in ("alpha", "weighted_norm")}
    return table_of(
        {
            "category": row["category"],
            "α": row["alpha"],
            "‖αf(x)‖": row["weighted_norm"],
            "‖f(x)‖": row["transformed_norm"],
            "share of α, %": 100 * row["alpha"] / sums["alpha"],
            "share of ‖αf(x)‖, %": 100 * row["weighted_norm"] / sums["weighted_norm"],
            "tokens": row["tokens"],
        }
        for row in rows
    )


def _frequency(measured: Measured) -> Table:
    told = published()["emnlp2020"]["figure6"]
    return frequency_table(
        measured, {name: [told[name]] for name in ("alpha", "transformed_norm")}, ["all tokens"]
    )


def _singular_values(measured: Measured) -> NDArray[np.float64]:
    """(layer, head, rank): all from one reading of the weights."""
    layers = affine_maps(measured.model)
    return np.array(
        [[one.singular_values(head) for head in range(len(one.output))] for one in layers]
    )


def _ratios(values: NDArray[np.float64], least: float) -> Table:
    ratios = values[..., 0] / values[..., -1]
    return table_of(
        [
            {
                "largest / smallest": "least of all heads",
                "published": f"at least {least}, of the heads shown",
                "measured": float(ratios.min()),
            },
            {
                "largest / smallest": "median of all heads",
                "published": None,
                "measured": float(np.median(ratios)),
            },
        ]
    )


def _spectrum_table(values: NDArray[np.float64]) -> Table:
    layers, heads, ranks = values.shape
    grid = np.indices(values.shape).reshape(3, layers * heads * ranks) + 1
    names = ("layer", "head", "number")
    return Table({**dict(zip(names, grid, strict=True)), "singular_value": values.ravel()})


# --------------------------------------------------------------------------------------- findings


def _findings(measured: Measured) -> list[Finding]:
    paper = published()["emnlp2020"]
    average = {row["of"]: row["cv"] for row in measured["dispersion_average"].rows()}
    told = {name: paper[table][-1]["values"][2] for name, table in _AVERAGES.items()}
    found = [
        Finding(
            "‖f(x)‖ is more dispersed than ‖x‖ (average CV)",
            f"{told['transformed_norm']} > {told['input_norm']}",
            f"{average['transformed_norm']:.3f} against {average['input_norm']:.3f}",
            average["transformed_norm"] > average["input_norm"],
        )
    ]
    found += _opposed(measured)
    found += _special_tokens(measured)
    found += _frequent(measured)
    values = _singular_values(measured)
    least = float((values[..., 0] / values[..., -1]).min())
    found.append(
        Finding(
            "f stretches some directions more than others, in every head (Figure 9)",
            f"largest / smallest ≥ {paper['figure9']['least_ratio']}",
            f"≥ {least:.2f}",
            least >= paper["figure9"]["least_ratio"],
        )
    )
    return found


_AVERAGES = {"transformed_norm": "table1", "input_norm": "table4"}


def _opposed(measured: Measured) -> list[Finding]:
    paper = published()["emnlp2020"]["table2"]
    rows = {row["category"]: row["spearman"] for row in measured["alpha_vs_norm_spearman"].rows()}
    own = {name: rows[here] for name, here in categories(measured).items()}
    found = []
    for name, mine in own.items():
        rho = paper[name]["rho"]
        near = abs(rho) < NEAR_ZERO
        strong = abs(rho) >= STRONG
        how = "near zero" if near else "strongly negative" if strong else "negative"
        agrees = abs(mine) < NEAR_ZERO if near else mine <= (-STRONG if strong else -NEAR_ZERO)
        found.append(
            Finding(f"ρ of α and ‖f(x)‖ is {how} for {name}", f"{rho}", f"{mine:.3f}", bool(agrees))
        )
    if "[SEP]" in own:
        least = min(own, key=lambda name: own[name])
        found.append(
            Finding(
                "α and ‖f(x)‖ are most opposed for [SEP]",
                "[SEP]",
                least,
                least == "[SEP]",
            )
        )
    return found


def _special_tokens(measured: Measured) -> list[Finding]:
    shares = {row["category"]: row for row in _shares(measured).rows()}
    found = []
    for name, own in categories(measured).items():
        if name == "others":
            continue
        weight, norm = (shares[own][f"share of {what}, %"] for what in ("α", "‖αf(x)‖"))
        found.append(
            Finding(
                f"{name} has a smaller share of the norm than of the weight",
                "smaller",
                f"{norm:.1f}% of ‖αf(x)‖, {weight:.1f}% of α",
                bool(norm < weight),
            )
        )
    return found


def _frequent(measured: Measured) -> list[Finding]:
    told = published()["emnlp2020"]["figure6"]
    found = []
    for table, where in measured.ranks.items():
        rho = {row["of"]: row["spearman"] for row in measured[table].rows()}
        found += [
            Finding(
                f"rarer tokens have longer ‖f(x)‖: ρ with the rank above {STRONG} (ranks: {where})",
                str(told["transformed_norm"]),
                shown(rho["transformed_norm"]),
                bool(rho["transformed_norm"] > STRONG),
            ),
            Finding(
                f"α hardly goes with frequency: |ρ| below {NEAR_ZERO} (ranks: {where})",
                str(told["alpha"]),
                shown(rho["alpha"]),
                bool(abs(rho["alpha"]) < NEAR_ZERO),
            ),
        ]
    return found


EXPERIMENT = Corpus("emnlp2020-bert", PAPER, _statistics, _exhibits, _findings, text=CLARK)
