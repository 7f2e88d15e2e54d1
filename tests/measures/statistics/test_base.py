"""Rows, tables, the choice of statistics and the merging of states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from normscope.errors import InputError
from normscope.measures.statistics import Measurer, Row, StatisticSettings, Table, choose, merge
from tests.helpers.slow_statistics import bert, corpus, tokenizer

ROWS = corpus()


def test_merge_with_nothing() -> None:
    statistics = choose("dispersion")
    state = Measurer(bert(), tokenizer(), statistics, StatisticSettings()).measure(ROWS[:2])
    assert merge(statistics, {}, state) == state
    assert merge(statistics, state, {}) == state
    assert merge(statistics, {}, {}) == {}


def test_tables() -> None:
    table = Table({"a": [1, 2], "b": np.array([0.1, np.nan])}, "title", notes="notes")
    assert table.to_csv() == "a,b\n1,0.1\n2,nan\n"
    assert table.rows()[0] == {"a": 1, "b": 0.1}
    assert table.to_pandas().shape == (2, 2)
    assert table.to_arrow().column_names == ["a", "b"]
    with pytest.raises(InputError, match="equally long"):
        Table({"a": [1], "b": [1, 2]})


@pytest.mark.parametrize("names", [["dispersal"], [], "mixing,nothing"])
def test_unknown_statistics(names: Any) -> None:
    with pytest.raises(InputError, match="valid are: dispersion, categories"):
        choose(names)


def test_bad_rows() -> None:
    with pytest.raises(InputError, match=r"row 3 needs .* one entry for each token"):
        Row(3, (1, 2), None, (True,))
    with pytest.raises(InputError, match="at least one token"):
        Row(3, (), None, ())
