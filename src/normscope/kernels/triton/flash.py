# mypy: allow-untyped-defs, allow-untyped-decorators
"""Long contexts: α is made again from queries and keys, and never kept."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from normscope.foundation.shapes import Float

LOG2E = tl.constexpr(1.4426950408889634)
ROWS = slice(None)


@triton.jit
@no_type_check
def _visible(i, j, keys, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Whether the query that stands at key ``i`` sees key ``j``."""
    seen = j < keys
    if CAUSAL:
        seen &= j <= i
    if WINDOW:
        seen &= j > i - window
    return seen


@triton.jit
@no_type_check
def _masked(scores, mask, cells, inside, ADDED: tl.constexpr):
    """Scores, to base 2, with a mask: added to them, or false where a key is hidden."""
    if ADDED:
        return scores + tl.load(mask + cells, inside, other=0).to(tl.float32) * LOG2E
    return tl.where(tl.load(mask + cells, inside, other=0) != 0, scores, float("-inf"))


@triton.jit
@no_type_check
def _with_head(made, alpha, factors, exists):
    """Add one head: α of (Q1, BK, Q2) times its row of the factors of (R, BK)."""
    f = tl.load(factors, exists, other=0.0)
    return made + alpha[:, None, :, :] * f[None, :, :, None]


@triton.jit
@no_type_check
def _flash_norms(
    query, key, lse, factors, mask, out,
    query_b, query_h, query_i, key_b, key_h, key_j, lse_b, lse_h,
    factor_b, factor_j, factor_h, mask_b, mask_h, mask_i, mask_j, out_b, out_i,
    queries, keys, first, rows, size, rank, window, scaling,
    HEADS: tl.constexpr, GROUP: tl.constexpr, STACK: tl.constexpr,
    BQ: tl.constexpr, Q2: tl.constexpr, BK: tl.constexpr, E: tl.constexpr, R: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASK: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of queries and keys, all heads; STACK heads of a group share one product.

    The sums Σ_h α Φ are (Q1, R, BK, Q2): the last axes are what Triton lays across the threads of
    a warp, so each thread has all of Q1 and some of R for one key, and reads little for each
    multiplication; threads that read shared memory at once read the same key's factors.
    """
    Q1: tl.constexpr = BQ // Q2
    batch = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(rows, BQ)
    low_i = tl.program_id(0) % tiles * BQ  # neighbours read the same keys
    low_j = tl.program_id(0) // tiles * BK
    offset = first + keys - queries  # the first of these rows stands at this key

    i = low_i + tl.arange(0, BQ)
    j = low_j + tl.arange(0, BK)
    cells = batch * out_b + i.to(tl.int64)[:, None] * out_i + j[None, :]
    real = (i < rows)[:, None] & (j < keys)[None, :]
    nothing = False
    if CAUSAL:
        nothing |= low_j > low_i + BQ - 1 + offset
    if WINDOW:
        nothing |= low_j + BK - 1 <= low_i + offset - window
    if nothing:
        tl.store(out + cells, tl.zeros((BQ, BK), tl.float32), real)
        return

    e = tl.arange(0, E)
    n = tl.arange(0, STACK * BQ)
    row = first + low_i + n % BQ
    here = row < first + rows
    query += batch * query_b + (n // BQ * query_h + row.to(tl.int64) * query_i)[:, None] + e
    wanted = here[:, None] & (e < size)
    key += batch * key_b + (j.to(tl.int64) * key_j)[:, None] + e
    known = (j < keys)[:, None] & (e < size)
    lse += batch * lse_b + n // BQ * lse_h + row
    if MASK > 0:
        mask += batch * mask_b
        spots = (n // BQ * mask_h + row.to(tl.int64) * mask_i)[:, None] + j * mask_j
        inside = here[:, None] & (j < keys)
    r = tl.arange(0, R)[:, None]
    factors += batch * factor_b + j.to(tl.int64) * factor_j + r
    exists = (j < keys) & (r < rank)
    made = tl.zeros((Q1, R, BK, Q2), tl.float32)
    for h in tl.range(0, HEADS, STACK, num_stages=STAGES):
        q = tl.load(query + tl.cast(h, tl.int64) * query_h, wanted, other=0.0)
        k = tl.load(key + tl.cast(h // GROUP, tl.int64) * key_h, known, other=0.0)
        norm = tl.load(lse + h * lse_h, here, other=0.0) * LOG2E
        norm = tl.where(norm == float("-inf"), float("inf"), norm)  # a row that sees nothing
        scores = tl.dot(q, k.T, input_precision=PRECISION) * (scaling * LOG2E)
        if MASK > 0:
            scores = _masked(scores, mask, tl.cast(h, tl.int64) * mask_h + spots, inside, MASK == 2)
        # Above 0 only where the key is hidden, which is seen to at the end.
        alpha = tl.exp2(tl.minimum(scores - norm[:, None], 0.0))
        f = factors + h * factor_h
        if STACK == 1:
            made = _with_head(made, alpha.reshape(Q1, Q2, BK).permute(0, 2, 1), f, exists)
        elif STACK == 2:
            one, two = alpha.reshape(2, Q1, Q2, BK).permute(1, 3, 2, 0).split()
            made = _with_head(made, one, f, exists)
            made = _with_head(made, two, f + factor_h, exists)
        else:
            low, high = alpha.reshape(2, 2, Q1, Q2, BK).permute(2, 4, 3, 1, 0).split()
            one, two = low.split()
            made = _with_head(made, one, f, exists)
            made = _with_head(made, two, f + factor_h, exists)
            one, two = high.split()
            made = _with_head(made, one, f + 2 * factor_h, exists)
            made = _with_head(made, two, f + 3 * factor_h, exists)
    norms = tl.sqrt(tl.sum(made * made, axis=1)).permute(0, 2, 1).reshape(BQ, BK)
    seen = _visible((i + offset)[:, None], j[None, :], keys, window, CAUSAL, WINDOW)
    tl.store(out + cells, tl.where(seen, norms, 0.0), real)


@triton.jit
@no_type_check
def _attention_lse(
    query, key, mask, out,
    query_b, query_h, query_i, key_b, key_h, key_j, mask_b, mask_h, mask_i, mask_j,
    heads, queries, keys, size, window, scaling,
    GROUP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, E: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
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
    low_j = 0
    high_j = keys
    if CAUSAL:
        high_j = tl.minimum(keys, low_i + BQ + offset)
    if WINDOW:
        low_j = tl.maximum(0, low_i + offset - window + 1) // BK * BK
    most = tl.full((BQ,), float("-inf"), tl.float32)
    total = tl.zeros((BQ,), tl.float32)
    for start in range(low_j, high_j, BK):
        j = start + tl.arange(0, BK)
        known = (j < keys)[:, None] & (e < size)
        k = tl.load(key + (j.to(tl.int64) * key_j)[:, None] + e, known, other=0.0)
        scores = tl.dot(q, k.T, input_precision=PRECISION) * (scaling * LOG2E)
        if MASK > 0:
            cells = (i.to(tl.int64) * mask_i)[:, None] + j * mask_j
            inside = (i < queries)[:, None] & (j < keys)
            scores = _masked(scores, mask, cells, inside, MASK == 2)
        seen = _visible((i + offset)[:, None], j[None, :], keys, window, CAUSAL, WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, axis=1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)  # −inf − −inf is no number
        total = total * tl.exp2(most - shift)
        total += tl.sum(tl.exp2(scores - shift[:, None]), axis=1)
        most = higher
    made = (most + tl.log2(tl.where(total == 0, 1.0, total))) / LOG2E
    tl.store(out + (batch * heads + head) * queries + i, made, i < queries)


def attention_lse(
    query: Float[Tensor, "batch head query size"],
    key: Float[Tensor, "batch kv_head key size"],
    *,
    scaling: float,
    causal: bool,
    window: int | None = None,
    mask: Tensor | None = None,
) -> Float[Tensor, "batch head query"]:
    """The logarithm of each softmax's denominator, in float32; −inf for a row that sees nothing.

    Queries are the last of the keys: with ``causal``, query i sees the keys up to i + keys −
    queries, and the last ``window`` of these. ``mask`` is boolean (true: seen) or added to the
    scores, and is broadcast to (batch, head, query, key).
    """
    query, key = _factor(query), _factor(key)
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    mask, kind, strides = _mask(mask, (batch, heads, queries, keys))
    out = query.new_empty((batch, heads, queries), dtype=torch.float32)
    wide = query.element_size() > 2
    tile = min(32 if wide else 128, max(16, triton.next_power_of_2(queries)))
    _attention_lse[(triton.cdiv(queries, tile), batch * heads)](
        query, key, mask, out, *query.stride()[:3], *key.stride()[:3], *strides,
        heads, queries, keys, size, window or 0, scaling,
        GROUP=heads // key.shape[1], BQ=tile, BK=32 if wide else 64, E=_width(size),
        CAUSAL=causal, WINDOW=window is not None, MASK=kind,
        PRECISION="ieee" if wide else "tf32", num_warps=4 if wide else 8,
    )  # fmt: skip
    return out


def flash_norms(
    query: Float[Tensor, "batch head query size"],
    key: Float[Tensor, "batch kv_head key size"],
    lse: Float[Tensor, "batch head query"],
    factors: Float[Tensor, "batch key head rank"],
    *,
    scaling: float,
    causal: bool,
    window: int | None = None,
    mask: Tensor | None = None,
    rows: slice = ROWS,
) -> Float[Tensor, "batch row key"]:
    """‖Σ_h α f_h(x_j)‖ of some rows in float32, without α: it is made again tile by tile.

    ``factors`` are Φ_j with Φ_j Φ_jᵀ = G_j, such as Cholesky's, so that a length is a sum of
    squares and float32 is enough; ``lse`` is the log-sum-exp of the scaled and masked scores. The
    rest is as for :func:`attention_lse`. Cells that are not seen are 0.
    """
    query, key = _factor(query), _factor(key)
    lse, factors = lse.contiguous(), _rowwise(factors)
    batch, heads, queries, size = query.shape
    keys, group, rank = key.shape[2], heads // key.shape[1], factors.shape[3]
    first, stop, _ = rows.indices(queries)
    count = max(stop - first, 0)
    out = query.new_empty((batch, count, keys), dtype=torch.float32)
    mask, kind, strides = _mask(mask, (batch, heads, queries, keys))
    tile = _flash_tile(rank, size, query.element_size(), group)
    grid = (triton.cdiv(count, tile["BQ"]) * triton.cdiv(keys, tile["BK"]), batch)
    if out.numel():
        _flash_norms[grid](
            query, key, lse, factors, mask, out, *query.stride()[:3], *key.stride()[:3],
            *lse.stride()[:2], *factors.stride()[:3], *strides, *out.stride()[:2],
            queries, keys, first, count, size, rank, window or 0, scaling,
            HEADS=heads, GROUP=group, CAUSAL=causal, WINDOW=window is not None, MASK=kind,
            PRECISION="ieee" if query.element_size() > 2 else "tf32", **tile,
        )  # fmt: skip
    return out


def _flash_tile(rank: int, size: int, bytes_each: int, group: int) -> dict[str, int]:
    """Tile sizes: (queries, keys, rank) sums stay in registers."""
    rank, size = max(2, triton.next_power_of_2(rank)), _width(size)
    cells = min(32768 // rank, 1024)
    bq = 32 if cells >= 512 else 16
    stack = 4 if group % 4 == 0 else 2 if group % 2 == 0 else 1
    stage = (stack * bq + cells // bq) * size * bytes_each  # of shared memory
    return {
        "BQ": bq, "Q2": 8, "BK": cells // bq, "E": size, "R": rank, "STACK": stack,
        "STAGES": 3 if stage <= 2**16 else 1, "num_warps": 8,
    }  # fmt: skip


def _mask(mask: Tensor | None, shape: tuple[int, ...]) -> tuple[Tensor | None, int, list[int]]:
    """A mask for each cell, without a copy; 0: none, 1: boolean, 2: added; its strides."""
    if mask is None:
        return None, 0, [0, 0, 0, 0]
    whole = mask.expand(shape)
    kind = 1 if mask.dtype == torch.bool else 2
    return (whole.view(torch.uint8) if kind == 1 else whole), kind, list(whole.stride())


def _rowwise(tensor: Tensor) -> Tensor:
    """With the last axis contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _factor(tensor: Tensor) -> Tensor:
    """Of a product that a kernel makes: the interpreter's products know no bfloat16."""
    return _rowwise(tensor if tensor.is_cuda else tensor.float())


def _width(size: int) -> int:
    """A head's size as a kernel's tile has it."""
    return max(16, triton.next_power_of_2(size))
