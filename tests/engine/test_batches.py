"""Batches of like lengths, and halves of those that do not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.engine.batches import by_length, halves
from normscope.errors import InputError

LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), max_size=30)


@given(lengths=LENGTHS, budget=st.integers(1, 400))
def test_every_row_once_within_the_budget(lengths: list[tuple[int, int]], budget: int) -> None:
    batches = list(by_length(lengths, budget))
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    order = [lengths[row] for batch in batches for row in batch]
    assert order == sorted(lengths, reverse=True)
    for batch in batches:
        padded = [max(lengths[row][side] for row in batch) for side in (0, 1)]
        assert len(batch) == 1 or len(batch) * sum(padded) <= budget


def test_batches_are_as_large_as_the_budget_allows() -> None:
    assert list(by_length([(5,), (4,), (5,), (1,)], 10)) == [[0, 2], [1, 3]]
    assert list(by_length([(5, 5), (5, 1), (4, 5)], 20)) == [[0, 1], [2]]
    assert list(by_length([], 10)) == []


def test_halves() -> None:
    with pytest.warns(
        RuntimeWarning, match="5 of these rows do not fit .* continuing with 3 at a time"
    ):
        assert halves([1, 2, 3, 4, 5], "these rows") == ([1, 2], [3, 4, 5])
    with pytest.raises(InputError, match="not enough GPU memory for even one of these rows"):
        halves([1], "these rows")
