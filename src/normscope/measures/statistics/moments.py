"""Means, deviations and intervals that can be merged; the first axis is bootstrap samples.

Moments are kept as a count, a mean and the sum of squared deviations from that mean: the mean of
squares less the square of the mean would cancel to few significant digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.foundation.shapes import Float
from normscope.measures.statistics.base import StatisticState

Array = NDArray[np.float64]


def sums_by_category(
    values: Float[NDArray[Any], "row layer measure token"],
    member: Float[NDArray[Any], "row token category"],
) -> Float[NDArray[Any], "row category layer measure"]:
    """Add up the values of each category's tokens."""
    rows, layers, measures, tokens = values.shape
    sums = values.reshape(rows, layers * measures, tokens) @ member
    return sums.transpose(0, 2, 1).reshape(rows, -1, layers, measures)


def moments(
    values: Float[np.ndarray, "row token *rest"],
    real: Float[np.ndarray, "row token"],
    weights: Float[np.ndarray, "sample row"],
) -> StatisticState:
    """Return count, mean and squared deviations over tokens, with each row counted by its weight.

    Args:
        values: The numbers of each token.
        real: 1 for tokens and 0 for padding.
        weights: How often each row counts in each sample.
    """
    shape = (*real.shape, *(1,) * (values.ndim - 2))
    tokens = real.reshape(shape)
    count = real.sum(axis=1)  # of each row
    values = np.where(tokens > 0, values, 0)
    mean = values.sum(axis=1) / count.reshape(-1, *shape[2:])
    deviation = (np.square(values - mean[:, None]) * tokens).sum(axis=1)
    return over_rows(count, mean, deviation, weights)


def over_rows(count: Array, mean: Array, deviation: Array, weights: Array) -> StatisticState:
    """Combine the moments of single rows, with each row counted by its weight."""
    row_counts = weights * count  # sample row
    total = row_counts.sum(axis=1)
    centre = np.tensordot(count, mean, 1) / max(count.sum(), 1)
    offset = mean - centre
    safe = np.maximum(total, 1).reshape(-1, *(1,) * (mean.ndim - 1))
    shift = np.tensordot(row_counts, offset, 1) / safe
    squares = np.tensordot(weights, deviation, 1) + np.tensordot(row_counts, np.square(offset), 1)
    squares -= total.reshape(safe.shape) * np.square(shift)
    return {"count": total, "mean": centre + shift, "deviation": np.maximum(squares, 0)}


def merge_moments(one: StatisticState, other: StatisticState) -> StatisticState:
    """Return the moments of two parts together."""
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


def spread(state: StatisticState) -> tuple[Array, Array, Array]:
    """Return mean, standard deviation of the population and coefficient of variation."""
    count = np.maximum(state["count"], 1).reshape(-1, *(1,) * (state["mean"].ndim - 1))
    sigma = np.sqrt(state["deviation"] / count)
    mean = state["mean"]
    return mean, sigma, np.divide(sigma, mean, out=np.zeros_like(sigma), where=mean != 0)


def add(one: StatisticState, other: StatisticState) -> StatisticState:
    """Add two states that consist of sums, entry by entry."""
    return {name: value + other[name] for name, value in one.items()}


def means(sums: Array, counts: Array) -> Array:
    """Divide sums by counts; NaN where the count is 0."""
    return np.divide(sums, counts, out=np.full(np.shape(sums), np.nan), where=counts > 0)


def with_interval(
    name: str, samples: Float[np.ndarray, "*sample_first"], confidence: float
) -> dict[str, Any]:
    """Return a column and, if there are replicates, its bootstrap interval as two more columns."""
    columns: dict[str, Any] = {name: samples[0].ravel()}
    if len(samples) > 1:
        tail = (1 - confidence) / 2
        flat = samples[1:].reshape(len(samples) - 1, -1)
        low, high = (np.full(flat.shape[1], np.nan) for _ in range(2))
        defined = ~np.isnan(flat).all(axis=0)
        if defined.any():
            quantiles = np.nanquantile(flat[:, defined], [tail, 1 - tail], axis=0)
            low[defined], high[defined] = quantiles
        columns |= {f"{name}_low": low, f"{name}_high": high}
    return columns


def grid(**axes: Any) -> dict[str, Any]:
    """Return label columns for every combination of the axes' labels, the last axis fastest."""
    sizes = [len(labels) for labels in axes.values()]
    places = np.indices(sizes).reshape(len(sizes), -1)
    return {
        name: np.asarray(labels)[place]
        for (name, labels), place in zip(axes.items(), places, strict=True)
    }
