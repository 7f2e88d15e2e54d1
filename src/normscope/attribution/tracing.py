"""From the engine's trace of a batch to what a result keeps of one input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import UnsupportedModelError
from normscope.linearisation.edges import EdgeFactors
from normscope.linearisation.trace import Trace
from normscope.results.arrays import LabelledArray
from normscope.results.traced import Edge, TracedShares
from normscope.text.tokens import Tokens

Shares = NDArray[np.float64]


@dataclass(frozen=True)
class Segment:
    """Some positions of an input: a text, a decoder's input, an image.

    Attributes:
        stack: the stack of layers that reads them, as the engine names it.
        row: the row of the engine's arrays.
        real: which positions of that row are real, not padding.
    """

    stack: str
    row: int
    real: NDArray[np.bool_]

    @property
    def count(self) -> int:
        """The number of real positions."""
        return int(self.real.sum())

    def of(self, shares: Any, steps: int) -> Shares:
        """Return the shares (step, position) at the real positions."""
        length = len(self.real)
        if shares.shape[2] < length:
            raise UnsupportedModelError(
                f"a layer has {shares.shape[2]} positions, and the input has {length}: the shares "
                "inside this model cannot be told by input position; leave out trace=True"
            )
        return np.asarray(shares[self.row, :steps, :length][:, self.real], dtype=np.float64)


def along_tokens(by_stack: dict[str, Any], segments: Sequence[Segment], steps: int) -> Shares:
    """Return shares (row, step, position) of stacks as (step, token), 0 where a stack has none."""
    return np.concatenate(
        [
            segment.of(by_stack[segment.stack], steps)
            if segment.stack in by_stack
            else np.zeros((steps, segment.count))
            for segment in segments
        ],
        axis=1,
    )


def traced(
    traces: Sequence[Trace], rows: slice, segments: Sequence[Segment], labels: Any, single: bool
) -> TracedShares:
    """Return the trace of one input, the mean over its baselines.

    Args:
        traces: the engine's traces, for each baseline.
        rows: the rows of the input, whose values are added up.
        segments: its positions.
        labels: what the numbers are about.
        single: whether there is one answer, so that arrays have no axis of steps.
    """
    steps = 1 if single else len(labels.explained)
    arrays = [_arrays(trace, rows, segments, steps) for trace in traces]
    mean: dict[str, Any] = {}
    for name in arrays[0]:
        known = [array for each in arrays if (array := each[name]) is not None]
        if len(known) == len(arrays):
            array = np.max(known, axis=0) if "error" in name else np.mean(known, axis=0)
            mean[name] = array[0] if single else array
    return TracedShares(**mean, edges=TracedEdges(traces, segments, labels.tokens, single))


def _arrays(
    trace: Trace, rows: slice, segments: Sequence[Segment], steps: int
) -> dict[str, Shares | None]:
    """Return the arrays of `TracedShares`, each with a first axis of steps."""

    def summed(array: Any) -> Shares:
        return np.asarray(array[rows, :steps], dtype=np.float64).sum(axis=0)

    def worst(array: Any) -> Shares:
        if array is None:
            return np.zeros(steps)
        return np.asarray(array[rows, :steps], dtype=np.float64).max(axis=0)

    cuts, layers = trace.cuts, trace.layers
    most = max((layer.heads.shape[2] for layer in layers), default=0)
    heads = [
        np.pad(summed(layer.heads), ((0, 0), (0, most - layer.heads.shape[2]))) for layer in layers
    ]
    known = bool(layers) and all(layer.feed_forward is not None for layer in layers)
    return {
        "layers": np.stack([along_tokens(c.shares, segments, steps) for c in cuts], axis=1),
        "layer_bias": np.stack([summed(cut.bias) for cut in cuts], axis=1),
        "layer_error": np.stack([worst(cut.error) for cut in cuts], axis=1),
        "heads": np.stack(heads, axis=1) if most else None,
        "heads_error": np.stack([worst(layer.heads_error) for layer in layers], axis=1)
        if most
        else None,
        "feed_forward": np.stack(
            [along_tokens({la.stack: la.feed_forward}, segments, steps) for la in layers], axis=1
        )
        if known
        else None,
        "feed_forward_error": np.stack(
            [worst(layer.feed_forward_error) for layer in layers], axis=1
        )
        if known
        else None,
    }


class TracedEdges:
    """Edges of one input, computed from the engine's traces when they are asked for.

    Args:
        traces: the traces, for each baseline.
        segments: the positions of the input.
        tokens: their tokens.
        single: whether there is one answer.
    """

    def __init__(
        self, traces: Sequence[Trace], segments: Sequence[Segment], tokens: Tokens, single: bool
    ) -> None:
        self.traces, self.segments, self.tokens, self.single = traces, segments, tokens, single

    def edges(
        self, layer: int, *, top: int | None = None, step: int | None = None
    ) -> LabelledArray | list[Edge]:
        """Return (head, query, key), or the largest as (head, query, key, share)."""
        at = 0 if step is None else step
        if top is not None and len(self.traces) == 1:
            return self._largest(layer, top, at)
        whole = np.mean([self._whole(trace, layer, at) for trace in self.traces], axis=0)
        if top is None:
            tokens = {"query": self.tokens, "key": self.tokens}
            axes = ("head", "query", "key")
            return LabelledArray(whole, axes, tokens, name="edges", signed=True)
        order = np.argsort(-np.abs(whole), axis=None, kind="stable")[:top]
        places = np.stack(np.unravel_index(order, whole.shape), axis=-1).tolist()
        return [(*place, float(whole[tuple(place)])) for place in places]

    def _starts(self) -> list[int]:
        """Return the first token of each segment."""
        counts = [segment.count for segment in self.segments]
        return [sum(counts[:at]) for at in range(len(counts))]

    def _places(self, trace: Trace, layer: int, number: int) -> list[tuple[int, int]]:
        """Return which segments the queries and keys of an attention call are."""
        stack = trace.layers[layer].stack
        queries = [at for at, segment in enumerate(self.segments) if segment.stack == stack]
        if number == 0:
            return [(at, at) for at in queries]
        others = [at for at, segment in enumerate(self.segments) if segment.stack != stack]
        return [(query, key) for query in queries for key in others[:1]]

    def _calls(self, trace: Trace, layer: int) -> list[EdgeFactors]:
        return trace._calls(layer)

    def _whole(self, trace: Trace, layer: int, step: int) -> Shares:
        starts, total = self._starts(), len(self.tokens)
        arrays = []
        for number, call in enumerate(self._calls(trace, layer)):
            array = np.zeros((call.heads, total, total))
            for query, key in self._places(trace, layer, number):
                rows, columns = self.segments[query], self.segments[key]
                cells = call.whole(rows.row, step)
                cells = cells[:, : len(rows.real), : len(columns.real)]
                cells = cells[:, rows.real][:, :, columns.real]
                first, second = starts[query], starts[key]
                array[:, first : first + rows.count, second : second + columns.count] = cells
            arrays.append(array)
        return np.concatenate(arrays)

    def _largest(self, layer: int, top: int, step: int) -> list[Edge]:
        starts, edges, heads = self._starts(), list[Edge](), 0
        (trace,) = self.traces
        for number, call in enumerate(self._calls(trace, layer)):
            for query, key in self._places(trace, layer, number):
                rows, columns = self.segments[query], self.segments[key]
                at_query = np.cumsum(rows.real) - 1 + starts[query]
                at_key = np.cumsum(columns.real) - 1 + starts[key]
                edges += [
                    (heads + head, int(at_query[q]), int(at_key[k]), share)
                    for head, q, k, share in call.largest(rows.row, step, top)
                    if q < len(rows.real) and k < len(columns.real)
                    if rows.real[q] and columns.real[k]
                ]
            heads += call.heads
        return sorted(edges, key=lambda edge: -abs(edge[3]))[:top]
