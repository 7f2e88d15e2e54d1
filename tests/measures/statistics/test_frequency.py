"""Points of tokens beyond the limit: counted together, rounded, the same in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import spearmanr

from normscope.measures.statistics import StatisticSettings, frequency
from normscope.measures.statistics.frequency import Frequency


def test_many_tokens_lose_bits_and_not_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the numbers are the same in any order, and still near."""
    monkeypatch.setattr("normscope.measures.statistics.frequency.LIMIT", 1000)
    draw = np.random.default_rng(0)
    rank, value = draw.integers(1, 40, 4000), draw.normal(size=4000)
    value = np.exp(value - 0.03 * rank)
    statistic = Frequency(StatisticSettings())

    def part(here: Any) -> Any:
        count = np.ones(len(here), dtype=np.int64)
        group = (2 * rank[here]).astype(np.int32)
        return {"alpha": {"dropped": 0, "group": group, "value": value[here], "count": count}}

    found = []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(4000)
        cuts = np.sort(np.random.default_rng(seed).choice(np.arange(1, 4000), 9 + 20 * seed))
        state: Any = None
        for here in np.split(order, cuts):
            state = part(here) if state is None else statistic.merge(state, part(here))
        assert len(state["alpha"]["value"]) <= 2000
        found.append(statistic.result(state)["frequency"].columns["spearman"][0])
    assert_allclose(found, found[0], rtol=0, atol=1e-14)
    exact = spearmanr(rank, value).statistic
    assert 0 < abs(found[0] - exact) < 0.02


@pytest.mark.parametrize(("distinct", "dropped"), [(9, 0), (10, 0), (11, 1)])
def test_no_bit_is_lost_up_to_the_limit(
    distinct: int, dropped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours of 1, each twice: beyond the limit the last bit goes, and with it half of them."""
    monkeypatch.setattr(frequency, "LIMIT", 10)
    value = np.repeat(1 + np.arange(distinct) * 2.0**-52, 2)
    ones = np.ones(2 * distinct, dtype=np.int64)
    part = {"dropped": 0, "group": 4 * ones.astype(np.int32), "value": value, "count": ones}
    made = frequency.compact(part, 12)
    assert made["dropped"] == dropped
    kept = np.unique(value) if not dropped else 1 + np.arange(0, distinct, 2) * 2.0**-52
    assert made["value"].tolist() == kept.tolist()
    assert made["count"].sum() == 2 * distinct
    assert frequency.compact(part, 2 * distinct) is part  # few enough to be left as they are


@pytest.mark.parametrize(("points", "kept"), [(20, 20), (21, 7)])
def test_equal_points_are_counted_together_beyond_twice_the_limit(
    points: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frequency, "LIMIT", 10)

    def part(here: Any) -> Any:
        ones = np.ones(len(here), dtype=np.int64)
        group = 4 * ones.astype(np.int32)
        return {"alpha": {"dropped": 0, "group": group, "value": here % 7 * 1.0, "count": ones}}

    one, other = part(np.arange(8)), part(np.arange(8, points))
    merged = Frequency(StatisticSettings()).merge(one, other)["alpha"]
    assert len(merged["value"]) == kept
    assert merged["count"].sum() == points
    assert merged["dropped"] == 0
