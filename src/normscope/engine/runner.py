"""Batches through a model, one after another.

On a GPU, launching the many small operations of an analysis one by one takes longer than they do.
Batches of a shape that comes again are therefore recorded as a CUDA graph, the model's own forward
pass included, and replayed.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from normscope.capture import capture
from normscope.capture.layers import LayerCapture, capture_layers, layers_of
from normscope.engine.collector import Collector, Options
from normscope.engine.judged import Results
from normscope.engine.labels import Known
from normscope.models.walk import modules
from normscope.results.contributions import Contributions
from normscope.results.reductions import Reductions
from normscope.results.signature import Signature

LONG = 1024  # tokens beyond which attention weights are no longer kept as a whole
_TEXTS = ("input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds")
Attention = Literal["auto", "eager", "fused"]
SEEN = 2  # batches of a shape that are run as they are before it is recorded


class Runner:
    """One model with one choice of maps; keeps the graphs of the shapes it has seen."""

    def __init__(
        self, model: nn.Module, maps: tuple[str, ...], options: Options, signature: Signature
    ) -> None:
        self.model, self.maps, self.options, self.signature = model, maps, options, signature
        self.seen: Counter[Any] = Counter()
        self.graphs: dict[Any, _Graph | None] = {}  # None: this shape cannot be recorded

    def run(
        self, inputs: Mapping[str, Any], known: Known = None
    ) -> Sequence[Contributions | Reductions]:
        """One result for each row of a batch."""
        return self.start(inputs, known).rows()

    def start(
        self, inputs: Mapping[str, Any], known: Known = None, host: Mapping[str, Any] | None = None
    ) -> Results:
        """The same, not waited for: the next batch can be started before this one is read.

        ``host`` are the inputs on the CPU, where they are at hand.
        """

        def eagerly() -> Results:
            collector = Collector(self.model, inputs, self.maps, self.options, known, host)
            self._forward(inputs, collector, "eager")
            return Results(collector, self.signature)

        again = eagerly if self.options.attention == "auto" else None
        return Results(self.collect(inputs, known, host), self.signature, again)

    def collect(
        self, inputs: Mapping[str, Any], known: Known = None, host: Mapping[str, Any] | None = None
    ) -> Collector:
        """The same before it is brought to the CPU and judged."""
        collector = Collector(self.model, inputs, self.maps, self.options, known, host)
        shape = self._shape(inputs, collector)
        self.seen[shape] += 1
        if shape is None or self.seen[shape] <= SEEN:
            self._forward(inputs, collector)
            return collector
        if shape not in self.graphs:
            self.graphs[shape] = self._record(inputs)
        graph = self.graphs[shape]
        if graph is None:
            self._forward(inputs, collector)
            return collector
        graph.replay(inputs)
        collector.parts, collector.paths = graph.collector.parts, graph.collector.paths
        return collector

    def _forward(
        self, inputs: Mapping[str, Any], collector: Collector, attention: Attention | None = None
    ) -> None:
        attention = self._attention(inputs) if attention is None else attention
        record = (
            capture_layers(self.model, _with_progress(self.model, collector), attention=attention)
            if collector.whole_layers
            else capture(self.model, collector.attention, attention=attention)
        )
        # A cache costs memory and is not read here; FSMT even drops its causal mask for it. But
        # without one, many models take a jump among positions that are given for a new text.
        given = {"use_cache", "position_ids"} & set(inputs)
        uncached = not given and "use_cache" in accepted_by(self.model)
        extra = {"use_cache": False} if uncached else {}
        with evaluating(self.model), torch.no_grad(), record:
            self.model(**inputs, **extra)

    def _attention(self, inputs: Mapping[str, Any]) -> Attention:
        """On a CPU eager attention while its weights are small: bit for bit what the model does.

        On a GPU the model's own fused attention, which can be recorded as a graph.
        """
        chosen = self.options.attention
        texts = [inputs.get(name) for name in _TEXTS]
        small = all(t.shape[1] <= LONG for t in texts if isinstance(t, Tensor) and t.dim() > 1)
        small = small and next(self.model.parameters()).device.type == "cpu"
        unfit = self.options.heads == "each" or any("_ff" in name for name in self.maps)
        return "eager" if chosen == "auto" and (small or unfit) else chosen

    # ---- graphs

    def _shape(self, inputs: Mapping[str, Any], collector: Collector) -> Any:
        """What a recorded batch must have in common with another; None: not to be recorded."""
        tensors = {k: v for k, v in inputs.items() if isinstance(v, Tensor)}
        unfit = self.options.reduce or any("_ff" in name for name in self.maps)
        if unfit or not all(p.is_cuda for p in self.model.parameters()):
            return None  # on a CPU the first parameter tells
        if len({p.device for p in self.model.parameters()}) > 1:
            return None
        where = tuple(p.data_ptr() for p in self.model.parameters())  # graphs read at addresses
        facts = tuple((k, v.shape, v.dtype) for k, v in tensors.items())
        others = tuple((k, repr(v)) for k, v in inputs.items() if k not in tensors)
        return facts, others, collector.labels.padded, where

    def _record(self, inputs: Mapping[str, Any]) -> _Graph | None:
        kept = {k: v.clone() if isinstance(v, Tensor) else v for k, v in inputs.items()}
        collector = Collector(self.model, kept, self.maps, self.options, None, inputs)
        graph = torch.cuda.CUDAGraph()
        random = torch.cuda.default_generators[torch.cuda.current_device()]
        before = random.clone_state()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph):
                self._forward(kept, collector)
        except RuntimeError:  # the model looks at its numbers on the way
            torch.cuda.synchronize()
            # A recording that fails leaves the generator waiting for its end, and refusing to draw.
            random.graphsafe_set_state(before)
            return None
        return _Graph(graph, kept, collector)


class _Graph:
    """A recorded batch: its inputs can be written over, and all comes out anew."""

    def __init__(
        self, graph: torch.cuda.CUDAGraph, inputs: Mapping[str, Any], collector: Collector
    ) -> None:
        self.graph, self.inputs, self.collector = graph, inputs, collector

    def replay(self, inputs: Mapping[str, Any]) -> None:
        for name, tensor in self.inputs.items():
            if isinstance(tensor, Tensor):
                tensor.copy_(inputs[name])
        self.graph.replay()


def _with_progress(model: nn.Module, collector: Collector) -> Callable[[LayerCapture], None]:
    """A bar over the layers where a feed-forward makes them slow, on a terminal only."""
    from tqdm import tqdm

    slow = any("_ff" in name for name in collector.maps)
    bar = tqdm(
        total=len(layers_of(model)), desc="layers", leave=False, disable=None if slow else True
    )

    def take(layer: LayerCapture) -> None:
        collector.layer(layer)
        bar.update()
        if bar.n >= (bar.total or 0):
            bar.close()

    return take


def accepted_by(model: nn.Module) -> frozenset[str]:
    """The names of a model's inputs."""
    return _accepted(type(model).forward)


@functools.cache
def _accepted(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, every module's own mode again outside."""
    training = [module for module in modules(model) if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
