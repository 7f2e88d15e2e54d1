# mypy: allow-untyped-defs, allow-untyped-decorators
"""Attention in float32: scores, their denominators, and the proof that they are the model's own."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from normscope.foundation.shapes import Float
from normscope.kernels.inputs import Attended, ScoreInputs
from normscope.kernels.triton.flash import LOG2E, _mask, _masked, _rowwise, _visible, _width


@triton.jit
@no_type_check
def _attend(
    query, key, value, context, mask, scores, lse, own, gap,
    query_b, query_h, query_i, key_b, key_h, key_j, value_b, value_h, value_j,
    context_b, context_i, context_h, mask_b, mask_h, mask_i, mask_j,
    heads, queries, keys, scaling, size: tl.constexpr, value_size: tl.constexpr,
    GROUP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, E: tl.constexpr, V: tl.constexpr,
    CAUSAL: tl.constexpr, MASK: tl.constexpr,
    OWN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some queries of one head, all keys."""
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = tl.program_id(1) % heads
    i = tl.program_id(0) * BQ + tl.arange(0, BQ)
    e = tl.arange(0, E)
    c = tl.arange(0, V)
    exists = (i < queries)[:, None]
    query += batch * query_b + head * query_h
    key += batch * key_b + head // GROUP * key_h
    value += batch * value_b + head // GROUP * value_h
    mask_cells = batch * mask_b + head * mask_h + i.to(tl.int64)[:, None] * mask_i
    cells = ((batch * heads + head) * queries + i)[:, None] * keys
    rows = (batch * heads + head) * queries + i
    offset = keys - queries
    q = tl.load(query + i[:, None] * query_i + e, exists & (e < size), other=0.0)
    highest = tl.full((BQ,), float("-inf"), tl.float32)
    total = tl.zeros((BQ,), tl.float32)
    weighted = tl.zeros((BQ,), tl.float32)  # Σ_j α‖v_j‖
    mixed = tl.zeros((BQ, V), tl.float32)
    for start in range(0, keys, BK):
        j = start + tl.arange(0, BK)
        seen = (j < keys)[:, None]
        k = tl.load(key + j[:, None] * key_j + e, seen & (e < size), other=0.0)
        v = tl.load(value + j[:, None] * value_j + c, seen & (c < value_size), other=0.0)
        s = tl.dot(q, k.T, input_precision=PRECISION) * (scaling * LOG2E)
        if MASK > 0:
            s = _masked(s, mask, mask_cells + j * mask_j, exists & (j < keys), MASK == 2)
        s = tl.where(_visible((i + offset)[:, None], j[None, :], keys, CAUSAL), s, float("-inf"))
        tl.store(scores + cells + j, s, exists & (j < keys))
        higher = tl.maximum(highest, tl.max(s, axis=1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)  # −inf − −inf would be NaN
        weights = tl.exp2(s - shift[:, None])
        factor = tl.exp2(highest - shift)
        total = total * factor + tl.sum(weights, axis=1)
        length = tl.sqrt(tl.sum(v * v, axis=1))
        weighted = weighted * factor + tl.sum(weights * length[None, :], axis=1)
        mixed = tl.dot(weights, v, mixed * factor[:, None], input_precision=PRECISION)
        highest = higher
    safe = tl.where(total == 0, 1.0, total)  # a row that sees nothing has no weights
    denominator = tl.where(total == 0, float("inf"), highest + tl.log2(safe))
    tl.store(lse + rows, denominator, i < queries)
    spots = context + batch * context_b + i.to(tl.int64)[:, None] * context_i + head * context_h + c
    real = tl.load(spots, exists & (c < value_size), other=0.0)
    difference = tl.where(exists & (c < value_size), mixed / safe[:, None] - real, 0.0)
    parts = tl.maximum(weighted / safe, 1e-37)
    tl.store(gap + rows, tl.sqrt(tl.sum(difference * difference, axis=1)) / parts, i < queries)
    if OWN:
        k = tl.load(key + i[:, None] * key_j + e, exists & (e < size), other=0.0)
        s = tl.sum(q * k, axis=1) * (scaling * LOG2E)
        if MASK > 0:
            spots = batch * mask_b + head * mask_h + i.to(tl.int64) * (mask_i + mask_j)
            s = _masked(s, mask, spots, i < queries, MASK == 2)
        tl.store(own + rows, tl.exp2(s - denominator), i < queries)


def attend(
    inputs: ScoreInputs,
    value: Float[Tensor, "batch kv_head key value_size"],
    context: Float[Tensor, "batch query head value_size"],
) -> Attended:
    """Compute the scores of every cell, the weights' denominators, and the gap of Σ_j αv.

    Products of float32 factors are accurate to float32, by three TF32 products where the device
    has them.
    """
    query, key, value = _rowwise(inputs.query), _rowwise(inputs.key), _rowwise(value)
    context = _rowwise(context)
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    mask, kind, strides = _mask(inputs.mask, (batch, heads, queries, keys))
    scores = query.new_empty((batch, heads, queries, keys), dtype=torch.float32)
    lse, gap = (query.new_empty((batch, heads, queries), dtype=torch.float32) for _ in "12")
    own = torch.empty_like(lse) if queries == keys else None
    width, value_width = _width(size), _width(value.shape[3])
    tile = 64 if width <= 64 else 32
    _attend[(triton.cdiv(queries, tile), batch * heads)](
        query, key, value, context, mask, scores, lse, own, gap,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *context.stride()[:3],
        *strides, heads, queries, keys, inputs.scaling, size=size, value_size=value.shape[3],
        GROUP=heads // key.shape[1], BQ=tile, BK=tile, E=width, V=value_width,
        CAUSAL=inputs.causal, MASK=kind, OWN=own is not None,
        PRECISION=float32_products(query.device), num_warps=4, num_stages=2,
    )  # fmt: skip
    return Attended(scores, lse, own, gap)


def float32_products(device: torch.device) -> str:
    """Return how Triton computes float32 products without loss on a device."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0):
        return "tf32x3"
    return "ieee"


@triton.jit
@no_type_check
def _own_vectors(
    value, alpha, weight, out, value_b, value_h, value_j, weight_e, weight_d, heads, keys, count,
    size: tl.constexpr, width: tl.constexpr, GROUP: tl.constexpr, BN: tl.constexpr,
    BD: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some queries, some places of the vector, all heads."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    e = tl.arange(0, E)
    batch = (n // keys).to(tl.int64)
    rows = value + (batch * value_b + n % keys * value_j)[:, None] + e
    inside = (n < count)[:, None] & (e < size)
    total = tl.zeros((BN, BD), tl.float32)
    for h in range(heads):
        v = tl.load(rows + h // GROUP * value_h, inside, other=0.0)
        a = tl.load(alpha + (batch * heads + h) * keys + n % keys, n < count, other=0.0)
        spots = (h * size + e).to(tl.int64)[:, None] * weight_e + d.to(tl.int64) * weight_d
        w = tl.load(weight + spots, (e < size)[:, None] & (d < width), other=0.0)
        # Added head by head: tensor cores do not round to nearest when they accumulate.
        total += tl.dot(v * a[:, None], w, input_precision=PRECISION)
    inside = (n < count)[:, None] & (d < width)
    tl.store(out + n.to(tl.int64)[:, None] * width + d, total, inside)


def own_vectors(
    value: Float[Tensor, "batch kv_head key head_size"],
    alpha: Float[Tensor, "batch head key"],
    weight: Float[Tensor, "head head_size out"],
) -> Float[Tensor, "row out"]:
    """Compute Σ_h α_ii f_h(x_i) of every position, in float32."""
    value = _rowwise(value)
    heads, size, width = weight.shape
    flat = weight.flatten(0, 1)
    batch, groups, keys, _ = value.shape
    count = batch * keys
    out = value.new_empty((count, width))
    tile = {"BN": 32, "BD": 128, "num_warps": 4, "num_stages": 3}
    _own_vectors[(triton.cdiv(count, tile["BN"]), triton.cdiv(width, tile["BD"]))](
        value, alpha.contiguous(), flat, out, *value.stride()[:3], *flat.stride(),
        heads, keys, count, size=size, width=width, GROUP=heads // groups, E=_width(size),
        PRECISION=float32_products(value.device), **tile,
    )  # fmt: skip
    return out
