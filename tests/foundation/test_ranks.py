"""Spearman's rank correlation, against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import rankdata, spearmanr

from normscope.foundation.ranks import midranks, spearman


def test_ranks_of_values_that_occur_several_times() -> None:
    draw = np.random.default_rng(0)
    values, other = draw.integers(0, 9, 30).astype(float), draw.normal(size=30).round(1)
    counts = draw.integers(1, 4, 30)
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
