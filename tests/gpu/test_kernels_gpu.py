"""The Triton kernels on a GPU, against dense float64 arithmetic, at the sizes of real layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from normscope.kernels import Scratch, cell_lengths, scaled_sums
from tests.helpers.kernel_checks import (
    CHAINS,
    Step,
    check_cancelling,
    check_cell_lengths,
    check_elementwise,
    check_flash,
    check_gram,
    check_plain_block,
    check_quadratic,
    check_rows,
    check_scaled_sums,
)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


SHAPES = [
    *((1, 1, 1, 1), (2, 12, 257, 513), (1, 16, 128, 128), (3, 25, 77, 65), (1, 32, 200, 300)),
    *((1, 40, 31, 33), (1, 64, 65, 64), (1, 128, 33, 17)),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_quadratic_norms(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    check_quadratic(shape, dtype, torch.float32, "cuda")


@pytest.mark.parametrize("steps", CHAINS)
@pytest.mark.parametrize(
    ("heads", "rows", "size"), [(1, 1, 1), (12, 515, 768), (16, 64, 1024), (32, 33, 4096)]
)
def test_gram_matrices(heads: int, rows: int, size: int, steps: list[Step]) -> None:
    check_gram(heads, rows, size, steps, own=True, device="cuda")


@pytest.mark.parametrize("heads", [2, 12, 32, 64])
def test_cancelling_heads(heads: int) -> None:
    check_cancelling(heads, 301, 768, "cuda")


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [33, 768, 5120])
def test_row_lengths(size: int, dtype: torch.dtype, centred: bool) -> None:
    check_rows(77, size, dtype, centred, affine=size != 768, device="cuda")


@pytest.mark.parametrize("masked", ["", "padded", "added", "causal"])
@pytest.mark.parametrize(
    ("heads", "length", "size", "out"),
    [((1, 1), 1, 8, 5), ((12, 12), 128, 64, 768), ((12, 4), 77, 80, 300), ((16, 16), 100, 32, 96)],
)
def test_plain_block(heads: tuple[int, int], length: int, size: int, out: int, masked: str) -> None:
    check_plain_block(heads, length, size, out, masked, device="cuda")


@pytest.mark.parametrize("left", [1e-1, 1e-2, 1e-3])
def test_plain_block_with_cancelling_heads(left: float) -> None:
    check_plain_block((12, 12), 65, 64, 768, device="cuda", left=left)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(1, 1), (12, 12), (32, 8), (14, 2), (6, 2), (64, 8)])
def test_flash_norms(heads: tuple[int, int], dtype: torch.dtype) -> None:
    check_flash(heads, (130, 257), 64, dtype, device="cuda")


@pytest.mark.parametrize("size", [32, 48, 80, 128, 192, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flash_norms_of_head_sizes(size: int, dtype: torch.dtype) -> None:
    check_flash((8, 2), (100, 100), size, dtype, device="cuda")


@pytest.mark.parametrize("masked", ["", "padded", "added"])
@pytest.mark.parametrize("causal", [True, False])
def test_flash_norms_of_masks(causal: bool, masked: str) -> None:
    check_flash((8, 4), (190, 211), 64, torch.bfloat16, causal, masked, batch=2, device="cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 5000])
def test_elementwise_cotangents(count: int, dtype: torch.dtype) -> None:
    check_elementwise(count, dtype, "cuda")


CELL_SHAPES = [(1, 1, 1, 1), (2, 13, 12, 33), (1, 9, 5, 70), (1, 2, 33, 4)]  # batch key head query


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("size", [40, 3072])
@pytest.mark.parametrize("shape", CELL_SHAPES)
def test_scaled_sums(
    shape: tuple[int, int, int, int], size: int, terms: int, dtype: torch.dtype
) -> None:
    def compute(sums: Any, factors: Any) -> torch.Tensor:
        return scaled_sums(sums, factors, Scratch(), "triton")

    like = torch.empty((), dtype=dtype, device="cuda")
    check_scaled_sums(shape, size, terms, like, compute)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "steps",
    [(None, None), (None, (True, True)), ((True, False), (False, True)), ((False, True), None)],
)
@pytest.mark.parametrize("size", [40, 768, 5120])
@pytest.mark.parametrize("shape", CELL_SHAPES)
def test_cell_lengths(
    shape: tuple[int, int, int, int], size: int, steps: Any, dtype: torch.dtype
) -> None:
    like = torch.empty((), dtype=dtype, device="cuda")
    check_cell_lengths(shape, size, steps, like, partial(cell_lengths, kernels="triton"))
