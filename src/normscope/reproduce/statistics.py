"""Statistics that only the reproductions need: more tables than the usual ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch

from normscope.measures.statistics import StatisticSettings, StatisticState, Table
from normscope.measures.statistics.batch import Layer
from normscope.measures.statistics.feedforward import Change, cells_of, change_of
from normscope.measures.statistics.frequency import Frequency


class FrequencyPoints(Frequency):
    """The statistic `frequency`, with a table of means over the tokens of each rank."""

    def result(self, state: StatisticState) -> dict[str, Table]:
        table = super().result(state)["frequency"]
        return {self.name: table, f"{self.name}_points": self._points(state, table.notes)}

    def _points(self, state: StatisticState, notes: str) -> Table:
        columns: dict[str, Any] = {}
        for name, part in state.items():
            groups, where = np.unique(part["group"], return_inverse=True)
            count = np.bincount(where, weights=part["count"])
            rank = groups // 2
            if self.settings.ranks == "corpus":  # the groups are token ids, not ranks
                rank = np.argsort(np.argsort(-count, kind="stable"), kind="stable") + 1
            columns |= {"rank": rank, "special": groups % 2 == 1, "count": count.astype(int)}
            columns[name] = np.bincount(where, weights=part["value"] * part["count"]) / count
        return Table(
            columns, "By frequency rank", notes=f"means over the tokens of a rank; {notes}"
        )


class FrequencyPointsById(FrequencyPoints):
    """The same with tokenizer ids as ranks, for a run that uses other ranks."""

    name: ClassVar[str] = "frequency_ids"

    def __init__(self, settings: StatisticSettings) -> None:
        super().__init__(replace(settings, ranks="ids"))


class ChangeAcross(Change):
    """The statistic `change`, which also compares the first map with all later ones."""

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        maps, cells = layer.block_maps, cells_of(layer)
        names = list(maps)
        steps = [*pairwise(names), *((names[0], later) for later in names[2:])]
        arrays = {name: values.cpu().numpy() for name, values in maps.items()}
        return {
            f"change_{before} → {after}": torch.tensor(
                change_of(arrays[before], arrays[after], cells), dtype=torch.float64
            )
            for before, after in steps
        }
