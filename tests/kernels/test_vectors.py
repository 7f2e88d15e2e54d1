"""The vectors of every cell of a block, in torch operations, against slow loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from normscope.kernels import Scratch, cell_lengths, scaled_sums, sum_over_keys
from tests.helpers.kernel_checks import (
    cell_sums,
    check_cell_lengths,
    check_scaled_sums,
    dense_sums,
)

SHAPES = [(1, 1, 1, 1), (2, 3, 12, 5), (1, 9, 5, 37)]  # batch key head query
DTYPES = [torch.float64, torch.float32]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_scaled_sums(shape: tuple[int, int, int, int], terms: int, dtype: torch.dtype) -> None:
    def compute(sums: Any, factors: Any) -> torch.Tensor:
        return scaled_sums(sums, factors, Scratch())

    check_scaled_sums(shape, 40, terms, torch.empty((), dtype=dtype), compute)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("branch", [None, (True, True), (True, False), (False, True)])
@pytest.mark.parametrize("after", [None, (True, True), (False, False)])
@pytest.mark.parametrize("shape", SHAPES)
def test_cell_lengths(
    shape: tuple[int, int, int, int], branch: Any, after: Any, dtype: torch.dtype
) -> None:
    check_cell_lengths(shape, 40, (branch, after), torch.empty((), dtype=dtype), cell_lengths)


@pytest.mark.parametrize("shape", SHAPES)
def test_sum_over_keys(shape: tuple[int, int, int, int]) -> None:
    sums = cell_sums(shape, 40, torch.empty((), dtype=torch.float64))
    torch.testing.assert_close(sum_over_keys(sums), dense_sums(sums).sum(dim=1))
