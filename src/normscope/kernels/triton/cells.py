# mypy: allow-untyped-defs, allow-untyped-decorators
"""Norms of all cells of a map, from α and Gram matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from normscope.foundation.shapes import Float

FEW = 12  # up to so many heads, a cell's weights fit into a thread's registers


@triton.jit
@no_type_check
def _quadratic_norms_few(
    alpha, grams, scales, out, mean,
    alpha_b, alpha_h, alpha_i, alpha_j, queries, keys, count,
    MEAN: tl.constexpr, COUNT: tl.constexpr, HEADS: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One tile of queries and keys, all maps; a cell's weights stay in its thread's registers."""
    batch = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(queries, BQ)
    i = tl.program_id(0) % tiles * BQ + tl.arange(0, BQ)  # neighbours read the same keys
    j = tl.program_id(0) // tiles * BK + tl.arange(0, BK)
    real = (i < queries)[:, None] & (j < keys)
    cells = (batch * queries + i)[:, None] * keys + j
    alpha += batch * alpha_b
    spots = (i.to(tl.int64) * alpha_i)[:, None] + j.to(tl.int64) * alpha_j
    last = tl.minimum(j, keys - 1)  # instead of a mask, which would need more registers
    a = ()
    total = tl.zeros((BQ, BK), tl.float64)
    for h in tl.static_range(HEADS):
        weights = tl.load(alpha + tl.cast(h, tl.int64) * alpha_h + spots, real, other=0.0)
        a += (weights.to(tl.float64),)
        total += a[h]
    if MEAN:
        tl.store(mean + cells, (total / HEADS).to(tl.float32), real)
    for s in tl.static_range(COUNT):
        gram = grams[s] + batch * keys + last
        squares = tl.zeros((BQ, BK), tl.float64)
        for h in tl.static_range(HEADS):
            pairs = tl.zeros((BQ, BK), tl.float64)
            for c in tl.static_range(h):
                pairs += a[c] * tl.load(gram + (h * HEADS + c) * count)
            # Both halves of the symmetric matrix at once.
            squares += a[h] * (a[h] * tl.load(gram + (h * HEADS + h) * count) + 2 * pairs)
        lengths = tl.sqrt(tl.maximum(squares, 0.0))
        if scales[s] is not None:
            scale = tl.load(scales[s] + batch * queries + i, i < queries, other=0.0)
            lengths *= scale[:, None]
        tl.store(out[s] + cells, lengths.to(out[s].dtype.element_ty), real)


@triton.jit
@no_type_check
def _quadratic_norms(
    alpha, grams, scales, out, mean,
    alpha_b, alpha_h, alpha_i, alpha_j, heads, queries, keys,
    MEAN: tl.constexpr, COUNT: tl.constexpr, TILES: tl.constexpr, PARTS: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """Some keys and TILES tiles of queries, all maps.

    For each key a product of (queries, heads) and (heads, heads), in PARTS² blocks.
    """
    batch = tl.program_id(1).to(tl.int64)
    runs = tl.cdiv(queries, TILES * BQ)
    low = tl.program_id(0) % runs * (TILES * BQ)
    j = tl.program_id(0) // runs * BK + tl.arange(0, BK)
    h = tl.arange(0, H)
    key_exists = (j < keys)[:, None, None]
    alpha += batch * alpha_b + (j.to(tl.int64) * alpha_j)[:, None, None]
    first = ((batch * keys + j) * heads * heads)[:, None, None] + h[:, None] * heads + h
    for s in tl.static_range(COUNT):
        inside = key_exists & (h < heads)[:, None] & (h < heads)
        gram = tl.load(
            grams[s] + first, inside, other=0.0
        )  # (BK, H, H); used as it is if PARTS is 1
        for tile in range(TILES):
            i = low + tile * BQ + tl.arange(0, BQ)
            real = (i < queries)[None, :] & (j < keys)[:, None]
            cells = (batch * queries + i[None, :]) * keys + j[:, None]
            rows = alpha + (i.to(tl.int64) * alpha_i)[:, None]
            squares = tl.zeros((BK, BQ), tl.float64)
            total = tl.zeros((BK, BQ), tl.float64)
            for o in range(PARTS):
                ho = o * H + h
                spots = rows + ho.to(tl.int64) * alpha_h
                left = tl.load(spots, real[:, :, None] & (ho < heads), other=0.0).to(tl.float64)
                if PARTS == 1:
                    product = tl.dot(left, gram, out_dtype=tl.float64)
                else:
                    product = tl.zeros((BK, BQ, H), tl.float64)
                    for c in range(PARTS):
                        hc = c * H + h
                        spots = rows + hc.to(tl.int64) * alpha_h
                        right = tl.load(spots, real[:, :, None] & (hc < heads), other=0.0)
                        inside = key_exists & (hc < heads)[:, None] & (ho < heads)
                        block = grams[s] + first + c * H * heads + o * H
                        gram = tl.load(block, inside, other=0.0)
                        product = tl.dot(right.to(tl.float64), gram, product, out_dtype=tl.float64)
                squares += tl.sum(product * left, axis=2)
                total += tl.sum(left, axis=2)
            if MEAN and s == 0:
                tl.store(mean + cells, (total / heads).to(tl.float32), real)
            lengths = tl.sqrt(tl.maximum(squares, 0.0))
            if scales[s] is not None:
                scale = tl.load(scales[s] + batch * queries + i, i < queries, other=0.0)
                lengths *= scale[None, :]
            tl.store(out[s] + cells, lengths.to(out[s].dtype.element_ty), real)


def quadratic_norms(
    alpha: Float[Tensor, "batch head query key"],
    grams: Sequence[Float[Tensor, "batch key head head"]],
    scale: Sequence[Float[Tensor, "batch query"] | None] | None = None,
    *,
    mean: bool = False,
    dtype: torch.dtype = torch.float32,
) -> tuple[list[Float[Tensor, "batch query key"]], Float[Tensor, "batch query key"] | None]:
    """Compute √(aᵀGa) of every cell for several G, each times a scale per query; and the mean of α.

    ``grams`` and ``scale`` are float64, as is the arithmetic; the maps are ``dtype`` and the mean
    over the heads, which is None unless ``mean`` is True, is float32.
    """
    batch, heads, queries, keys = alpha.shape
    maps = [alpha.new_empty((batch, queries, keys), dtype=dtype) for _ in grams]
    average = alpha.new_empty((batch, queries, keys), dtype=torch.float32) if mean else None
    scales = [None] * len(maps) if scale is None else scale
    scales = [None if s is None else s.contiguous() for s in scales]
    if not alpha.numel():
        return maps, average
    if heads <= FEW:
        grams = [_keys_last(gram) for gram in grams]
        few = _few_tile()
        grid = (triton.cdiv(queries, few["BQ"]) * triton.cdiv(keys, few["BK"]), batch)
        _quadratic_norms_few[grid](
            alpha, tuple(grams), tuple(scales), tuple(maps), average, *alpha.stride(),
            queries, keys, batch * keys,
            MEAN=mean, COUNT=len(maps), HEADS=heads, **few,
        )  # fmt: skip
        return maps, average
    if alpha.element_size() == 2:  # Triton 3.6 cannot lower float64 products of 16-bit loads
        alpha = alpha.float()
    tile = _quadratic_tile(heads)
    runs = triton.cdiv(queries, tile["TILES"] * tile["BQ"])
    _quadratic_norms[(runs * triton.cdiv(keys, tile["BK"]), batch)](
        alpha, tuple(g.contiguous() for g in grams), tuple(scales), tuple(maps), average,
        *alpha.stride(), heads, queries, keys, MEAN=mean, COUNT=len(maps), **tile,
    )  # fmt: skip
    return maps, average


def _keys_last(gram: Tensor) -> Tensor:
    """The same matrices, in memory by (head, head, batch, key)."""
    batch, keys, heads, _ = gram.shape
    if gram.stride() == (keys, 1, heads * batch * keys, batch * keys):
        return gram  # as gram_matrices returns them
    turned = gram.new_empty((heads, heads, batch, keys)).permute(2, 3, 0, 1)
    return turned.copy_(gram)


def _few_tile() -> dict[str, int]:
    """Tile sizes for which each thread has two cells."""
    return {"BQ": 8, "BK": 32, "num_warps": 4}


def _quadratic_tile(heads: int) -> dict[str, int]:
    """Tile sizes for which the (keys, queries, heads) sums in float64 stay in registers."""
    width = 16 if heads <= 16 else 32
    parts = triton.cdiv(heads, width)
    return {
        "BQ": 16, "BK": 4, "H": width, "PARTS": parts, "TILES": 8, "num_warps": 2,
        "num_stages": 2 if parts == 1 else 1,
    }  # fmt: skip
