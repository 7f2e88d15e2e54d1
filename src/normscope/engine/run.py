"""Run batches through a model and measure its layers: the only loop over forward passes.

On a GPU, launching the many small operations of an analysis takes longer than executing them. For
shapes that occur repeatedly, the whole pass, including the model's own, is therefore recorded as a
CUDA graph and replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from normscope.capture import Capture, capture
from normscope.capture.layers import LayerCapture, capture_layers, layers_of
from normscope.decomposition.cells import Positions
from normscope.decomposition.layer import LayerView
from normscope.engine.batch import Batch
from normscope.engine.judge import check_masks, judge
from normscope.engine.measure import Measure, Needs, Observed, Part, StopPass
from normscope.errors import ExactnessError, UnsupportedModelError
from normscope.kernels import Scratch
from normscope.models.running import evaluating

LONG = 1024  # tokens; attention weights of longer inputs are not kept as a whole
SEEN = 2  # batches of a shape that run normally before it is recorded
_TEXTS = ("input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds")
AttentionPath = Literal["auto", "eager", "fused"]
ATTENTION: tuple[AttentionPath, ...] = ("auto", "eager", "fused")


@dataclass(eq=False)
class Judged:
    """A batch that passed the judge, with the result of each measure."""

    batch: Batch
    results: list[Any]  # by measure
    gaps: list[dict[str, float]]  # by measure: the worst gap of each quantity
    paths: frozenset[str]  # the ways in which attention was captured


def run(
    model: nn.Module,
    batches: Iterable[Batch],
    measures: Sequence[Measure],
    *,
    attention: AttentionPath = "auto",
    bound: float | None = None,
) -> Iterator[Judged]:
    """Run batches through a model and measure its layers; yield each batch when it is judged.

    Args:
        model: any transformers model. It is left as it was.
        batches: a batch that does not fit in GPU memory is split if it can be.
        measures: what to measure, all in one forward pass per batch.
        attention: "eager" uses the model's own eager attention; "fused" keeps the model's sdpa
            attention and computes weights from queries and keys block by block; "auto" chooses.
        bound: the largest gap to accept; by default that of the dtypes.

    Raises:
        ExactnessError: if parts do not add up to the model's own states.
    """
    engine = Engine(model, measures, attention, bound)
    source = iter(batches)
    running: Pass | None = None  # the previous pass, whose numbers are still being copied
    while (batch := next(source, None)) is not None:
        following: Pass | None = None
        try:
            following = engine.start(batch)
        except torch.OutOfMemoryError:
            if not batch.splittable:
                raise
        if running is not None:
            yield engine.finish(running)
        running = following
        if following is None:
            source = chain(batch.split(), source)
    if running is not None:
        yield engine.finish(running)


class CallbackMeasure:
    """A measure that calls a function with every view and returns no result."""

    def __init__(self, callback: Callable[[LayerView], None], needs: Needs) -> None:
        self.callback, self.needs = callback, needs

    def observe(self, view: LayerView) -> Mapping[str, Tensor]:
        """Call the function with the view."""
        self.callback(view)
        return {}

    def finish(self, batch: Batch, parts: Mapping[Part, Observed], paths: frozenset[str]) -> None:
        """Return nothing."""


class PlainBatch(Batch):
    """Inputs that the model gets exactly as they are; its output is kept."""

    output: Any = None

    def forward(self, model: nn.Module) -> Any:
        """Run the model and keep its output."""
        self.output = model(**self.inputs)


def look(
    model: nn.Module,
    inputs: Mapping[str, Any],
    callback: Callable[[LayerView], None],
    *,
    needs: Needs | None = None,
    bound: float | None = None,
) -> tuple[Judged, Any]:
    """Run one batch with eager attention and call a function with each attention call's view.

    Returns the judged batch and the model's output.
    """
    measure = CallbackMeasure(callback, Needs(weights=True) if needs is None else needs)
    batch = PlainBatch(model, inputs)
    (judged,) = run(model, [batch], [measure], attention="eager", bound=bound)
    return judged, batch.output


class Engine:
    """A model with its measures, and the CUDA graphs of the shapes that occurred repeatedly."""

    def __init__(
        self,
        model: nn.Module,
        measures: Sequence[Measure],
        attention: AttentionPath = "auto",
        bound: float | None = None,
    ) -> None:
        self.model, self.measures = model, list(measures)
        self.attention, self.bound = attention, bound
        self.needs = [measure.needs for measure in measures]
        self.whole_layers = any(needs.whole_layers for needs in self.needs)
        self.seen: Counter[Any] = Counter()
        self.graphs: dict[Any, RecordedPass | None] = {}  # None: this shape cannot be recorded

    def start(self, batch: Batch) -> Pass:
        """Run a batch and start copying its numbers to the CPU, without waiting for them."""
        return self.measured(batch).fetch()

    def measured(self, batch: Batch) -> Pass:
        """Run a batch and leave its numbers on the device."""
        shape = self._shape(batch)
        self.seen[shape] += 1
        if shape is not None and self.seen[shape] > SEEN:
            if shape not in self.graphs:
                self.graphs[shape] = self._record(batch)
            graph = self.graphs[shape]
            if graph is not None:
                return graph.replay(batch)
        return self._forward(batch)

    def finish(self, running: Pass) -> Judged:
        """Wait for a batch, judge it, and return the results of the measures."""
        running.wait()
        batch = running.batch
        if not running.parts:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} ran without any attention that normscope can read, "
                "so there is nothing to measure"
            )
        parts = [running.observed(index) for index in range(len(self.measures))]
        try:
            self._judge(running, parts)
        except ExactnessError as error:
            if "fused" not in running.paths:
                raise
            if self.attention == "auto":
                return self.finish(self._forward(batch, "eager").fetch())
            raise ExactnessError(
                f'{error} The weights were computed from queries and keys: try attention="eager".'
            ) from error
        paths = frozenset(running.paths)
        results = [
            measure.finish(batch, observed, paths)
            for measure, observed in zip(self.measures, parts, strict=True)
        ]
        return Judged(batch, results, [_worst(observed) for observed in parts], paths)

    def _judge(self, running: Pass, parts: Sequence[Mapping[Part, Observed]]) -> None:
        for part, record in running.parts.items():
            for layer, name in enumerate(record.layers):
                check_masks(running.batch, name, record.blocked[layer], record.leaked[layer])
            for by_part in parts:
                observed = by_part[part]
                judge(
                    self.model,
                    running.batch,
                    observed.layers,
                    observed.dtypes,
                    observed.gaps,
                    self.bound,
                )

    # ---- one forward pass

    def _forward(self, batch: Batch, attention: AttentionPath | None = None) -> Pass:
        running = Pass(batch, len(self.measures))
        scratch = Scratch()
        if attention is None:
            attention = self._attention(batch)

        def attended(captured: Capture, layer: LayerCapture | None = None) -> None:
            with _without_autocast(captured.device):
                self._observe(running, captured, layer, scratch)

        def layer_done(layer: LayerCapture) -> None:
            for captured in (layer.attention, layer.cross):
                if captured is not None:
                    attended(captured, layer)

        record = (
            capture_layers(self.model, self._with_progress(layer_done), attention=attention)
            if self.whole_layers
            else capture(self.model, attended, attention=attention)
        )
        with evaluating(self.model), torch.no_grad(), record, suppress(StopPass):
            batch.forward(self.model)
        return running

    def _observe(
        self, running: Pass, captured: Capture, layer: LayerCapture | None, scratch: Scratch
    ) -> None:
        """Call the measures with one attention call."""
        record = running.record_of(captured)
        view: LayerView | None = None
        noted: list[Mapping[str, Tensor]] = []
        gaps: list[Mapping[str, Tensor]] = []
        dtypes: set[torch.dtype] = set()
        for index, (measure, needs) in enumerate(zip(self.measures, self.needs, strict=True)):
            if index in running.stopped:
                noted.append({})
                gaps.append({})
                continue
            if view is None or view.how != needs.how or view.positions.every != needs.spot_check:
                positions = record.positions_on(captured, needs.spot_check)
                view = LayerView(
                    captured, layer, positions, needs.how, scratch=scratch, batch=running.batch
                )
            try:
                noted.append(measure.observe(view))
            except StopPass:
                running.stopped.add(index)
                noted.append({})
            gaps.append(view.take_gaps())
            dtypes |= view.dtypes
        pairs = zip(self.needs, noted, strict=True)
        masks = any(needs.masks and bool(tensors) for needs, tensors in pairs)
        running.keep(record, captured, noted, gaps, dtypes, masks=masks)
        if len(running.stopped) == len(self.measures):
            raise StopPass

    def _attention(self, batch: Batch) -> AttentionPath:
        """Choose eager attention if whole weights are needed, or are small and on a CPU.

        On a CPU, eager attention is bit for bit that of the model; on a GPU, fused attention can be
        recorded as a graph.
        """
        texts = [batch.inputs.get(name) for name in _TEXTS]
        small = all(t.shape[1] <= LONG for t in texts if isinstance(t, Tensor) and t.dim() > 1)
        small = small and next(self.model.parameters()).device.type == "cpu"
        if self.attention == "auto" and (small or any(needs.weights for needs in self.needs)):
            return "eager"
        return self.attention

    def _with_progress(
        self, layer_done: Callable[[LayerCapture], None]
    ) -> Callable[[LayerCapture], None]:
        """Show a progress bar over the layers if they are slow; on a terminal only."""
        if not any(needs.slow for needs in self.needs):
            return layer_done
        from tqdm import tqdm

        bar = tqdm(total=len(layers_of(self.model)), desc="layers", leave=False, disable=None)

        def counted(layer: LayerCapture) -> None:
            layer_done(layer)
            bar.update()
            if bar.n >= (bar.total or 0):
                bar.close()

        return counted

    # ---- CUDA graphs

    def _shape(self, batch: Batch) -> Any:
        """Return what batches must share to use one recording; None if not recordable."""
        tensors = {k: v for k, v in batch.inputs.items() if isinstance(v, Tensor)}
        recordable = all(needs.recordable for needs in self.needs)
        recordable = recordable and type(batch).forward is Batch.forward
        if not recordable or not all(p.is_cuda for p in self.model.parameters()):
            return None
        if len({p.device for p in self.model.parameters()}) > 1:
            return None
        where = tuple(
            p.data_ptr() for p in self.model.parameters()
        )  # graphs read from fixed addresses
        facts = tuple((k, v.shape, v.dtype) for k, v in tensors.items())
        others = tuple((k, repr(v)) for k, v in batch.inputs.items() if k not in tensors)
        return facts, others, batch.padded, where

    def _record(self, batch: Batch) -> RecordedPass | None:
        inputs = {k: v.clone() if isinstance(v, Tensor) else v for k, v in batch.inputs.items()}
        own = Batch(self.model, inputs, host=batch.host)
        graph = torch.cuda.CUDAGraph()
        random = torch.cuda.default_generators[torch.cuda.current_device()]
        before = random.clone_state()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph):
                recorded = self._forward(own)
        except RuntimeError:  # the model's forward pass synchronises
            torch.cuda.synchronize()
            # A failed recording leaves the generator in capture mode, in which it cannot draw.
            random.graphsafe_set_state(before)
            return None
        return RecordedPass(graph, inputs, recorded)


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
        self._mask: tuple[Tensor | None, Tensor | None] = (
            None,
            None,
        )  # the last mask, and the queries it blocks
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
        if (
            *known.queries.shape,
            known.keys.shape[1],
        ) != shape:  # the stack ran again with other shapes
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
    """A recorded pass, which can be replayed with other inputs of the same shape."""

    def __init__(
        self, graph: torch.cuda.CUDAGraph, inputs: Mapping[str, Any], recorded: Pass
    ) -> None:
        self.graph, self.inputs, self.recorded = graph, inputs, recorded

    def replay(self, batch: Batch) -> Pass:
        """Run another batch of the same shape."""
        for name, tensor in self.inputs.items():
            if isinstance(tensor, Tensor):
                tensor.copy_(batch.inputs[name])
        self.graph.replay()
        replayed = Pass(batch, self.recorded.measures)
        replayed.parts, replayed.paths = self.recorded.parts, self.recorded.paths
        return replayed


def _worst(observed: Mapping[Part, Observed]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for part in observed.values():
        for name, gaps in part.gaps.items():
            worst[name] = max(float(gaps.max()), worst.get(name, 0.0))
    return worst


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


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Disable autocast: the model may run in mixed precision, but not its measurement."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


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
