"""The statistics of the reproductions, where they need more than the usual tables show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch

from normscope.measures.statistics import Settings, State, Table
from normscope.measures.statistics.batch import Layer
from normscope.measures.statistics.feedforward import Change, cells_of, change_of
from normscope.measures.statistics.frequency import Frequency


class Points(Frequency):
    """`frequency`, and for the figure one point for each rank: means over its tokens."""

    def result(self, state: State) -> dict[str, Table]:
        made = super().result(state)["frequency"]
        return {self.name: made, f"{self.name}_points": self._points(state, made.notes)}

    def _points(self, state: State, notes: str) -> Table:
        columns: dict[str, Any] = {}
        for name, part in state.items():
            groups, where = np.unique(part["group"], return_inverse=True)
            count = np.bincount(where, weights=part["count"])
            rank = groups // 2
            if self.settings.ranks == "corpus":  # groups are token ids here
                rank = np.argsort(np.argsort(-count, kind="stable"), kind="stable") + 1
            columns |= {"rank": rank, "special": groups % 2 == 1, "count": count.astype(int)}
            columns[name] = np.bincount(where, weights=part["value"] * part["count"]) / count
        return Table(columns, "By frequency rank", notes=f"means of the tokens of a rank; {notes}")


class PointsById(Points):
    """The same with ranks from tokenizer ids, beside a run whose ranks are others."""

    name: ClassVar[str] = "frequency_ids"

    def __init__(self, settings: Settings) -> None:
        super().__init__(replace(settings, ranks="ids"))


class ChangeAcross(Change):
    """`change`, and how much of it is left where the later maps are compared with the first."""

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        maps, cells = layer.block_maps, cells_of(layer)
        names = list(maps)
        steps = [*pairwise(names), *((names[0], later) for later in names[2:])]
        home = {name: made.cpu().numpy() for name, made in maps.items()}
        return {
            f"change_{before} → {after}": torch.tensor(
                change_of(home[before], home[after], cells), dtype=torch.float64
            )
            for before, after in steps
        }
