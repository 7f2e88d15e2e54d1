"""Norms of Σ_h α f_h(x_j) from one small Gram matrix for each key.

Stack the transformed vectors of a key as F_j ∈ R^{head × hidden}. Then, with the weights of a
query for that key as a ∈ R^head,

    ‖Σ_h a_h f_h(x_j)‖² = aᵀ (F_j F_jᵀ) a

so a (query, key) cell costs head² multiplications and no vector of hidden size. Everything from
the recorded values on is float64: heads that cancel to a thousandth of their parts lose six of
sixteen digits in the square, which would leave nothing of float32's seven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.kernels.scratch import Scratch
from normscope.shapes import Float

# Float64 numbers in the largest temporary array: on a CPU what its caches nearly hold.
BLOCK = {"cpu": 2**20, "cuda": 2**26}
# A linear map of the last axis, which may write over what it was given (out=).
Linear = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class Lengths:
    """What :func:`weighted_norms` gives."""

    summed: list[Float[Tensor, "batch query key"]]  # ‖L Σ_h α f_h(x_j)‖, for each L
    single: Float[Tensor, "batch head key"]  # ‖f_h(x_j)‖
    diagonal: Float[Tensor, "batch query out"] | None  # Σ_h α f_h(x_i), where queries are keys


def head_vectors(
    value: Float[Tensor, "batch kv_head key head_size"],
    weight: Float[Tensor, "head head_size out"],
    out: Float[Tensor, "head rows out"] | None = None,
) -> Float[Tensor, "head batch key out"]:
    """f_h(x_j) = v_h(x_j) W_O^h for every head, in the dtype of ``weight``.

    Value heads are shared in groups: neighbouring heads read the same one.
    """
    batch, groups, keys, _ = value.shape
    rows = value.to(weight.dtype).transpose(0, 1).flatten(1, 2)  # group (batch key) head_size
    rows = rows.repeat_interleave(len(weight) // groups, dim=0) if groups < len(weight) else rows
    return torch.bmm(rows, weight, out=out).unflatten(1, (batch, keys))


def weighted_norms(
    alpha: Float[Tensor, "batch head query key"],
    value: Float[Tensor, "batch kv_head key head_size"],
    weight: Float[Tensor, "head head_size out"],
    chain: Sequence[Sequence[Linear]] = (),
    scratch: Scratch | None = None,
) -> Lengths:
    """Lengths of αf, then of L_1 αf, of L_2 L_1 αf, …, in float64, a block of keys at a time.

    ``weight`` is float64. Each element of ``chain`` says by which steps the next L goes on.
    """
    batch, heads, queries, keys = alpha.shape
    scratch = Scratch() if scratch is None else scratch
    new: Any = {"dtype": torch.float64, "device": alpha.device}
    # By key first, as they are made; seen from outside by query.
    summed = [torch.empty((batch, keys, queries), **new) for _ in (None, *chain)]
    single = torch.empty((batch, heads, keys), **new)
    own = diagonal = None
    if queries == keys:
        own = alpha.diagonal(dim1=-2, dim2=-1).double().unsqueeze(-1)  # batch head query 1
        diagonal = torch.zeros((batch, queries, weight.shape[-1]), **new)
    for here in blocks(keys, batch * heads * max(weight.shape[-1], 2 * queries), alpha.device):
        size = here.stop - here.start
        rows = batch * size
        scaled = scratch.take("scaled", (batch, size, heads, queries), alpha)
        # Laid out anew: strided operands would make the product copy each small matrix.
        scaled = scaled.copy_(alpha[..., here].permute(0, 3, 1, 2)).flatten(0, 1)
        product = scratch.take("product", scaled.shape, alpha)
        vectors = scratch.take("vectors", (heads, rows, weight.shape[-1]), alpha)
        head_vectors(value[:, :, here], weight, out=vectors)
        stacked = vectors.transpose(0, 1)  # (batch key) head out
        if own is not None and diagonal is not None:
            for head in range(heads):  # no array of all heads' products
                mine = vectors[head].view(batch, size, -1)
                diagonal[:, here].addcmul_(own[:, head, here], mine)
        for steps, norms in zip(((), *chain), summed, strict=True):
            for step in steps:
                step(vectors, out=vectors)
            grams = torch.bmm(stacked, stacked.transpose(1, 2))
            if norms is summed[0]:
                lengths = grams.diagonal(dim1=1, dim2=2).unflatten(0, (batch, -1))
                single[:, :, here] = lengths.transpose(1, 2).sqrt()
            squares = torch.bmm(grams, scaled, out=product).mul_(scaled).sum(dim=1)
            norms[:, here] = squares.clamp_min_(0).sqrt_().unflatten(0, (batch, -1))
    return Lengths([norms.transpose(1, 2) for norms in summed], single, diagonal)


def blocks(length: int, cost: int, device: torch.device) -> Iterator[slice]:
    """Cut an axis evenly, so that ``cost`` numbers for each position fit into one block."""
    most = BLOCK.get(device.type, BLOCK["cuda"])
    count = -(-length * cost // most)
    step = max(1, -(-length // max(count, 1)))
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
