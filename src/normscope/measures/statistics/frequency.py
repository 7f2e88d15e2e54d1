"""Frequent and rare tokens (Figure 6 of 2020; 2021, with and without special tokens)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import ANALYSES
from normscope.measures.statistics.base import Settings, State, Table
from normscope.measures.statistics.batch import Layer, MeasuredBatch
from normscope.measures.statistics.ranks import spearman

LIMIT = 2**18  # distinct pairs of token and value up to which nothing is rounded


class Frequency:
    """Spearman ρ of a token's frequency rank with its mean α, ‖f‖ and mixing ratios.

    One point for each token of the corpus: α averaged over queries, heads and layers, ‖f‖ over
    heads and layers, ratios over layers. Points are kept as they are up to a limit; beyond it the
    values lose as many of their last bits as it takes, the same in whatever order they came.
    """

    name: ClassVar[str] = "frequency"
    conditions: ClassVar[tuple[str, ...]] = ("plain",)

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._known: tuple[Any, NDArray[np.int64]] | None = None

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        return {
            "transformed_norm": layer.transformed_norm,
            "column_weight": layer.column_weight,
            "ratios": layer.ratios,
        }

    def measure(self, batch: MeasuredBatch) -> State:
        if self.settings.ranks == "corpus":  # the ids themselves, to be counted at the end
            group, chosen = batch.ids, batch.real
        else:
            known = np.minimum(batch.ids, len(batch.vocabulary.tokens))
            group = self._ranks(batch)[known]
            chosen = batch.real & (group > 0)
        ratios = batch["ratios"].mean(axis=1)  # row analysis query
        values = {
            "alpha": batch["column_weight"].astype(float).mean(axis=(1, 2)),
            "transformed_norm": batch["transformed_norm"].mean(axis=(1, 2)),
            **{name: ratios[:, a] for a, name in enumerate(ANALYSES[: ratios.shape[1]])},
        }
        group = 2 * group + batch.special
        return {
            name: compact(
                {
                    "dropped": 0,
                    "group": group[chosen].astype(np.int32),
                    "value": found[chosen],
                    "count": np.ones(int(chosen.sum()), dtype=np.int64),
                },
                2 * LIMIT,
            )
            for name, found in values.items()
        }

    def _ranks(self, batch: MeasuredBatch) -> NDArray[np.int64]:
        if self._known is None or self._known[0] is not batch.vocabulary:
            self._known = batch.vocabulary, batch.vocabulary.ranks(self.settings.ranks)
        return self._known[1]

    def merge(self, one: State, other: State) -> State:
        made = {}
        for name, a in one.items():
            b = other[name]
            dropped = max(a["dropped"], b["dropped"])
            both = [coarser(part, dropped) for part in (a, b)]
            joined = {
                what: np.concatenate([part[what] for part in both])
                for what in ("group", "value", "count")
            }
            made[name] = compact({"dropped": dropped, **joined}, 2 * LIMIT)
        return made

    def result(self, state: State) -> dict[str, Table]:
        rows = []
        for name, part in state.items():
            part = compact(part, LIMIT)
            count = part["count"].astype(float)
            token, special = part["group"] // 2, part["group"] % 2 == 1
            rank = token.astype(float)
            if self.settings.ranks == "corpus":  # the most frequent first; ties are ties
                rank = -np.bincount(token, weights=count)[token]
            plain = ~special
            rows.append(
                (
                    name,
                    spearman(rank, part["value"], count),
                    int(count.sum()),
                    spearman(rank[plain], part["value"][plain], count[plain]),
                    int(count[plain].sum()),
                )
            )
        names = ("of", "spearman", "tokens", "spearman_without_special", "tokens_without_special")
        source = {
            "ids": "tokenizer ids (comma, period and framing tokens first; other special tokens "
            "and single characters left out)",
            "corpus": "counts in this corpus",
        }.get(self.settings.ranks, "a file of ranks")
        return {
            "frequency": Table(
                dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)),
                "Against frequency rank",
                notes=f"ranks from {source}; rank 1 is the most frequent; one point for each token",
            )
        }


def coarser(part: State, dropped: int) -> State:
    """A part whose values have lost so many of their last bits."""
    if part["dropped"] == dropped:
        return part
    bits = np.asarray(part["value"], dtype=np.float64).view(np.int64)
    return {**part, "dropped": dropped, "value": ((bits >> dropped) << dropped).view(np.float64)}


def compact(part: State, most: int) -> State:
    """Equal points counted together, if there are many, and bits dropped until ``LIMIT`` is met.

    How many bits that takes depends on the points alone: distinct ones only grow in number.
    """
    while len(part["value"]) > most:
        order = np.lexsort((part["value"], part["group"]))
        group, value = part["group"][order], part["value"][order]
        first = np.ones(len(order), dtype=bool)
        first[1:] = (group[1:] != group[:-1]) | (value[1:] != value[:-1])
        count = np.add.reduceat(part["count"][order], np.flatnonzero(first))
        part = {**part, "group": group[first], "value": value[first], "count": count}
        if len(part["value"]) <= LIMIT:
            break
        most = LIMIT
        part = coarser(part, part["dropped"] + 1)
    return part
