"""Bootstrap intervals of means over texts, seeded."""

from __future__ import annotations

import numpy as np

from normscope.foundation.shapes import Float

AT_ONCE = 256  # resamples in memory together


def bootstrap_means(
    values: Float[np.ndarray, "text figure"], resamples: int, seed: int
) -> Float[np.ndarray, "resample figure"]:
    """Return the mean of each figure in each resample of the texts.

    All figures share the resamples, so that differences between them are paired. NaN stands for a
    text in which a figure is not defined; it is left out of that figure's mean.

    Args:
        values: a number for each text and figure.
        resamples: how many resamples, each of as many texts, drawn with replacement.
        seed: the seed of the drawing.
    """
    defined = np.isfinite(values)
    filled, weights = np.where(defined, values, 0.0), defined.astype(np.float64)
    draw, size = np.random.default_rng(seed), len(values)
    means = np.empty((resamples, values.shape[1]))
    for start in range(0, resamples, AT_ONCE):
        count = min(AT_ONCE, resamples - start)
        times = np.zeros((count, size))
        for row in range(count):
            times[row] = np.bincount(draw.integers(size, size=size), minlength=size)
        totals = times @ weights
        sums = times @ filled
        means[start : start + count] = np.divide(
            sums, totals, out=np.full_like(sums, np.nan), where=totals > 0
        )
    return means


def intervals(
    values: Float[np.ndarray, "text figure"], *, resamples: int, seed: int, confidence: float
) -> Float[np.ndarray, "end figure"]:
    """Return the ends of the percentile interval of each figure's mean; NaN without resamples."""
    if not resamples or not len(values):
        return np.full((2, values.shape[1]), np.nan)
    means = bootstrap_means(values, resamples, seed)
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    ends = np.full((2, values.shape[1]), np.nan)
    for at, column in enumerate(means.T):
        if np.isfinite(column).any():
            ends[:, at] = np.quantile(column[np.isfinite(column)], tails)
    return ends
