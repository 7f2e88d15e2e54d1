"""Means, deviations and intervals that can be merged, with an axis of bootstrap samples first.

Sums of many numbers are kept as a count, a mean and the sum of squared deviations from that mean:
subtracting the square of a mean from a mean of squares would lose the digits that matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.foundation.shapes import Float
from normscope.measures.statistics.base import State

Array = NDArray[np.float64]


def moments(
    values: Float[np.ndarray, "row token *rest"],
    real: Float[np.ndarray, "row token"],
    weights: Float[np.ndarray, "sample row"],
) -> State:
    """Count, mean and squared deviations of tokens, each sequence counted by its weight."""
    shape = (*real.shape, *(1,) * (values.ndim - 2))
    there = real.reshape(shape)
    count = real.sum(axis=1)  # by row
    values = np.where(there > 0, values, 0)
    mean = values.sum(axis=1) / count.reshape(-1, *shape[2:])
    deviation = (np.square(values - mean[:, None]) * there).sum(axis=1)
    return over_rows(count, mean, deviation, weights)


def over_rows(count: Array, mean: Array, deviation: Array, weights: Array) -> State:
    """The same of sequences that have their count, mean and deviations already."""
    often = weights * count  # sample row
    total = often.sum(axis=1)
    centre = np.tensordot(count, mean, 1) / max(count.sum(), 1)
    apart = mean - centre
    safe = np.maximum(total, 1).reshape(-1, *(1,) * (mean.ndim - 1))
    shift = np.tensordot(often, apart, 1) / safe
    squares = np.tensordot(weights, deviation, 1) + np.tensordot(often, np.square(apart), 1)
    squares -= total.reshape(safe.shape) * np.square(shift)
    return {"count": total, "mean": centre + shift, "deviation": np.maximum(squares, 0)}


def merge_moments(one: State, other: State) -> State:
    """The moments of both parts."""
    shape = (-1, *(1,) * (one["mean"].ndim - 1))
    a, b = one["count"].reshape(shape), other["count"].reshape(shape)
    total = a + b
    safe = np.maximum(total, 1)
    apart = other["mean"] - one["mean"]
    return {
        "count": one["count"] + other["count"],
        "mean": (a * one["mean"] + b * other["mean"]) / safe,
        "deviation": one["deviation"] + other["deviation"] + np.square(apart) * (a * b / safe),
    }


def spread(state: State) -> tuple[Array, Array, Array]:
    """Mean, population σ and coefficient of variation."""
    count = np.maximum(state["count"], 1).reshape(-1, *(1,) * (state["mean"].ndim - 1))
    sigma = np.sqrt(state["deviation"] / count)
    mean = state["mean"]
    return mean, sigma, np.divide(sigma, mean, out=np.zeros_like(sigma), where=mean != 0)


def add(one: State, other: State) -> State:
    """States of nothing but sums, added up entry by entry."""
    return {name: value + other[name] for name, value in one.items()}


def means(sums: Array, counts: Array) -> Array:
    """Sums by counts; NaN where there is nothing to take the mean of."""
    return np.divide(sums, counts, out=np.full(np.shape(sums), np.nan), where=counts > 0)


def with_interval(
    name: str, samples: Float[np.ndarray, "*sample_first"], confidence: float
) -> dict[str, Any]:
    """A column, and its bootstrap interval as two more where there are replicates."""
    columns: dict[str, Any] = {name: samples[0].ravel()}
    if len(samples) > 1:
        tail = (1 - confidence) / 2
        flat = samples[1:].reshape(len(samples) - 1, -1)
        low, high = (np.full(flat.shape[1], np.nan) for _ in range(2))
        there = ~np.isnan(flat).all(axis=0)
        if there.any():
            low[there], high[there] = np.nanquantile(flat[:, there], [tail, 1 - tail], axis=0)
        columns |= {f"{name}_low": low, f"{name}_high": high}
    return columns


def grid(**axes: Any) -> dict[str, Any]:
    """Label columns for every combination of some axes' labels, the last axis fastest."""
    sizes = [len(labels) for labels in axes.values()]
    places = np.indices(sizes).reshape(len(sizes), -1)
    return {
        name: np.asarray(labels)[place]
        for (name, labels), place in zip(axes.items(), places, strict=True)
    }
