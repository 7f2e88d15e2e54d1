"""Gram matrices from products of W_O with itself, which are computed once per model.

    f_h(x_j) · f_k(x_j) = v_h (W_O^h W_O^kᵀ) v_kᵀ

This needs no vector of hidden size. Only the upper half of G is computed, with the products of
different heads counted twice: that is enough for aᵀ G a. On a CPU it takes half the time of
:func:`~normscope.kernels.gram.gram_matrices` for small models. Computing the products takes as long
as some hundred tokens, so they are kept as long as the module lives and its weight is the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope.foundation.caching import ModuleCache, random_vector, tensor_state
from normscope.foundation.shapes import Float
from normscope.kernels.gram import Linear, blocks
from normscope.kernels.scratch import Scratch

LARGEST = 512  # features of all heads; beyond, computing the products costs more than they save
RUN = 2  # heads multiplied at once: fewer waste less of the lower half, more need fewer calls

Products = list[Tensor]  # for each run of heads: (run, head_size, later heads and their sizes)
_PRODUCTS: ModuleCache[Products] = ModuleCache()


@dataclass(frozen=True, eq=False)
class KeptProducts:
    """Products of W_O on a device, and what tells whether they are still those of the weight."""

    blocks: Float[Tensor, "level head head width width"]
    random: Float[Tensor, " features"]  # a random vector
    probe: Float[Tensor, " out"]  # its product with the weight that they were computed from
    scale: Float[Tensor, ""]  # the largest number of the probe
    scales: list[Tensor]  # of the steps of L, as they were


_KEPT: ModuleCache[KeptProducts] = ModuleCache(of_weights=True)


def products_of(
    module: nn.Module,
    weight: Float[Tensor, "head head_size out"],
    chain: Sequence[Sequence[Linear]] = (),
) -> list[Products]:
    """Return W Wᵀ for W = W_O, then for L_1 W_O, L_2 L_1 W_O and so on.

    ``module`` is the one that applies ``weight``: the products are kept for it, until the
    contents of ``weight`` or of a step change.
    """
    state: list[object] = [tensor_state(weight)]
    steps: list[Linear] = []
    products = []
    for further in ((), *chain):
        steps += further
        state += [(step.centred, tensor_state(step.scale)) for step in further]
        compute = functools.partial(_multiply, weight, tuple(steps))
        products.append(_PRODUCTS.get(module, tuple(state), compute, key=len(steps)))
    return products


def kept_products(
    module: nn.Module,
    weight: Float[Tensor, "head head_size out"],
    levels: Sequence[Sequence[Linear]],
    pad: Callable[[Tensor], Tensor],
) -> KeptProducts:
    """Return (L W_O)(L W_O)ᵀ for each of several L in float64, kept as long as the weight is.

    Writes to the weight that torch does not count (``weight.data.mul_(2)``) are not noticed here:
    that is what the probe is for.
    """
    scales = scales_of(levels)
    state = [tensor_state(tensor, contents=False) for tensor in (weight, *scales)]
    centred = [[step.centred for step in steps] for steps in levels]

    def compute() -> KeptProducts:
        products = []
        for steps in levels:
            flat = weight.double()
            for step in steps:
                flat = step(flat)
            flat = flat.flatten(0, 1)
            products.append((flat @ flat.T).view(*weight.shape[:2], *weight.shape[:2]))
        rows = weight.flatten(0, 1)
        random = random_vector(len(rows), torch.float64, weight.device)
        probe = random @ rows.double()
        scale = probe.abs().amax().clamp_min(torch.finfo(probe.dtype).tiny)  # a weight may be zero
        kept = [scale_of.detach().flatten().clone() for scale_of in scales]
        return KeptProducts(pad(torch.stack(products)), random, probe, scale, kept)

    return _KEPT.get(module, (state, centred), compute, key=len(levels))


def scales_of(levels: Sequence[Sequence[Linear]]) -> list[Tensor]:
    """List the scales in the steps of several L."""
    return [step.scale for steps in levels for step in steps if step.scale is not None]


def _multiply(weight: Float[Tensor, "head head_size out"], steps: Sequence[Linear]) -> Products:
    """W Wᵀ for W = L W_O in float64: for each run of heads, its products with all heads from it on.

    Doubled where the second head comes after the first, zero where it comes before.
    """
    heads, size, _ = weight.shape
    weight = weight.double()
    for step in steps:
        weight = step(weight)
    flat = weight.flatten(0, 1)
    products = (flat @ flat.T).view(heads, size, heads, size)
    counts = 2 * torch.ones_like(products[:, 0, :, 0]).triu(1)
    products *= counts.fill_diagonal_(1)[:, None, :, None]
    return [products[first : first + RUN, :, first:].flatten(2) for first in range(0, heads, RUN)]


def product_grams(
    value: Float[Tensor, "batch kv_head key head_size"],
    products: Sequence[Products],
    scratch: Scratch,
) -> list[Float[Tensor, "batch key head head"]]:
    """Compute, for each L, U_j with aᵀ U_j a = ‖L Σ_h a_h f_h(x_j)‖².

    The matrices are float64 and zero below the diagonal.
    """
    batch, groups, keys, size = value.shape
    heads = sum(len(run) for run in products[0])
    value = value.repeat_interleave(heads // groups, dim=1) if groups < heads else value
    rows = value.transpose(1, 2).flatten(0, 1).double()  # (batch key) head head_size
    matrices = [rows.new_zeros((heads, batch * keys, heads)) for _ in products]
    for span in blocks(batch * keys, RUN * heads * size, value.device):
        values = rows[span]
        for matrix, runs in zip(matrices, products, strict=True):
            for first, run in zip(range(0, heads, RUN), runs, strict=True):
                shape = (len(run), len(values), heads - first, size)
                left = scratch.take("vectors", shape, value)
                torch.bmm(values[:, first : first + RUN].transpose(0, 1), run, out=left.flatten(2))
                left *= values[:, first:]
                torch.sum(left, dim=-1, out=matrix[first : first + RUN, span, first:])
    return [matrix.transpose(0, 1).unflatten(0, (batch, keys)) for matrix in matrices]
