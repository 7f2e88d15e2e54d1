"""Norms of Σ_h α f_h(x_j) from one small Gram matrix per key.

Stack the transformed vectors of a key as F_j ∈ R^{head × hidden}. With the weights of a query for
that key as a ∈ R^head,

    ‖Σ_h a_h f_h(x_j)‖² = aᵀ (F_j F_jᵀ) a

so a (query, key) cell costs head² multiplications and no vector of hidden size. Heads that cancel
to a thousandth of their parts lose six digits in the square, and float32 has only seven. There are
two ways to keep enough:

    float64     everything from the recorded values on is float64 (``quadratic_norms``)
    factored    F_j is float32, its Gram matrix is summed in float64 and factored, G_j = Φ_j Φ_jᵀ;
                a length is then a sum of squares, ‖Φ_jᵀ a‖, which loses no digits in float32
                (``cholesky``, ``factor_norms``)

Rounding f_h(x_j) to float32 moves the sum by 1e-7 of its parts, whatever cancels. So the factored
lengths are accurate relative to Σ_h ‖a_h f_h‖, the float64 ones relative to themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.foundation.shapes import Float
from normscope.kernels.backend import Kernels, triton_for
from normscope.kernels.inputs import ScoreInputs
from normscope.kernels.scratch import Scratch

# How much the diagonal of a Gram matrix is enlarged before it is factored, relative to itself.
RIDGE = {torch.float64: 1e-13, torch.float32: 1e-6}
SMALLEST = 1e-200  # and at least by this; its root is zero in float32
SHIFT = 2.0**32  # factors are multiplied by this, so that squares of small lengths do not underflow
# Float64 numbers in the largest temporary array; on a CPU, about what its caches hold.
BLOCK = {"cpu": 2**20, "cuda": 2**26}
# Since 2.8 torch can return the product of 16-bit matrices in float32 on CUDA.
_HAS_OUT_DTYPE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)


@dataclass(frozen=True, eq=False)
class Linear:
    """v ↦ scale ⊙ (v − mean v), or without the mean: what norms and multipliers do to a vector."""

    centred: bool
    scale: Tensor | None

    def __call__(
        self, vectors: Float[Tensor, "*rows out"], out: Tensor | None = None
    ) -> Float[Tensor, "*rows out"]:
        """Map the last axis; ``out`` may be ``vectors``."""
        if self.centred:
            vectors = torch.sub(vectors, vectors.mean(dim=-1, keepdim=True), out=out)
        if self.scale is None:
            return vectors
        return torch.mul(vectors, self.scale.to(vectors), out=out)


@dataclass(frozen=True, eq=False)
class Grams:
    """Gram matrices of the transformed vectors, and what follows from them for each key."""

    matrices: list[Float[Tensor, "batch key head head"]]  # L F_j (L F_j)ᵀ for each L
    single: Float[Tensor, "batch head key"]  # ‖f_h(x_j)‖
    diagonal: Float[Tensor, "batch key out"] | None  # Σ_h a_h f_h(x_j), for the weights ``own``


def head_vectors(
    value: Float[Tensor, "batch kv_head key head_size"],
    weight: Float[Tensor, "head head_size out"],
    out: Float[Tensor, "head rows out"] | None = None,
) -> Float[Tensor, "head batch key out"]:
    """Compute f_h(x_j) = v_h(x_j) W_O^h for every head, in the dtype of ``weight``.

    Where there are fewer value heads than heads, neighbouring heads share one.
    """
    batch, groups, keys, _ = value.shape
    rows = value.to(weight.dtype).transpose(0, 1).flatten(1, 2)  # group (batch key) head_size
    rows = rows.repeat_interleave(len(weight) // groups, dim=0) if groups < len(weight) else rows
    if weight.element_size() == 2 and out is None:  # their products fit float32
        return wide_product(rows, weight).unflatten(1, (batch, keys))
    return torch.bmm(rows, weight, out=out).unflatten(1, (batch, keys))


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply batches of 16-bit matrices, summing and returning in float32."""
    if a.is_cuda and _HAS_OUT_DTYPE:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


def wide_matmul(
    a: Float[Tensor, "batch row in"], b: Float[Tensor, "in out"]
) -> Float[Tensor, "batch row out"]:
    """Multiply float32 or float64 vectors by a matrix that may be 16-bit.

    On CUDA, float32 numbers times a 16-bit matrix are two 16-bit products: the numbers rounded,
    and what that leaves.
    """
    split = b.element_size() == 2 and a.element_size() == 4 and b.is_cuda and _HAS_OUT_DTYPE
    if not split:
        return a @ b.to(a.dtype)
    rows = a.flatten(0, 1)
    rounded = rows.to(b.dtype)
    rest = (rows - rounded).to(b.dtype)
    product = wide_product(rounded[None], b[None]) + wide_product(rest[None], b[None])
    return product[0].view(*a.shape[:2], -1)


def gram_matrices(
    value: Float[Tensor, "batch kv_head key head_size"],
    weight: Float[Tensor, "head head_size out"],
    chain: Sequence[Sequence[Linear]] = (),
    own: Float[Tensor, "batch head key"] | None = None,
    scratch: Scratch | None = None,
    kernels: Kernels = "torch",
) -> Grams:
    """Compute the Gram matrices of f, of L_1 f, of L_2 L_1 f, …, a block of keys at a time.

    Args:
        value: the value vectors.
        weight: W_O; its dtype is that of the vectors. The Gram matrices are float64; with 16-bit
            weights, vectors and matrices are float32.
        chain: for each further Gram matrix, the steps from the vectors of the one before it.
        own: a weight of each key in each head, for the sums ``Grams.diagonal``.
        scratch: working memory to reuse.
        kernels: which kernels to use.
    """
    batch, _, keys, _ = value.shape
    heads, _, out = weight.shape
    scratch = Scratch() if scratch is None else scratch
    wide = torch.promote_types(weight.dtype, torch.float32)  # of the vectors
    summed = wide if weight.element_size() == 2 else torch.float64  # of the matrices
    single_steps = all(len(steps) == 1 for steps in chain)
    triton = triton_for(kernels, value.device) if wide == torch.float64 and single_steps else None
    options: Any = {"dtype": wide, "device": value.device}
    shape = (batch, keys, heads, heads)
    matrices = [value.new_empty(shape, dtype=summed) for _ in (None, *chain)]
    diagonal = None if own is None else torch.empty((batch, keys, out), **options)
    own = None if own is None else own.to(wide).transpose(1, 2)
    for span in blocks(keys, batch * heads * out, value.device):
        count = batch * (span.stop - span.start)
        if wide == weight.dtype:
            vectors = scratch.take("vectors", (heads, count, out), value, wide)
            head_vectors(value[:, :, span], weight, out=vectors)
        else:
            vectors = head_vectors(value[:, :, span], weight).flatten(1, 2)
        own_rows = None if own is None else own[:, span].flatten(0, 1)
        if triton is not None:
            # A multiplier is one number for all places; the kernel reads one for each place.
            maps = [
                (step.centred, None if step.scale is None else step.scale.expand(out))
                for (step,) in chain
            ]
            grams, sums = triton.gram_matrices(vectors, maps, own_rows)
        else:
            grams, sums = _gram_block(vectors, chain, own_rows, summed)
        for matrix, gram in zip(matrices, grams, strict=True):
            matrix[:, span] = gram.unflatten(0, (batch, -1))
        if diagonal is not None:
            diagonal[:, span] = sums.unflatten(0, (batch, -1))
    single = matrices[0].diagonal(dim1=2, dim2=3).transpose(1, 2).sqrt()
    return Grams(matrices, single, diagonal)


def _gram_block(
    vectors: Float[Tensor, "head row out"],
    chain: Sequence[Sequence[Linear]],
    own: Float[Tensor, "row head"] | None,
    dtype: torch.dtype,
) -> tuple[list[Float[Tensor, "row head head"]], Float[Tensor, "row out"] | None]:
    """Gram matrices of one block by torch's operations, and Σ_h own_h f_h; overwrites vectors.

    ``dtype`` is that of the matrices.
    """
    stacked = vectors.transpose(0, 1)
    sums: Tensor | None = None
    if own is not None and vectors.is_cuda:
        sums = torch.bmm(own.unsqueeze(1), stacked).squeeze(1)
    elif own is not None:  # on a CPU, head by head is faster than so thin a product
        sums = torch.zeros_like(vectors[0])
        for weights, head in zip(own.unbind(1), vectors.unbind(0), strict=True):
            sums.addcmul_(weights.unsqueeze(1), head)
    grams = []
    for steps in ((), *chain):
        for step in steps:
            step(vectors, out=vectors)
        rows = stacked.to(dtype)
        grams.append(torch.bmm(rows, rows.transpose(1, 2)))
    return grams, sums


def quadratic_norms(
    alpha: Float[Tensor, "batch head query key"],
    matrices: Sequence[Float[Tensor, "batch key head head"]],
    scratch: Scratch | None = None,
    kernels: Kernels = "torch",
) -> list[Float[Tensor, "batch query key"]]:
    """Compute (aᵀ G_j a)^½ for every query and key and each of several G, in float64."""
    batch, heads, queries, keys = alpha.shape
    if (triton := triton_for(kernels, alpha.device)) is not None:
        wide = [grams.double() for grams in matrices]
        lengths: list[Tensor] = triton.quadratic_norms(alpha, wide, dtype=torch.float64)[0]
        return lengths
    scratch = Scratch() if scratch is None else scratch
    # Computed by key first; the result is seen by query.
    options: Any = {"dtype": torch.float64, "device": alpha.device}
    lengths = [torch.empty((batch, keys, queries), **options) for _ in matrices]
    by_key = _keys_first(alpha, scratch)
    for span in blocks(keys, batch * heads * 2 * queries, alpha.device):
        weights = scratch.take("weights", (batch, span.stop - span.start, heads, queries), alpha)
        # A contiguous copy: with strided operands bmm would copy each small matrix.
        weights = weights.copy_(by_key[:, :, span].transpose(1, 2)).flatten(0, 1)
        product = scratch.take("product", weights.shape, alpha)
        for grams, norms in zip(matrices, lengths, strict=True):
            squares = torch.bmm(grams[:, span].double().flatten(0, 1), weights, out=product)
            squares = squares.mul_(weights).sum(dim=1)
            norms[:, span] = squares.clamp_min_(0).sqrt_().unflatten(0, (batch, -1))
    return [norms.transpose(1, 2) for norms in lengths]


def _keys_first(alpha: Tensor, scratch: Scratch) -> Float[Tensor, "batch head key query"]:
    """The weights by key; long rows are copied, which torch does in tiles on a CPU.

    Read one number at a time, a transposed view of long rows is slow.
    """
    by_key = alpha.transpose(2, 3)
    if alpha.shape[2] >= 256 and alpha.device.type == "cpu":
        by_key = scratch.take("by_key", by_key.shape, alpha, alpha.dtype).copy_(by_key)
    return by_key


def flash_norms(
    scores: Any, factors: Sequence[Float[Tensor, "batch key head head"]], rows: slice
) -> list[Float[Tensor, "batch rows key"]]:
    """Compute the same in float32 for weights that are never stored (16-bit queries and keys).

    Args:
        scores: a :class:`~normscope.capture.scores.Scores`.
        factors: :func:`cholesky` factors of the Gram matrices.
        rows: the queries.
    """
    from normscope.kernels import triton

    inputs = ScoreInputs(
        scores.query, scores.key, scaling=scores.scaling, causal=scores.causal, mask=scores.mask
    )
    return [triton.flash_norms(inputs, scores.lse, factor, rows) for factor in factors]


def cholesky(grams: Float[Tensor, "batch key head head"]) -> Float[Tensor, "batch key head head"]:
    """Compute Φ with ΦΦᵀ = G in float32.

    The diagonal is enlarged by a multiple of the rounding of ``grams``, so that matrices without
    full rank have a factor too: ‖Φᵀa‖ changes by at most the root of that multiple, relative to
    Σ_h a_h ‖f_h‖. No device is waited for.
    """
    ridge = RIDGE[grams.dtype]
    factors = torch.empty(grams.shape, dtype=torch.float32, device=grams.device)
    for span in blocks(grams.shape[1], 4 * grams[:, 0].numel(), grams.device):
        wide = grams[:, span].to(torch.float64, copy=True)
        diagonal = wide.diagonal(dim1=2, dim2=3)
        diagonal.mul_(1 + ridge).add_(SMALLEST)  # a head whose vector is zero has a zero row
        factors[:, span] = torch.linalg.cholesky_ex(wide)[0]
    return factors


def factor_norms(
    alpha: Float[Tensor, "batch head query key"],
    factors: Sequence[Float[Tensor, "batch key head head"]],
    scratch: Scratch | None = None,
) -> list[Float[Tensor, "batch query key"]]:
    """Compute ‖Φ_jᵀ a‖ for every query and key and each of several Φ, in float32."""
    batch, heads, queries, keys = alpha.shape
    scratch = Scratch() if scratch is None else scratch
    count = len(factors)
    # Computed by key first; the result is seen by query.
    lengths = torch.empty((count, batch, keys, queries), dtype=torch.float32, device=alpha.device)
    turned = torch.stack(list(factors), dim=2).transpose(3, 4).flatten(2, 3)  # (map head) head
    turned = turned * SHIFT
    by_key = _keys_first(alpha, scratch)
    for span in blocks(keys, batch * heads * (count + 1) * queries // 2, alpha.device):
        shape = (batch, span.stop - span.start, heads, queries)
        weights = scratch.take("weights", shape, alpha, torch.float32)
        weights = weights.copy_(by_key[:, :, span].transpose(1, 2)).flatten(0, 1)
        width = count * heads
        product = scratch.take("product", (len(weights), width, queries), alpha, torch.float32)
        torch.bmm(turned[:, span].flatten(0, 1), weights, out=product)
        squares = product.mul_(product).view(-1, count, heads, queries).sum(dim=2)
        norms = squares.sqrt_().div_(SHIFT).unflatten(0, (batch, -1))
        lengths[:, :, span] = norms.movedim(2, 0)
    return [by_key.transpose(1, 2) for by_key in lengths.unbind(0)]


def blocks(length: int, cost: int, device: torch.device) -> Iterator[slice]:
    """Cut an axis evenly, so that ``cost`` numbers per position fit into one block."""
    most = BLOCK.get(device.type, BLOCK["cuda"])
    count = -(-length * cost // most)
    step = max(1, -(-length // max(count, 1)))
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
