"""The judge: what is larger than rounding, or not a number, is refused with its row and layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from normscope.engine.batch import Batch
from normscope.engine.judge import (
    BOUNDS,
    TF32,
    bound_of,
    check_masks,
    judge,
    judge_shares,
    share_bound,
)
from normscope.errors import ExactnessError, InputError
from normscope.models.architectures import tiny_inputs, tiny_model


@pytest.fixture
def batch() -> Batch:
    return Batch(tiny_model("bert"), tiny_inputs("bert"))


def judged(batch: Batch, gaps: Any, dtypes: Any = None, bound: float | None = None) -> None:
    layers = [f"layer.{index}" for index in range(len(gaps))]
    kinds = [{torch.float64} for _ in layers] if dtypes is None else dtypes
    judge(batch.model, batch, layers, kinds, {"attn_n": np.array(gaps)}, bound)


def test_rounding_passes_and_the_first_larger_gap_is_named(batch: Batch) -> None:
    judged(batch, [[0.0, 1e-12, 9e-12], [1e-13, 0.0, 0.0]])
    with pytest.raises(ExactnessError, match=r"row 2: attn_n of layer\.1: .* 2\.0e-11 .* 1e-11"):
        judged(batch, [[0.0, 0.0, 9e-12], [1e-13, 0.0, 2e-11]])


def test_each_layer_is_judged_by_its_own_dtypes(batch: Batch) -> None:
    wide = [{torch.float64, torch.float32}, {torch.float64}]
    judged(batch, [[9e-6], [0.0]], wide)
    with pytest.raises(ExactnessError, match=r"layer\.1"):
        judged(batch, [[9e-6], [9e-6]], wide)
    judged(batch, [[9e-6], [9e-6]], wide, bound=1e-5)


def test_numbers_that_are_not_finite_name_row_and_cause(batch: Batch) -> None:
    with pytest.raises(InputError, match=r"row 1: layer\.0 gives NaN .*overflow in float64"):
        judged(batch, [[0.0, np.nan, 0.0]])
    with torch.no_grad():
        next(batch.model.parameters())[0, 0] = torch.inf
    name = next(iter(batch.model.named_parameters()))[0]
    with pytest.raises(InputError, match=rf"row 0: .*parameter {name} contains NaN"):
        judged(batch, [[np.inf, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [
        (torch.float16, r"overflow in float16\. Use bfloat16 or float32.*--dtype float32"),
        (torch.bfloat16, r"overflow in bfloat16\. Use float64.*the model itself overflows"),
        (torch.float32, r"overflow in float32\. Use float64.*--dtype float64"),
        (torch.float64, r"overflow in float64\. No dtype has a larger range: the model itself"),
    ],
)
def test_advice_for_an_overflow_is_a_dtype_with_a_larger_range(
    batch: Batch, dtype: torch.dtype, advice: str
) -> None:
    with pytest.raises(InputError, match=advice):
        judged(batch, [[np.inf, 0.0, 0.0]], [{dtype}])
    with pytest.raises(InputError, match=advice.partition("\\. ")[2]):
        judge_shares("Model", np.array([[np.nan]]), {dtype}, difference=False, explain_gap=str)


def test_shares_of_a_difference_may_be_as_small_as_the_rounding_of_two_outputs() -> None:
    for dtype in (torch.float64, torch.float32, torch.float16):
        bound = share_bound({dtype}, difference=False)
        wider = share_bound({dtype}, difference=True)
        assert wider == min(10 * bound, 0.1)
        gaps = np.array([[0.0], [3 * bound]])
        judge_shares("Model", gaps, {dtype}, difference=True, explain_gap=str)
        with pytest.raises(ExactnessError, match=r"row 1: .*; the matrix\. The numbers"):
            judge_shares("M", gaps, {dtype}, difference=False, explain_gap=lambda: "the matrix")


def test_bounds_follow_the_coarsest_dtype() -> None:
    assert bound_of({torch.float64}) == BOUNDS[torch.float64]
    assert bound_of({torch.float64, torch.bfloat16}) == BOUNDS[torch.bfloat16]
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert bound_of({torch.float32}) == TF32
        assert bound_of({torch.bfloat16}) == BOUNDS[torch.bfloat16]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_masks(batch: Batch) -> None:
    blocked = torch.zeros(3, 9, dtype=torch.bool)
    check_masks(batch, "layer.0", blocked, None)
    blocked[1, 4] = True
    with pytest.raises(InputError, match=r"row 1, position 4 is a real token .* layer\.0"):
        check_masks(batch, "layer.0", blocked, None)
    weights, keys = torch.zeros(3, 9), torch.zeros(3, 9, dtype=torch.long)
    check_masks(batch, "layer.0", None, (weights, keys))
    weights[2, 3], keys[2, 3] = 0.25, 7
    with pytest.raises(InputError, match=r"row 2, position 3 attends to position 7, .*padding"):
        check_masks(batch, "layer.0", None, (weights, keys))
