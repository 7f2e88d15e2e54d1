"""Mergeable moments and bootstrap intervals, each by its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.testing import assert_allclose

from normscope.measures.statistics.moments import (
    grid,
    means,
    merge_moments,
    moments,
    spread,
    with_interval,
)

DRAW = np.random.default_rng(0)


def test_moments_of_sequences_counted_several_times() -> None:
    """Against the same tokens written out as often as they count, in two parts that are merged."""
    values = DRAW.normal(3, 2, (6, 5, 2))
    real = (np.arange(5) < np.array([5, 2, 1, 4, 3, 5])[:, None]).astype(float)
    values[real == 0] = np.nan  # of padding nothing is read
    weights = np.array(
        [[1, 1, 1, 1, 1, 1], [2, 0, 3, 1, 0, 1], [0, 0, 0, 0, 0, 2], [0, 0, 1, 0, 0, 0]],
        dtype=float,  # the last counts one token alone
    )
    whole = moments(values, real, weights)
    parts = merge_moments(
        moments(values[:4], real[:4], weights[:, :4]), moments(values[4:], real[4:], weights[:, 4:])
    )
    for state in (whole, parts):
        mean, sigma, variation = spread(state)
        for sample, often in enumerate(weights.astype(int)):
            rows = [r for r, n in enumerate(often) for _ in range(n)]
            pooled = np.concatenate([values[r][real[r] > 0] for r in rows])
            assert state["count"][sample] == len(pooled)
            assert_allclose(mean[sample], pooled.mean(axis=0), rtol=1e-12)
            assert_allclose(sigma[sample], pooled.std(axis=0), rtol=1e-12)
            assert_allclose(variation[sample], pooled.std(axis=0) / pooled.mean(axis=0), rtol=1e-12)


def test_nothing_has_no_spread() -> None:
    state = moments(np.zeros((1, 3)), np.ones((1, 3)), np.array([[1.0], [0.0]]))
    mean, sigma, variation = spread(state)
    assert mean.tolist() == sigma.tolist() == variation.tolist() == [0, 0]
    both = merge_moments(state, state)
    assert both["count"].tolist() == [6, 0]
    assert both["mean"].tolist() == both["deviation"].tolist() == [0, 0]


def test_means_of_nothing_are_not_numbers() -> None:
    found = means(np.array([3.0, 0.0, 1.0]), np.array([2.0, 0.0, 1.0]))
    assert found[[0, 2]].tolist() == [1.5, 1]
    assert np.isnan(found[1])


def test_intervals_are_quantiles_of_the_replicates_that_have_a_value() -> None:
    samples = DRAW.normal(size=(21, 2, 2))
    samples[3:9, 0, 1] = np.nan
    samples[1:, 1, 1] = np.nan
    made = with_interval("x", samples, 0.8)
    assert made["x"].tolist() == samples[0].ravel().tolist()
    for at, place in enumerate([(0, 0), (0, 1), (1, 0)]):
        there = samples[1:, *place][~np.isnan(samples[1:, *place])]
        assert_allclose(made["x_low"][at], np.quantile(there, 0.1), rtol=1e-12)
        assert_allclose(made["x_high"][at], np.quantile(there, 0.9), rtol=1e-12)
    assert np.isnan([made["x_low"][3], made["x_high"][3]]).all()
    assert np.isnan(with_interval("x", samples[:, 1:, 1], 0.8)["x_low"]).all()
    assert list(with_interval("x", samples[:1], 0.8)) == ["x"]


def test_deviations_do_not_cancel() -> None:
    """A mean a million times the deviation, in float64, merged one by one."""
    values = 1e8 + np.random.default_rng(0).normal(size=(50, 7))
    real = np.ones((50, 7))
    state: Any = None
    for row in np.random.default_rng(1).permutation(50):
        one = moments(values[[row]], real[[row]], np.ones((1, 1)))
        state = one if state is None else merge_moments(state, one)
    assert_allclose(spread(state)[1], values.std(), rtol=1e-7)
    whole = moments(values, real, np.ones((1, 50)))
    assert_allclose(spread(whole)[1], values.std(), rtol=1e-7)


def test_a_grid_has_every_combination_of_labels() -> None:
    labels = grid(category=["a", "b"], layer=range(3))
    assert list(zip(labels["category"].tolist(), labels["layer"].tolist(), strict=True)) == [
        *(("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2))
    ]
