"""Spearman's rank correlation of values that occur several times.

`scipy.stats.spearmanr` would have to be given every occurrence of a value, and scipy is not a
dependency of normscope; the tests compare the two.
"""

from __future__ import annotations

import numpy as np

from normscope.foundation.shapes import Float


def midranks(
    values: Float[np.ndarray, " value"], counts: Float[np.ndarray, " value"] | None = None
) -> Float[np.ndarray, " value"]:
    """Return the rank of each value, from 1; equal values share their average rank.

    Args:
        values: The values to rank.
        counts: How often each of them occurs; once by default.
    """
    counts = np.ones(len(values)) if counts is None else counts
    _, group = np.unique(values, return_inverse=True)
    sizes = np.bincount(group, weights=counts)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[group]


def spearman(
    x: Float[np.ndarray, " pair"],
    y: Float[np.ndarray, " pair"],
    counts: Float[np.ndarray, " pair"] | None = None,
) -> float:
    """Return Spearman's ρ of pairs (x, y), each of which occurs `counts` times (once by default).

    It is NaN for fewer than two pairs, and if all x or all y are equal.
    """
    counts = np.ones(len(x)) if counts is None else counts
    total = counts.sum()
    if total < 2:
        return float("nan")
    a, b = (midranks(values, counts) - (total + 1) / 2 for values in (x, y))
    size = np.sqrt((counts * a * a).sum() * (counts * b * b).sum())
    return float(np.clip((counts * a * b).sum() / size, -1, 1)) if size > 0 else float("nan")
