"""Frequent and rare tokens (Figure 6 of 2020; 2021, with and without special tokens)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import ANALYSES
from normscope.foundation.ranks import spearman
from normscope.measures.statistics.base import StatisticState, Table
from normscope.measures.statistics.batch import Layer, MeasuredBatch
from normscope.measures.statistics.settings import StatisticSettings

LIMIT = 2**18  # distinct points (token, value) up to which nothing is rounded
_COLUMNS = ("of", "spearman", "tokens", "spearman_without_special", "tokens_without_special")
_SOURCES = {
    "ids": "tokenizer ids (comma, period and framing tokens first; other special tokens "
    "and single characters left out)",
    "corpus": "counts in this corpus",
}


class Frequency:
    """Spearman ρ of a token's frequency rank with its mean α, ‖f‖ and mixing ratios.

    Each token of the corpus is one point: α averaged over queries, heads and layers, ‖f‖ over
    heads and layers, mixing ratios over layers. Points are exact up to `LIMIT` distinct ones.
    Beyond that, the values are rounded to as many bits as needed; the result does not depend on
    the order in which the points came.
    """

    name: ClassVar[str] = "frequency"
    conditions: ClassVar[tuple[str, ...]] = ("plain",)

    def __init__(self, settings: StatisticSettings) -> None:
        self.settings = settings
        self._cached: tuple[Any, NDArray[np.int64]] | None = None  # vocabulary, its ranks

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        return {
            "transformed_norm": layer.transformed_norm,
            "column_weight": layer.column_weight,
            "ratios": layer.ratios,
        }

    def measure(self, batch: MeasuredBatch) -> StatisticState:
        if self.settings.ranks == "corpus":  # keep the ids; they are counted at the end
            group, chosen = batch.ids, batch.real
        else:
            known = np.minimum(batch.ids, len(batch.vocabulary.tokens))
            group = self._ranks(batch)[known]
            chosen = batch.real & (group > 0)
        ratios = batch["ratios"].mean(axis=1)  # row analysis query
        measures = {
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
                    "value": values[chosen],
                    "count": np.ones(int(chosen.sum()), dtype=np.int64),
                },
                2 * LIMIT,
            )
            for name, values in measures.items()
        }

    def _ranks(self, batch: MeasuredBatch) -> NDArray[np.int64]:
        if self._cached is None or self._cached[0] is not batch.vocabulary:
            self._cached = batch.vocabulary, batch.vocabulary.ranks(self.settings.ranks)
        return self._cached[1]

    def merge(self, one: StatisticState, other: StatisticState) -> StatisticState:
        state = {}
        for name, a in one.items():
            b = other[name]
            dropped = max(a["dropped"], b["dropped"])
            parts = [coarser(part, dropped) for part in (a, b)]
            joined = {
                column: np.concatenate([part[column] for part in parts])
                for column in ("group", "value", "count")
            }
            state[name] = compact({"dropped": dropped, **joined}, 2 * LIMIT)
        return state

    def result(self, state: StatisticState) -> dict[str, Table]:
        rows = [(name, *self._correlations(compact(part, LIMIT))) for name, part in state.items()]
        source = _SOURCES.get(self.settings.ranks, "a file of ranks")
        return {
            "frequency": Table(
                dict(zip(_COLUMNS, map(list, zip(*rows, strict=True)), strict=True)),
                "Against frequency rank",
                notes=f"ranks from {source}; rank 1 is the most frequent; one point for each token",
            )
        }

    def _correlations(self, part: StatisticState) -> tuple[float, int, float, int]:
        """Return ρ and the number of tokens, with special tokens and without them."""
        count, value = part["count"].astype(float), part["value"]
        token, plain = part["group"] // 2, part["group"] % 2 == 0
        rank = token.astype(float)
        if self.settings.ranks == "corpus":  # the most frequent token comes first; ties stay ties
            rank = -np.bincount(token, weights=count)[token]
        return (
            spearman(rank, value, count),
            int(count.sum()),
            spearman(rank[plain], value[plain], count[plain]),
            int(count[plain].sum()),
        )


def coarser(part: StatisticState, dropped: int) -> StatisticState:
    """Round the values of a part down by setting their last `dropped` bits to zero."""
    if part["dropped"] == dropped:
        return part
    bits = np.asarray(part["value"], dtype=np.float64).view(np.int64)
    return {**part, "dropped": dropped, "value": ((bits >> dropped) << dropped).view(np.float64)}


def compact(part: StatisticState, most: int) -> StatisticState:
    """Count equal points together if there are more than `most`, and round to meet `LIMIT`.

    How many bits are dropped depends on the set of points alone, because the number of distinct
    points never decreases as points are added.
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
