"""Kobayashi et al. (2024), as far as it is about BERT: what the feed-forward does to the map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.measures.statistics import Settings, Statistic, Table, choose
from normscope.reproduce.exhibits import Exhibit, Finding, rows_of, table_of
from normscope.reproduce.measure import Corpus, Measured
from normscope.reproduce.numbers import ChangeAcross
from normscope.show.plots.style import label_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = (
    "Kobayashi, Kuribayashi, Yokoi and Inui: Analyzing Feed-Forward Blocks in Transformers through "
    "the Lens of Attention Maps. ICLR 2024. BERT on Wikipedia"
)
SAMPLE = 32  # sequences; each costs as much as many forward passes
TOP = 8  # pairs shown of each layer
NEAR = 1  # tokens apart


def _statistics(settings: Settings) -> list[Statistic]:
    return [ChangeAcross(settings), *choose(["amplification"], settings)]


def _steps(measured: Measured) -> list[str]:
    return list(dict.fromkeys(measured["change"].lists()["step"]))


def _kinds(measured: Measured) -> tuple[list[str], list[str]]:
    """Steps from one map to the next, and from the first map to later ones."""
    steps = _steps(measured)
    follow = [steps[0]]
    for step in steps[1:]:
        if step.partition(" → ")[0] == follow[-1].partition(" → ")[2]:
            follow.append(step)
    return follow, [step for step in steps if step not in follow]


def _told(step: str) -> str:
    before, _, after = step.partition(" → ")
    return f"{label_of(before)} → {label_of(after)}"


# ----------------------------------------------------------------------------- tables and figures


def _exhibits(measured: Measured) -> list[Exhibit]:
    bias = (
        "the feed-forward's bias is on the path of the integrated gradients and has a share of its "
        "own (which convention the paper has is not known)"
    )

    def change() -> Figure:
        from normscope.show import plots

        return plots.change(measured["change"]).figure  # type: ignore[return-value]

    def pairs() -> Figure:
        from normscope.show import plots

        axes = plots.amplified(measured["amplification_pairs"], top=TOP)
        found: Figure = np.ravel(axes)[0].figure
        return found

    found = [
        Exhibit(
            "Contextualisation change",
            "How much each component changes the map",
            "per sequence and layer 1 − Spearman ρ of the flattened maps, mean over sequences, "
            f"with the 95% interval of a bootstrap over sequences in the CSV file; {bias}. The "
            "last columns compare the first map with later ones: what is left of the change",
            _change(measured),
            change,
            measured["change"],
        ),
        Exhibit(
            "Top amplified pairs",
            "Pairs of tokens whose contribution the feed-forward enlarges most",
            "of each layer the 1,000 cells (query ← key) of the sample whose length grows most "
            f"from the attention block to after the feed-forward, counted by their tokens; {bias}. "
            f"The table has the first {TOP} of each layer",
            _pairs(measured),
            pairs,
            measured["amplification_pairs"],
        ),
    ]
    if measured.cost is not None:
        found.append(_cost(measured.cost))
    return found


def _change(measured: Measured) -> Table:
    follow, across = _kinds(measured)
    layers = sorted(set(measured["change"].lists()["layer"]))
    rows = []
    for layer in layers:
        row: dict[str, Any] = {"layer": layer}
        for step in (*follow, *across):
            row[_told(step)] = rows_of(measured["change"], layer=layer, step=step)[0]["change"]
        rows.append(row)
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    return table_of([*rows, {**mean, "layer": "mean"}])


def _pairs(measured: Measured) -> Table:
    rows = []
    for layer in sorted(set(measured["amplification_pairs"].lists()["layer"])):
        for row in rows_of(measured["amplification_pairs"], layer=layer)[:TOP]:
            rows.append(
                {
                    "layer": layer,
                    "query": row["query_token"],
                    "key": row["key_token"],
                    "cells": row["count"],
                    "mean growth": row["mean_difference"],
                    "largest growth": row["max_difference"],
                }
            )
    return table_of(rows)


def _cost(cost: Any) -> Exhibit:
    told = {
        "CPU seconds of a plain forward pass, for a sequence": cost["forward_cpu_seconds"],
        "CPU seconds of both statistics, for a sequence": cost["measured_cpu_seconds"],
        "forward passes that is": cost["ratio"],
        "seconds of the whole run, for a sequence": cost["run_wall_seconds"],
    }
    return Exhibit(
        "Cost",
        "What these statistics cost",
        f"measured on {cost['timed_sequences']} of the sequences, one at a time, on the machine "
        "that made this report; differs from machine to machine and from run to run",
        table_of({"": name, "measured": value} for name, value in told.items()),
    )


# --------------------------------------------------------------------------------------- findings


def _findings(measured: Measured) -> list[Finding]:
    table = measured["change"]
    follow, across = _kinds(measured)

    def by_layer(step: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([row["change"] for row in rows_of(table, step=step)])

    forward = next(step for step in follow if step.endswith("_ff"))
    found = [
        Finding(
            "the feed-forward changes the map (in every layer by more than 0.01)",
            "in words",
            f"by {by_layer(forward).min():.3f} to {by_layer(forward).max():.3f}, "
            f"{by_layer(forward).mean():.3f} on average",
            bool((by_layer(forward) > 0.01).all()),
        )
    ]
    if across:
        start, end = by_layer(forward), by_layer(across[-1])
        less = int((end < start).sum())
        found.append(
            Finding(
                "what surrounds the feed-forward undoes part of its change: the map after the "
                "whole layer is nearer to that before the feed-forward than the one right after it",
                "in words",
                f"1 − ρ {start.mean():.3f} after the feed-forward, {end.mean():.3f} after the "
                f"layer; smaller in {less} of {len(start)} layers",
                bool(end.mean() < start.mean()),
            )
        )
    return [*found, *_neighbours(measured)]


def _neighbours(measured: Measured) -> list[Finding]:
    """Whether amplified cells are of tokens beside each other more often than cells are at all."""
    cells = measured["amplification_cells"].lists()
    apart = np.abs(np.array(cells["query"]) - np.array(cells["key"]))
    others = apart > 0
    if not others.any():
        return []
    share = float((apart[others] <= NEAR).mean())
    length = measured.counts["tokens"] / measured.counts["sequences"]
    chance = 2 * NEAR / length
    return [
        Finding(
            "it amplifies particular compositions, parts of one word or phrase: amplified pairs of "
            "different tokens are neighbours more often than any pairs are",
            "in words",
            f"{share:.1%} are, against {chance:.1%} of all pairs; {1 - others.mean():.1%} of the "
            "amplified cells are tokens' own",
            share > chance,
        )
    ]


EXPERIMENT = Corpus(
    "iclr2024", PAPER, _statistics, _exhibits, _findings, sample=SAMPLE, block_rows=8, timed=True
)
