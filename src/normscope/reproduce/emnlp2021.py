"""The BERT part of Kobayashi et al. (2021): mixing ratios, and why they are small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.foundation.ranks import spearman
from normscope.measures.analysis import analyze
from normscope.measures.properties import OUTPUT_BIAS, expansion_rate
from normscope.measures.statistics import Statistic, StatisticSettings, Table, choose
from normscope.reproduce.exhibits import (
    ANALYSES,
    ANALYSIS_LABELS,
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
from normscope.show.plots.lines import mixing_by_category

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = (
    "Kobayashi, Kuribayashi, Yokoi and Inui: Incorporating Residual and Normalization Layers into "
    "Analysis of Masked Language Models. EMNLP 2021. BERT on Wikipedia"
)
PUBLISHED = published()["emnlp2021"]
PUBLISHED_LAYERS = 12
SENTENCE = "The cat sat on the mat, and the dog looked at it."
RESIDUAL, BLOCK = "attn_res_n", "attn_res_ln_n"  # up to the residual sum, and the whole block
PRESERVED_COLUMNS = {
    "layer": "layer",
    "input_norm": "‖x_i‖",
    "total_norm": "‖Σ_j s_ij‖",
    f"{RESIDUAL}_preserved": "preserved, before LN",
    f"{RESIDUAL}_mixed": "mixed, before LN",
    f"{BLOCK}_preserved": "preserved, after LN",
    f"{BLOCK}_mixed": "mixed, after LN",
    "norm_scale": "norm scale",
}


def _statistics(settings: StatisticSettings) -> list[Statistic]:
    return [*choose(["mixing", "preserve_mix"], settings), FrequencyPoints(settings)]


def _analyses(measurements: Measurements) -> list[str]:
    """Return the analyses that the model has."""
    return [str(name) for name in measurements["mixing"].lists()["analysis"]]


# ----------------------------------------------------------------------------------------- tables


def _mixing(measurements: Measurements) -> Table:
    numbers = PUBLISHED["mixing"]
    rows = []
    for name in _analyses(measurements):
        (measured,) = rows_with(measurements["mixing"], analysis=name)
        row: dict[str, Any] = {"analysis": ANALYSES[name]}
        for column, value in zip(numbers["columns"], numbers["values"][name], strict=True):
            row |= {f"{column} published": value, f"{column} measured": measured[column]}
        rows.append(row)
    return table_of(rows)


def _mixing_by_layer(measurements: Measurements) -> Table:
    numbers = PUBLISHED["figure3"]
    table = measurements["mixing_layers"]
    rows = []
    for layer in range(1, max(*table.lists()["layer"], PUBLISHED_LAYERS) + 1):
        row: dict[str, Any] = {"layer": layer}
        values = [None] * len(numbers["columns"])
        if layer <= PUBLISHED_LAYERS:
            values = numbers["layers"][BLOCK][layer - 1]
        for name, value in zip(numbers["columns"], values, strict=True):
            own = measurements.category(name)
            measured = rows_with(table, category=own, layer=layer, analysis=BLOCK)
            row[f"{name} published"] = value
            row[f"{name} measured"] = measured[0]["mean"] if measured else None
        rows.append(row)
    return table_of(rows)


def _frequency(measurements: Measurements) -> Table:
    populations = ["all tokens", "without [CLS], [SEP]"]
    return frequency_table(measurements, PUBLISHED["frequency"]["values"], populations)


def _expansion(measurements: Measurements) -> Table:
    expected = PUBLISHED["expansion"]["values"]
    rates = {bias: expansion_rate(measurements.model, bias=bias).to_numpy() for bias in OUTPUT_BIAS}
    layers = len(rates["without"])
    rows = []
    for layer in range(max(layers, len(expected))):
        row: dict[str, Any] = {"layer": layer + 1}
        row["published (released)"] = expected[layer] if layer < len(expected) else None
        for bias, values in rates.items():
            measured = float(values[layer]) if layer < layers else None
            row[f"measured ({bias.replace('_', ' ')})"] = measured
        rows.append(row)
    return table_of(rows)


def _depth(measurements: Measurements) -> Table:
    printed = {
        name: spearman(
            np.arange(float(PUBLISHED_LAYERS)), np.array([row[-1] for row in rows], dtype=float)
        )
        for name, rows in PUBLISHED["figure3"]["layers"].items()
    }
    return table_of(
        {
            "analysis": ANALYSES[row["analysis"]],
            "published": PUBLISHED["depth"]["values"] if row["analysis"] == BLOCK else None,
            "published, from Figure 3": printed[row["analysis"]],
            "measured": row["spearman"],
        }
        for row in measurements["mixing_depth"].rows()
    )


def _preserved(measurements: Measurements) -> Table:
    columns = measurements["preserve_mix"].lists()
    return Table(
        {title: columns[name] for name, title in PRESERVED_COLUMNS.items() if name in columns}
    )


# ---------------------------------------------------------------------------------------- figures


def _draw_maps(measurements: Measurements) -> Figure:
    names = _analyses(measurements)
    result = analyze(measurements.model, measurements.tokenizer, SENTENCE, maps=names)
    layer = measurements.model.config.num_hidden_layers // 2
    axes = plots.scopes(result, layer - 1, names)
    for ax, name in zip(axes, names, strict=True):
        ax.title.set_text(ANALYSIS_LABELS[name])
    return titled(axes, f"Five maps of one sentence in layer {layer}, as shares of each row")


def _masking(measurements: Measurements) -> str:
    if measurements.tokenizer.mask_token is None:
        return "no tokens are masked, because the tokenizer has no mask token"
    return "12% of the tokens that are not special are masked, as in the paper (with another seed)"


def _mixing_convention(measurements: Measurements) -> str:
    return (
        f"Pooled over all tokens and layers; {_masking(measurements)}. The published numbers are "
        f"outputs of the released code; {PUBLISHED['mixing']['note']}. AttnRes-W is ½ᾱ + ½I"
    )


def _layers_convention(measurements: Measurements) -> str:
    return (
        "Mean within a sequence, then over the sequences that contain the category; "
        f"{_masking(measurements)}; the band is the 95% interval of a bootstrap over sequences. "
        "The published numbers are outputs of the released code, rounded to whole percent. The "
        "table shows AttnResLn-N; the CSV file has all analyses"
    )


EXHIBITS = (
    ExhibitPlan("Table 1", "Mixing ratios in percent", _mixing_convention, _mixing, data="mixing"),
    ExhibitPlan(
        "Figure 1",
        f"Five maps of one sentence: “{SENTENCE}”",
        "Each query's map in the middle layer, divided by its sum; the colours follow the square "
        "root. The paper shows another sentence",
        draw=_draw_maps,
    ),
    ExhibitPlan(
        "Figure 3",
        "Mixing ratio by layer and category, in percent",
        _layers_convention,
        _mixing_by_layer,
        lambda m: titled(
            mixing_by_category(m["mixing_layers"], ANALYSIS_LABELS),
            "How much comes from other tokens (mixing ratio), by layer and category of token",
        ),
        "mixing_layers",
    ),
    ExhibitPlan(
        "Frequency",
        "Spearman ρ of the mixing ratio and the frequency rank of a token",
        "Text without masks; the ratio of each token is averaged over layers; rank 1 is the most "
        "frequent. The published numbers are outputs of the released code, which do not say what "
        "the ranks are",
        _frequency,
        lambda m: frequency_figure(m, ("attn_n", RESIDUAL, BLOCK)),
        "frequency_points",
    ),
    ExhibitPlan(
        "Expansion rate",
        "How much f stretches a vector, by layer",
        "‖f̃‖_F / √(d + 1), where f̃ is the map (x, 1) ↦ (f(x), 1) of all heads together. b_O is not "
        "part of f: “without” leaves it out; “released” has it as a column next to W_O, as in the "
        "code that computed the published numbers, and is to be compared with them",
        _expansion,
    ),
    ExhibitPlan(
        "Depth",
        "Spearman ρ of the mixing ratio and the layer number",
        "The ratio is the mean over sequences of all tokens. The paper has one number for a model, "
        "which is assumed to be that of AttnResLn-N; next to it is the ρ of the numbers in the "
        "paper's Figure 3, which are whole percent",
        _depth,
        data="mixing_depth",
    ),
    ExhibitPlan(
        "Preserve and mix",
        "What the residual connection preserves and what attention mixes in",
        "Means over tokens, by layer: ‖x_i‖, ‖Σ_j s_ij‖; ‖v_ii‖ (preserved) and ‖Σ_{j≠i} v_ij‖ "
        "(mixed) of attention alone, with the residual, and after the norm; text without masks; "
        "the norm scale is mean |γ| / σ_i. The paper gives no numbers",
        _preserved,
        lambda m: titled(
            plots.preserved_and_mixed(m["preserve_mix"]),
            "What a token keeps of itself and what other tokens mix in, by layer",
        ),
        "preserve_mix",
    ),
)


# --------------------------------------------------------------------------------------- findings


def _findings(measurements: Measurements) -> list[Finding]:
    return [
        *_ratio_findings(measurements),
        *_separator_findings(measurements),
        *_frequency_findings(measurements),
        _expansion_finding(measurements),
        *_depth_findings(measurements),
        *_length_findings(measurements),
    ]


def _ratio_findings(measurements: Measurements) -> Iterator[Finding]:
    measured = {row["analysis"]: row["mean"] for row in measurements["mixing"].rows()}
    expected = {name: values[0] for name, values in PUBLISHED["mixing"]["values"].items()}
    names = [name for name in ("attn_w", "attn_n", RESIDUAL, BLOCK) if name in measured]
    means = [measured[name] for name in names]
    yield Finding(
        " > ".join(ANALYSES[name] for name in names) + " (mean mixing ratio)",
        " > ".join(format_value(expected[name]) for name in names),
        ", ".join(format_value(mean) for mean in means),
        means == sorted(means, reverse=True) and len(set(means)) == len(means),
    )
    if BLOCK in measured:
        yield Finding(
            "with residual and norm, a token preserves more than is mixed in (below 50%)",
            f"{expected[BLOCK]}%",
            f"{measured[BLOCK]:.2f}%",
            bool(measured[BLOCK] < 50),
        )


def _separator_findings(measurements: Measurements) -> Iterator[Finding]:
    numbers = PUBLISHED["figure3"]
    expected = dict(zip(numbers["columns"], np.mean(numbers["layers"][BLOCK], axis=0), strict=True))
    table = measurements["mixing_layers"]
    measured = {}
    for name in ("normal", "[SEP]"):
        rows = rows_with(table, category=measurements.category(name), analysis=BLOCK)
        if not rows:
            return
        measured[name] = float(np.mean([row["mean"] for row in rows]))
    yield Finding(
        "[SEP] mixes in less than normal tokens (AttnResLn-N, mean over layers)",
        f"{expected['[SEP]']:.1f}% < {expected['normal']:.1f}%",
        f"{measured['[SEP]']:.1f}% against {measured['normal']:.1f}%",
        measured["[SEP]"] < measured["normal"],
    )


def _frequency_findings(measurements: Measurements) -> Iterator[Finding]:
    expected = PUBLISHED["frequency"]["values"]
    for table, source in measurements.ranks.items():
        rho = {row["of"]: row["spearman"] for row in measurements[table].rows()}
        for name in (RESIDUAL, BLOCK):
            if name in rho:
                yield Finding(
                    f"{ANALYSES[name]} mixes less into rarer tokens (ranks: {source})",
                    f"ρ = {expected[name][0]}",
                    f"ρ = {rho[name]:.3f}",
                    bool(rho[name] < 0),
                )


def _expansion_finding(measurements: Measurements) -> Finding:
    expected = PUBLISHED["expansion"]["values"]
    rates = expansion_rate(measurements.model).to_numpy()
    below = int((rates < 1).sum())
    return Finding(
        "f shrinks vectors on average (expansion rate below 1) in most layers",
        f"{sum(rate < 1 for rate in expected)} of {len(expected)} layers",
        f"{below} of {len(rates)} layers",
        2 * below > len(rates),
    )


def _depth_findings(measurements: Measurements) -> Iterator[Finding]:
    rho = {row["analysis"]: row["spearman"] for row in measurements["mixing_depth"].rows()}
    if BLOCK in rho:
        yield Finding(
            "AttnResLn-N mixes less in later layers (ρ with the layer number is negative)",
            format_value(PUBLISHED["depth"]["values"]),
            format_value(rho[BLOCK]),
            bool(rho[BLOCK] < 0),
        )


def _length_findings(measurements: Measurements) -> Iterator[Finding]:
    columns = measurements["preserve_mix"].lists()
    layers = len(columns["layer"])
    longer = sum(x > s for x, s in zip(columns["input_norm"], columns["total_norm"], strict=True))
    yield Finding(
        "the residual passes longer vectors than attention adds (‖x_i‖ > ‖Σ_j s_ij‖)",
        "in words",
        f"in {longer} of {layers} layers",
        longer == layers,
    )
    if f"{BLOCK}_mixed" in columns:
        before, after = (
            np.array(columns[f"{name}_mixed"]) / np.array(columns[f"{name}_preserved"])
            for name in (RESIDUAL, BLOCK)
        )
        smaller = int((after < before).sum())
        yield Finding(
            "layer norm shrinks the mixed part further (mixed / preserved decreases)",
            "in words",
            f"{before.mean():.3f} → {after.mean():.3f} on average, in {smaller} of {layers} layers",
            bool(after.mean() < before.mean()),
        )


EXPERIMENT = CorpusExperiment("emnlp2021", PAPER, _statistics, EXHIBITS, _findings, text=CLARK)
