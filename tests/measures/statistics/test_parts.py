"""The small parts of the statistics, each by its definition: hashes, moments, intervals, ranks."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import poisson, rankdata, spearmanr

from normscope.measures.statistics import Settings, hashing
from normscope.measures.statistics.feedforward import AmplifiedPairs, Change
from normscope.measures.statistics.moments import (
    means,
    merge_moments,
    moments,
    spread,
    with_interval,
)
from normscope.measures.statistics.ranks import midranks, spearman

BITS = 2**64 - 1
NUMBERS = [0, 1, 5, 2**31, 2**62 + 12345, -1, -(2**63), 2**63 - 1]
DRAW = np.random.default_rng(0)


def folded(x: int, number: int) -> int:
    """One step of splitmix64 from the state x ⊕ number, in whole numbers without a sign."""
    x = (((x ^ number) & BITS) + 0x9E3779B97F4A7C15) & BITS
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & BITS
    x = (x ^ x >> 27) * 0x94D049BB133111EB & BITS
    return x ^ x >> 31


def begun(seed: int, purpose: int, key: int) -> int:
    return folded(folded(seed & BITS, purpose), key)


def test_hashes_are_splitmix64() -> None:
    assert folded(0, 0) == 0xE220A8397B1DCDAF  # the first number it gives from a seed of 0
    keys = torch.tensor(NUMBERS)
    for seed in (0, 3, 2**64 - 2):
        made = hashing.begin(seed, hashing.MASKING, keys)
        expected = [begun(seed, 1, key) for key in NUMBERS]
        assert [one & BITS for one in made.tolist()] == expected
        assert hashing.nonnegative(made).tolist() == [one >> 1 for one in expected]
        assert hashing.uniform(made).tolist() == [(one >> 11) / 2**53 for one in expected]
        again = hashing.fold(made, 2**63 + 9)
        assert [one & BITS for one in again.tolist()] == [folded(x, 2**63 + 9) for x in expected]


def test_resampling_is_by_the_quantiles_of_a_poisson_variable() -> None:
    keys = np.arange(40)
    drawn = hashing.resampling_weights(keys, 7, 30)
    assert drawn.shape == (31, 40)
    for sample in range(30):
        for key in range(40):
            chance = (folded(begun(7, hashing.RESAMPLING, key), sample) >> 11) / 2**53
            assert drawn[sample + 1, key] == poisson.ppf(chance, 1)
    assert drawn.max() >= 4


@pytest.mark.parametrize(("count", "share", "wanted"), [(50, 0.12, 6), (3, 0.1, 1), (8, 0.5, 4)])
def test_masked_are_those_with_the_smallest_hashes(count: int, share: float, wanted: int) -> None:
    free = np.sort(DRAW.choice(100, count, replace=False))
    hashes = [folded(begun(2, hashing.MASKING, 11), int(place)) for place in free]
    signed = [one - 2**64 if one >= 2**63 else one for one in hashes]
    expected = sorted(free[np.argsort(signed)[:wanted]].tolist())
    assert hashing.masked_positions(11, free, share, 2).tolist() == expected
    assert hashing.masked_positions(11, free, 0.0, 2).tolist() == []


def test_the_first_sequence_and_one_in_so_many_is_checked() -> None:
    keys = np.arange(200)
    expected = [key == 0 or (begun(5, hashing.CHECKING, key) >> 1) % 8 == 0 for key in range(200)]
    assert hashing.is_checked(keys, 5, 8).tolist() == expected
    assert 10 < sum(expected) < 50


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


def test_ranks_of_values_that_occur_several_times() -> None:
    values, other = DRAW.integers(0, 9, 30).astype(float), DRAW.normal(size=30).round(1)
    counts = DRAW.integers(1, 4, 30)
    written = np.repeat(values, counts)
    expected = rankdata(written)[np.cumsum(counts) - 1]
    assert_allclose(midranks(values, counts.astype(float)), expected, rtol=1e-14)
    assert_allclose(midranks(values), rankdata(values), rtol=1e-14)
    rho = spearmanr(written, np.repeat(other, counts)).statistic
    assert spearman(values, other, counts.astype(float)) == pytest.approx(rho, rel=1e-12)
    assert spearman(values, other) == pytest.approx(spearmanr(values, other).statistic, rel=1e-12)


def test_correlations_that_do_not_exist() -> None:
    one, two = np.array([1.0]), np.array([1.0, 2.0])
    assert np.isnan(spearman(one, one))
    assert np.isnan(spearman(two[:0], two[:0]))
    assert np.isnan(spearman(np.array([3.0, 3.0]), two))
    assert spearman(two, two) == 1
    assert spearman(two, -two) == -1


# ---- what the feed-forward changes


def test_a_change_that_is_not_defined_counts_for_nothing() -> None:
    class Noted(SimpleNamespace):
        def __getitem__(self, name: str) -> Any:
            return self.noted[0][name]

    found = np.array([[0.5, 0.25], [-1.0, 0.75], [0.125, -1.0]])  # row layer; −1: not defined
    batch: Any = Noted(noted=[{"change_a → b": found}], weights=np.array([[1.0, 1, 1], [2, 5, 0]]))
    state = inspect.unwrap(Change.measure)(Change(Settings()), batch)  # types are not checked
    assert state["steps"].tolist() == ["a → b"]
    assert state["sum"][..., 0].tolist() == [[0.625, 1.0], [1.0, 4.25]]
    assert state["sequences"][..., 0].tolist() == [[2, 2], [2, 7]]


def test_amplified_pairs_stand_in_order() -> None:
    """By layer; the more frequent first, then the larger, then by the query's and the key's id."""
    cells = [  # layer, difference, query id, key id
        *((0, 0.5, 9, 1), (0, 0.25, 9, 1)),  # twice
        *((0, 4.0, 3, 8), (0, 2.0, 3, 6), (0, 2.0, 2, 7), (0, 2.0, 3, 5)),
        (1, 9.0, 1, 1),
    ]
    layer, difference, query, key = (np.array(one) for one in zip(*cells, strict=True))
    places = np.zeros_like(layer)
    state = {
        "cells": {
            "layer": layer,
            "difference": difference,
            "query_id": query,
            "key_id": key,
            **dict.fromkeys(("sequence", "query", "key"), places),
        },
        "tokens": {str(i): f"t{i}" for i in range(10)},
    }
    table = AmplifiedPairs(Settings()).result(state)["pairs"].columns
    names = ("layer", "query_token", "key_token", "count")
    assert list(zip(*(list(table[name]) for name in names), strict=True)) == [
        (0, "t9", "t1", 2),
        (0, "t3", "t8", 1),
        (0, "t2", "t7", 1),
        (0, "t3", "t5", 1),
        (0, "t3", "t6", 1),
        (1, "t1", "t1", 1),
    ]
    assert table["mean_difference"][0] == 0.375
    assert table["max_difference"][0] == 0.5
