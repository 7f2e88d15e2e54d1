"""Vectors of every cell of a block: weighted sums over heads, and lengths after linear steps.

Behind a feed-forward the vectors of all cells must be built. What is done to them besides the large
product is here: on CUDA as two Triton kernels that read and write each array once, otherwise as
torch operations that write into the same memory again and again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.foundation.shapes import Float
from normscope.kernels.backend import Kernels, triton_for
from normscope.kernels.inputs import CellLinear, CellSums
from normscope.kernels.scratch import Scratch


def scaled_sums(
    sums: Sequence[CellSums],
    factors: Sequence[Float[Tensor, "batch query out"]],
    scratch: Scratch,
    kernels: Kernels = "auto",
) -> Float[Tensor, "batch key query out"]:
    """Compute Σ_t factor_t ⊙ Σ_h a_h f_h over terms t, for every cell, in memory of ``scratch``."""
    batch, keys, _, queries = sums[0].weights.shape
    shape = (batch, keys, queries, factors[0].shape[-1])

    def take(name: str) -> Tensor:
        return scratch.take(name, shape, sums[0].vectors, sums[0].vectors.dtype)

    whole = take("scaled sums")
    if (triton := triton_for(kernels, whole.device)) is not None:
        triton.scaled_sums(sums, factors, whole)
        return whole
    for number, (term, factor) in enumerate(zip(sums, factors, strict=True)):
        target = whole if number == 0 else take("term")
        weights = term.weights.flatten(0, 1).transpose(1, 2)
        torch.bmm(weights, term.vectors.flatten(0, 1), out=target.flatten(0, 1))
        if number == 0:
            whole.mul_(factor.unsqueeze(1))
        else:
            whole.addcmul_(target, factor.unsqueeze(1))
    return whole


def sum_over_keys(sums: CellSums) -> Float[Tensor, "batch query out"]:
    """Compute Σ_j Σ_h a_h f_h."""
    if sums.vectors.stride(1) == 0:  # all keys have the same vectors
        return sums.weights.sum(dim=1).transpose(1, 2) @ sums.vectors[:, 0]
    return sums.weights.flatten(1, 2).transpose(1, 2) @ sums.vectors.flatten(1, 2)


def cell_lengths(
    vectors: Float[Tensor, "batch key query out"],
    branch: CellLinear | None,
    carried: CellSums,
    after: CellLinear | None,
    kernels: Kernels = "auto",
) -> Float[Tensor, "stage batch key query"]:
    """Measure every cell's vector after ``branch``, with ``carried`` added, and after ``after``.

    The memory of ``vectors`` may be overwritten. Without ``after`` there are two stages.
    """
    if (triton := triton_for(kernels, vectors.device)) is not None:
        lengths: Tensor = triton.cell_lengths(vectors, branch, carried, after)
        return lengths
    if branch is not None:
        _apply(branch, vectors)
        if branch.weight is not None:
            vectors.mul_(branch.weight[:, None, :, None])
    lengths = vectors.new_empty((2 + (after is not None), *vectors.shape[:-1]))
    torch.linalg.vector_norm(vectors, dim=-1, out=lengths[0])
    weights = carried.weights.flatten(0, 1).transpose(1, 2)
    vectors.flatten(0, 1).baddbmm_(weights, carried.vectors.flatten(0, 1))
    torch.linalg.vector_norm(vectors, dim=-1, out=lengths[1])
    if after is not None:
        _apply(after, vectors)
        torch.linalg.vector_norm(vectors, dim=-1, out=lengths[2])
        if after.weight is not None:
            lengths[2].mul_(after.weight.unsqueeze(1))
    return lengths


def _apply(linear: CellLinear, vectors: Tensor) -> None:
    """Apply scale ⊙ (v − mean v) in place."""
    if linear.centred:
        vectors.sub_(vectors.mean(dim=-1, keepdim=True))
    if linear.scale is not None:
        vectors.mul_(linear.scale)
