"""The BERT part of Kobayashi et al. (2024): how the feed-forward changes the map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import SCOPES
from normscope.measures.statistics import Statistic, StatisticSettings, Table, choose
from normscope.reproduce.exhibits import Finding, rows_with, table_of, titled
from normscope.reproduce.measure import CorpusExperiment
from normscope.reproduce.measurements import ExhibitPlan, Measurements
from normscope.reproduce.statistics import ChangeAcross
from normscope.show import plots

PAPER = (
    "Kobayashi, Kuribayashi, Yokoi and Inui: Analyzing Feed-Forward Blocks in Transformers through "
    "the Lens of Attention Maps. ICLR 2024. BERT on Wikipedia"
)
SAMPLE = 32  # sequences; each costs as much as many forward passes
TOP = 8  # pairs shown for each layer
NEAR = 1  # distance of neighbouring tokens
SMALLEST_CHANGE = 0.01  # 1 − ρ above which the feed-forward is said to change the map


def _statistics(settings: StatisticSettings) -> list[Statistic]:
    return [ChangeAcross(settings), *choose(["amplification"], settings)]


def _split(step: str) -> tuple[str, str]:
    """Return the scopes before and after a step."""
    before, _, after = step.partition(" → ")
    return before, after


def _steps(measurements: Measurements) -> tuple[list[str], list[str]]:
    """Return the steps from one map to the next, and those from the first map to later ones."""
    steps = list(dict.fromkeys(measurements["change"].lists()["step"]))
    first = _split(steps[0])[0]
    across = [step for step in steps[1:] if _split(step)[0] == first]
    return [step for step in steps if step not in across], across


def _label(step: str) -> str:
    return " → ".join(SCOPES[name].label for name in _split(step))


# ----------------------------------------------------------------------------- tables and figures


def _change(measurements: Measurements) -> Table:
    table = measurements["change"]
    successive, across = _steps(measurements)
    rows = []
    for layer in sorted(set(table.lists()["layer"])):
        row: dict[str, Any] = {"layer": layer}
        for step in (*successive, *across):
            row[_label(step)] = rows_with(table, layer=layer, step=step)[0]["change"]
        rows.append(row)
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    return table_of([*rows, {**mean, "layer": "mean"}])


def _pairs(measurements: Measurements) -> Table:
    table = measurements["amplification_pairs"]
    return table_of(
        {
            "layer": layer,
            "query": row["query_token"],
            "key": row["key_token"],
            "cells": row["count"],
            "mean growth": row["mean_difference"],
            "largest growth": row["max_difference"],
        }
        for layer in sorted(set(table.lists()["layer"]))
        for row in rows_with(table, layer=layer)[:TOP]
    )


def _cost(measurements: Measurements) -> Table:
    cost = measurements.cost
    assert cost is not None
    rows = {
        "CPU seconds of a forward pass, per sequence": cost.forward_cpu_seconds,
        "CPU seconds of both statistics, per sequence": cost.measured_cpu_seconds,
        "ratio of the two": cost.ratio,
        "seconds of the whole run, per sequence": cost.run_wall_seconds,
    }
    return table_of({"": name, "measured": value} for name, value in rows.items())


def _cost_convention(measurements: Measurements) -> str:
    assert measurements.cost is not None
    return (
        f"Measured on {measurements.cost.timed_sequences} of the sequences, one at a time, on the "
        "machine that made this report; differs between machines and between runs"
    )


_BIAS = (
    "the bias of the feed-forward is on the path of the integrated gradients and has its own share "
    "(the paper's convention is not known)"
)

EXHIBITS = (
    ExhibitPlan(
        "Contextualisation change",
        "How much each component changes the map",
        "1 − Spearman ρ of the flattened maps for each sequence and layer, mean over sequences; "
        f"the CSV file has the 95% interval of a bootstrap over sequences; {_BIAS}. The last "
        "columns compare the first map with later ones and show how much of the change remains",
        _change,
        lambda m: titled(
            plots.change(m["change"]), "How much each step through a layer changes the map"
        ),
        "change",
    ),
    ExhibitPlan(
        "Top amplified pairs",
        "Pairs of tokens whose contribution the feed-forward increases most",
        "The 1,000 cells (from key to query) of each layer whose norm grows most in the sample, "
        "from the attention block to after the feed-forward, counted by their tokens; "
        f"{_BIAS}. The table "
        f"shows the first {TOP} of each layer",
        _pairs,
        lambda m: titled(
            plots.amplified(m["amplification_pairs"], top=TOP),
            "Pairs of tokens that the feed-forward amplifies most, by layer (from → to)",
        ),
        "amplification_pairs",
    ),
    ExhibitPlan(
        "Cost",
        "Time per sequence",
        _cost_convention,
        _cost,
        available=lambda m: m.cost is not None,
    ),
)


# --------------------------------------------------------------------------------------- findings


def _findings(measurements: Measurements) -> list[Finding]:
    return [*_change_findings(measurements), *_neighbour_findings(measurements)]


def _change_findings(measurements: Measurements) -> Iterator[Finding]:
    successive, across = _steps(measurements)

    def by_layer(step: str) -> NDArray[np.float64]:
        return np.array([row["change"] for row in rows_with(measurements["change"], step=step)])

    into_ff = next(step for step in successive if SCOPES[_split(step)[1]].end == "ff")
    change = by_layer(into_ff)
    yield Finding(
        f"the feed-forward changes the map (by more than {SMALLEST_CHANGE} in every layer)",
        "in words",
        f"by {change.min():.3f} to {change.max():.3f}, {change.mean():.3f} on average",
        bool((change > SMALLEST_CHANGE).all()),
    )
    if across:
        remaining = by_layer(across[-1])
        smaller = int((remaining < change).sum())
        yield Finding(
            "the components around the feed-forward undo part of its change: the map of the whole "
            "layer is closer to the map before the feed-forward than the map right after it is",
            "in words",
            f"1 − ρ is {change.mean():.3f} after the feed-forward and {remaining.mean():.3f} after "
            f"the layer; smaller in {smaller} of {len(change)} layers",
            bool(remaining.mean() < change.mean()),
        )


def _neighbour_findings(measurements: Measurements) -> Iterator[Finding]:
    """Compare how often amplified cells, and all cells, are pairs of neighbouring tokens."""
    cells = measurements["amplification_cells"].lists()
    distance = np.abs(np.array(cells["query"]) - np.array(cells["key"]))
    different = distance > 0
    if not different.any():
        return
    share = float((distance[different] <= NEAR).mean())
    length = measurements.counts["tokens"] / measurements.counts["sequences"]
    chance = 2 * NEAR / length
    yield Finding(
        "the feed-forward amplifies particular compositions, such as parts of a word or phrase: "
        "amplified pairs of different tokens are neighbours more often than other pairs",
        "in words",
        f"{share:.1%} are neighbours, against {chance:.1%} of all pairs; in "
        f"{1 - different.mean():.1%} of the amplified cells query and key are the same token",
        share > chance,
    )


EXPERIMENT = CorpusExperiment(
    "iclr2024", PAPER, _statistics, EXHIBITS, _findings, sample=SAMPLE, block_rows=8, timed=True
)
