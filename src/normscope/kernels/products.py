"""Gram matrices from products of W_O with itself, which are computed once per model.

    f_h(x_j) · f_k(x_j) = v_h (W_O^h W_O^kᵀ) v_kᵀ

This needs no vector of hidden size. Only the upper half of G is computed, with the products of
different heads counted twice: that is enough for aᵀ G a. On a CPU it takes half the time of
:func:`~normscope.kernels.gram.gram_matrices` for small models. Computing the products takes as long
as some hundred tokens, so they are kept as long as the module lives and its weight is the same.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normscope.foundation.caching import ModuleCache, tensor_state
from normscope.foundation.shapes import Float
from normscope.kernels.gram import Linear, blocks
from normscope.kernels.scratch import Scratch

LARGEST = 512  # features of all heads; beyond, computing the products costs more than they save
RUN = 2  # heads multiplied at once: fewer waste less of the lower half, more need fewer calls

Products = list[Tensor]  # for each run of heads: (run, head_size, later heads and their sizes)
_PRODUCTS: ModuleCache[Products] = ModuleCache()


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
