"""Run batches through a model and measure its layers: the only loop over forward passes.

On a GPU, launching the many small operations of an analysis takes longer than executing them. For
shapes that occur repeatedly, the whole pass, including the model's own, is therefore recorded as a
CUDA graph and replayed, also in later calls (``recordings``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Any

import torch
from torch import Tensor, nn

from normscope.capture import AttentionMode, Capture, capture
from normscope.capture.active import UNPADDED
from normscope.capture.layers import LayerCapture, capture_layers, layers_of
from normscope.decomposition.layer import LayerView
from normscope.decomposition.replayed import ReplayedLayer, Replays, Run, replayed_scopes
from normscope.engine.batch import Batch
from normscope.engine.judge import check_masks, judge
from normscope.engine.measure import Measure, Needs, Observed, Part, StopPass
from normscope.engine.passes import Pass, RecordedPass
from normscope.engine.recordings import (
    Recordings,
    free_recordings,
    recordings_of,
    settings,
    watched,
)
from normscope.errors import (
    ExactnessError,
    InputError,
    NormscopeError,
    UnsupportedModelError,
)
from normscope.foundation.caching import forget_weights, values_used
from normscope.foundation.interrupts import shielded
from normscope.foundation.probes import samples
from normscope.foundation.progress import is_shown, stage
from normscope.kernels import Scratch
from normscope.linearisation.replay import Kind
from normscope.models.layouts import Layout
from normscope.models.running import accepted_by, evaluating
from normscope.models.walk import weights
from normscope.results.state import ModelState, Snapshot

LONG = 1024  # tokens; attention weights of longer inputs are not kept as a whole
_TEXTS = ("input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds")


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
    attention: AttentionMode = "auto",
    bound: float | None = None,
    recorded_as: Hashable = None,
    snapshot: Snapshot | None = None,
) -> Iterator[Judged]:
    """Run batches through a model and measure its layers; yield each batch when it is judged.

    Args:
        model: any transformers model. It is left as it was.
        batches: a batch that does not fit in GPU memory is split if it can be.
        measures: what to measure, all in one forward pass per batch.
        attention: "eager" uses the model's own eager attention; "fused" keeps the model's sdpa
            attention and computes weights from queries and keys block by block; "auto" chooses.
        bound: the largest gap to accept; by default that of the dtypes.
        recorded_as: what the measures' observations depend on beside the model and the batch. CUDA
            graphs are kept for later calls with an equal value; with None they end with this one.
        snapshot: what the model is; by default as it is when the first batch is started.

    Raises:
        UnsupportedModelError: the weights were changed in the meantime, by another thread say.
        ExactnessError: if parts do not add up to the model's own states.
    """
    engine = Engine(model, measures, attention, bound, recorded_as=recorded_as, snapshot=snapshot)
    source = iter(batches)
    running: Pass | None = None  # the previous pass, whose numbers are still being copied
    while (batch := next(source, None)) is not None:
        following: Pass | None = None
        full: torch.OutOfMemoryError | None = None
        try:
            following = engine.start(batch)
        except torch.OutOfMemoryError as error:
            full = error.with_traceback(None)  # the traceback holds what has to be freed
        if running is not None:
            yield engine.finish(running)
        running = following
        if full is not None and engine.free_recordings():
            source = chain([batch], source)
        elif full is not None:
            halves = batch.split()
            if not halves:
                raise full
            source = chain(halves, source)
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
        self.output = self.call(model, self.inputs)

    def call(self, model: nn.Module, inputs: Mapping[str, Any]) -> Any:
        """Run the model with exactly these inputs."""
        return model(**inputs)


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
        attention: AttentionMode = "auto",
        bound: float | None = None,
        *,
        recorded_as: Hashable = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self.model, self.measures = model, list(measures)
        self.attention, self.bound = attention, bound
        self.needs = [measure.needs for measure in measures]
        self.whole_layers = any(needs.whole_layers for needs in self.needs)
        self.replays = tuple(dict.fromkeys(name for needs in self.needs for name in needs.replay))
        self.recorded_as = recorded_as
        self.snapshot = Snapshot(model) if snapshot is None else snapshot
        self.recordings = Recordings() if recorded_as is None else recordings_of(model)

    def start(self, batch: Batch) -> Pass:
        """Run a batch and start copying its numbers to the CPU, without waiting for them."""
        with self.recordings.lock:  # the numbers are on their way before the next replay begins
            return self.measured(batch).fetch()

    def measured(self, batch: Batch) -> Pass:
        """Run a batch and leave its numbers on the device."""
        key = self._recording_key(batch)
        graph = None if key is None else self.recordings.graph(key, lambda: self._record(batch))
        if graph is None:
            return self._forward(batch)
        replayed = graph.replay(batch)
        replayed.began = self.snapshot.weights
        return replayed

    def free_recordings(self) -> bool:
        """Drop all CUDA graphs, because memory is short; return whether there were any."""
        own = self.recordings.clear()
        return free_recordings() or own

    def finish(self, running: Pass) -> Judged:
        """Wait for a batch, judge it, and return the results of the measures."""
        running.wait()
        batch = running.batch
        # A pass that began before the model was looked at anew may have read both states.
        current = running.began is self.snapshot.weights
        if not (current and self.snapshot.holds(running.samples)):
            return self.finish(self.start(batch))
        if not running.parts:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} ran without any attention that normscope can read, "
                "so there is nothing to measure"
            )
        parts = [running.observed(index) for index in range(len(self.measures))]
        try:
            self._judge(running, parts)
        except (ExactnessError, InputError) as error:
            if "fused" not in running.paths:
                raise
            if self.attention == "auto":
                # Weights may have been written to in a way that torch does not count.
                self.recordings.clear()
                forget_weights(self.model)
                return self.finish(self._forward(batch, "eager").fetch())
            if isinstance(error, InputError):
                raise
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

    def _forward(self, batch: Batch, attention: AttentionMode | None = None) -> Pass:
        running = Pass(batch, len(self.measures))
        running.began = self.snapshot.weights
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
            running.runs[layer.name] = running.runs.get(layer.name, 0) + 1
            count_layer()

        record = (
            capture_layers(
                self.model,
                layer_done,
                attention=attention,
                inputs=batch.inputs,
                unlisted=bool(self.replays),
            )
            if self.whole_layers
            else capture(self.model, attended, attention=attention)
        )
        try:
            running.replayed = self._replay(batch)
            with (
                self._progress() as count_layer,
                evaluating(self.model),
                torch.no_grad(),
                record,
                suppress(StopPass),
            ):
                batch.forward(self.model)
        except NormscopeError:
            if self.snapshot.holds():  # otherwise the change of the weights explains the error
                raise
            return self._forward(batch, attention)
        running.samples = samples(weights(self.model))
        return running

    def _replay(self, batch: Batch) -> dict[Run, ReplayedLayer]:
        """Replay the scopes that measures ask for and that have no factored form."""
        if not self.replays:
            return {}

        def choose(layout: Layout | None, kind: Kind) -> list[str]:
            return replayed_scopes(layout, kind, self.replays)

        inputs = dict(batch.inputs)
        if "logits_to_keep" in accepted_by(self.model):
            inputs.setdefault("logits_to_keep", 1)
        return Replays(self.model, partial(batch.call, self.model), inputs, choose).run()

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
                with_batch: Any = {"batch": running.batch, "replayed": running.replay_of(layer)}
                view = LayerView(
                    captured, layer, positions, needs.how, scratch=scratch, **with_batch
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
        mean = None if view is None else view.mean_weights
        running.keep(record, captured, noted, gaps, dtypes, masks=masks, mean_weights=mean)
        if len(running.stopped) == len(self.measures):
            raise StopPass

    def _attention(self, batch: Batch) -> AttentionMode:
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

    @shielded
    def _progress(self) -> Iterator[Callable[[], None]]:
        """Show the progress over the layers if they are slow; on a terminal only."""
        if not any(needs.slow for needs in self.needs):
            yield lambda: None
            return
        from tqdm import tqdm

        total, hidden = len(layers_of(self.model)), True if is_shown() else None
        finished = count(1)
        with tqdm(total=total, desc="layers", leave=False, disable=hidden) as bar:

            def layer_done() -> None:
                stage(f"running the model: {next(finished)} of {total} layers done")
                bar.update()

            yield layer_done

    # ---- CUDA graphs

    def _recording_key(self, batch: Batch) -> Hashable:
        """Return what batches must share to use one recording; None if not recordable."""
        recordable = all(needs.recordable for needs in self.needs)
        recordable = recordable and type(batch).forward is Batch.forward
        recordable = recordable and type(batch).call is Batch.call
        if not recordable or not next(self.model.parameters()).is_cuda or watched():
            return None
        tensors = {k: v for k, v in batch.inputs.items() if isinstance(v, Tensor)}
        others = {k: v for k, v in batch.inputs.items() if k not in tensors}
        if not all(isinstance(v, int | float | str | None) for v in others.values()):
            return None  # a cache of earlier positions, say, which has tensors of its own
        state = ModelState(self.model)
        device = torch.device("cuda", torch.cuda.current_device())
        weights = (t for t in state.tensors if isinstance(t, nn.Parameter))
        if not state.recordable or any(weight.device != device for weight in weights):
            return None
        self.recordings.renew(state, self.snapshot.sums)
        facts = tuple((k, v.shape, v.dtype) for k, v in tensors.items())
        attention = self._attention(batch)
        return self.recorded_as, attention, facts, (*others.items(),), batch.padded, settings()

    def _record(self, batch: Batch) -> RecordedPass | None:
        inputs = {k: v.clone() if isinstance(v, Tensor) else v for k, v in batch.inputs.items()}
        own = Batch(self.model, inputs, host=batch.host)
        graph = torch.cuda.CUDAGraph()
        try:
            with values_used() as held, _recorded(graph, batch):
                size = -torch.cuda.memory_reserved()
                recorded = self._forward(own)
                size += torch.cuda.memory_reserved()
        except RuntimeError:  # the model's forward pass synchronises
            return None
        return RecordedPass(graph, inputs, recorded, held, size)


@shielded
def _recorded(graph: torch.cuda.CUDAGraph, batch: Batch) -> Iterator[None]:
    """Record what runs on the device; a failed recording leaves the device as it was."""
    random = torch.cuda.default_generators[torch.cuda.current_device()]
    before = random.clone_state()
    torch.cuda.synchronize()
    unpadded = UNPADDED.set(batch.unpadded_masks())
    try:
        with torch.cuda.graph(graph):
            yield
    except BaseException as error:
        torch.cuda.synchronize()
        # A failed recording leaves the generator in capture mode, in which it cannot draw.
        random.graphsafe_set_state(before)
        if isinstance(error.__context__, KeyboardInterrupt):  # and then the recording failed
            raise error.__context__ from None
        raise
    finally:
        UNPADDED.reset(unpadded)


def _worst(observed: Mapping[Part, Observed]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for part in observed.values():
        for name, gaps in part.gaps.items():
            worst[name] = max(float(gaps.max()), worst.get(name, 0.0))
    return worst


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Disable autocast: the model may run in mixed precision, but not its measurement."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
