# mypy: allow-untyped-defs, allow-untyped-decorators
"""What is done to the vectors of every cell before and after the large product of a feed-forward.

Both kernels are limited by memory: each element of the (cell, inner) and (cell, out) arrays is
written or read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import no_type_check

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from normscope.foundation.shapes import Float
from normscope.kernels.inputs import CellLinear, CellSums


@triton.jit
@no_type_check
def _sums(
    weights, vectors, weights_h, vectors_h, i_exists, d_exists,
    DTYPE: tl.constexpr, HEADS: tl.constexpr, BQ: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Σ_h a_h f_h of a tile of queries and components, for one key."""
    total = tl.zeros((BQ, BD), DTYPE)
    for _ in tl.range(0, HEADS, loop_unroll_factor=4):
        a = tl.load(weights, i_exists, other=0.0)
        f = tl.load(vectors, d_exists, other=0.0)
        total += a[:, None] * f[None, :]
        weights += weights_h
        vectors += vectors_h
    return total


@triton.jit
@no_type_check
def _scaled_sums(
    weights, vectors, factors, out,
    weights_b, weights_j, weights_h, vectors_b, vectors_j, vectors_h, factors_b, factors_i,
    queries, keys, size, COUNT: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr,
    BQ: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """KEYS keys of a tile of queries and components; the factors stay in registers."""
    batch = tl.program_id(2).to(tl.int64)
    tiles = tl.cdiv(size, BD)
    d = tl.program_id(0) % tiles * BD + tl.arange(0, BD)
    i = tl.program_id(0) // tiles * BQ + tl.arange(0, BQ)
    low = tl.program_id(1) * KEYS
    inside = (i < queries)[:, None] & (d < size)[None, :]
    rows = batch * factors_b + (i.to(tl.int64) * factors_i)[:, None] + d[None, :]
    scale = ()
    for t in tl.static_range(COUNT):
        scale += (tl.load(factors[t] + rows, inside, other=0.0),)
    for n in range(KEYS):
        key = (low + n).to(tl.int64)
        seen = (i < queries) & (key < keys)
        first = batch * weights_b + key * weights_j + i
        cells = ((batch * keys + key) * queries + i)[:, None] * size + d[None, :]
        vector = batch * vectors_b + key * vectors_j + d
        total = tl.zeros((BQ, BD), out.dtype.element_ty)
        for t in tl.static_range(COUNT):
            total += scale[t] * _sums(
                weights[t] + first, vectors[t] + vector, weights_h, vectors_h,
                seen, (d < size) & (key < keys), out.dtype.element_ty, HEADS, BQ, BD,
            )  # fmt: skip
        tl.store(out + cells, total, seen[:, None] & (d < size)[None, :])


@triton.jit
@no_type_check
def _linear(row, scale, d, inside, size, CENTRED: tl.constexpr):
    """Subtract the mean of each row, if CENTRED, and multiply by the scale."""
    if CENTRED:
        row = tl.where(inside, row - (tl.sum(row, axis=1) / size)[:, None], 0.0)
    if scale is not None:
        row *= tl.load(scale + d, d < size, other=0.0)[None, :]
    return row


@triton.jit
@no_type_check
def _lengths_of(rows):
    return tl.sqrt(tl.sum(rows * rows, axis=1))


@triton.jit
@no_type_check
def _cell_lengths(
    vectors, weights, carried, branch_scale, branch_weight, after_scale, after_weight, out,
    weights_b, weights_j, weights_h, carried_b, carried_j, carried_h,
    queries, keys, size, count, HEADS: tl.constexpr,
    BRANCH: tl.constexpr, AFTER: tl.constexpr, BRANCH_CENTRED: tl.constexpr,
    AFTER_CENTRED: tl.constexpr, TILES: tl.constexpr, BQ: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """TILES tiles of queries, for one key."""
    batch, key = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    d = tl.arange(0, D)
    for tile in range(TILES):
        i = (tl.program_id(0) * TILES + tile) * BQ + tl.arange(0, BQ)
        exists = i < queries
        inside = exists[:, None] & (d < size)[None, :]
        cells = (batch * keys + key) * queries + i
        rows = tl.load(vectors + cells[:, None] * size + d[None, :], inside, other=0.0)
        if BRANCH:
            rows = _linear(rows, branch_scale, d, inside, size, BRANCH_CENTRED)
            if branch_weight is not None:
                weight = tl.load(branch_weight + batch * queries + i, exists, other=0.0)
                rows *= weight[:, None]
        tl.store(out + cells, _lengths_of(rows), exists)
        rows += _sums(
            weights + batch * weights_b + key * weights_j + i,
            carried + batch * carried_b + key * carried_j + d,
            weights_h, carried_h, exists, d < size, vectors.dtype.element_ty, HEADS, BQ, D,
        )  # fmt: skip
        tl.store(out + count + cells, _lengths_of(rows), exists)
        if AFTER:
            rows = _linear(rows, after_scale, d, inside, size, AFTER_CENTRED)
            lengths = _lengths_of(rows)
            if after_weight is not None:
                lengths *= tl.load(after_weight + batch * queries + i, exists, other=0.0)
            tl.store(out + 2 * count + cells, lengths, exists)


def scaled_sums(
    sums: Sequence[CellSums],
    factors: Sequence[Float[Tensor, "batch query out"]],
    out: Float[Tensor, "batch key query out"],
) -> None:
    """Compute Σ_t factor_t ⊙ Σ_h a_h f_h over one or two terms t, for every cell, into ``out``.

    All arrays have one dtype.
    """
    batch, keys, queries, size = out.shape
    if not out.numel():
        return
    weights = _alike([term.weights for term in sums])
    vectors = _alike([term.vectors for term in sums])
    factors = _alike(factors)
    wide = triton.next_power_of_2(size)
    tile = {"BQ": 32 // len(sums), "BD": min(wide, 128), "KEYS": 8}
    tiles = triton.cdiv(size, tile["BD"]) * triton.cdiv(queries, tile["BQ"])
    _scaled_sums[(tiles, triton.cdiv(keys, tile["KEYS"]), batch)](
        tuple(weights), tuple(vectors), tuple(factors), out,
        *weights[0].stride()[:3], *vectors[0].stride()[:3], *factors[0].stride()[:2],
        queries, keys, size, COUNT=len(sums), HEADS=weights[0].shape[2], **tile, num_warps=4,
    )  # fmt: skip


def cell_lengths(
    vectors: Float[Tensor, "batch key query out"],
    branch: CellLinear | None,
    carried: CellSums,
    after: CellLinear | None,
) -> Float[Tensor, "stage batch key query"]:
    """Measure every cell's vector after ``branch``, with ``carried`` added, and after ``after``."""
    batch, keys, queries, size = vectors.shape
    out = vectors.new_empty((2 + (after is not None), batch, keys, queries))
    if not out.numel():
        return out
    weights, added = _last_contiguous(carried.weights), _last_contiguous(carried.vectors)
    steps = [
        (None, None) if step is None else (step.scale, step.weight) for step in (branch, after)
    ]
    arrays = [None if array is None else array.contiguous() for step in steps for array in step]
    width = triton.next_power_of_2(size)
    rows = max(1, 4096 // width)
    tiles = triton.cdiv(queries, rows)
    together = min(4, tiles)  # tiles that read a key's carried vectors again from the cache
    _cell_lengths[(triton.cdiv(tiles, together), keys, batch)](
        vectors.contiguous(), weights, added, *arrays, out, *weights.stride()[:3],
        *added.stride()[:3], queries, keys, size, batch * keys * queries, HEADS=weights.shape[2],
        BRANCH=branch is not None, AFTER=after is not None,
        BRANCH_CENTRED=branch is not None and branch.centred,
        AFTER_CENTRED=after is not None and after.centred,
        TILES=together, BQ=rows, D=width, num_warps=8 if width <= 4096 else 16,
    )  # fmt: skip
    return out


def _alike(arrays: Sequence[Tensor]) -> list[Tensor]:
    """Return the arrays with the same strides, the last of them 1."""
    same = len({array.stride() for array in arrays}) == 1
    return [_last_contiguous(array) if same else array.contiguous() for array in arrays]


def _last_contiguous(array: Tensor) -> Tensor:
    return array if array.stride(-1) == 1 else array.contiguous()
