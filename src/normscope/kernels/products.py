"""Gram matrices from products of W_O with itself, which are made once for each model.

    f_h(x_j) · f_k(x_j) = v_h (W_O^h W_O^kᵀ) v_kᵀ

No vector of hidden size is made for that, and a product of two different heads is made once and
counted twice: of G the upper half is enough where only aᵀ G a is wanted. That pays for small models
on a CPU, where :func:`~normscope.kernels.gram.gram_matrices` takes twice as long. The products take
as long as some hundred tokens do, so they are kept for as long as the module lives.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from normscope.foundation.shapes import Float
from normscope.kernels.gram import Linear, blocks
from normscope.kernels.scratch import Scratch

LARGEST = 512  # features of all heads; beyond, making the products takes longer than they save
RUN = 2  # heads multiplied at once: the fewer, the less is made in vain, the more often

Products = list[Tensor]  # (run, head_size, later heads and their sizes)
# By module and by how many steps: what came out for the probe, and the products.
_KEPT: WeakKeyDictionary[nn.Module, dict[int, tuple[Tensor, Products]]] = WeakKeyDictionary()


def products_of(
    module: nn.Module,
    weight: Float[Tensor, "head head_size out"],
    chain: Sequence[Sequence[Linear]] = (),
) -> list[Products]:
    """W Wᵀ for W = W_O, then for L_1 W_O, L_2 L_1 W_O and so on.

    What is kept is told to be the same by what it makes of a random row: parameters that were
    changed, in whatever way, make something else of it.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    flat = weight.flatten(0, 1).to(wide)
    probe = torch.mv(flat.T, _probe(len(flat), wide)).double()
    kept = _KEPT.setdefault(module, {})
    made: list[Products] = []
    steps: list[Linear] = []
    for new in ((), *chain):
        steps += new
        for step in new:
            probe = step(probe)
        seen, products = kept.get(len(steps), (None, []))
        if seen is None or not torch.equal(seen, probe):
            products = _multiply(weight.double(), steps)
            kept[len(steps)] = probe, products
        made.append(products)
    return made


def _multiply(weight: Float[Tensor, "head head_size out"], steps: Sequence[Linear]) -> Products:
    """W Wᵀ for W = L W_O: for each run of heads, its products with all heads from it on.

    Doubled where the second head comes after the first, nothing where it comes before.
    """
    heads, size, _ = weight.shape
    for step in steps:
        weight = step(weight)
    flat = weight.flatten(0, 1)
    whole = (flat @ flat.T).view(heads, size, heads, size)
    times = 2 * torch.ones_like(whole[:, 0, :, 0]).triu(1)
    whole *= times.fill_diagonal_(1)[:, None, :, None]
    return [whole[first : first + RUN, :, first:].flatten(2) for first in range(0, heads, RUN)]


def product_grams(
    value: Float[Tensor, "batch kv_head key head_size"],
    products: Sequence[Products],
    scratch: Scratch,
) -> list[Float[Tensor, "batch key head head"]]:
    """For each L, U_j with aᵀ U_j a = ‖L Σ_h a_h f_h(x_j)‖²; float64, zero below the diagonal."""
    batch, groups, keys, size = value.shape
    heads = sum(len(run) for run in products[0])
    value = value.repeat_interleave(heads // groups, dim=1) if groups < heads else value
    rows = value.transpose(1, 2).flatten(0, 1).double()  # (batch key) head e
    made = [rows.new_zeros((heads, batch * keys, heads)) for _ in products]
    for here in blocks(batch * keys, RUN * heads * size, value.device):
        these = rows[here]
        for grams, runs in zip(made, products, strict=True):
            for first, run in zip(range(0, heads, RUN), runs, strict=True):
                shape = (len(run), len(these), heads - first, size)
                met = scratch.take("vectors", shape, value)
                torch.bmm(these[:, first : first + RUN].transpose(0, 1), run, out=met.flatten(2))
                met *= these[:, first:]
                torch.sum(met, dim=-1, out=grams[first : first + RUN, here, first:])
    return [grams.transpose(0, 1).unflatten(0, (batch, keys)) for grams in made]


@functools.lru_cache(16)
def _probe(length: int, dtype: torch.dtype) -> Float[Tensor, " length"]:
    return torch.randn(length, generator=torch.Generator().manual_seed(0)).to(dtype)
