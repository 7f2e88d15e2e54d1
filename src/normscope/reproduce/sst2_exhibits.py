"""Tables, figures and findings of `attribution-sst2`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from normscope.measures.statistics import Table
from normscope.reproduce.comparisons import (
    Panel,
    beside,
    draw_beside,
    interval_of,
    measured_value,
)
from normscope.reproduce.exhibits import Finding, published, rows_with, table_of
from normscope.reproduce.measurements import ExhibitPlan, Measurements

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = (
    "Modarressi, Fayyaz, Aghazadeh, Yaghoobzadeh and Pilehvar: DecompX. ACL 2023, Table 1, SST-2. "
    "Ferrando, Gállego and Costa-jussà: Measuring the Mixing of Contextual Information in the "
    "Transformer (ALTI). EMNLP 2022, SST-2. Modarressi, Fayyaz, Yaghoobzadeh and Pilehvar: "
    "GlobEnc. NAACL 2022, SST-2"
)
PUBLISHED = published()["attribution-sst2"]
CLOSE = 0.03  # AOPC by which "as good as" may differ
ALTI_MODELS = ("RoBERTa", "DistilBERT")
DELETION = ("comprehensiveness", "sufficiency")


def _masking(measurements: Measurements) -> Table:
    names = {
        "accuracy": "accuracy ↓",
        "aopc": "AOPC ↑",
        "aopc_least": "AOPC, least important first ↓",
    }
    return beside(measurements["figures"], names, PUBLISHED["masking"])


def _deletion_rows() -> dict[str, dict[str, Any]]:
    """Return the published rows with a figure for each model, as `beside` takes them."""
    rows = {}
    for method, row in PUBLISHED["deletion"].items():
        values = {
            f"{figure}, {model}": row[model][at]
            for model in ALTI_MODELS
            if model in row
            for at, figure in enumerate(DELETION)
        }
        rows[method] = {"paper": row["paper"], **values}
    return rows


def _deletion(measurements: Measurements) -> Table:
    table, known = measurements["figures"], _deletion_rows()
    rows = []
    for method in dict.fromkeys(table.lists()["method"]):
        row: dict[str, Any] = {"method": method, "in the paper": known.get(method, {}).get("paper")}
        for figure, mark in zip(DELETION, "↑↓", strict=True):
            entry = measured_value(table, method=method, figure=figure)
            assert entry is not None
            for model in ALTI_MODELS:
                row[f"{figure} {mark} {model}"] = known.get(method, {}).get(f"{figure}, {model}")
            row[f"{figure} {mark} measured"] = entry["mean"]
            row[f"{figure} interval"] = interval_of(entry)
        rows.append(row)
    return table_of(rows)


def _correlations(measurements: Measurements) -> Table:
    table = measurements["correlations"]
    rows = []
    for method in dict.fromkeys(table.lists()["method"]):
        mean, deviation = PUBLISHED["correlations"].get(method, (None, None))
        every, others = (
            measured_value(table, method=method, figure=figure)
            for figure in ("spearman", "spearman_without_specials")
        )
        assert every is not None
        assert others is not None
        rows.append(
            {
                "map": method,
                "ρ published": mean,
                "standard deviation": deviation,
                "ρ measured": every["mean"],
                "interval": interval_of(every),
                "ρ without special tokens": others["mean"],
            }
        )
    return table_of(rows)


def _panel(measurements: Measurements, figure: str, title: str, *, higher: bool) -> Panel:
    known = {m: row[figure] for m, row in PUBLISHED["masking"].items() if figure in row}
    return Panel(title, rows_with(measurements["figures"], figure=figure), known, higher)


def _draw_masking(measurements: Measurements) -> Figure:
    return draw_beside(
        "Loss of probability when tokens are masked (diamonds: published, for BERT-base)",
        [
            _panel(measurements, "aopc", "most important first", higher=True),
            _panel(measurements, "aopc_least", "least important first", higher=False),
        ],
    )


def _draw_deletion(measurements: Measurements) -> Figure:
    parts = []
    for figure, higher in zip(DELETION, (True, False), strict=True):
        known = {
            method: row[f"{figure}, RoBERTa"]
            for method, row in _deletion_rows().items()
            if f"{figure}, RoBERTa" in row
        }
        rows = rows_with(measurements["figures"], figure=figure)
        parts.append(Panel(figure, rows, known, higher))
    return draw_beside(
        "Loss of probability when tokens are deleted (diamonds: published, for RoBERTa)", parts
    )


def _draw_correlations(measurements: Measurements) -> Figure:
    rows = rows_with(measurements["correlations"], figure="spearman")
    known = {name: values[0] for name, values in PUBLISHED["correlations"].items()}
    return draw_beside(
        "Rollouts of maps against the size of embedding × gradient (diamonds: published)",
        [Panel("Spearman’s ρ, mean over sentences", rows, known, None)],
    )


_EXPLAINED = (
    "The logit of the class that the model predicts is explained, right or wrong, and p is the "
    "probability of this class"
)
_INTERVAL = "intervals are 95%, by bootstrap over sentences"

EXHIBITS = (
    ExhibitPlan(
        "DecompX Table 1",
        "Tokens masked, SST-2",
        f"{_EXPLAINED}. [MASK] replaces floor(n·K) of the n tokens, K = 10, 20, …, 90%, special "
        "tokens excepted. AOPC: mean of p(sentence) − p(masked); accuracy: of the masked sentences "
        "against the gold labels, in percent, mean over K. Tokens are ranked by signed score where "
        "a method has signs, and of equal scores the earlier one comes first. Gradient × Input is "
        "the ℓ2 norm, and Integrated Gradients have ten points of the Gauss–Legendre rule from "
        "zero embeddings; the paper’s choices are not known. The paper’s third column, accuracy of "
        "models retrained on the top 20% of the tokens, is not reproduced. Without its bias, "
        "DecompX is the frozen network. " + _INTERVAL[0].upper() + _INTERVAL[1:],
        _masking,
        _draw_masking,
        "figures",
    ),
    ExhibitPlan(
        "ALTI Table",
        "Tokens deleted, SST-2",
        f"{_EXPLAINED}. ceil(n·k) of the n tokens are deleted (comprehensiveness) or kept alone "
        "(sufficiency), k = 1, 5, 10, 20, 50%, special tokens excepted. As in the released code, "
        "each probability is replaced by the smallest (largest) so far, and the sum of the losses "
        "is divided by six. GlobEnc’s maps are not divided by their row sums, those of ALTI and of "
        "the norm rollout are. Integrated Gradients, which the paper reduces to norms and means, "
        "are ranked by signed score here, so they have no published number; the published models "
        "are RoBERTa-base and DistilBERT; " + _INTERVAL,
        _deletion,
        _draw_deletion,
        "figures",
    ),
    ExhibitPlan(
        "GlobEnc Table",
        "Rollouts and gradients, SST-2",
        "Spearman’s ρ, with average ranks, between the row of [CLS] of the rollout at the last "
        "layer and the ℓ2 norm of embedding × gradient of the gold label’s logit, where the "
        "embedding is the output of the embedding layer; mean over sentences, all tokens included "
        "(and, in the last column, without special tokens). W: weights, N: norms; FixedRes: half "
        "of the residual; W-Res: with the mixing ratio of N-Enc; maps with a residual of their own "
        "are not divided by row sums. The published model is BERT-base with twelve layers; "
        + _INTERVAL,
        _correlations,
        _draw_correlations,
        "correlations",
    ),
)


# ---- findings


def findings(measurements: Measurements) -> list[Finding]:
    """Return the papers' findings of which all methods were measured."""
    return [*_masking_findings(measurements), *_rollout_findings(measurements)]


def _means(measurements: Measurements, table: str, figure: str) -> dict[str, float]:
    rows = rows_with(measurements[table], figure=figure)
    return {row["method"]: row["mean"] for row in rows}


def _compared(
    statement: str, names: tuple[str, str], known: tuple[Any, Any], mean: Mapping[str, float]
) -> Iterator[Finding]:
    """Yield that the first of two methods has the larger figure, if both were measured."""
    if set(names) <= set(mean):
        first, second = (mean[name] for name in names)
        yield Finding(
            statement,
            f"{known[0]} > {known[1]}",
            f"{first:.3f} against {second:.3f}",
            first > second,
        )


def _masking_findings(measurements: Measurements) -> Iterator[Finding]:
    aopc = _means(measurements, "figures", "aopc")
    comprehensive = _means(measurements, "figures", "comprehensiveness")
    known = {method: row["aopc"] for method, row in PUBLISHED["masking"].items()}
    rivals = [name for name in known if name not in ("decompx", "frozen") and name in aopc]
    if "decompx" in aopc and rivals:
        best = max(rivals, key=lambda name: aopc[name])
        yield Finding(
            "DecompX has a larger AOPC than every other method of the paper",
            f"{known['decompx']} > {max(known[name] for name in rivals)}",
            f"{aopc['decompx']:.3f} against {aopc[best]:.3f} ({best})",
            aopc["decompx"] > aopc[best],
        )
    if {"decompx", "frozen"} <= set(aopc):
        yield Finding(
            f"without its bias, DecompX is as good (AOPC within {CLOSE})",
            f"{known['frozen']} against {known['decompx']}",
            f"{aopc['frozen']:.3f} against {aopc['decompx']:.3f}",
            abs(aopc["frozen"] - aopc["decompx"]) <= CLOSE,
        )
    alti, globenc, plus = "rollout:alti", "rollout:globenc,normalize=no", "rollout:alti_l2"
    yield from _compared(
        "ALTI has a larger AOPC than GlobEnc", (alti, globenc), (known[alti], known[globenc]), aopc
    )
    deleted = {name: row["RoBERTa"][0] for name, row in PUBLISHED["deletion"].items()}
    others = {plus: "its ℓ2 form", globenc: "GlobEnc", "rollout:attn_w": "rollout"}
    for other, words in others.items():
        yield from _compared(
            f"ALTI has a larger comprehensiveness than {words}",
            (alti, other),
            (deleted[alti], deleted[other]),
            comprehensive,
        )


def _rollout_findings(measurements: Measurements) -> Iterator[Finding]:
    rho, known = _means(measurements, "correlations", "spearman"), PUBLISHED["correlations"]
    compared = {name: rho[name] for name in known if name in rho}
    best = max(compared, key=lambda name: compared[name])
    yield Finding(
        "the rollout of N-Enc has the largest ρ",
        f"{known['N-Enc'][0]}, N-Enc",
        f"{compared[best]:.2f}, {best}",
        best == "N-Enc",
    )
    for first, second in (("N-Res", "N"), ("N", "W"), ("N-Res", "N-ResLN")):
        yield from _compared(
            f"ρ is larger for {first} than for {second}",
            (first, second),
            (known[first][0], known[second][0]),
            compared,
        )
