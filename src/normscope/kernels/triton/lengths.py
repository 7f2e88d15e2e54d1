# mypy: allow-untyped-defs, allow-untyped-decorators
"""Lengths of each query's own part, of the other tokens' part, and gaps to the model's states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from normscope.foundation.shapes import Bool, Float
from normscope.kernels.inputs import Attended, GapInputs, RowInputs, RowLengths
from normscope.kernels.triton.flash import _width

TINY = tl.constexpr(2.3e-308)


@triton.jit
@no_type_check
def _row(source, spots, inside):
    """A row in float64; zeros if there is no source."""
    row = tl.where(inside, 0.0, 0.0).to(tl.float64)
    if source is not None:
        row = tl.load(source + spots, inside, other=0.0).to(tl.float64)
    return row


@triton.jit
@no_type_check
def _add4(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


@triton.jit
@no_type_check
def _sum4(a, b, c, d):
    """The sums of four rows, in one exchange between threads."""
    return tl.reduce((a, b, c, d), 0, _add4)


@triton.jit
@no_type_check
def _ratio(own, others):
    """The mixing ratio."""
    return others / tl.maximum(own + others, TINY)


@triton.jit
@no_type_check
def _row_lengths(
    total, bias, own, residual, after_residual, gamma, beta, after_norm, out,
    count, size, RESIDUAL: tl.constexpr, NORM: tl.constexpr, CENTRED: tl.constexpr,
    EPS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One row of each array. Sums of γ²(v − m)² come from Σγ²v², Σγ²v and Σv, in float64."""
    n = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D)
    inside = d < size
    spots = n * size + d
    zero = tl.zeros((D,), tl.float64)
    whole = _row(total, spots, inside)
    constant = _row(bias, d, inside)
    kept = _row(own, spots, inside)
    mixed = whole - constant - kept
    x = zero
    summed = zero
    if RESIDUAL:
        x = _row(residual, spots, inside)
        summed = _row(after_residual, spots, inside)
        whole += x
    own_square, mixed_square, bias_square, mean = _sum4(
        kept * kept, mixed * mixed, constant * constant, summed
    )
    out += n
    others = tl.sqrt(mixed_square)
    tl.store(out, tl.sqrt(own_square))
    tl.store(out + count, others)
    tl.store(out + 2 * count, _ratio(tl.sqrt(own_square), others))
    tl.store(out + 3 * count, tl.sqrt(bias_square))
    if RESIDUAL:
        kept += x
        mean = mean / size if CENTRED else 0.0
        spread = tl.where(inside, summed - mean, 0.0)
        gap = whole - summed
        own_square, gap_square, variance, _ = _sum4(kept * kept, gap * gap, spread * spread, zero)
        tl.store(out + 4 * count, tl.sqrt(own_square))
        tl.store(out + 5 * count, tl.sqrt(gap_square))
        tl.store(out + 6 * count, _ratio(tl.sqrt(own_square), others))
        if NORM:
            scale = tl.full((D,), 1.0, tl.float64)
            if gamma is not None:
                scale = _row(gamma, d, inside)
            weight = 1 / tl.sqrt(variance / size + EPS)
            own_mean, mixed_mean, bias_mean, whole_mean = _sum4(kept, mixed, constant, whole)
            if CENTRED:
                kept = tl.where(inside, kept - own_mean / size, 0.0)
                mixed = tl.where(inside, mixed - mixed_mean / size, 0.0)
                constant = tl.where(inside, constant - bias_mean / size, 0.0)
                whole = tl.where(inside, whole - whole_mean / size, 0.0)
            scale *= weight
            shift = _row(beta, d, inside)
            kept *= scale
            mixed *= scale
            constant = constant * scale + shift
            gap = whole * scale + shift - _row(after_norm, spots, inside)
            own_square, mixed_square, bias_square, gap_square = _sum4(
                kept * kept, mixed * mixed, constant * constant, gap * gap
            )
            tl.store(out + 7 * count, weight)
            tl.store(out + 8 * count, tl.sqrt(own_square))
            tl.store(out + 9 * count, tl.sqrt(mixed_square))
            tl.store(out + 10 * count, tl.sqrt(bias_square))
            tl.store(out + 11 * count, tl.sqrt(gap_square))
            tl.store(out + 12 * count, _ratio(tl.sqrt(own_square), tl.sqrt(mixed_square)))


def row_lengths(rows: RowInputs) -> RowLengths:
    """Measure each query's own part, the others' part and the gaps to the model's own vectors.

    The σ of the norm is that of ``rows.after_residual``. The arithmetic is float64, whatever the
    dtypes; the results are float32.
    """
    count, size = rows.total.shape
    vectors = (
        *(rows.total, rows.bias, rows.own, rows.residual, rows.after_residual),
        *(rows.gamma, rows.beta, rows.after_norm),
    )
    arrays = [None if vector is None else vector.contiguous() for vector in vectors]
    parts = 4 if rows.residual is None else 7 if rows.after_norm is None else 13
    out = rows.total.new_empty((parts, count), dtype=torch.float32)
    width = triton.next_power_of_2(size)
    if count:
        _row_lengths[(count,)](
            *arrays, out, count, size, RESIDUAL=parts > 4, NORM=parts > 7, CENTRED=rows.centred,
            EPS=rows.eps, D=width, num_warps=min(max(width // 256, 1), 16),
        )  # fmt: skip
    return RowLengths(*out)


@triton.jit
@no_type_check
def _projection(
    merged, weight, bias, output, chosen, random, probe, gamma, known_gamma, out,
    weight_e, weight_d,
    queries, size, width, scale,
    SOME: tl.constexpr, HEADS: tl.constexpr, CHUNKS: tl.constexpr,
    E: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Some places of the projection of one row's chosen queries, and of a probe of the weight."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    e = tl.arange(0, E)
    features = HEADS * size
    out += (row * CHUNKS + tl.program_id(1)) * 3
    constant = tl.zeros((BD,), tl.float64)
    if bias is not None:
        constant = tl.load(bias + d, d < width, other=0.0).to(tl.float64)
    gap = tl.zeros((BD,), tl.float64)
    size_square = tl.zeros((BD,), tl.float64)
    for s in tl.static_range(SOME):
        i = row * queries + tl.load(chosen + row * SOME + s)
        total = constant
        parts = tl.abs(constant)
        probed = tl.zeros((BD,), tl.float64)
        for h in range(HEADS):
            spots = (h * size + e).to(tl.int64)
            in_head = e < size
            c = tl.load(merged + i * features + spots, in_head, other=0.0).to(tl.float64)
            inside = in_head[:, None] & (d < width)
            cells = spots[:, None] * weight_e + d.to(tl.int64) * weight_d
            w = tl.load(weight + cells, inside, other=0.0).to(tl.float64)
            part = tl.sum(c[:, None] * w, axis=0)
            total += part
            parts += tl.abs(part)
            if s == 0:
                r = tl.load(random + spots, in_head, other=0.0).to(tl.float64)
                probed += tl.sum(r[:, None] * w, axis=0)
        real = tl.load(output + i * width + d, d < width, other=0.0).to(tl.float64)
        difference = tl.where(d < width, total - real, 0.0)
        gap += difference * difference
        size_square += tl.where(d < width, parts * parts, 0.0)
        if s == 0:
            known = tl.load(probe + d, d < width, other=0.0).to(tl.float64)
            change = tl.where(d < width, tl.abs(probed - known), 0.0)
            changed = tl.max(change, axis=0) / tl.load(scale).to(tl.float64)
            if gamma is not None:
                now = tl.load(gamma + d, d < width, other=0.0).to(tl.float64)
                before = tl.load(known_gamma + d, d < width, other=0.0).to(tl.float64)
                size_of = tl.maximum(tl.max(tl.abs(before), axis=0), TINY)
                changed = tl.maximum(changed, tl.max(tl.abs(now - before), axis=0) / size_of)
            tl.store(out + 2, changed)
    tl.store(out, tl.sum(gap, axis=0))
    tl.store(out + 1, tl.sum(size_square, axis=0))


@triton.jit
@no_type_check
def _worst(gap, counts):
    """The largest gap of the positions that count; infinity if one is NaN."""
    return tl.max(tl.where(counts, tl.where(gap == gap, gap, float("inf")), 0.0), axis=0)


@triton.jit
@no_type_check
def _gaps(
    sums, differences, biases, context, own, projected, real, gaps, ratio, rows, queries, tiles,
    COUNT: tl.constexpr, HEADS: tl.constexpr, CHUNKS: tl.constexpr, PARTS: tl.constexpr,
    BQ: tl.constexpr,
):  # fmt: skip
    """One row of the batch: the worst gap of its real queries for every map; Σᾱ − ᾱ_ii."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, PARTS)
    partial = projected + (row * CHUNKS + chunk) * 3
    gap_square = tl.sum(tl.load(partial, chunk < CHUNKS, other=0.0), axis=0)
    size_square = tl.sum(tl.load(partial + 1, chunk < CHUNKS, other=0.0), axis=0)
    whole = tl.sqrt(gap_square / tl.maximum(size_square, TINY))
    whole = tl.where(whole == whole, whole, float("inf"))
    change = tl.load(partial + 2, chunk < CHUNKS, other=0.0)
    whole = tl.maximum(whole, _worst(change, chunk < CHUNKS))
    for start in range(0, queries, BQ):
        i = start + tl.arange(0, BQ)
        spots = row * queries + i
        counts = (tl.load(real + spots, i < queries, other=0) != 0) & (i < queries)
        kept = tl.zeros((BQ,), tl.float32)
        for h in range(HEADS):
            by_head = (row * HEADS + h) * queries + i
            gap = tl.load(context + by_head, i < queries, other=0.0).to(tl.float64)
            whole = tl.maximum(whole, _worst(gap, counts))
            kept += tl.load(own + by_head, i < queries, other=0.0)
        mean = tl.zeros((BQ,), tl.float32)
        for t in range(tiles):
            mean += tl.load(sums + (row * tiles + t) * queries + i, i < queries, other=0.0)
        tl.store(ratio + spots, mean - kept / HEADS, i < queries)
    for m in tl.static_range(COUNT):
        worst = whole
        for start in range(0, queries, BQ):
            i = start + tl.arange(0, BQ)
            spots = row * queries + i
            counts = (tl.load(real + spots, i < queries, other=0) != 0) & (i < queries)
            size = tl.load(biases[m] + spots, i < queries, other=0.0).to(tl.float64)
            for t in range(tiles):
                tile = ((m * rows + row) * tiles + t) * queries + i
                size += tl.load(sums + tile, i < queries, other=0.0).to(tl.float64)
            gap = tl.zeros((BQ,), tl.float64)
            if differences[m] is not None:
                difference = tl.load(differences[m] + spots, i < queries, other=0.0)
                gap = difference.to(tl.float64) / tl.maximum(size, TINY)
            gap = tl.where(size < float("inf"), gap, float("inf"))  # also for NaN
            worst = tl.maximum(worst, _worst(gap, counts))
        tl.store(gaps + m * rows + row, worst)


def row_gaps(
    inputs: GapInputs,
    attended: Attended,
    sums: Float[Tensor, "map batch tile query"],
    stations: Sequence[tuple[Tensor | None, Tensor]],
    real: Bool[Tensor, "batch query"],
) -> tuple[Float[Tensor, "map batch"], Float[Tensor, "batch query"]]:
    """Compute the worst gap of each row of a batch, for several maps, and Σ_j ᾱ − ᾱ_ii.

    Args:
        inputs: what the projection of some queries is computed from.
        attended: the gaps of Σ_j αv, and α_ii.
        sums: sums over keys of each map, the mean of the weights first, by tiles of keys.
        stations: for each map, the difference to the model's own state, if there is one, and the
            length of what belongs to no token.
        real: which queries count.

    Returns:
        The largest of: the gaps of Σ_j αv of every query, the gap of the chosen queries'
        projection, the change of the weight against ``probe``, and the differences relative to
        the lengths of a query's parts. Infinity where a number is not finite.
    """
    count, batch, tiles, queries = sums.shape
    heads, size, width = inputs.weight.shape
    weight = inputs.weight.flatten(0, 1)
    block = 64
    chunks = triton.cdiv(width, block)
    options = {"device": sums.device, "dtype": torch.float64}
    projected = torch.empty((batch, chunks, 3), **options)  # type: ignore[call-overload]
    _projection[(batch, chunks)](
        inputs.merged.contiguous(), weight, inputs.bias, inputs.output.contiguous(),
        inputs.chosen.contiguous(), inputs.random, inputs.probe,
        inputs.gamma, inputs.known_gamma, projected, *weight.stride(),
        queries, size, width, inputs.scale, SOME=inputs.chosen.shape[1], HEADS=heads,
        CHUNKS=chunks, E=_width(size), BD=block, num_warps=4,
    )  # fmt: skip
    gaps = torch.empty((count, batch), **options)  # type: ignore[call-overload]
    ratio = sums.new_empty((batch, queries))
    _gaps[(batch,)](
        sums, tuple(difference for difference, _ in stations), tuple(bias for _, bias in stations),
        attended.gap, attended.own, projected, real.contiguous().view(torch.uint8), gaps, ratio,
        batch, queries, tiles, COUNT=count, HEADS=heads, CHUNKS=chunks,
        PARTS=triton.next_power_of_2(chunks),
        BQ=min(512, max(16, triton.next_power_of_2(queries))), num_warps=4,
    )  # fmt: skip
    return gaps, ratio
