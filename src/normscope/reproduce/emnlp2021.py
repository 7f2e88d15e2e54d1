"""Kobayashi et al. (2021), as far as it is about BERT: mixing ratios, and why they are small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.foundation.ranks import spearman
from normscope.measures.analysis import analyze
from normscope.measures.properties import OUTPUT_BIAS, expansion_rate
from normscope.measures.statistics import Settings, Statistic, Table, choose
from normscope.reproduce.exhibits import (
    ANALYSES,
    Exhibit,
    Finding,
    published,
    rows_of,
    shown,
    table_of,
)
from normscope.reproduce.frequency import frequency_figure, frequency_table
from normscope.reproduce.measure import CLARK, Corpus, Measured
from normscope.reproduce.numbers import Points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = (
    "Kobayashi, Kuribayashi, Yokoi and Inui: Incorporating Residual and Normalization Layers into "
    "Analysis of Masked Language Models. EMNLP 2021. BERT on Wikipedia"
)
SENTENCE = "The cat sat on the mat, and the dog looked at it."
LAST = "attn_res_ln_n"


def _statistics(settings: Settings) -> list[Statistic]:
    return [*choose(["mixing", "preserve_mix"], settings), Points(settings)]


def _analyses(measured: Measured) -> list[str]:
    return [str(name) for name in measured["mixing"].lists()["analysis"]]


def _category(measured: Measured, name: str) -> str:
    """What this tokenizer has for a category of the paper."""
    tokenizer = measured.tokenizer
    special = {
        "[CLS]": tokenizer.cls_token or tokenizer.bos_token,
        "[SEP]": tokenizer.sep_token or tokenizer.eos_token,
        "[MASK]": tokenizer.mask_token,
    }
    return str(special.get(name, name))


# ----------------------------------------------------------------------------- tables and figures


def _exhibits(measured: Measured) -> list[Exhibit]:
    paper = published()["emnlp2021"]
    masked = measured.tokenizer.mask_token is not None
    masks = (
        "12% of the tokens that are not special are masked, as in the paper (another seed)"
        if masked
        else "no masks, since the tokenizer has no mask token"
    )

    def lengths() -> Figure:
        from normscope.show import plots

        return _figure(plots.preserved_and_mixed(measured["preserve_mix"]))

    return [
        Exhibit(
            "Table 1",
            "Mixing ratios, percent",
            f"all tokens × layers pooled; {masks}. Published: outputs of the released code; "
            f"{paper['mixing']['note']}. AttnRes-W is ½ᾱ + ½I",
            _mixing(measured),
            data=measured["mixing"],
        ),
        Exhibit(
            "Figure 1",
            f"Five maps of one sentence: “{SENTENCE}”",
            "shares of what a query takes, of the middle layer; the colours follow the square "
            "root. The paper shows a picture of another sentence",
            draw=lambda: _maps(measured),
        ),
        Exhibit(
            "Figure 3",
            "Mixing ratio by layer and category, percent",
            f"mean within a sequence, then over the sequences that have the category; {masks}; "
            "the band is the 95% interval of a bootstrap over sequences. Published: outputs of the "
            "released code, rounded to whole percent. The table has AttnResLn-N; all analyses are "
            "in the CSV file",
            _by_layer(measured),
            lambda: _categories(measured),
            measured["mixing_layers"],
        ),
        Exhibit(
            "Frequency",
            "Spearman ρ of the mixing ratio and the rank of a token's frequency",
            "the text without masks; ratio averaged over layers for each token; rank 1 is the most "
            "frequent. Published: outputs of the released code, which do not say whose ranks",
            frequency_table(
                measured, paper["frequency"]["values"], ["all tokens", "without [CLS], [SEP]"]
            ),
            lambda: frequency_figure(measured, ("attn_n", "attn_res_n", LAST)),
            measured["frequency_points"],
        ),
        Exhibit(
            "Expansion rate",
            "How much f stretches a vector, by layer",
            "‖f̃‖_F / √(d + 1), f̃ the map (x, 1) ↦ (f(x), 1) of all heads. b_O is not in f: "
            "“without” leaves it out; “released” has it as a column beside W_O, as in the code "
            "that made the published numbers; compare these two",
            _expansion(measured),
        ),
        Exhibit(
            "Depth",
            "Spearman ρ of the mixing ratio and the layer's number",
            "of the means over sequences of all tokens. The paper prints one number for a model, "
            "taken here for that of AttnResLn-N; beside it ρ of the paper's Figure 3 as printed, "
            "in whole percent",
            _depth(measured),
            data=measured["mixing_depth"],
        ),
        Exhibit(
            "Preserve and mix",
            "What the residual preserves, and what attention mixes in",
            "means over tokens, by layer: ‖x_i‖, ‖Σ_j s_ij‖; ‖v_ii‖ (preserved) and ‖Σ_{j≠i} v_ij‖ "
            "(mixed) of attention, with the residual, and after the norm; the text without masks; "
            "norm scale is mean |γ| / σ_i. The paper says it in words",
            _preserve(measured),
            lengths,
            measured["preserve_mix"],
        ),
    ]


def _figure(axes: Any) -> Figure:
    found: Figure = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()[0].figure
    return found


def _mixing(measured: Measured) -> Table:
    paper = published()["emnlp2021"]["mixing"]
    rows = []
    for name in _analyses(measured):
        (mine,) = rows_of(measured["mixing"], analysis=name)
        row: dict[str, Any] = {"analysis": ANALYSES[name]}
        for what, value in zip(paper["columns"], paper["values"][name], strict=True):
            row |= {f"{what} published": value, f"{what} measured": mine[what]}
        rows.append(row)
    return table_of(rows)


def _maps(measured: Measured) -> Figure:
    from normscope.show import plots

    names = _analyses(measured)
    result = analyze(measured.model, measured.tokenizer, SENTENCE, maps=names)
    layer = measured.model.config.num_hidden_layers // 2
    axes = plots.scopes(result, layer - 1, names)
    for ax, name in zip(axes, names, strict=True):
        ax.set_title(ANALYSES[name], fontsize=10)
    figure = _figure(axes)
    figure.suptitle(f"layer {layer}", fontsize=11)
    return figure


def _by_layer(measured: Measured) -> Table:
    paper = published()["emnlp2021"]["figure3"]
    rows = []
    depth = max(measured["mixing_layers"].lists()["layer"])
    for layer in range(1, max(depth, 12) + 1):
        row: dict[str, Any] = {"layer": layer}
        told = paper["layers"][LAST][layer - 1] if layer <= 12 else [None] * 5
        for name, value in zip(paper["columns"], told, strict=True):
            own = _category(measured, name)
            found = rows_of(measured["mixing_layers"], category=own, layer=layer, analysis=LAST)
            mine = found[0]["mean"] if found else None
            row |= {f"{name} published": value, f"{name} measured": mine}
        rows.append(row)
    return table_of(rows)


def _categories(measured: Measured) -> Figure:
    from normscope.show.plots.lines import mixing_by_category

    return _figure(mixing_by_category(measured["mixing_layers"], ANALYSES))


def _expansion(measured: Measured) -> Table:
    told = published()["emnlp2021"]["expansion"]["values"]
    rates = {bias: expansion_rate(measured.model, bias=bias).to_numpy() for bias in OUTPUT_BIAS}
    layers = len(rates["without"])
    return table_of(
        {
            "layer": layer + 1,
            "published (released)": told[layer] if layer < len(told) else None,
            **{
                f"measured ({bias.replace('_', ' ')})": float(found[layer])
                if layer < layers
                else None
                for bias, found in rates.items()
            },
        }
        for layer in range(max(layers, len(told)))
    )


def _depth(measured: Measured) -> Table:
    paper = published()["emnlp2021"]
    printed = {
        name: spearman(np.arange(12.0), np.array([row[-1] for row in rows], dtype=float))
        for name, rows in paper["figure3"]["layers"].items()
    }
    return table_of(
        {
            "analysis": ANALYSES[row["analysis"]],
            "published": paper["depth"]["values"] if row["analysis"] == LAST else None,
            "published, from Figure 3": printed[row["analysis"]],
            "measured": row["spearman"],
        }
        for row in measured["mixing_depth"].rows()
    )


def _preserve(measured: Measured) -> Table:
    names = {
        "layer": "layer",
        "input_norm": "‖x_i‖",
        "total_norm": "‖Σ_j s_ij‖",
        "attn_res_n_preserved": "preserved, before LN",
        "attn_res_n_mixed": "mixed, before LN",
        "attn_res_ln_n_preserved": "preserved, after LN",
        "attn_res_ln_n_mixed": "mixed, after LN",
        "norm_scale": "norm scale",
    }
    found = measured["preserve_mix"].lists()
    return Table({told: found[name] for name, told in names.items() if name in found})


# --------------------------------------------------------------------------------------- findings


def _findings(measured: Measured) -> list[Finding]:
    found = [*_ratios(measured), *_frequent(measured)]
    paper = published()["emnlp2021"]
    told, mine = paper["expansion"]["values"], expansion_rate(measured.model).to_numpy()
    below = int((mine < 1).sum())
    found.append(
        Finding(
            "f shrinks vectors on average (expansion rate below 1) in most layers",
            f"{sum(rate < 1 for rate in told)} of {len(told)} layers",
            f"{below} of {len(mine)} layers",
            2 * below > len(mine),
        )
    )
    depth = {row["analysis"]: row["spearman"] for row in measured["mixing_depth"].rows()}
    if LAST in depth:
        found.append(
            Finding(
                "AttnResLn-N mixes less in later layers (ρ with depth is negative)",
                shown(paper["depth"]["values"]),
                shown(depth[LAST]),
                bool(depth[LAST] < 0),
            )
        )
    return found + _lengths(measured)


def _ratios(measured: Measured) -> list[Finding]:
    paper = published()["emnlp2021"]
    means = {row["analysis"]: row["mean"] for row in measured["mixing"].rows()}
    told = {name: values[0] for name, values in paper["mixing"]["values"].items()}
    order = [name for name in ("attn_w", "attn_n", "attn_res_n", LAST) if name in means]
    mine = [means[name] for name in order]
    found = [
        Finding(
            " > ".join(ANALYSES[name] for name in order) + " (mean mixing ratio)",
            " > ".join(shown(told[name]) for name in order),
            ", ".join(shown(one) for one in mine),
            mine == sorted(mine, reverse=True) and len(set(mine)) == len(mine),
        )
    ]
    if LAST in means:
        found.append(
            Finding(
                "with residual and norm, a token preserves more than it mixes in (below 50%)",
                f"{told[LAST]}%",
                f"{means[LAST]:.2f}%",
                bool(means[LAST] < 50),
            )
        )
        separator = _category(measured, "[SEP]")
        columns = paper["figure3"]["columns"]
        printed = np.mean(paper["figure3"]["layers"][LAST], axis=0)
        own = {
            name: [
                row["mean"]
                for row in rows_of(measured["mixing_layers"], category=name, analysis=LAST)
            ]
            for name in ("normal", separator)
        }
        if all(own.values()):
            normal, special = (float(np.mean(own[name])) for name in ("normal", separator))
            published_normal, published_special = (
                printed[columns.index(name)] for name in ("normal", "[SEP]")
            )
            found.append(
                Finding(
                    "[SEP] mixes in less than other tokens (AttnResLn-N, mean over layers)",
                    f"{published_special:.1f}% < {published_normal:.1f}%",
                    f"{special:.1f}% against {normal:.1f}%",
                    special < normal,
                )
            )
    return found


def _frequent(measured: Measured) -> list[Finding]:
    told = published()["emnlp2021"]["frequency"]["values"]
    found = []
    for table, where in measured.ranks.items():
        rho = {row["of"]: row["spearman"] for row in measured[table].rows()}
        for name in ("attn_res_n", LAST):
            if name in rho:
                found.append(
                    Finding(
                        f"{ANALYSES[name]} mixes less into rarer tokens (ranks: {where})",
                        f"ρ = {told[name][0]}",
                        f"ρ = {rho[name]:.3f}",
                        bool(rho[name] < 0),
                    )
                )
    return found


def _lengths(measured: Measured) -> list[Finding]:
    lists = measured["preserve_mix"].lists()
    layers = len(lists["layer"])
    longer = sum(x > s for x, s in zip(lists["input_norm"], lists["total_norm"], strict=True))
    found = [
        Finding(
            "the residual passes longer vectors than attention adds (‖x_i‖ > ‖Σ_j s_ij‖)",
            "in words",
            f"in {longer} of {layers} layers",
            longer == layers,
        )
    ]
    if f"{LAST}_mixed" in lists:
        before, after = (
            np.array(lists[f"{name}_mixed"]) / np.array(lists[f"{name}_preserved"])
            for name in ("attn_res_n", LAST)
        )
        fewer = int((after < before).sum())
        found.append(
            Finding(
                "layer norm shrinks the mixed part further (mixed / preserved falls)",
                "in words",
                f"{before.mean():.3f} → {after.mean():.3f} on average, in {fewer} of {layers} "
                "layers",
                bool(after.mean() < before.mean()),
            )
        )
    return found


EXPERIMENT = Corpus("emnlp2021", PAPER, _statistics, _exhibits, _findings, text=CLARK)
