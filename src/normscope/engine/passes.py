"""One forward pass: what the measures observed, from the device to the CPU.

A pass is filled layer by layer on the model's device, sent to the CPU in the background, and read
there after it has been judged. A recorded pass can be replayed with other inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from normscope.capture import Capture
from normscope.decomposition.cells import Positions
from normscope.engine.batch import Batch
from normscope.engine.measure import Observed, Part


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


class Pass:
    """One forward pass: the observations of the measures, on the device or being copied."""

    def __init__(self, batch: Batch, measures: int) -> None:
        self.batch, self.measures = batch, measures
        self.parts: dict[Part, PartRecord] = {}
        self.paths: set[str] = set()
        self.stopped: set[int] = set()  # measures that need nothing more of this pass
        # The last mask, and the queries that it blocks.
        self._mask: tuple[Tensor | None, Tensor | None] = None, None
        self._home: dict[Part, PartRecord] = {}
        self._stacked: dict[Part, list[dict[str, Tensor | list[Tensor]]]] = {}
        self._arriving: list[torch.cuda.Event] = []

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
    ) -> None:
        """Store the observations of one layer."""
        home = record.positions.queries.device  # layers may be on several devices
        record.layers.append(captured.name)
        record.dtypes.append(dtypes)
        record.blocked.append(self._blocked(captured, record.positions) if masks else None)
        leaking = masks and self.batch.padded
        record.leaked.append(_leaked(captured, record.positions) if leaking else None)
        for by_name, mapping in zip(record.noted, noted, strict=True):
            for name, tensor in mapping.items():
                by_name.setdefault(name, []).append(tensor.to(home))
        for by_name, mapping in zip(record.gaps, gaps, strict=True):
            for name, gap in mapping.items():
                earlier = by_name.setdefault(name, [])
                _fill(earlier, len(record.layers) - 1, gap.to(home)).append(gap.to(home))
        self.paths.add(captured.path)

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
        for part, record in self.parts.items():
            self._stacked[part] = [
                {name: _stack(tensors) for name, tensors in noted.items()} for noted in record.noted
            ]
            self._home[part] = PartRecord(
                Positions(_home(record.positions.queries), _home(record.positions.keys)),
                record.layers,
                record.dtypes,
                gaps=[
                    {
                        name: [_home(torch.stack(_fill(by_layer, len(record.layers), by_layer[0])))]
                        for name, by_layer in gaps.items()
                    }
                    for gaps in record.gaps
                ],
                blocked=[None if b is None else _home(b) for b in record.blocked],
                leaked=[None if x is None else (_home(x[0]), _home(x[1])) for x in record.leaked],
            )
        devices = {record.positions.queries.device for record in self.parts.values()}
        self._arriving = [
            torch.cuda.current_stream(device).record_event()
            for device in devices
            if device.type == "cuda"
        ]
        return self

    def wait(self) -> None:
        """Wait until everything is on the CPU."""
        for arriving in self._arriving:
            arriving.synchronize()
        self.parts = self._home

    def observed(self, measure: int) -> dict[Part, Observed]:
        """Return the observations of one measure, by part."""
        return {
            part: Observed(
                self._stacked[part][measure],
                {name: gaps.numpy() for name, (gaps,) in record.gaps[measure].items()},
                record.layers,
                record.dtypes,
                record.positions.queries.numpy(),
                record.positions.keys.numpy(),
                pinned=bool(self._arriving),
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

    def replay(self, batch: Batch) -> Pass:
        """Run another batch of the same shape."""
        for name, tensor in self.inputs.items():
            if isinstance(tensor, Tensor):
                tensor.copy_(batch.inputs[name], non_blocking=True)
        self.graph.replay()
        replayed = Pass(batch, self.measures)
        replayed.parts, replayed.paths = self.parts, self.paths
        return replayed


def _fill(by_layer: list[Tensor], count: int, like: Tensor) -> list[Tensor]:
    """Append zeros for layers that were not measured, so that they pass the judge."""
    by_layer += [torch.zeros_like(like) for _ in range(count - len(by_layer))]
    return by_layer


def _stack(tensors: Sequence[Tensor]) -> Tensor | list[Tensor]:
    """Stack layers of equal shape, (row, layer, …): the numbers of one row are contiguous."""
    if len({tensor.shape for tensor in tensors}) == 1 and tensors[0].dim():
        return _home(torch.stack(list(tensors), dim=1))
    return [_home(tensor) for tensor in tensors]


def _home(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU; from a GPU it is copied to pinned memory in the background."""
    if not tensor.is_cuda:
        return tensor.cpu()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _leaked(captured: Capture, real: Positions) -> tuple[Tensor, Tensor]:
    """Return the largest weight of padding, and its key, for each real query."""
    values, indices = [], []
    for block in captured.blocks():
        weights = captured.rows(block).amax(dim=1).to(real.keys.device)
        weights = weights.masked_fill(real.keys[:, None, :] | ~real.queries[:, block, None], 0)
        largest = weights.max(dim=-1)
        values.append(largest.values)
        indices.append(largest.indices)
    return torch.cat(values, dim=1), torch.cat(indices, dim=1)
