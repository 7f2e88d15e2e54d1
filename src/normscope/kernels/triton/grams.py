# mypy: allow-untyped-defs, allow-untyped-decorators
"""Gram matrices of each key's vectors, before and after norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import no_type_check

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from normscope.foundation.shapes import Float
from normscope.kernels.triton.cells import FEW


@triton.jit
@no_type_check
def _gram_matrices(
    vectors, own, gamma, plain, normed, summed, heads, count, gram_n, gram_r, gram_c,
    D: tl.constexpr, STEP: tl.constexpr, CENTRED: tl.constexpr, OWN: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr, H: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Some keys, all heads: FFᵀ, its weighted and centred form, and a sum over the heads.

    Σ γ²(f_h − m_h)(f_k − m_k) = Σ γ²f_h f_k − m_h Σ γ²f_k − m_k Σ γ²f_h + m_h m_k Σ γ²
    """
    n = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    h = tl.arange(0, H)
    exists = (h < heads)[:, None] & (n < count)  # (H, BN): a thread has all heads of a key
    rows = vectors + ((h * count)[:, None] + n)[:, :, None] * D
    if OWN:
        weights = tl.load(own + n * heads + h[:, None], exists, other=0.0)
    squares = tl.zeros((BN, H, H), tl.float64)
    scaled = tl.zeros((BN, H, H), tl.float64)
    # Summed over chunks here, across threads at the end.
    means = tl.zeros((H, BN, BD), tl.float64)  # d·m_h
    sums = tl.zeros((H, BN, BD), tl.float64)  # Σ γ²f_h
    total = tl.zeros((BD,), tl.float64)  # Σ γ²
    for start in tl.range(0, D, BD, num_stages=STAGES):
        d = start + tl.arange(0, BD)
        f = tl.load(rows + d, exists[:, :, None] & (d < D), other=0.0)
        left = f.permute(1, 0, 2)
        right = f.permute(1, 2, 0)
        squares = tl.dot(left, right, squares, out_dtype=tl.float64)
        if STEP:
            square = tl.full((BD,), 1.0, tl.float64)
            if gamma is not None:
                square = tl.load(gamma + d, d < D, other=0.0)
                square *= square
                scaled = tl.dot(left * square, right, scaled, out_dtype=tl.float64)
            if CENTRED:
                means += f
                sums += f * square
                total += tl.where(d < D, square, 0.0)
        if OWN:
            inside = (n < count)[:, None] & (d < D)
            weighted = tl.sum(f * weights[:, :, None], axis=0)
            tl.store(summed + n[:, None] * D + d, weighted, inside)
    pairs = n[:, None, None] * gram_n + h[:, None] * gram_r + h * gram_c
    inside = (n < count)[:, None, None] & (h < heads)[:, None] & (h < heads)
    tl.store(plain + pairs, squares, inside)
    if STEP:
        if gamma is None:
            scaled = squares
        if CENTRED:
            m = tl.trans(tl.sum(means, axis=2)) / D
            v = tl.trans(tl.sum(sums, axis=2))
            cross = m[:, :, None] * v[:, None, :] + v[:, :, None] * m[:, None, :]
            scaled += m[:, :, None] * m[:, None, :] * tl.sum(total, axis=0) - cross
        tl.store(normed + pairs, scaled, inside)


def gram_matrices(
    vectors: Float[Tensor, "head row out"],
    steps: Sequence[tuple[bool, Float[Tensor, " out"] | None]] = (),
    own: Float[Tensor, "row head"] | None = None,
) -> tuple[list[Float[Tensor, "row head head"]], Float[Tensor, "row out"] | None]:
    """Compute Gram matrices of each row's vectors, plain and after each step, and Σ_h own_h f_h.

    A step is (whether the mean is subtracted, the factor or None) and acts on the result of the
    step before it. Everything is float64; ``vectors`` are read once for every two matrices.
    """
    heads, count, size = vectors.shape
    if heads > 32:  # large enough for a library product
        return _gram_products(vectors, steps, own)
    vectors = vectors.contiguous()
    # By key first or last in memory, as quadratic_norms reads them.
    shape = (count, heads, heads) if heads > FEW else (heads, heads, count)
    grams = [vectors.new_empty(shape) for _ in (None, *steps)]
    grams = grams if heads > FEW else [gram.permute(2, 0, 1) for gram in grams]
    summed = None if own is None else vectors.new_empty((count, size))
    tile = _gram_tile(heads)
    grid = (triton.cdiv(count, tile["BN"]),)
    for index in range(0, len(grams), 2):
        if index:
            vectors = _transformed(_transformed(vectors, *steps[index - 2]), *steps[index - 1])
        followed = index < len(steps)  # a second matrix in this pass
        centred, gamma = steps[index] if followed else (False, None)
        weights = None if own is None or index else own.contiguous()
        if vectors.numel():
            _gram_matrices[grid](
                vectors, weights, None if gamma is None else gamma.contiguous(),
                grams[index], grams[index + 1] if followed else None,
                None if weights is None else summed, heads, count, *grams[0].stride(),
                D=size, STEP=followed, CENTRED=centred, OWN=weights is not None, **tile,
            )  # fmt: skip
    return grams, summed


def _gram_products(
    vectors: Tensor, steps: Sequence[tuple[bool, Tensor | None]], own: Tensor | None
) -> tuple[list[Tensor], Tensor | None]:
    """The same by torch's own products."""
    rows = vectors.transpose(0, 1)
    summed = None if own is None else torch.bmm(own.unsqueeze(1), rows).squeeze(1)
    grams = [torch.bmm(rows, rows.transpose(1, 2))]
    for step in steps:
        rows = _transformed(rows, *step)
        grams.append(torch.bmm(rows, rows.transpose(1, 2)))
    return grams, summed


def _transformed(vectors: Tensor, centred: bool, gamma: Tensor | None) -> Tensor:
    """γ ⊙ (v − mean v)."""
    vectors = vectors - vectors.mean(dim=-1, keepdim=True) if centred else vectors
    return vectors if gamma is None else vectors * gamma


def _gram_tile(heads: int) -> dict[str, int]:
    """Tile sizes for which each key has a warp."""
    if heads <= 16:
        return {"BN": 1, "BD": 64, "H": 16, "STAGES": 3, "num_warps": 1}
    return {"BN": 4, "BD": 32, "H": 32, "STAGES": 3, "num_warps": 4}
