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

from normscope.foundation.shapes import Float
from normscope.kernels.backend import Kernels, fused
from normscope.kernels.scratch import Scratch

# Float64 numbers in the largest temporary array: on a CPU what its caches nearly hold.
BLOCK = {"cpu": 2**20, "cuda": 2**26}
# From 2.8 on torch gives the product of 16-bit matrices in float32, on CUDA.
_GIVES_WIDE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)


@dataclass(frozen=True, eq=False)
class Linear:
    """v ↦ scale ⊙ (v − mean v), or without the mean: what norms and multipliers do to a vector."""

    centred: bool
    scale: Tensor | None

    def __call__(
        self, vectors: Float[Tensor, "*rows out"], out: Tensor | None = None
    ) -> Float[Tensor, "*rows out"]:
        """The map of the last axis; ``out`` may be ``vectors``."""
        if self.centred:
            vectors = torch.sub(vectors, vectors.mean(dim=-1, keepdim=True), out=out)
        if self.scale is None:
            return vectors
        return torch.mul(vectors, self.scale.to(vectors), out=out)


@dataclass(frozen=True, eq=False)
class Grams:
    """What is known of the keys alone."""

    matrices: list[Float[Tensor, "batch key head head"]]  # L F_j (L F_j)ᵀ, for each L
    single: Float[Tensor, "batch head key"]  # ‖f_h(x_j)‖
    diagonal: Float[Tensor, "batch key out"] | None  # Σ_h a_h f_h(x_j), for the weights given


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
    if out is not None and out.dtype != weight.dtype:  # products of 16 bits, exact in 32
        out.copy_(wide_product(rows, weight))
        return out.unflatten(1, (batch, keys))
    return torch.bmm(rows, weight, out=out).unflatten(1, (batch, keys))


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """A batch of products of 16-bit matrices, added up and given in float32."""
    if a.is_cuda and _GIVES_WIDE:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


def gram_matrices(
    value: Float[Tensor, "batch kv_head key head_size"],
    weight: Float[Tensor, "head head_size out"],
    chain: Sequence[Sequence[Linear]] = (),
    own: Float[Tensor, "batch head key"] | None = None,
    scratch: Scratch | None = None,
    kernels: Kernels = "torch",
) -> Grams:
    """The Gram matrices of f, then of L_1 f, of L_2 L_1 f, …, in blocks of keys.

    They are of the dtype of ``weight``: float64. With 16-bit weights on a GPU, the vectors and
    their products are float32. Each element of ``chain`` says by which steps the next L goes on.
    ``own`` are weights of each key, for which the sum of its vectors is wanted.
    """
    batch, _, keys, _ = value.shape
    heads, _, out = weight.shape
    scratch = Scratch() if scratch is None else scratch
    wide = torch.promote_types(weight.dtype, torch.float32)
    triton = fused(kernels, value.device) if wide == torch.float64 else None
    new: Any = {"dtype": wide, "device": value.device}
    matrices = [torch.empty((batch, keys, heads, heads), **new) for _ in (None, *chain)]
    diagonal = None if own is None else torch.zeros((batch, keys, out), **new)
    own = None if own is None else own.to(wide).unsqueeze(-1)
    for here in blocks(keys, batch * heads * out, value.device):
        size = here.stop - here.start
        vectors = scratch.take("vectors", (heads, batch * size, out), value, wide)
        head_vectors(value[:, :, here], weight, out=vectors)
        if triton is not None and all(len(steps) == 1 for steps in chain):
            # A multiplier is one number for all; the kernel reads one for each place.
            maps = [
                (step.centred, None if step.scale is None else step.scale.expand(out))
                for (step,) in chain
            ]
            mine = None if own is None else own[:, :, here, 0].transpose(1, 2).flatten(0, 1)
            found, summed = triton.gram_matrices(vectors, maps, mine)
            for made, grams in zip(matrices, found, strict=True):
                made[:, here] = grams.unflatten(0, (batch, -1))
            if diagonal is not None:
                diagonal[:, here] = summed.unflatten(0, (batch, -1))
            continue
        if own is not None and diagonal is not None:
            if value.is_cuda:
                mine = own[:, :, here, 0].transpose(1, 2).reshape(-1, 1, heads)
                diagonal[:, here] = torch.bmm(mine, vectors.transpose(0, 1)).view(batch, size, -1)
            else:  # head by head: faster than so thin a product
                sums, parts = diagonal[:, here], vectors.view(heads, batch, size, out)
                for mine, part in zip(own[:, :, here].unbind(1), parts.unbind(0), strict=True):
                    sums.addcmul_(mine, part)
        stacked = vectors.transpose(0, 1)  # (batch key) head out
        for steps, made in zip(((), *chain), matrices, strict=True):
            for step in steps:
                step(vectors, out=vectors)
            made[:, here] = torch.bmm(stacked, stacked.transpose(1, 2)).unflatten(0, (batch, -1))
    single = matrices[0].diagonal(dim1=2, dim2=3).transpose(1, 2).sqrt()
    return Grams(matrices, single, diagonal)


def quadratic_norms(
    alpha: Float[Tensor, "batch head query key"],
    matrices: Sequence[Float[Tensor, "batch key head head"]],
    scratch: Scratch | None = None,
    kernels: Kernels = "torch",
) -> list[Float[Tensor, "batch query key"]]:
    """(aᵀ G_j a)^½ for every query and key and each of several G, in float64."""
    batch, heads, queries, keys = alpha.shape
    if (triton := fused(kernels, alpha.device)) is not None:
        wide = [grams.double() for grams in matrices]
        made: list[Tensor] = triton.quadratic_norms(alpha, wide, dtype=torch.float64)[0]
        return made
    scratch = Scratch() if scratch is None else scratch
    # By key first, as they are made; seen from outside by query.
    new: Any = {"dtype": torch.float64, "device": alpha.device}
    made = [torch.empty((batch, keys, queries), **new) for _ in matrices]
    # On a CPU, turning many long rows one number at a time is slow; torch turns matrices in tiles.
    turned = alpha.transpose(2, 3)
    if queries >= 256 and alpha.device.type == "cpu":
        turned = scratch.take("turned", turned.shape, alpha, alpha.dtype).copy_(turned)
    for here in blocks(keys, batch * heads * 2 * queries, alpha.device):
        scaled = scratch.take("scaled", (batch, here.stop - here.start, heads, queries), alpha)
        # Laid out anew: strided operands would make the product copy each small matrix.
        scaled = scaled.copy_(turned[:, :, here].transpose(1, 2)).flatten(0, 1)
        product = scratch.take("product", scaled.shape, alpha)
        for grams, norms in zip(matrices, made, strict=True):
            squares = torch.bmm(grams[:, here].double().flatten(0, 1), scaled, out=product)
            squares = squares.mul_(scaled).sum(dim=1)
            norms[:, here] = squares.clamp_min_(0).sqrt_().unflatten(0, (batch, -1))
    return [norms.transpose(1, 2) for norms in made]


def flash_norms(
    scores: Any, matrices: Sequence[Float[Tensor, "batch key head head"]], here: slice
) -> list[Float[Tensor, "batch rows key"]]:
    """The same for weights that are never written down (16-bit queries and keys), in float32."""
    from normscope.kernels import triton

    how = {"scaling": scores.scaling, "causal": scores.causal, "mask": scores.mask}
    return [
        triton.flash_norms(scores.query, scores.key, scores.lse, factors, rows=here, **how)
        for factors in matrices
    ]


def cholesky(grams: Float[Tensor, "batch key head head"]) -> Float[Tensor, "batch key head head"]:
    """Φ with ΦΦᵀ = G, in float32; a G that has no full rank is helped by its own rounding."""
    made = torch.empty(grams.shape, dtype=torch.float32, device=grams.device)
    identity = torch.eye(grams.shape[-1], dtype=torch.float64, device=grams.device)
    for here in blocks(grams.shape[1], 4 * grams[:, 0].numel(), grams.device):
        wide = grams[:, here].double()
        factors, failed = torch.linalg.cholesky_ex(wide)
        if bool(failed.any()):
            size = wide.diagonal(dim1=2, dim2=3).mean(dim=-1)[..., None, None]
            helped = torch.linalg.cholesky_ex(wide + 1e-12 * size * identity)[0]
            factors = torch.where((failed != 0)[..., None, None], helped, factors)
        made[:, here] = factors
    return made


def blocks(length: int, cost: int, device: torch.device) -> Iterator[slice]:
    """Cut an axis evenly, so that ``cost`` numbers for each position fit into one block."""
    most = BLOCK.get(device.type, BLOCK["cuda"])
    count = -(-length * cost // most)
    step = max(1, -(-length // max(count, 1)))
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
