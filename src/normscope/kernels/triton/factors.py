# mypy: allow-untyped-defs, allow-untyped-decorators
"""Factors of Gram matrices from products of W_O, and the lengths of all cells from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, no_type_check

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from normscope.foundation.shapes import Float
from normscope.kernels.gram import RIDGE, SHIFT, SMALLEST
from normscope.kernels.inputs import CellMap
from normscope.kernels.triton.flash import _rowwise, _width


@triton.jit
@no_type_check
def _product_grams(
    value, products, grams, value_b, value_h, value_j, keys, count, size: tl.constexpr,
    HEADS: tl.constexpr, GROUP: tl.constexpr, E: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Some keys, the rows h and HEADS − 1 − h of one level's lower triangles.

    G[h, k] = v_h (W_O^h W_O^kᵀ) v_kᵀ, in float64.
    """
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    level = tl.program_id(2)
    e = tl.arange(0, E)
    inside = (n < count)[:, None] & (e < size)
    rows = value + ((n // keys).to(tl.int64) * value_b + n % keys * value_j)[:, None] + e
    for half in tl.static_range(2):
        h = tl.program_id(1) if half == 0 else HEADS - 1 - tl.program_id(1)
        if half == 0 or h != tl.program_id(1):
            left = tl.load(rows + h // GROUP * value_h, inside, other=0.0).to(tl.float64)
            for k in range(h + 1):
                pair = (level * HEADS + h) * HEADS + k
                product = tl.load(products + pair.to(tl.int64) * E * E + e[:, None] * E + e)
                moved = tl.dot(left, product, out_dtype=tl.float64)
                right = tl.load(rows + k // GROUP * value_h, inside, other=0.0).to(tl.float64)
                gram = tl.sum(moved * right, axis=1)
                tl.store(grams + pair.to(tl.int64) * count + n, gram, n < count)


@triton.jit
@no_type_check
def _factor(
    grams, factors, single, keys, count, RIDGE: tl.constexpr, SMALLEST: tl.constexpr,
    SHIFT: tl.constexpr, HEADS: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Cholesky factors of one level of some keys, a key for each thread; and ‖f_h‖."""
    n = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    level = tl.program_id(1)
    first = level.to(tl.int64) * HEADS * HEADS
    factor = ()  # columns of Φ from the diagonal on; column k begins at k · HEADS − k(k − 1)/2
    for c in tl.static_range(HEADS):
        square = tl.load(grams + (first + c * HEADS + c) * count + n, n < count, other=1.0)
        if level == 0:
            lengths = tl.sqrt(tl.maximum(square, 0.0)).to(tl.float32)
            tl.store(single + (n // keys * HEADS + c) * keys + n % keys, lengths, n < count)
        square = square * (1 + RIDGE) + SMALLEST
        for k in tl.static_range(c):
            entry = factor[k * HEADS - k * (k - 1) // 2 + c - k]
            square -= entry * entry
        pivot = tl.sqrt(tl.maximum(square, SMALLEST))
        for h in tl.static_range(c, HEADS):
            if h == c:
                entry = pivot
            else:
                entry = tl.load(grams + (first + h * HEADS + c) * count + n, n < count, other=0.0)
                for k in tl.static_range(c):
                    left = factor[k * HEADS - k * (k - 1) // 2 + h - k]
                    entry -= left * factor[k * HEADS - k * (k - 1) // 2 + c - k]
                entry = entry / pivot
            factor += (entry,)
            spots = factors + (first + h * HEADS + c) * count + n
            tl.store(spots, (entry * SHIFT).to(tl.float32), n < count)


def gram_factors(
    value: Float[Tensor, "batch kv_head key head_size"],
    products: Float[Tensor, "level head head width width"],
) -> tuple[Float[Tensor, "level head rank row"], Float[Tensor, "batch head key"]]:
    """Factor the Gram matrices of every key's vectors, for each of several linear maps L.

    Args:
        value: the value vectors.
        products: L W_O^h (L W_O^k)ᵀ in float64, padded with zeros to the width of a tile.

    Returns:
        Φ · SHIFT with ΦΦᵀ = G in float32, keys of all rows last, and ‖f_h(x_j)‖. Φ is zero above
        its diagonal; that half is not written.
    """
    value = _rowwise(value)
    batch, groups, keys, size = value.shape
    levels, heads, _, width, _ = products.shape
    count = batch * keys
    options: Any = {"device": value.device}
    grams = torch.empty((levels, heads, heads, count), dtype=torch.float64, **options)
    factors = torch.empty((levels, heads, heads, count), dtype=torch.float32, **options)
    single = torch.empty((batch, heads, keys), dtype=torch.float32, **options)
    tile = 32 if width <= 64 else 16
    _product_grams[(triton.cdiv(count, tile), (heads + 1) // 2, levels)](
        value, products, grams, *value.stride()[:3], keys, count, size=size,
        HEADS=heads, GROUP=heads // groups, E=width, BN=tile, num_warps=2, num_stages=2,
    )  # fmt: skip
    _factor[(triton.cdiv(count, 64), levels)](
        grams, factors, single, keys, count,
        RIDGE=RIDGE[torch.float64], SMALLEST=SMALLEST, SHIFT=SHIFT, HEADS=heads, BN=64,
        num_warps=2,
    )  # fmt: skip
    return factors, single


@triton.jit
@no_type_check
def _cell_norms(
    scores, lse, factors, scales, diagonals, maps, sums, queries, keys, count,
    LEVELS: tl.constexpr, HALVED: tl.constexpr, COUNT: tl.constexpr, LEVEL_COUNT: tl.constexpr,
    HEADS: tl.constexpr, SHIFT: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One tile of queries and keys, all maps; a cell's weights stay in its thread's registers."""
    batch = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(queries, BQ)
    i = tl.program_id(0) % tiles * BQ + tl.arange(0, BQ)  # neighbours read the same keys
    tile = tl.program_id(0) // tiles
    j = tile * BK + tl.arange(0, BK)
    real = (i < queries)[:, None] & (j < keys)
    cells = i.to(tl.int64)[:, None] * keys + j
    on_diagonal = i[:, None] == j[None, :]
    weights = ()
    total = tl.zeros((BQ, BK), tl.float32)
    for h in tl.static_range(HEADS):
        row = (batch * HEADS + h) * queries
        score = tl.load(scores + row * keys + cells, real, other=float("-inf"))
        denominator = tl.load(lse + row + i, i < queries, other=float("inf"))
        alpha = tl.exp2(score - denominator[:, None])
        weights += (alpha,)
        total += alpha
    last = tl.minimum(j, keys - 1)  # instead of a mask, which would need more registers
    for level in tl.static_range(-1, LEVEL_COUNT):
        if level < 0:
            lengths = total / HEADS
        else:
            squares = tl.zeros((BQ, BK), tl.float32)
            spots = factors + level * HEADS * HEADS * count + batch * keys + last
            for r in tl.static_range(HEADS):
                part = tl.zeros((BQ, BK), tl.float32)
                for h in tl.static_range(r, HEADS):
                    part += weights[h] * tl.load(spots + (h * HEADS + r) * count)[None, :]
                squares += part * part
            lengths = tl.sqrt(squares) / SHIFT
        for m in tl.static_range(COUNT):
            if LEVELS[m] == level:
                values = lengths
                if HALVED[m]:
                    values = values / 2 + tl.where(on_diagonal, 0.5, 0.0)
                if scales[m] is not None:
                    scale = tl.load(scales[m] + batch * queries + i, i < queries, other=0.0)
                    values = values * scale[:, None]
                if diagonals[m] is not None:
                    own = tl.load(diagonals[m] + batch * queries + i, i < queries, other=0.0)
                    values = tl.where(on_diagonal, own[:, None], values)
                tl.store(maps[m] + batch * queries * keys + cells, values, real)
                row = ((m * tl.num_programs(1) + batch) * tl.cdiv(keys, BK) + tile) * queries
                row_sum = tl.sum(tl.where(real, values, 0.0), axis=1)
                tl.store(sums + row + i, row_sum, i < queries)


def cell_norms(
    scores: Float[Tensor, "batch head query key"],
    lse: Float[Tensor, "batch head query"],
    factors: Float[Tensor, "level head rank row"],
    maps: Sequence[CellMap],
) -> tuple[list[Float[Tensor, "batch query key"]], Float[Tensor, "map batch tile query"]]:
    """Compute several maps of all cells in float32, and their sums over keys by tiles of keys.

    Args:
        scores: scores in base 2, as :func:`attend` returns them.
        lse: the logarithms of the weights' denominators.
        factors: Φ of each level, as :func:`gram_factors` returns them.
        maps: what to compute from the mean of the weights (level −1) or from ‖Φᵀα‖ of a level.
    """
    batch, heads, queries, keys = scores.shape
    values = [scores.new_empty((batch, queries, keys)) for _ in maps]
    tile = {"BQ": 16, "BK": 64} if heads <= 12 else {"BQ": 16, "BK": 32}
    tiles = triton.cdiv(keys, tile["BK"])
    sums = scores.new_empty((len(maps), batch, tiles, queries))
    scales = [_float32(cell_map.scale) for cell_map in maps]
    diagonals = [_float32(cell_map.diagonal) for cell_map in maps]
    levels = tuple(cell_map.level for cell_map in maps)
    _cell_norms[(triton.cdiv(queries, tile["BQ"]) * tiles, batch)](
        scores, lse, factors, tuple(scales), tuple(diagonals), tuple(values), sums,
        queries, keys, factors.shape[3], LEVELS=levels, COUNT=len(maps),
        HALVED=tuple(cell_map.halved for cell_map in maps),
        LEVEL_COUNT=1 + max(levels), HEADS=heads, SHIFT=SHIFT, num_warps=4, **tile,
    )  # fmt: skip
    return values, sums


def _float32(numbers: Tensor | None) -> Tensor | None:
    return None if numbers is None else numbers.float().contiguous()


def padded_products(products: Float[Tensor, "level head size head size"]) -> Tensor:
    """Return products of W_O as :func:`gram_factors` reads them."""
    levels, heads, size, _, _ = products.shape
    width = _width(size)
    padded = products.new_zeros((levels, heads, heads, width, width))
    padded[..., :size, :size] = products.transpose(2, 3)
    return padded
