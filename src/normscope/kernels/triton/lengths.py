# mypy: allow-untyped-defs, allow-untyped-decorators
"""Lengths of each query's own part, of the other tokens' part, and of the gap to the model."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

from normscope.kernels.inputs import RowInputs, RowLengths


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
def _length(row):
    return tl.sqrt(tl.sum(row * row, axis=0))


@triton.jit
@no_type_check
def _linear(row, gamma, inside, size, CENTRED: tl.constexpr):
    """γ ⊙ (v − mean v)."""
    if CENTRED:
        row = tl.where(inside, row - tl.sum(row, axis=0) / size, 0.0)
    return row * gamma


@triton.jit
@no_type_check
def _row_lengths(
    total, bias, output, own, residual, after_residual, gamma, beta, after_norm, out,
    count, size, RESIDUAL: tl.constexpr, NORM: tl.constexpr, CENTRED: tl.constexpr,
    EPS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One row of each array."""
    n = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D)
    inside = d < size
    spots = n * size + d
    whole = _row(total, spots, inside)
    constant = _row(bias, d, inside)
    own_part = _row(own, spots, inside)
    others = whole - constant - own_part
    out += n
    tl.store(out, _length(own_part))
    tl.store(out + count, _length(others))
    tl.store(out + 2 * count, _length(whole - _row(output, spots, inside)))
    if RESIDUAL:
        x = _row(residual, spots, inside)
        own_part += x
        whole += x
        summed = _row(after_residual, spots, inside)
        tl.store(out + 3 * count, _length(own_part))
        tl.store(out + 4 * count, _length(whole - summed))
        if NORM:
            scale = tl.full((D,), 1.0, tl.float64)
            if gamma is not None:
                scale = _row(gamma, d, inside)
            shift = _row(beta, d, inside)
            spread = _linear(summed, 1.0, inside, size, CENTRED)
            sigma = tl.sqrt(tl.sum(spread * spread, axis=0) / size + EPS)
            tl.store(out + 5 * count, sigma)
            scale /= sigma
            tl.store(out + 6 * count, _length(_linear(own_part, scale, inside, size, CENTRED)))
            tl.store(out + 7 * count, _length(_linear(others, scale, inside, size, CENTRED)))
            normed_bias = _linear(constant, scale, inside, size, CENTRED) + shift
            tl.store(out + 8 * count, _length(normed_bias))
            normed = _linear(whole, scale, inside, size, CENTRED) + shift
            tl.store(out + 9 * count, _length(normed - _row(after_norm, spots, inside)))


def row_lengths(rows: RowInputs) -> RowLengths:
    """Measure each query's own part, the others' part and the gap to the model's own vectors.

    The σ of the norm is that of ``rows.after_residual``. The arithmetic is float64, whatever the
    dtypes.
    """
    count, size = rows.total.shape
    vectors = (
        *(rows.total, rows.bias, rows.output, rows.own, rows.residual, rows.after_residual),
        *(rows.gamma, rows.beta, rows.after_norm),
    )
    arrays = [None if vector is None else vector.contiguous() for vector in vectors]
    parts = 3 if rows.residual is None else 5 if rows.after_norm is None else 10
    out = rows.total.new_empty((parts, count), dtype=torch.float64)
    width = triton.next_power_of_2(size)
    if count:
        _row_lengths[(count,)](
            *arrays, out, count, size, RESIDUAL=parts > 3, NORM=parts > 5, CENTRED=rows.centred,
            EPS=rows.eps, D=width, num_warps=min(max(width // 256, 1), 16),
        )  # fmt: skip
    return RowLengths(*out)
