# mypy: allow-untyped-defs, allow-untyped-decorators
"""Kernels for long contexts: α is recomputed from queries and keys tile by tile, never stored."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from normscope.foundation.shapes import Float
from normscope.kernels.inputs import ScoreInputs

LOG2E = tl.constexpr(1.4426950408889634)
ALL_ROWS = slice(None)


@triton.jit
@no_type_check
def _visible(i, j, keys, CAUSAL: tl.constexpr):
    """Whether the query at key position ``i`` sees key ``j``."""
    visible = j < keys
    if CAUSAL:
        visible &= j <= i
    return visible


@triton.jit
@no_type_check
def _masked(scores, mask, cells, inside, ADDED: tl.constexpr):
    """Apply a mask to scores in base 2: added to them, or False where a key is hidden."""
    if ADDED:
        return scores + tl.load(mask + cells, inside, other=0).to(tl.float32) * LOG2E
    return tl.where(tl.load(mask + cells, inside, other=0) != 0, scores, float("-inf"))


@triton.jit
@no_type_check
def _add_head(sums, alpha, factors, exists):
    """Add one head: α of (Q1, BK, Q2) times its row of the factors of (R, BK)."""
    f = tl.load(factors, exists, other=0.0)
    return sums + alpha[:, None, :, :] * f[None, :, :, None]


@triton.jit
@no_type_check
def _add_heads(
    sums, alpha, factors, factor_h, exists,
    STACK: tl.constexpr, Q1: tl.constexpr, Q2: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Add the STACK heads whose α were computed together, (STACK · Q1 · Q2, BK)."""
    if STACK == 1:
        sums = _add_head(sums, alpha.reshape(Q1, Q2, BK).permute(0, 2, 1), factors, exists)
    elif STACK == 2:
        first, second = alpha.reshape(2, Q1, Q2, BK).permute(1, 3, 2, 0).split()
        sums = _add_head(sums, first, factors, exists)
        sums = _add_head(sums, second, factors + factor_h, exists)
    else:
        low, high = alpha.reshape(2, 2, Q1, Q2, BK).permute(2, 4, 3, 1, 0).split()
        first, second = low.split()
        sums = _add_head(sums, first, factors, exists)
        sums = _add_head(sums, second, factors + factor_h, exists)
        third, fourth = high.split()
        sums = _add_head(sums, third, factors + 2 * factor_h, exists)
        sums = _add_head(sums, fourth, factors + 3 * factor_h, exists)
    return sums


@triton.jit
@no_type_check
def _flash_norms(
    query, key, lse, factors, mask, out,
    query_b, query_h, query_i, key_b, key_h, key_j, lse_b, lse_h,
    factor_b, factor_j, factor_h, mask_b, mask_h, mask_i, mask_j, out_b, out_i,
    queries, keys, first, rows, size, rank, scaling,
    HEADS: tl.constexpr, GROUP: tl.constexpr, STACK: tl.constexpr,
    BQ: tl.constexpr, Q2: tl.constexpr, BK: tl.constexpr, E: tl.constexpr, R: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of queries and keys, all heads; STACK heads of a group share one product.

    The sums Σ_h α Φ are (Q1, R, BK, Q2): Triton lays the last axes across the threads of a warp,
    so each thread has all of Q1 and some of R for one key and reads little for each
    multiplication; threads that read shared memory together read the same key's factors.
    """
    Q1: tl.constexpr = BQ // Q2
    batch = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(rows, BQ)
    low_i = tl.program_id(0) % tiles * BQ  # neighbours read the same keys
    low_j = tl.program_id(0) // tiles * BK
    offset = first + keys - queries  # the key position of the first of these rows

    i = low_i + tl.arange(0, BQ)
    j = low_j + tl.arange(0, BK)
    cells = batch * out_b + i.to(tl.int64)[:, None] * out_i + j[None, :]
    real = (i < rows)[:, None] & (j < keys)[None, :]
    hidden = False  # whether no query of this tile sees any of its keys
    if CAUSAL:
        hidden |= low_j > low_i + BQ - 1 + offset
    if hidden:
        tl.store(out + cells, tl.zeros((BQ, BK), tl.float32), real)
        return

    e = tl.arange(0, E)
    n = tl.arange(0, STACK * BQ)
    row = first + low_i + n % BQ
    row_exists = row < first + rows
    query += batch * query_b + (n // BQ * query_h + row.to(tl.int64) * query_i)[:, None] + e
    in_query = row_exists[:, None] & (e < size)
    key += batch * key_b + (j.to(tl.int64) * key_j)[:, None] + e
    in_key = (j < keys)[:, None] & (e < size)
    lse += batch * lse_b + n // BQ * lse_h + row
    if MASK > 0:
        mask += batch * mask_b
        mask_cells = (n // BQ * mask_h + row.to(tl.int64) * mask_i)[:, None] + j * mask_j
        in_mask = row_exists[:, None] & (j < keys)
    r = tl.arange(0, R)[:, None]
    factors += batch * factor_b + j.to(tl.int64) * factor_j + r
    in_factors = (j < keys) & (r < rank)
    sums = tl.zeros((Q1, R, BK, Q2), tl.float32)
    for h in tl.range(0, HEADS, STACK, num_stages=STAGES):
        q = tl.load(query + tl.cast(h, tl.int64) * query_h, in_query, other=0.0)
        k = tl.load(key + tl.cast(h // GROUP, tl.int64) * key_h, in_key, other=0.0)
        norm = tl.load(lse + h * lse_h, row_exists, other=0.0) * LOG2E
        norm = tl.where(norm == float("-inf"), float("inf"), norm)  # a row that sees nothing
        scores = tl.dot(q, k.T, input_precision=PRECISION) * (scaling * LOG2E)
        if MASK > 0:
            spots = tl.cast(h, tl.int64) * mask_h + mask_cells
            scores = _masked(scores, mask, spots, in_mask, MASK == 2)
        # Above 0 only for hidden keys, which are set to 0 at the end.
        alpha = tl.exp2(tl.minimum(scores - norm[:, None], 0.0))
        sums = _add_heads(
            sums, alpha, factors + h * factor_h, factor_h, in_factors, STACK, Q1, Q2, BK
        )
    norms = tl.sqrt(tl.sum(sums * sums, axis=1)).permute(0, 2, 1).reshape(BQ, BK)
    visible = _visible((i + offset)[:, None], j[None, :], keys, CAUSAL)
    tl.store(out + cells, tl.where(visible, norms, 0.0), real)


@triton.jit
@no_type_check
def _attention_lse(
    query, key, mask, out,
    query_b, query_h, query_i, key_b, key_h, key_j, mask_b, mask_h, mask_i, mask_j,
    heads, queries, keys, size, scaling,
    GROUP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, E: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One head of a tile of queries, over all keys that they may see."""
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    offset = keys - queries
    low_i = tl.program_id(0) * BQ
    i = low_i + tl.arange(0, BQ)
    e = tl.arange(0, E)
    query += batch * query_b + head * query_h
    query += (i.to(tl.int64) * query_i)[:, None] + e
    q = tl.load(query, (i < queries)[:, None] & (e < size), other=0.0)
    key += batch * key_b + head // GROUP * key_h
    if MASK > 0:
        mask += batch * mask_b + head * mask_h
    high_j = keys
    if CAUSAL:
        high_j = tl.minimum(keys, low_i + BQ + offset)
    highest = tl.full((BQ,), float("-inf"), tl.float32)
    total = tl.zeros((BQ,), tl.float32)
    for start in range(0, high_j, BK):
        j = start + tl.arange(0, BK)
        in_key = (j < keys)[:, None] & (e < size)
        k = tl.load(key + (j.to(tl.int64) * key_j)[:, None] + e, in_key, other=0.0)
        scores = tl.dot(q, k.T, input_precision=PRECISION) * (scaling * LOG2E)
        if MASK > 0:
            cells = (i.to(tl.int64) * mask_i)[:, None] + j * mask_j
            in_mask = (i < queries)[:, None] & (j < keys)
            scores = _masked(scores, mask, cells, in_mask, MASK == 2)
        visible = _visible((i + offset)[:, None], j[None, :], keys, CAUSAL)
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)  # −inf − −inf would be NaN
        total = total * tl.exp2(highest - shift)
        total += tl.sum(tl.exp2(scores - shift[:, None]), axis=1)
        highest = higher
    lse = (highest + tl.log2(tl.where(total == 0, 1.0, total))) / LOG2E
    tl.store(out + (batch * heads + head) * queries + i, lse, i < queries)


def attention_lse(inputs: ScoreInputs) -> Float[Tensor, "batch head query"]:
    """Compute the log-sum-exp of each row of scores, in float32.

    That is the logarithm of the softmax's denominator; −inf for a row that sees no key.
    """
    query, key = _operand(inputs.query), _operand(inputs.key)
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    mask, kind, strides = _mask(inputs.mask, (batch, heads, queries, keys))
    out = query.new_empty((batch, heads, queries), dtype=torch.float32)
    wide = query.element_size() > 2
    tile = min(32 if wide else 128, max(16, triton.next_power_of_2(queries)))
    _attention_lse[(triton.cdiv(queries, tile), batch * heads)](
        query, key, mask, out, *query.stride()[:3], *key.stride()[:3], *strides,
        heads, queries, keys, size, inputs.scaling,
        GROUP=heads // key.shape[1], BQ=tile, BK=32 if wide else 64, E=_width(size),
        CAUSAL=inputs.causal, MASK=kind,
        PRECISION="ieee" if wide else "tf32", num_warps=4 if wide else 8,
    )  # fmt: skip
    return out


def flash_norms(
    inputs: ScoreInputs,
    lse: Float[Tensor, "batch head query"],
    factors: Float[Tensor, "batch key head rank"],
    rows: slice = ALL_ROWS,
) -> Float[Tensor, "batch row key"]:
    """Compute ‖Σ_h α f_h(x_j)‖ of some queries in float32, without storing α.

    Args:
        inputs: what α is computed from.
        lse: the result of :func:`attention_lse` for the same inputs.
        factors: Φ_j with Φ_j Φ_jᵀ = G_j, such as Cholesky factors. A length is then a sum of
            squares, for which float32 is enough.
        rows: the queries.

    Returns:
        The lengths; 0 for keys that a query does not see.
    """
    query, key = _operand(inputs.query), _operand(inputs.key)
    lse, factors = lse.contiguous(), _rowwise(factors)
    batch, heads, queries, size = query.shape
    keys, group, rank = key.shape[2], heads // key.shape[1], factors.shape[3]
    first, stop, _ = rows.indices(queries)
    count = max(stop - first, 0)
    out = query.new_empty((batch, count, keys), dtype=torch.float32)
    mask, kind, strides = _mask(inputs.mask, (batch, heads, queries, keys))
    tile = _flash_tile(rank, size, query.element_size(), group)
    grid = (triton.cdiv(count, tile["BQ"]) * triton.cdiv(keys, tile["BK"]), batch)
    if out.numel():
        _flash_norms[grid](
            query, key, lse, factors, mask, out, *query.stride()[:3], *key.stride()[:3],
            *lse.stride()[:2], *factors.stride()[:3], *strides, *out.stride()[:2],
            queries, keys, first, count, size, rank, inputs.scaling,
            HEADS=heads, GROUP=group, CAUSAL=inputs.causal, MASK=kind,
            PRECISION="ieee" if query.element_size() > 2 else "tf32", **tile,
        )  # fmt: skip
    return out


def _flash_tile(rank: int, size: int, bytes_each: int, group: int) -> dict[str, int]:
    """Tile sizes for which the (queries, keys, rank) sums stay in registers."""
    rank, size = max(2, triton.next_power_of_2(rank)), _width(size)
    cells = min(32768 // rank, 1024)
    bq = 32 if cells >= 512 else 16
    stack = 4 if group % 4 == 0 else 2 if group % 2 == 0 else 1
    stage = (stack * bq + cells // bq) * size * bytes_each  # bytes of shared memory
    return {
        "BQ": bq, "Q2": 8, "BK": cells // bq, "E": size, "R": rank, "STACK": stack,
        "STAGES": 3 if stage <= 2**16 else 1, "num_warps": 8,
    }  # fmt: skip


def _mask(mask: Tensor | None, shape: tuple[int, ...]) -> tuple[Tensor | None, int, list[int]]:
    """A mask broadcast without a copy, its kind (0: none, 1: boolean, 2: added), its strides."""
    if mask is None:
        return None, 0, [0, 0, 0, 0]
    expanded = mask.expand(shape)
    kind = 1 if mask.dtype == torch.bool else 2
    return (expanded.view(torch.uint8) if kind == 1 else expanded), kind, list(expanded.stride())


def _rowwise(tensor: Tensor) -> Tensor:
    """The tensor with its last axis contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _operand(tensor: Tensor) -> Tensor:
    """A factor of a product in a kernel; Triton's interpreter cannot multiply bfloat16."""
    return _rowwise(tensor if tensor.is_cuda else tensor.float())


def _width(size: int) -> int:
    """The size of a head's tile: a power of 2, at least 16."""
    return max(16, triton.next_power_of_2(size))
