"""One forward pass: what the measures observed, from the device to the CPU.

A pass is filled layer by layer on the model's device, sent to the CPU in the background, and read
there after it has been judged. A recorded pass can be replayed with other inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from normscope.capture import Capture
from normscope.capture.layers import LayerCapture
from normscope.decomposition.cells import Positions
from normscope.decomposition.replayed import ReplayedLayer, Run
from normscope.engine.batch import Batch
from normscope.engine.measure import Observed, Part
from normscope.engine.transfer import Transfer


@dataclass(eq=False)
class PartRecord:
    """The observations of one stack's attentions of one kind: lists over layers."""

    positions: Positions
    layers: list[str] = field(default_factory=list)
    dtypes: list[set[torch.dtype]] = field(default_factory=list)
    noted: list[dict[str, list[Tensor]]] = field(default_factory=list)  # by measure
    gaps: list[dict[str, list[Tensor]]] = field(default_factory=list)
    blocked: list[Tensor | None] = field(default_factory=list)
    leaked: list[tuple[Tensor, Tensor] | None] = field(default_factory=list)
    _placed: dict[Any, Positions] = field(default_factory=dict)

    def positions_on(self, captured: Capture, every: int) -> Positions:
        """Return the positions on a layer's own device, with cells for one layer in ``every``."""
        key = captured.device, every
        if key not in self._placed:
            moved = self.positions.to(captured.device)
            self._placed[key] = Positions(moved.queries, moved.keys, every)
        return self._placed[key]

    def converted(self, function: Callable[[Tensor], Tensor]) -> PartRecord:
        """Return a record with a function applied to all tensors but the observations."""
        return PartRecord(
            Positions(function(self.positions.queries), function(self.positions.keys)),
            self.layers,
            self.dtypes,
            gaps=[
                {name: [function(gap) for gap in by_layer] for name, by_layer in gaps.items()}
                for gaps in self.gaps
            ],
            blocked=[None if b is None else function(b) for b in self.blocked],
            leaked=[None if x is None else (function(x[0]), function(x[1])) for x in self.leaked],
        )


class Pass:
    """One forward pass: the observations of the measures, on the device or being copied."""

    def __init__(self, batch: Batch, measures: int) -> None:
        self.batch, self.measures = batch, measures
        self.parts: dict[Part, PartRecord] = {}
        self.paths: set[str] = set()
        self.began: object = None  # the state of the weights when it began
        self.samples: list[Tensor] = []  # of the weights, when the model had run
        self.stopped: set[int] = set()  # measures that need nothing more of this pass
        self.replayed: dict[Run, ReplayedLayer] = {}
        self.runs: dict[str, int] = {}  # of each layer, by path
        # The last mask, and the queries that it blocks.
        self._mask: tuple[Tensor | None, Tensor | None] = None, None
        self._transfer = Transfer()
        self._stacked: dict[Part, list[dict[str, Tensor | list[Tensor]]]] = {}

    def replay_of(self, layer: LayerCapture | None) -> ReplayedLayer | None:
        """Return what was replayed of a layer that has just run."""
        if layer is None or not self.replayed:
            return None
        replayed = self.replayed.get((layer.name, self.runs.get(layer.name, 0)))
        if replayed is not None:
            self.paths.add("replay")
        return replayed

    def record_of(self, captured: Capture) -> PartRecord:
        """Return the record of the part that an attention call belongs to."""
        part = captured.stack, captured.kind
        shape = captured.shape[0], captured.shape[2], captured.shape[3]
        record = self.parts.get(part)
        if record is None:
            record = self.parts[part] = PartRecord(Positions(*self.batch.real(captured)))
            record.noted = [{} for _ in range(self.measures)]
            record.gaps = [{} for _ in range(self.measures)]
        known = record.positions
        # A stack that runs again may have other shapes.
        if (*known.queries.shape, known.keys.shape[1]) != shape:
            record.positions, record._placed = Positions(*self.batch.real(captured)), {}
        return record

    def keep(
        self,
        record: PartRecord,
        captured: Capture,
        noted: Sequence[Mapping[str, Tensor]],
        gaps: Sequence[Mapping[str, Tensor]],
        dtypes: set[torch.dtype],
        *,
        masks: bool,
        mean_weights: Tensor | None = None,
    ) -> None:
        """Store the observations of one layer."""
        home = record.positions.queries.device  # layers may be on several devices
        record.layers.append(captured.name)
        record.dtypes.append(dtypes)
        record.blocked.append(self._blocked(captured, record.positions) if masks else None)
        leaking = masks and self.batch.padded
        leaked = _leaked(captured, record.positions, mean_weights) if leaking else None
        record.leaked.append(leaked)
        for by_name, mapping in zip(record.noted, noted, strict=True):
            for name, tensor in mapping.items():
                by_name.setdefault(name, []).append(tensor.to(home))
        for by_name, mapping in zip(record.gaps, gaps, strict=True):
            for name, gap in mapping.items():
                earlier = by_name.setdefault(name, [])
                _fill(earlier, len(record.layers) - 1, gap.to(home)).append(gap.to(home))
        self.paths.add(captured.path)
        self.paths.update(() if captured.held is None else captured.held.conventions)

    def _blocked(self, captured: Capture, real: Positions) -> Tensor | None:
        """Return which real queries may attend to no key; layers mostly share one mask."""
        if self._mask[0] is not captured.mask or captured.mask is None:
            blocked = captured.blocked()
            if blocked is not None:
                blocked = blocked.to(real.queries.device) & real.queries
            self._mask = captured.mask, blocked
        return self._mask[1]

    def fetch(self) -> Pass:
        """Start copying everything to the CPU, and return the pass without waiting."""
        transfer = self._transfer
        stacked = {
            part: [
                {name: _add_layers(transfer, layers) for name, layers in noted.items()}
                for noted in record.noted
            ]
            for part, record in self.parts.items()
        }
        for record in self.parts.values():
            record.converted(transfer.add)
        for sample in self.samples:
            transfer.add(sample)
        transfer.start()
        copy = transfer.__getitem__
        self._stacked = {
            part: [
                {
                    name: [copy(t) for t in noted] if isinstance(noted, list) else copy(noted)
                    for name, noted in by_name.items()
                }
                for by_name in by_measure
            ]
            for part, by_measure in stacked.items()
        }
        self.samples = [copy(sample) for sample in self.samples]
        # This also frees the tensors on the device, except those that are still being copied.
        self.parts = {part: record.converted(copy) for part, record in self.parts.items()}
        return self

    def wait(self) -> None:
        """Wait until everything is on the CPU."""
        self._transfer.wait()

    def observed(self, measure: int) -> dict[Part, Observed]:
        """Return the observations of one measure, by part."""
        return {
            part: Observed(
                self._stacked[part][measure],
                {
                    name: _stacked(_fill(list(gaps), len(record.layers), gaps[0])).numpy()
                    for name, gaps in record.gaps[measure].items()
                },
                record.layers,
                record.dtypes,
                record.positions.queries.numpy(),
                record.positions.keys.numpy(),
            )
            for part, record in self.parts.items()
        }


class RecordedPass:
    """A recorded pass, which can be replayed with other inputs of the same shape.

    It may be kept longer than its model, so it refers neither to the model nor to a batch.

    Args:
        graph: the recorded kernels.
        inputs: the tensors that the graph reads its inputs from.
        recorded: the pass that was recorded.
        held: what else the graph reads: values that would otherwise be freed.
        size: the bytes of the graph's own memory.
    """

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        inputs: Mapping[str, Any],
        recorded: Pass,
        held: Sequence[object] = (),
        size: int = 0,
    ) -> None:
        self.graph, self.inputs, self.held, self.size = graph, inputs, held, size
        self.measures, self.parts, self.paths = recorded.measures, recorded.parts, recorded.paths
        self.samples = recorded.samples

    def replay(self, batch: Batch) -> Pass:
        """Run another batch of the same shape."""
        for name, tensor in self.inputs.items():
            if isinstance(tensor, Tensor):
                tensor.copy_(batch.inputs[name], non_blocking=True)
        self.graph.replay()
        replayed = Pass(batch, self.measures)
        replayed.parts, replayed.paths = self.parts, self.paths
        replayed.samples = list(self.samples)
        return replayed


def _fill(by_layer: list[Tensor], count: int, like: Tensor) -> list[Tensor]:
    """Append zeros for layers that were not measured, so that they pass the judge."""
    by_layer += [torch.zeros_like(like) for _ in range(count - len(by_layer))]
    return by_layer


def _stacked(gaps: Sequence[Tensor]) -> Tensor:
    """Return gaps as (layer, row), with zeros for rows that a layer does not have.

    Layers that attend in windows have a row for each, and not all of them as many.
    """
    rows = max(len(gap) for gap in gaps)
    return torch.stack([torch.cat([gap, gap.new_zeros(rows - len(gap))]) for gap in gaps])


def _add_layers(transfer: Transfer, layers: Sequence[Tensor]) -> Tensor | list[Tensor]:
    """Add layers of equal shape as a stack, (row, layer, …): the numbers of one row are contiguous.

    Layers of other shapes are added one by one.
    """
    if len({layer.shape for layer in layers}) == 1 and layers[0].dim():
        return transfer.add_stack(layers)
    return [transfer.add(layer) for layer in layers]


def _leaked(
    captured: Capture, real: Positions, mean_weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the largest weight of padding, and its key, for each real query.

    The mean over the heads is used if it is known: it is zero only where all heads are.
    """
    values, indices = [], []
    for block in captured.blocks() if mean_weights is None else [slice(0, captured.shape[2])]:
        weights = captured.rows(block).amax(dim=1) if mean_weights is None else mean_weights
        weights = weights.to(real.keys.device)
        weights = weights.masked_fill(real.keys[:, None, :] | ~real.queries[:, block, None], 0)
        largest = weights.max(dim=-1)
        values.append(largest.values)
        indices.append(largest.indices)
    return torch.cat(values, dim=1), torch.cat(indices, dim=1)
