"""Tables, figures and findings of `attribution-lm`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from normscope.measures.statistics import Table
from normscope.reproduce.comparisons import Panel, draw_beside, interval_of, measured_value
from normscope.reproduce.exhibits import Finding, published, rows_with, table_of
from normscope.reproduce.measurements import ExhibitPlan, Measurements

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = (
    "Ferrando, Gállego, Tsiamas and Costa-jussà: Explaining How Transformers Use Context to Build "
    "Predictions (ALTI-Logit). ACL 2023. Jacobian scopes. ACL 2026"
)
PUBLISHED = published()["attribution-lm"]
BLIMP, IOI, MRR = "BLiMP", "ioi", "mrr"
DROPS: list[str] = PUBLISHED["drops"]["columns"]
DROP_MODELS = ("Llama-3.2-1B", "Qwen2.5-1.5B")
SOLVED = 0.95  # reciprocal rank that counts as "finds the name"


def _is_ioi(name: str) -> bool:
    return name.startswith(IOI)


def _known(method: str, name: str) -> float | None:
    """Return the published reciprocal rank of a method: the mean over BLiMP, or IOI's."""
    row = PUBLISHED["evidence"].get(method, {})
    value: float | None = row.get("IOI" if _is_ioi(name) else name)
    return value


def _sets(measurements: Measurements) -> list[str]:
    """Return the names of the sets, the mean over BLiMP first and IOI second."""
    names = dict.fromkeys(measurements["evidence"].lists()["set"])
    return sorted(names, key=lambda name: (name != BLIMP, not _is_ioi(name)))


def _evidence(measurements: Measurements) -> Table:
    table, rows = measurements["evidence"], []
    for method in dict.fromkeys(table.lists()["method"]):
        paper = PUBLISHED["evidence"].get(method, {}).get("paper")
        row: dict[str, Any] = {"method": method, "in the paper": paper}
        for name in _sets(measurements):
            entry = measured_value(table, set=name, method=method, figure=MRR)
            assert entry is not None
            if name == BLIMP or _is_ioi(name):
                row[f"{name} published"] = _known(method, name)
                row[f"{name} measured"] = entry["mean"]
                row[f"{name} interval"] = interval_of(entry)
            else:
                row[name] = entry["mean"]
        rows.append(row)
    return table_of(rows)


def _draw_evidence(measurements: Measurements) -> Figure:
    table = measurements["evidence"]
    parts = []
    for name in [name for name in _sets(measurements) if name == BLIMP or _is_ioi(name)]:
        rows = rows_with(table, set=name, figure=MRR)
        known = {row["method"]: _known(row["method"], name) for row in rows}
        given = {method: value for method, value in known.items() if value is not None}
        parts.append(Panel(f"{name}: reciprocal rank", rows, given))
    if not parts:
        name = _sets(measurements)[0]
        parts = [Panel(f"{name}: reciprocal rank", rows_with(table, set=name, figure=MRR), {})]
    return draw_beside("Where the deciding word ranks (diamonds: published, for GPT-2)", parts)


def _drops(measurements: Measurements) -> Table:
    table, rows = measurements["drops"], []
    for method in dict.fromkeys(table.lists()["method"]):
        own = PUBLISHED["drops"].get(method, {})
        row: dict[str, Any] = {"method": method, "in the paper": own.get("paper")}
        for at, figure in enumerate(DROPS):
            percent = figure.partition("@")[2]
            for model in DROP_MODELS:
                row[f"{percent} {model}"] = own[model][at] if model in own else None
            entry = measured_value(table, method=method, figure=figure)
            kept = figure.replace("@", "_without_first@")
            other = measured_value(table, method=method, figure=kept)
            assert entry is not None
            assert other is not None
            row[f"{percent} measured"] = entry["mean"]
            row[f"{percent} interval"] = interval_of(entry, 2)
            row[f"{percent} first token kept"] = other["mean"]
            row[f"{percent} kept, interval"] = interval_of(other, 2)
        rows.append(row)
    return table_of(rows)


def _draw_drops(measurements: Measurements) -> Figure:
    table, figure = measurements["drops"], DROPS[1]
    kept = figure.replace("@", "_without_first@")
    known = {
        method: row["Llama-3.2-1B"][1]
        for method, row in PUBLISHED["drops"].items()
        if method != "columns"
    }
    return draw_beside(
        "Loss of log-probability without 10% of the tokens (diamonds: published, Llama-3.2-1B)",
        [
            Panel("the first token ranked", rows_with(table, figure=figure), known),
            Panel("the first token kept", rows_with(table, figure=kept), {}),
        ],
    )


EXHIBITS = (
    ExhibitPlan(
        "ALTI-Logit Table",
        "Rank of the deciding word",
        "The logit of the good next word minus that of the bad one is explained, at the first "
        "token at which they differ. Reciprocal rank of the best-ranked token of the deciding "
        "word, by signed score, in competition ranking (equal scores share the better rank; the "
        "released code ranks them from the other end, so that ties count against a method); all "
        "tokens of the prompt are ranked, special ones excepted. The deciding word is found by "
        "its characters, its last occurrence (released: the first token with its id). Rows whose "
        "deciding word is not a whole word of the prompt, or whose words do not differ, are left "
        "out. BLiMP: mean over its sets. Erasure masks the token as a key and measures the drop "
        "of the logit difference (published: of the difference of probabilities); the ℓ1 norm of "
        "the gradient; Gradient × Input: the signed sum. Intervals are 95%, by bootstrap over "
        "rows, for the mean within each set",
        _evidence,
        _draw_evidence,
        "evidence",
        available=lambda m: "evidence" in m.tables,
    ),
    ExhibitPlan(
        "Log-probability drops",
        "Tokens removed from LAMBADA",
        "The model’s own next word is explained. The word embeddings of the most important 5, 10 "
        "and 20% of the tokens (floor, at least one) are set to zero, and the loss of the word’s "
        "log-probability is averaged over passages; special tokens are ranked like others, as in "
        "the paper, by signed score where a method has signs. The last columns keep the first "
        "token in place, which models may use as an attention sink; published numbers rank it. "
        "Integrated Gradients: Gauss–Legendre points from zero embeddings "
        "(published: a rule that weights the gradient at each point by its place on the path). "
        "Temperature and Fisher scopes are not measured. Published as Δ log p, with a minus sign. "
        "Intervals are 95%, by bootstrap over passages",
        _drops,
        _draw_drops,
        "drops",
        available=lambda m: "drops" in m.tables,
    ),
)


# ---- findings


def findings(measurements: Measurements) -> list[Finding]:
    """Return the papers' findings of which all methods were measured."""
    found: list[Finding] = []
    if "evidence" in measurements.tables:
        found += _evidence_findings(measurements)
    if "drops" in measurements.tables:
        found += _drop_findings(measurements)
    return found


def _means(measurements: Measurements, table: str, **entries: Any) -> dict[str, float]:
    return {row["method"]: row["mean"] for row in rows_with(measurements[table], **entries)}


def _evidence_findings(measurements: Measurements) -> Iterator[Finding]:
    known = PUBLISHED["evidence"]
    blimp = _means(measurements, "evidence", set=BLIMP, figure=MRR)
    alti, logit = "alti_logit", "direct_logit:lens=no"
    pairs = (
        (alti, logit),
        (logit, "erasure"),
        ("erasure", "gradient_norm:l1"),
        ("gradient_norm:l1", "random"),
        ("random", "input_x_gradient"),
    )
    for first, second in pairs:
        if {first, second} <= set(blimp):
            yield Finding(
                f"BLiMP: {known[first]['paper']} ranks the deciding word higher than "
                f"{known[second]['paper']}",
                f"{known[first]['BLiMP']} > {known[second]['BLiMP']}",
                f"{blimp[first]:.3f} against {blimp[second]:.3f}",
                blimp[first] > blimp[second],
            )
    for name in filter(_is_ioi, _sets(measurements)):
        found = _means(measurements, "evidence", set=name, figure=MRR)
        for method in {alti, logit} & set(found):
            yield Finding(
                f"IOI: {known[method]['paper']} finds the name (at least {SOLVED})",
                f"{known[method]['IOI']}",
                f"{found[method]:.3f}",
                found[method] >= SOLVED,
            )


def _drop_findings(measurements: Measurements) -> Iterator[Finding]:
    known, figure = PUBLISHED["drops"], DROPS[1]
    mean = _means(measurements, "drops", figure=figure)
    kept = figure.replace("@", "_without_first@")
    without = _means(measurements, "drops", figure=kept)
    for method, row in known.items():
        if method not in ("columns", "random") and {method, "random"} <= set(mean):
            yield Finding(
                f"{row['paper']}: removing 10% of the tokens costs more than at random",
                f"{row['Llama-3.2-1B'][1]} > {known['random']['Llama-3.2-1B'][1]}",
                f"{mean[method]:.2f} against {mean['random']:.2f}; with the first token kept "
                f"{without[method]:.2f} against {without['random']:.2f}",
                mean[method] > mean["random"],
            )
