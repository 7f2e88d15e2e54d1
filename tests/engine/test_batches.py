"""Batches of like lengths, and halves of those that do not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.engine.batches import by_length, halves, padded_length
from normscope.errors import InputError
from normscope.measures.analysis import gpu_budget

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


def test_lengths_in_steps_give_few_shapes() -> None:
    lengths = [(n % 111 + 10,) for n in range(1000)]
    batches = list(by_length(lengths, 2048, 16))
    assert sorted(row for batch in batches for row in batch) == list(range(1000))
    shapes = [
        (len(batch), padded_length([lengths[row][0] for row in batch], 16, None))
        for batch in batches
    ]
    assert all(rows * length <= 2048 for rows, length in shapes)
    assert all(shape == (2048 // shape[1], shape[1]) for shape in shapes[:-1])
    assert len(set(shapes)) <= 8


def test_padding_to_a_multiple_within_the_limit() -> None:
    assert padded_length([3, 17, 5], 16, None) == 32
    assert padded_length([3, 17, 5], 16, 20) == 20
    assert padded_length([3, 16], 16, 64) == 16
    assert padded_length([17, 17], 16, 64) == 17  # no padding, where none is needed
    assert padded_length([17], 16, 64) == 17


def test_a_budget_that_depends_on_the_length() -> None:
    lengths = [(100,)] * 5 + [(10,)] * 50
    batches = list(by_length(lengths, lambda length: 300 if length > 50 else 200))
    assert [len(batch) for batch in batches] == [3, 3, 20, 20, 9]


def test_batches_of_a_gpu_are_larger_for_short_texts_only() -> None:
    lengths = [(length,) for length in (2000, 1024, 512, 128, 64, 16) for _ in range(1000)]
    batches = list(by_length(lengths, gpu_budget, 16))
    rows = {lengths[batch[-1]][0]: len(batch) for batch in batches[:-1]}
    assert rows[2000] == 1  # as on a CPU
    assert rows[1024] == 2
    assert rows[512] == 8
    assert rows[128] == rows[64] // 2 == 128
    assert rows[16] == 512  # not more, however short they are
