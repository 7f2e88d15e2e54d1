"""Run batches of rows through a model, once per input condition, for all statistics at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.decomposition.available import check_available
from normscope.decomposition.chain import DecompositionOptions
from normscope.decomposition.layer import LayerView
from normscope.decomposition.scopes import ANALYSES, SCOPES
from normscope.engine.batch import Batch
from normscope.engine.measure import Needs, Observed, Part
from normscope.engine.run import run
from normscope.errors import InputError, UnsupportedModelError
from normscope.measures.statistics.base import CONDITIONS, Row, Statistic, StatisticState
from normscope.measures.statistics.batch import CorpusBatch, Layer, MeasuredBatch
from normscope.measures.statistics.check import CHECKED, worst_gap
from normscope.measures.statistics.hashing import is_checked
from normscope.measures.statistics.settings import StatisticSettings
from normscope.measures.statistics.vocabulary import Vocabulary
from normscope.results.state import Snapshot


class Measurer:
    """A model and the statistics to measure with it."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        statistics: Sequence[Statistic],
        settings: StatisticSettings | None = None,
    ) -> None:
        self.model, self.tokenizer, self.statistics = model, tokenizer, list(statistics)
        self.snapshot = Snapshot(model, used=True)  # the weights have been hashed before
        self.settings = StatisticSettings() if settings is None else settings
        wanted = {name for statistic in self.statistics for name in statistic.conditions}
        self.conditions = tuple(name for name in CONDITIONS if name in wanted)
        config = getattr(model, "config", None)
        if getattr(config, "is_encoder_decoder", False):
            raise InputError(
                f"{type(model).__name__} is an encoder–decoder model; statistics over a corpus are "
                "defined for encoders and decoders alone. Give its encoder (model.get_encoder())"
            )
        check_available(model, [name for name in ANALYSES if SCOPES[name].end == "residual"])
        self.vocabulary = Vocabulary(tokenizer, self.settings)
        if self.settings.ranks not in ("ids", "corpus"):
            self.vocabulary.ranks(self.settings.ranks)  # raises now if the file is wrong
        if "masked" in self.conditions and self.vocabulary.mask_id is None:
            raise InputError(
                f"{type(tokenizer).__name__} has no mask token, and mixing masks "
                f"{self.settings.masking:.0%} of the text; use masking=0 (--masking 0) to measure "
                "plain text"
            )

    def measure(self, rows: Sequence[Row]) -> dict[str, StatisticState]:
        """Return the state of each statistic for these rows, padded to one batch."""
        if not rows:
            raise InputError("measure() takes at least one row")
        states: dict[str, StatisticState] = {}
        for condition in self.conditions:
            batch = CorpusBatch(self.model, rows, condition, self.settings, self.vocabulary)
            wanted = [item for item in self.statistics if condition in item.conditions]
            measures = [StatisticsMeasure(wanted)]
            (judged,) = run(
                self.model, [batch], measures, attention="eager", snapshot=self.snapshot
            )
            measured = judged.results[0]
            for statistic in wanted:
                state, known = statistic.measure(measured), states.get(statistic.name)
                merged = state if known is None else statistic.merge(known, state)
                states[statistic.name] = merged
        return states


class StatisticsMeasure:
    """The measure that collects the observations of several statistics in one pass."""

    needs = Needs(whole_layers=True, weights=True, how=DecompositionOptions(maps=False))

    def __init__(self, statistics: Sequence[Statistic]) -> None:
        self.statistics = statistics

    def observe(self, view: LayerView) -> Mapping[str, Tensor]:
        """Note what the statistics need, and check some sequences by the full decomposition."""
        captured, batch = view.captured, view.batch
        crossed = view.layer is not None and view.layer.cross is not None
        if view.kind == "cross" or crossed or captured.residual is None:
            raise UnsupportedModelError(f"{view.name} is not a layer of self-attention alone")
        if captured.held is not None:
            raise UnsupportedModelError(
                f"{captured.name}: a gate, a norm or a difference acts between the heads and their "
                "output projection, and the statistics compare α with the ‖f(x)‖ of plain "
                "attention. Maps are defined: use analyze()"
            )
        layer = Layer(view)
        noted: dict[str, Tensor] = {}
        for statistic in self.statistics:
            noted |= statistic.observe(layer)
        # Rows with NaN or infinity are refused, whichever statistics are measured.
        view.note_gap("the states", self._finite(layer))
        if is_checked(batch.keys, batch.settings.seed, CHECKED).any():
            view.note_gap("the statistics", worst_gap(layer))
        return noted

    @staticmethod
    def _finite(layer: Layer) -> Tensor:
        """Return 0 for each row, or NaN where lengths of real tokens are not finite."""
        real = layer.real
        total = (0 * layer.total_norm).masked_fill(~real, 0).sum(dim=1)
        norms = (0 * layer.transformed_norm).masked_fill(~real.unsqueeze(1), 0).sum(dim=(1, 2))
        return torch.maximum(total, norms)

    def finish(
        self, batch: Batch, parts: Mapping[Part, Observed], paths: frozenset[str]
    ) -> MeasuredBatch:
        """Return the observations of all layers."""
        assert isinstance(batch, CorpusBatch)
        if len(parts) != 1:
            raise UnsupportedModelError(
                f"{type(batch.model).__name__} has several stacks of layers, and statistics are "
                f"of one: {', '.join(stack for stack, _ in parts)}. Give the model of one stack"
            )
        return MeasuredBatch(batch, *parts.values())
