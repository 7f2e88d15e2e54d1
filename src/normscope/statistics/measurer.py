"""Batches of rows through a model, once for each input condition, for all statistics at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from normscope.statistics.base import CONDITIONS, Row, Settings, State, Statistic


class Measurer:
    """One model and the statistics that are wanted of it."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        statistics: Sequence[Statistic],
        settings: Settings | None = None,
    ) -> None:
        self.model, self.tokenizer, self.statistics = model, tokenizer, list(statistics)
        self.settings = Settings() if settings is None else settings
        wanted = {condition for one in self.statistics for condition in one.conditions}
        self.conditions = tuple(name for name in CONDITIONS if name in wanted)

    def measure(self, rows: Sequence[Row]) -> dict[str, State]:
        """The state of each statistic for these rows, padded to one batch."""
        raise NotImplementedError
