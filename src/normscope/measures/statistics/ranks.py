"""Spearman's rank correlation of counted pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from normscope.foundation.shapes import Float

Array = NDArray[np.float64]


def midranks(
    values: Float[np.ndarray, " pair"], counts: Float[np.ndarray, " pair"] | None = None
) -> Float[np.ndarray, " pair"]:
    """Ranks from 1 on, of values that each occur so often; equal ones share the average."""
    counts = np.ones(len(values)) if counts is None else counts
    _, where = np.unique(values, return_inverse=True)
    masses = np.bincount(where, weights=counts)
    return (np.cumsum(masses) - (masses - 1) / 2)[where]


def spearman(
    x: Float[np.ndarray, " pair"],
    y: Float[np.ndarray, " pair"],
    counts: Float[np.ndarray, " pair"] | None = None,
) -> float:
    """ρ; NaN where one side is the same throughout, or there are fewer than two pairs."""
    counts = np.ones(len(x)) if counts is None else counts
    total = counts.sum()
    if total < 2:
        return float("nan")
    a, b = (midranks(values, counts) - (total + 1) / 2 for values in (x, y))
    size = np.sqrt((counts * a * a).sum() * (counts * b * b).sum())
    return float(np.clip((counts * a * b).sum() / size, -1, 1)) if size > 0 else float("nan")
