"""The Triton kernels on the CPU, through Triton's interpreter.

Triton decides when it is imported whether it interprets: test_triton.py runs these in a process of
their own.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import normscope
from normscope.decomposition.available import available
from normscope.errors import ExactnessError
from normscope.kernels import Linear, ScoreInputs, Scratch, cell_lengths, scaled_sums
from normscope.kernels.gram import gram_matrices
from normscope.models.architectures import tiny_inputs, tiny_model
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
    kernels,
    numbers,
)
from tests.helpers.profiles import examples


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def repaired_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6's takes int() of an array with one element, which NumPy 2.4 refuses."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


SHAPES = [(1, 1, 1, 1), (2, 12, 7, 33), (1, 5, 17, 9), (1, 16, 3, 4), (1, 33, 5, 6), (1, 128, 2, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_quadratic_norms(shape: tuple[int, int, int, int]) -> None:
    check_quadratic(shape, torch.float32, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_quadratic_norms_of_other_dtypes(dtype: torch.dtype) -> None:
    check_quadratic((2, 4, 140, 5), dtype, torch.float64)


@pytest.mark.parametrize("steps", CHAINS)
@pytest.mark.parametrize(("heads", "rows", "size"), [(1, 1, 1), (12, 5, 70), (17, 3, 32)])
def test_gram_matrices(heads: int, rows: int, size: int, steps: list[Step]) -> None:
    check_gram(heads, rows, size, steps, own=True)


def test_gram_matrices_of_many_heads() -> None:
    check_gram(40, 3, 20, [(True, True)], own=True)
    check_gram(3, 4, 20, [(True, True)], own=False)


@pytest.mark.parametrize("heads", [2, 12, 32])
def test_cancelling_heads(heads: int) -> None:
    check_cancelling(heads, 9, 96)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(
    ("rows", "size", "dtype", "affine"),
    [(1, 2, torch.float32, True), (5, 33, torch.bfloat16, True), (3, 64, torch.float16, False)],
)
def test_row_lengths(rows: int, size: int, dtype: torch.dtype, affine: bool, centred: bool) -> None:
    check_rows(rows, size, dtype, centred, affine)


@pytest.mark.parametrize(
    ("heads", "length", "size", "out", "masked"),
    [
        ((1, 1), 1, 8, 5, ""),
        ((4, 4), 37, 8, 40, "padded"),
        ((2, 2), 9, 8, 40, "added"),
        ((3, 1), 20, 20, 60, "causal"),
        ((12, 12), 5, 16, 192, ""),
    ],
)
def test_plain_block(heads: tuple[int, int], length: int, size: int, out: int, masked: str) -> None:
    check_plain_block(heads, length, size, out, masked)


@pytest.mark.parametrize("left", [1e-1, 1e-3])
def test_plain_block_with_cancelling_heads(left: float) -> None:
    check_plain_block((4, 4), 7, 16, 48, left=left)


PLAIN = ("attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n", "atb", "atb_ln")


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_plain_blocks_of_whole_models(family: str) -> None:
    model, inputs = tiny_model(family, dtype=torch.float32), tiny_inputs(family)
    maps = [name for names in available(model).values() for name in PLAIN if name in names]
    options: Any = {"maps": maps, "attention": "fused"}
    found = normscope.analyze_inputs(model, inputs, kernels="triton", **options)
    exact = normscope.analyze_inputs(model, inputs, precision="float64", **options)
    for row, other in zip(found, exact, strict=True):
        assert max(row.error.values()) < 2e-6
        for name in maps:
            bound = 1e-5 * float(other[name].values.max())
            np.testing.assert_allclose(row[name].values, other[name].values, rtol=0, atol=bound)
            ratio, expected = row.mixing_ratio[name].values, other.mixing_ratio[name].values
            np.testing.assert_allclose(ratio, expected, rtol=0, atol=2e-6)
    options["reduce"] = ("mixing_ratio", "row_sum", "top3")
    reduced = normscope.analyze_inputs(model, inputs, kernels="triton", **options)
    for row, other in zip(reduced, exact, strict=True):
        for name in maps:
            largest = -np.sort(-other[name].values, axis=-1)[..., :3]
            top = row.top_value[name].values[..., : largest.shape[-1]]
            np.testing.assert_allclose(top, largest, rtol=0, atol=1e-5 * largest.max())
            sums = other[name].values.sum(axis=-1)
            np.testing.assert_allclose(row.row_sum[name].values, sums, rtol=1e-5)


@pytest.mark.parametrize("part", ["output.dense", "output.LayerNorm"])
def test_products_of_an_old_weight_are_noticed(part: str) -> None:
    """A write that torch does not count, in a layer whose cells are not computed again."""
    model, inputs = tiny_model("bert", dtype=torch.float32), tiny_inputs("bert")
    options: Any = {"maps": ["attn_res_ln_n"], "kernels": "triton", "attention": "fused"}
    before = normscope.analyze_inputs(model, inputs, **options)
    weight = model.get_submodule(f"encoder.layer.1.attention.{part}").weight
    assert isinstance(weight, torch.Tensor)
    weight.data.mul_(1.5)
    after = normscope.analyze_inputs(model, inputs, **options)
    exact = normscope.analyze_inputs(model, inputs, **options | {"kernels": "torch"})
    for rows in zip(before, after, exact, strict=True):
        old, new, right = (row["attn_res_ln_n"].sel(layer=1).values for row in rows)
        np.testing.assert_allclose(new, right, rtol=0, atol=1e-5 * right.max())
        assert np.abs(old - right).max() > 0.1 * right.max()


def test_wrong_own_vectors_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernels.own_vectors
    monkeypatch.setattr(kernels, "own_vectors", lambda *args: 1.001 * right(*args))
    options: Any = {"maps": ["attn_res_n"], "kernels": "triton", "attention": "fused"}
    model, inputs = tiny_model("bert", dtype=torch.float32), tiny_inputs("bert")
    with pytest.raises(ExactnessError):
        normscope.analyze_inputs(model, inputs, **options)


def test_a_zero_projection() -> None:
    model, inputs = tiny_model("bert", dtype=torch.float32), tiny_inputs("bert")
    with torch.no_grad():
        model.get_parameter("encoder.layer.0.attention.output.dense.weight").zero_()
    options: Any = {"maps": ["attn_n"], "kernels": "triton", "attention": "fused"}
    (first, *_) = normscope.analyze_inputs(model, inputs, **options)
    assert first["attn_n"].sel(layer=0).values.max() == 0
    assert first["attn_n"].sel(layer=1).values.max() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(1, 1), (4, 1), (6, 3), (6, 2)])
def test_flash_norms(heads: tuple[int, int], dtype: torch.dtype) -> None:
    check_flash(heads, (37, 37), 32, dtype)


@pytest.mark.parametrize("size", [32, 48, 80, 128, 192, 256])
def test_flash_norms_of_head_sizes(size: int) -> None:
    check_flash((2, 1), (5, 7), size, torch.bfloat16)


@pytest.mark.parametrize("lengths", [(1, 1), (1, 70), (33, 33), (9, 40), (65, 130)])
def test_flash_norms_of_lengths(lengths: tuple[int, int]) -> None:
    check_flash((4, 2), lengths, 32, torch.float32)


@pytest.mark.parametrize("masked", ["", "padded", "added"])
@pytest.mark.parametrize("causal", [True, False])
def test_flash_norms_of_masks(causal: bool, masked: str) -> None:
    check_flash((4, 2), (19, 21), 32, torch.float32, causal=causal, masked=masked, batch=2)


def test_a_row_that_sees_nothing() -> None:
    query, key = numbers(1, 2, 3, 32), numbers(1, 2, 3, 32)
    mask = torch.tensor([True, False, True]).view(1, 1, 3, 1).expand(1, 1, 3, 3)
    inputs = ScoreInputs(query.float(), key.float(), 0.1, causal=False, mask=mask)
    lse = kernels.attention_lse(inputs)
    assert lse[0, :, 1].isneginf().all()
    assert lse[0, :, ::2].isfinite().all()
    factors = numbers(1, 3, 2, 2, dtype=torch.float32)
    norms = kernels.flash_norms(inputs, lse, factors)
    assert (norms[0, 1] == 0).all()
    assert (norms[0, ::2] > 0).all()


def test_a_multiplier_is_one_number_for_all_places() -> None:
    """Granite multiplies each branch by a number, which is a scale without an axis."""
    value, weight = torch.randn(2, 3, 5, 4), torch.randn(3, 4, 12, dtype=torch.float64)
    chain = [[Linear(False, torch.full((), 0.22, dtype=torch.float64))]]
    made, expected = (
        gram_matrices(value, weight, chain, kernels=which).matrices for which in ("triton", "torch")
    )
    for one, other in zip(made, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


# ---- random shapes: a few here, many in a deep run

DTYPES = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])
STEPS = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=3)


@examples(6)
@given(
    shape=st.tuples(*(st.integers(1, most) for most in (3, 20, 40, 40))),
    dtype=DTYPES,
    made=st.sampled_from([torch.float32, torch.float64]),
)
def test_quadratic_norms_of_any_shape(
    shape: tuple[int, int, int, int], dtype: torch.dtype, made: torch.dtype
) -> None:
    check_quadratic(shape, dtype, made)


@examples(6)
@given(
    heads=st.integers(1, 24),
    rows=st.integers(1, 12),
    size=st.integers(2, 100),
    steps=STEPS,
    own=st.booleans(),
)
def test_gram_matrices_of_any_shape(
    heads: int, rows: int, size: int, steps: list[Step], own: bool
) -> None:
    check_gram(heads, rows, size, steps, own)


@examples(4)
@given(
    rows=st.integers(1, 12),
    size=st.integers(2, 100),
    dtype=DTYPES,
    centred=st.booleans(),
    affine=st.booleans(),
)
def test_row_lengths_of_any_shape(
    rows: int, size: int, dtype: torch.dtype, centred: bool, affine: bool
) -> None:
    check_rows(rows, size, dtype, centred, affine)


@examples(6)
@given(
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (6, 2), (6, 3), (8, 8)]),
    lengths=st.tuples(st.integers(1, 40), st.integers(0, 30)),
    size=st.sampled_from([16, 32, 40, 64]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    causal=st.booleans(),
    masked=st.sampled_from(["", "padded", "added"]),
    batch=st.integers(1, 2),
)
def test_flash_norms_of_any_shape(
    heads: tuple[int, int],
    lengths: tuple[int, int],
    size: int,
    dtype: torch.dtype,
    causal: bool,
    masked: str,
    batch: int,
) -> None:
    queries, before = lengths
    check_flash(heads, (queries, queries + before), size, dtype, causal, masked, batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 5000])
def test_elementwise_cotangents(count: int, dtype: torch.dtype) -> None:
    check_elementwise(count, dtype)


CELL_SHAPES = [(1, 1, 1, 1), (2, 3, 12, 5), (1, 9, 5, 37), (1, 2, 33, 4)]  # batch key head query


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("size", [1, 40, 150])
@pytest.mark.parametrize("shape", CELL_SHAPES)
def test_scaled_sums(
    shape: tuple[int, int, int, int], size: int, terms: int, dtype: torch.dtype
) -> None:
    def compute(sums: Any, factors: Any) -> torch.Tensor:
        return scaled_sums(sums, factors, Scratch(), "triton")

    check_scaled_sums(shape, size, terms, torch.empty((), dtype=dtype), compute)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "steps",
    [(None, None), (None, (True, True)), ((True, False), (False, True)), ((False, True), None)],
)
@pytest.mark.parametrize("size", [1, 40, 2100])
@pytest.mark.parametrize("shape", CELL_SHAPES)
def test_cell_lengths(
    shape: tuple[int, int, int, int], size: int, steps: Any, dtype: torch.dtype
) -> None:
    compute = partial(cell_lengths, kernels="triton")
    check_cell_lengths(shape, size, steps, torch.empty((), dtype=dtype), compute)
