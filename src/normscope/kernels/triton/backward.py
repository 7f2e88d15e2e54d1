# mypy: allow-untyped-defs, allow-untyped-decorators
"""Kernels for backward passes in which attention weights and slopes are held."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from normscope.foundation.shapes import Float
from normscope.kernels.inputs import ScoreInputs
from normscope.kernels.triton.flash import LOG2E, _mask, _masked, _operand, _visible, _width


@triton.jit
@no_type_check
def _value_cotangents(
    query, key, lse, given, mask, out,
    query_b, query_h, query_i, key_b, key_h, key_j, lse_b, lse_h,
    given_b, given_h, given_i, mask_b, mask_h, mask_i, mask_j, out_b, out_h, out_j,
    value_heads, queries, keys, size, value_size, scaling,
    GROUP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, E: tl.constexpr, V: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile of keys of one value head, over all queries that may see them."""
    batch = (tl.program_id(1) // value_heads).to(tl.int64)
    value_head = (tl.program_id(1) % value_heads).to(tl.int64)
    offset = keys - queries
    low_j = tl.program_id(0) * BK
    j = low_j + tl.arange(0, BK)
    e = tl.arange(0, E)
    v = tl.arange(0, V)
    key += batch * key_b + value_head * key_h + (j.to(tl.int64) * key_j)[:, None] + e
    k = tl.load(key, (j < keys)[:, None] & (e < size), other=0.0)
    total = tl.zeros((BK, V), tl.float32)
    first = 0
    if CAUSAL:
        first = tl.maximum(low_j - offset, 0) // BQ * BQ
    for member in range(GROUP):
        head = value_head * GROUP + member
        for start in tl.range(first, queries, BQ, num_stages=STAGES):
            i = start + tl.arange(0, BQ)
            row = i.to(tl.int64)
            spots = query + batch * query_b + head * query_h + (row * query_i)[:, None] + e
            q = tl.load(spots, (i < queries)[:, None] & (e < size), other=0.0)
            spots = given + batch * given_b + head * given_h + (row * given_i)[:, None] + v
            g = tl.load(spots, (i < queries)[:, None] & (v < value_size), other=0.0)
            norm = tl.load(lse + batch * lse_b + head * lse_h + i, i < queries, other=0.0) * LOG2E
            norm = tl.where(norm == float("-inf"), float("inf"), norm)  # a row that sees nothing
            scores = tl.dot(q, k.T, input_precision=PRECISION) * (scaling * LOG2E)
            if MASK > 0:
                cells = head * mask_h + batch * mask_b + (row * mask_i)[:, None] + j * mask_j
                inside = (i < queries)[:, None] & (j < keys)
                scores = _masked(scores, mask, cells, inside, MASK == 2)
            visible = _visible((i + offset)[:, None], j[None, :], keys, CAUSAL)
            visible &= (i < queries)[:, None]
            alpha = tl.where(visible, tl.exp2(scores - norm[:, None]), 0.0)
            total += tl.dot(alpha.to(g.dtype).T, g, input_precision=PRECISION)
    cells = batch * out_b + value_head * out_h + (j.to(tl.int64) * out_j)[:, None] + v
    tl.store(out + cells, total, (j < keys)[:, None] & (v < value_size))


def value_cotangents(
    inputs: ScoreInputs,
    lse: Float[Tensor, "batch head query"],
    given: Float[Tensor, "batch head query size"],
) -> Float[Tensor, "batch value_head key size"]:
    """Compute αᵀ g for every value head, without storing α: the backward pass of attention for v.

    Args:
        inputs: what α is computed from.
        lse: the log-sum-exp of each row of scores.
        given: the cotangents g of the attention's output; heads that share a value head are summed.
    """
    query, key, given = _operand(inputs.query), _operand(inputs.key), _operand(given)
    batch, heads, queries, size = query.shape
    value_heads, keys, value_size = key.shape[1], key.shape[2], given.shape[3]
    lse = lse.reshape(batch, heads, -1)[..., :queries].contiguous()
    mask, kind, strides = _mask(inputs.mask, (batch, heads, queries, keys))
    out = given.new_empty((batch, value_heads, keys, value_size))
    wide, large = query.element_size() > 2, max(size, value_size) > 128  # shared memory is small
    tile = min(32 if wide else 64 if large else 128, max(16, triton.next_power_of_2(keys)))
    _value_cotangents[(triton.cdiv(keys, tile), batch * value_heads)](
        query, key, lse, given, mask, out, *query.stride()[:3], *key.stride()[:3],
        *lse.stride()[:2], *given.stride()[:3], *strides, *out.stride()[:3],
        value_heads, queries, keys, size, value_size, inputs.scaling,
        GROUP=heads // value_heads, BQ=32 if wide else 64, BK=tile, E=_width(size),
        V=_width(value_size), CAUSAL=inputs.causal, MASK=kind,
        PRECISION="ieee" if wide else "tf32", STAGES=1 if wide or large else 3,
        num_warps=4 if wide else 8,
    )  # fmt: skip
    return out


@triton.jit
@no_type_check
def _slope_kernel(points, values, given, out, count, origin, limit, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    u = tl.load(points + at, inside, other=1.0).to(tl.float32)
    value = tl.load(values + at, inside, other=0.0).to(tl.float32)
    g = tl.load(given + at, inside, other=0.0).to(tl.float32)
    slope = tl.where(u == 0, limit, (value - origin) / tl.where(u == 0, 1.0, u))
    tl.store(out + at, g * slope, inside)


def slope_cotangents(
    points: Tensor, values: Tensor, given: Tensor, origin: float, limit: float
) -> Tensor:
    """Compute g · (value − origin) / u, with a limit where u is 0, in one pass over memory."""
    points, values, given = (t.contiguous() for t in (points, values, given))
    out = torch.empty_like(points)
    block = 4096
    _slope_kernel[(triton.cdiv(out.numel(), block),)](
        points, values, given, out, out.numel(), origin, limit, BLOCK=block, num_warps=8
    )
    return out


@triton.jit
@no_type_check
def _product_kernel(first, second, given, out, other, count, part, rest, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    a = tl.load(first + at, inside, other=0.0).to(tl.float32)
    b = tl.load(second + at, inside, other=0.0).to(tl.float32)
    g = tl.load(given + at, inside, other=0.0).to(tl.float32)
    tl.store(out + at, part * g * b, inside)
    tl.store(other + at, rest * g * a, inside)


def product_cotangents(
    first: Tensor, second: Tensor, given: Tensor, part: float, rest: float
) -> tuple[Tensor, Tensor]:
    """Compute part · g · b and rest · g · a for the product a ⊙ b, in one pass over memory."""
    first, second, given = (t.contiguous() for t in (first, second, given))
    out, other = torch.empty_like(first), torch.empty_like(second)
    block = 4096
    _product_kernel[(triton.cdiv(out.numel(), block),)](
        first, second, given, out, other, out.numel(), part, rest, BLOCK=block, num_warps=8
    )
    return out, other
