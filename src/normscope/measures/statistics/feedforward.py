"""Effects of the feed-forward block on the maps (2024): contextualisation change, amplified pairs.

Both need whole maps and cost far more than the other statistics: run them on a sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch

from normscope.decomposition.scopes import SCOPES
from normscope.errors import InputError
from normscope.foundation.ranks import spearman
from normscope.measures.statistics.base import StatisticState, Table
from normscope.measures.statistics.batch import Layer, MeasuredBatch
from normscope.measures.statistics.moments import add, grid, means, with_interval
from normscope.measures.statistics.settings import StatisticSettings


def cells_of(layer: Layer) -> Any:
    """Return which cells (row, query, key) the attention mask admits."""
    shape = layer.alpha.shape
    admitted = layer.admitted
    if admitted is None:
        return np.ones((shape[0], *shape[2:]), dtype=bool)
    return admitted[:, 0].expand(shape[0], -1, -1).cpu().numpy()


def change_of(before: Any, after: Any, cells: Any) -> list[float]:
    """Return 1 − ρ of two maps for each sequence; −1 if it is undefined (maps of one cell)."""
    changes = [
        1 - spearman(a[counted], b[counted])
        for a, b, counted in zip(before, after, cells, strict=True)
    ]
    return [-1.0 if math.isnan(change) else change for change in changes]


class Change:
    """1 − ρ of a map and the next one along the layer, per sequence; means over sequences."""

    name: ClassVar[str] = "change"
    conditions: ClassVar[tuple[str, ...]] = ("plain",)

    def __init__(self, settings: StatisticSettings) -> None:
        self.settings = settings

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        maps, cells = layer.block_maps, cells_of(layer)
        on_cpu = {name: lengths.cpu().numpy() for name, lengths in maps.items()}
        return {
            f"change_{before} → {after}": torch.tensor(
                change_of(on_cpu[before], on_cpu[after], cells), dtype=torch.float64
            )
            for before, after in pairwise(maps)
        }

    def measure(self, batch: MeasuredBatch) -> StatisticState:
        steps = [name for name in batch.names if name.startswith("change_")]
        changes = np.stack([batch[name] for name in steps], axis=-1)  # row layer step
        defined = changes >= 0
        return {
            "steps": np.array([name.removeprefix("change_") for name in steps]),
            "sum": np.tensordot(batch.weights, np.where(defined, changes, 0), 1),
            "sequences": np.tensordot(batch.weights, defined.astype(float), 1),
        }

    def merge(self, one: StatisticState, other: StatisticState) -> StatisticState:
        sums = [{name: part[name] for name in ("sum", "sequences")} for part in (one, other)]
        return {"steps": one["steps"], **add(*sums)}

    def result(self, state: StatisticState) -> dict[str, Table]:
        samples = means(state["sum"], state["sequences"])
        columns = grid(layer=range(samples.shape[1]), step=state["steps"].tolist())
        columns |= with_interval("change", samples, self.settings.confidence)
        return {
            "change": Table(
                columns | {"sequences": state["sequences"][0].ravel().astype(int)},
                "Contextualisation change",
                notes="1 − Spearman ρ of the flattened maps of a sequence, masked cells left out; "
                "mean over sequences",
            )
        }


_CELL = ("layer", "difference", "sequence", "query", "key", "query_id", "key_id")


class AmplifiedPairs:
    """The cells that the feed-forward enlarges most, and which pairs of tokens they are."""

    name: ClassVar[str] = "amplification"
    conditions: ClassVar[tuple[str, ...]] = ("plain",)

    def __init__(self, settings: StatisticSettings) -> None:
        self.settings = settings

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        maps, cells = layer.block_maps, cells_of(layer)
        step = next((pair for pair in pairwise(maps) if SCOPES[pair[1]].end == "ff"), None)
        if step is None:
            raise InputError(
                f"{layer.name} has its feed-forward parallel to attention, so the feed-forward "
                "amplifies no pair; leave out the statistic amplification for this model"
            )
        grown = maps[step[1]] - maps[step[0]]
        grown = grown.masked_fill(~torch.from_numpy(cells).to(grown.device), -torch.inf).flatten()
        count = min(self.settings.top, int(cells.sum()))
        best = grown.topk(count)
        _, queries, keys = cells.shape
        row, cell = best.indices // (queries * keys), best.indices % (queries * keys)
        i, j = cell // keys, cell % keys
        ids, sequence = layer.on_device(layer.inputs.ids), layer.on_device(layer.inputs.keys)
        columns = (
            *(torch.full_like(i, layer.index), best.values, sequence[row]),
            *(i, j, ids[row, i], ids[row, j]),
        )
        return {f"grown_{name}": column for name, column in zip(_CELL, columns, strict=True)}

    def measure(self, batch: MeasuredBatch) -> StatisticState:
        cells = {name: np.concatenate(batch.lists(f"grown_{name}")) for name in _CELL}
        largest = self._keep(cells)
        ids = np.unique(np.concatenate([largest["query_id"], largest["key_id"]]))
        return {
            "cells": largest,
            "tokens": dict(zip(map(str, ids.tolist()), batch.vocabulary.strings(ids), strict=True)),
        }

    def _keep(self, cells: StatisticState) -> StatisticState:
        """Return the largest cells of each layer; ties are ordered by sequence, query and key."""
        ties = ("key", "query", "sequence")
        order = np.lexsort([*(cells[name] for name in ties), -cells["difference"], cells["layer"]])
        layer = cells["layer"][order]
        place = np.arange(len(order)) - np.searchsorted(layer, layer)
        kept = order[place < self.settings.top]
        return {name: values[kept] for name, values in cells.items()}

    def merge(self, one: StatisticState, other: StatisticState) -> StatisticState:
        a, b = one["cells"], other["cells"]
        return {
            "cells": self._keep({name: np.concatenate([a[name], b[name]]) for name in a}),
            "tokens": one["tokens"] | other["tokens"],
        }

    def result(self, state: StatisticState) -> dict[str, Table]:
        cells, names = state["cells"], state["tokens"]

        def tokens(ids: Any) -> list[str]:
            return [names[str(i)] for i in ids.tolist()]

        triples = np.stack([cells["layer"], cells["query_id"], cells["key_id"]], axis=1)
        pairs, where, count = np.unique(triples, axis=0, return_inverse=True, return_counts=True)
        where = where.reshape(-1)
        largest = np.full(len(pairs), -np.inf)
        np.maximum.at(largest, where, cells["difference"])
        mean = np.bincount(where, weights=cells["difference"], minlength=len(pairs)) / count
        order = np.lexsort((-largest, -count, pairs[:, 0]))  # stable: ties stay by id
        pairs = pairs[order]
        notes = (
            f"of each layer the {self.settings.top} cells (query, key) of the corpus whose length "
            "grows most through the feed-forward"
        )
        return {
            "pairs": Table(
                {
                    "layer": pairs[:, 0],
                    "query_token": tokens(pairs[:, 1]),
                    "key_token": tokens(pairs[:, 2]),
                    "count": count[order],
                    "mean_difference": mean[order],
                    "max_difference": largest[order],
                },
                "Amplified pairs of tokens",
                notes=f"{notes}, counted by their tokens",
            ),
            "cells": Table(
                {
                    **{name: cells[name] for name in _CELL[:5]},
                    "query_token": tokens(cells["query_id"]),
                    "key_token": tokens(cells["key_id"]),
                },
                "Amplified cells",
                notes=notes,
            ),
        }
