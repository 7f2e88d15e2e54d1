"""Shares inside a model, layer by layer, and the check that shares add up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.results.arrays import LabelledArray

Edge = tuple[int, int, int, float]  # head, query, key, share
SLACK = 10.0  # shares of averaged baselines cancel, which raises their relative gap
ROUNDING = 1e-6


@runtime_checkable
class EdgeSource(Protocol):
    """An object that computes the edges of a layer when they are asked for."""

    def edges(self, layer: int, *, top: int | None, step: int | None) -> LabelledArray | list[Edge]:
        """Return (head, query, key), or with `top` the largest as (head, query, key, share)."""


@dataclass(frozen=True, eq=False)
class TracedShares:
    """What a trace keeps of each layer; all arrays are signed shares of the same value.

    With several answers every array has a first axis "step". Arrays may be NumPy arrays.

    Attributes:
        layers: (layer, token): shares of the states at every cut: entry l is the state that enters
            layer l, and the last entry the state that leaves the last layer.
        layer_bias: (layer,): the share of the biases above each cut.
        layer_error: (layer,): the relative gap at each cut.
        heads: (layer, head): what each head of a layer added.
        heads_error: (layer,): the relative gap of the heads' shares.
        feed_forward: (layer, token): what the feed-forward added at each token.
        feed_forward_error: (layer,): the relative gap of the feed-forward's shares.
        edges: (layer, head, query, key), or an object that computes the edges of a layer when they
            are asked for. Such an object is not saved.
    """

    layers: Any
    layer_bias: Any
    layer_error: Any
    heads: Any = None
    heads_error: Any = None
    feed_forward: Any = None
    feed_forward_error: Any = None
    edges: Any = None


TRACE_AXES = {
    "layers": ("layer", "token"),
    "layer_bias": ("layer",),
    "layer_error": ("layer",),
    "heads": ("layer", "head"),
    "heads_error": ("layer",),
    "feed_forward": ("layer", "token"),
    "feed_forward_error": ("layer",),
    "edges": ("layer", "head", "query", "key"),
}


def relative_gap(value: Any, shares: Any, bias: Any) -> NDArray[np.float64]:
    """Return |value − Σ shares − bias| / (Σ|shares| + |bias|), with shares along the last axis."""
    value, shares, bias = (np.asarray(x, dtype=np.float64) for x in (value, shares, bias))
    missing = np.abs(value - shares.sum(axis=-1) - bias)
    size = np.abs(shares).sum(axis=-1) + np.abs(bias)
    # Without any share the value itself is missing.
    size = np.where(size > 0, size, np.where(missing > 0, missing, 1.0))
    return np.asarray(missing / size)


def with_gaps(trace: TracedShares, value: Any) -> TracedShares:
    """Return a trace whose errors are at least the gaps of its summed shares."""
    gap = relative_gap(np.asarray(value)[..., None], trace.layers, trace.layer_bias)
    return replace(trace, layer_error=np.maximum(gap, np.asarray(trace.layer_error)))


def check_gap(gap: NDArray[np.float64], error: Any, what: str) -> None:
    """Raise InputError if a gap is larger than what was reported for it."""
    excess = gap - (SLACK * np.asarray(error) + ROUNDING)
    if excess.max(initial=0.0) > 0:
        raise InputError(
            f"{what} do not add up: the relative gap is {gap.max():.1e}, and the error given is "
            f"{np.max(error):.1e}"
        )
