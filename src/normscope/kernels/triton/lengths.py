# mypy: allow-untyped-defs, allow-untyped-decorators
"""Lengths of the vectors of the diagonal and of the sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from normscope.foundation.shapes import Float


@dataclass(frozen=True, eq=False)
class RowLengths:
    """What :func:`row_lengths` gives, a number for each row, in float64."""

    own: Float[Tensor, " row"]  # ‖own‖
    others: Float[Tensor, " row"]  # ‖total − b_O − own‖
    gap: Float[Tensor, " row"]  # ‖total − output‖
    # With the residual x
    own_residual: Float[Tensor, " row"] | None = None  # ‖own + x‖
    gap_residual: Float[Tensor, " row"] | None = None  # ‖total + x − after_residual‖
    # After the norm: L v = γ ⊙ (v − mean v)
    sigma: Float[Tensor, " row"] | None = None
    own_norm: Float[Tensor, " row"] | None = None  # ‖L(own + x)‖/σ
    others_norm: Float[Tensor, " row"] | None = None  # ‖L others‖/σ
    bias_norm: Float[Tensor, " row"] | None = None  # ‖L b_O/σ + β‖
    gap_norm: Float[Tensor, " row"] | None = None  # ‖L(total + x)/σ + β − after_norm‖


@triton.jit
@no_type_check
def _row(source, spots, inside):
    """A row in float64; zero where there is none."""
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
    mine = _row(own, spots, inside)
    others = whole - constant - mine
    out += n
    tl.store(out, _length(mine))
    tl.store(out + count, _length(others))
    tl.store(out + 2 * count, _length(whole - _row(output, spots, inside)))
    if RESIDUAL:
        x = _row(residual, spots, inside)
        mine += x
        whole += x
        given = _row(after_residual, spots, inside)
        tl.store(out + 3 * count, _length(mine))
        tl.store(out + 4 * count, _length(whole - given))
        if NORM:
            scale = tl.full((D,), 1.0, tl.float64)
            if gamma is not None:
                scale = _row(gamma, d, inside)
            shift = _row(beta, d, inside)
            given = _linear(given, 1.0, inside, size, CENTRED)
            sigma = tl.sqrt(tl.sum(given * given, axis=0) / size + EPS)
            tl.store(out + 5 * count, sigma)
            scale /= sigma
            tl.store(out + 6 * count, _length(_linear(mine, scale, inside, size, CENTRED)))
            tl.store(out + 7 * count, _length(_linear(others, scale, inside, size, CENTRED)))
            made = _linear(constant, scale, inside, size, CENTRED) + shift
            tl.store(out + 8 * count, _length(made))
            made = _linear(whole, scale, inside, size, CENTRED) + shift
            tl.store(out + 9 * count, _length(made - _row(after_norm, spots, inside)))


def row_lengths(
    total: Float[Tensor, "row out"],
    output: Float[Tensor, "row out"],
    *,
    bias: Float[Tensor, " out"] | None = None,
    own: Float[Tensor, "row out"] | None = None,
    residual: Float[Tensor, "row out"] | None = None,
    after_residual: Float[Tensor, "row out"] | None = None,
    gamma: Float[Tensor, " out"] | None = None,
    beta: Float[Tensor, " out"] | None = None,
    centred: bool = True,
    eps: float = 0.0,
    after_norm: Float[Tensor, "row out"] | None = None,
) -> RowLengths:
    """Lengths of a query's own part, of the others' and of what is left unexplained.

    ``total`` is Σ αf + b_O, ``output`` the model's own; ``own`` is Σ_h α_ii f_h(x_i). With
    ``residual`` and ``after_residual`` also after the residual connection; with ``after_norm`` also
    after the norm that follows it, whose σ is that of ``after_residual``. The arithmetic is
    float64, whatever the dtypes.
    """
    count, size = total.shape
    given = [total, bias, output, own, residual, after_residual, gamma, beta, after_norm]
    arrays = [None if array is None else array.contiguous() for array in given]
    parts = 3 if residual is None else 5 if after_norm is None else 10
    out = total.new_empty((parts, count), dtype=torch.float64)
    width = triton.next_power_of_2(size)
    if count:
        _row_lengths[(count,)](
            *arrays, out, count, size, RESIDUAL=parts > 3, NORM=parts > 5, CENTRED=centred, EPS=eps,
            D=width, num_warps=min(max(width // 256, 1), 16),
        )  # fmt: skip
    return RowLengths(*out)
