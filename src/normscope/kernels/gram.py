"""Norms of Σ_h α f_h(x_j) from one small Gram matrix for each key.

Stack the transformed vectors of a key as F_j ∈ R^{head × hidden}. Then, with the weights of a
query for that key as a ∈ R^head,

    ‖Σ_h a_h f_h(x_j)‖² = aᵀ (F_j F_jᵀ) a

so a (query, key) cell costs head² multiplications and no vector of hidden size. Everything from
the recorded values on is float64: heads that cancel to a thousandth of their parts lose six of
sixteen digits in the square, which would leave nothing of float32's seven.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from normscope.shapes import Float

BLOCK = 2**22  # float64 numbers in the largest temporary array, 32 MiB


def head_vectors(
    value: Float[Tensor, "batch kv_head key head_size"],
    weight: Float[Tensor, "head head_size out"],
) -> Float[Tensor, "batch key head out"]:
    """f_h(x_j) = v_h(x_j) W_O^h for every head, in float64; value heads are shared in groups."""
    batch, groups, keys, _ = value.shape
    grouped = weight.double().unflatten(0, (groups, -1))
    rows = value.double().transpose(0, 1).flatten(1, 2)  # group (batch key) head_size
    made = rows.unsqueeze(1) @ grouped  # group head_in_group (batch key) out
    return made.flatten(0, 1).unflatten(1, (batch, keys)).permute(1, 2, 0, 3)


def gram_matrices(
    vectors: Float[Tensor, "batch key head out"],
) -> Float[Tensor, "batch key head head"]:
    """F_j F_jᵀ for every key."""
    return vectors @ vectors.transpose(-1, -2)


def weighted_norm(
    alpha: Float[Tensor, "batch head query key"],
    value: Float[Tensor, "batch kv_head key head_size"],
    weight: Float[Tensor, "head head_size out"],
) -> tuple[Float[Tensor, "batch query key"], Float[Tensor, "batch head key"]]:
    """‖Σ_h α f_h(x_j)‖ and ‖f_h(x_j)‖, in float64, a block of keys at a time."""
    batch, heads, queries, keys = alpha.shape
    summed = alpha.new_empty((batch, queries, keys), dtype=torch.float64)
    single = alpha.new_empty((batch, heads, keys), dtype=torch.float64)
    for here in blocks(keys, batch * heads * max(weight.shape[-1], 2 * queries)):
        grams = gram_matrices(head_vectors(value[:, :, here], weight))
        single[:, :, here] = grams.diagonal(dim1=-2, dim2=-1).transpose(1, 2).sqrt()
        weights = alpha[..., here].permute(0, 3, 1, 2)  # batch key head query
        # Laid out anew: strided operands would make the product copy each small matrix.
        weights = weights.to(torch.float64, memory_format=torch.contiguous_format)
        squares = (grams @ weights).mul_(weights).sum(dim=2)
        summed[:, :, here] = squares.clamp_min_(0).sqrt_().transpose(1, 2)
    return summed, single


def blocks(length: int, cost: int) -> Iterator[slice]:
    """Cut an axis so that ``cost`` numbers for each position fit into one block."""
    step = max(1, BLOCK // max(cost, 1))
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
