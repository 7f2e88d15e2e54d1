"""Norms of Σ_h α f_h(x_j) from one small Gram matrix for each key.

Stack the transformed vectors of a key as F_j ∈ R^{head × hidden}. Then, with the weights of a
query for that key as a ∈ R^head,

    ‖Σ_h a_h f_h(x_j)‖² = aᵀ (F_j F_jᵀ) a

so a (query, key) cell costs head² multiplications and no vector of hidden size. Everything from
the recorded values on is float64: heads that cancel to a thousandth of their parts lose six of
sixteen digits in the square, which would leave nothing of float32's seven.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.shapes import Float

BLOCK = 2**20  # float64 numbers in the largest temporary array, 8 MiB


@dataclass(frozen=True, eq=False)
class Lengths:
    """What :func:`weighted_norms` gives for one set of output weights."""

    summed: Float[Tensor, "batch query key"]  # ‖Σ_h α f_h(x_j)‖
    single: Float[Tensor, "batch head key"]  # ‖f_h(x_j)‖
    diagonal: Float[Tensor, "batch query out"] | None  # Σ_h α f_h(x_i), where queries are keys


def head_vectors(
    value: Float[Tensor, "batch kv_head key head_size"],
    weight: Float[Tensor, "head head_size out"],
) -> Float[Tensor, "batch key head out"]:
    """f_h(x_j) = v_h(x_j) W_O^h for every head, in the dtype of ``weight``.

    Value heads are shared in groups: neighbouring heads read the same one.
    """
    batch, groups, keys, _ = value.shape
    grouped = weight.unflatten(0, (groups, -1))
    rows = value.to(weight.dtype).transpose(0, 1).flatten(1, 2)  # group (batch key) head_size
    made = rows.unsqueeze(1) @ grouped  # group head_in_group (batch key) out
    return made.flatten(0, 1).unflatten(1, (batch, keys)).permute(1, 2, 0, 3)


def weighted_norms(
    alpha: Float[Tensor, "batch head query key"],
    value: Float[Tensor, "batch kv_head key head_size"],
    weights: Sequence[Float[Tensor, "head head_size out"]],
) -> list[Lengths]:
    """Lengths for each of several output weights, in float64, a block of keys at a time.

    A linear map L after the projection is part of it: L f_h(x_j) = v_h(x_j) (L W_O^h).
    """
    batch, heads, queries, keys = alpha.shape
    square = queries == keys

    def empty(weight: Tensor) -> Lengths:
        new: Any = {"dtype": torch.float64, "device": alpha.device}
        return Lengths(
            torch.empty((batch, queries, keys), **new),
            torch.empty((batch, heads, keys), **new),
            torch.empty((batch, queries, weight.shape[-1]), **new) if square else None,
        )

    made = [empty(weight) for weight in weights]
    own = alpha.diagonal(dim1=-2, dim2=-1).double() if square else None  # batch head query
    widest = max(weight.shape[-1] for weight in weights)
    for here in blocks(keys, batch * heads * max(widest, 2 * queries)):
        scaled = alpha[..., here].permute(0, 3, 1, 2)  # batch key head query
        # Laid out anew: strided operands would make the product copy each small matrix.
        scaled = scaled.to(torch.float64, memory_format=torch.contiguous_format).flatten(0, 1)
        for weight, lengths in zip(weights, made, strict=True):
            vectors = head_vectors(value[:, :, here], weight.double())
            rows = vectors.flatten(0, 1)  # (batch key) head out
            grams = torch.bmm(rows, rows.transpose(1, 2))
            single = grams.diagonal(dim1=1, dim2=2).unflatten(0, (batch, -1))
            lengths.single[:, :, here] = single.transpose(1, 2).sqrt()
            squares = torch.bmm(grams, scaled).mul_(scaled).sum(dim=1).unflatten(0, (batch, -1))
            lengths.summed[:, :, here] = squares.clamp_min_(0).sqrt_().transpose(1, 2)
            if lengths.diagonal is not None and own is not None:
                total = own[:, 0, here, None] * vectors[:, :, 0]
                for head in range(1, heads):  # no array of all heads' products
                    total.addcmul_(own[:, head, here, None], vectors[:, :, head])
                lengths.diagonal[:, here] = total
    return made


def blocks(length: int, cost: int) -> Iterator[slice]:
    """Cut an axis so that ``cost`` numbers for each position fit into one block."""
    step = max(1, BLOCK // max(cost, 1))
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
