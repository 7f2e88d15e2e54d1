"""Gram matrices from products of W_O: against vectors built whole, and when they are made anew."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import normscope
from normscope.decomposition import attention
from normscope.decomposition.attention import AttentionDecomposition
from normscope.kernels import Linear, Scratch, gram, product_grams, products, products_of
from normscope.kernels import quadratic_norms as norms_of
from normscope.models.architectures import tiny_inputs, tiny_model

EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
PROMISED = 2e-6  # of Σ_h ‖α_h f_h‖, for float32 models


def numbers(*shape: int, seed: int = 0) -> Tensor:
    make = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=make)


@pytest.fixture(params=[2**20, 100, 1])
def block(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers in a block: all rows at once, some, one."""
    monkeypatch.setitem(gram.BLOCK, "cpu", request.param)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (5, 5), (5, 1), (1, 1)])
def test_lengths_of_vectors_built_whole(heads: int, groups: int) -> None:
    batch, keys, size, out = 2, 5, 3, 6
    value, weight = numbers(batch, groups, keys, size), numbers(heads, size, out, seed=1)
    chain = [
        [Linear(True, numbers(out, seed=2))],
        [Linear(False, None), Linear(False, torch.full((), 0.22)), Linear(True, None)],
    ]
    made = product_grams(value, products_of(nn.Identity(), weight, chain), Scratch())
    alpha = numbers(batch, heads, 7, keys, seed=3).abs()
    lengths = norms_of(alpha, made)
    for b in range(batch):
        for j in range(keys):
            f = torch.stack([value[b, h * groups // heads, j] @ weight[h] for h in range(heads)])
            assert_close(made[0][b, j].diagonal().sqrt(), f.norm(dim=-1), **EXACT)
            for at, steps in enumerate([[], *chain]):
                for step in steps:
                    f = f - f.mean(dim=-1, keepdim=True) if step.centred else f
                    f = f if step.scale is None else f * step.scale
                for i in range(7):
                    whole = sum((alpha[b, h, i, j] * f[h] for h in range(heads)), torch.zeros(out))
                    assert_close(lengths[at][b, i, j], whole.norm(), **EXACT)


def test_kept_until_the_weight_changes_in_whatever_way() -> None:
    layer, scale = nn.Linear(6, 6), torch.rand(6)

    def found() -> list[products.Products]:
        weight = layer.weight.detach().T.unflatten(0, (2, 3))
        return products_of(layer, weight, [[Linear(True, scale)]])

    first = found()
    assert all(a is b for a, b in zip(first, found(), strict=True))
    for change in (
        lambda: layer.weight.data[0, 0].mul_(1.001),  # behind the back of autograd
        lambda: layer.load_state_dict({k: 2 * v for k, v in layer.state_dict().items()}),
        lambda: setattr(layer, "weight", nn.Parameter(torch.rand(6, 6))),
        lambda: layer.double(),
    ):
        change()
        second = found()
        assert not any(a is b for a, b in zip(first, second, strict=True))
        products._PRODUCTS.forget(layer)
        for new, fresh in zip(second, found(), strict=True):
            for one, other in zip(new, fresh, strict=True):
                assert_close(one, other, rtol=0, atol=0)
        first = found()
    scale[2] += 1e-3  # of the norm: what comes before it is as it was
    third = found()
    assert third[0] is first[0]
    assert third[1] is not first[1]


def test_they_go_with_their_module() -> None:
    layer = nn.Linear(4, 4)
    products_of(layer, layer.weight.detach().unflatten(0, (2, 2)))
    before = len(products._PRODUCTS)
    del layer
    gc.collect()
    assert len(products._PRODUCTS) < before


@pytest.mark.parametrize("family", ["bert", "llama", "marian", "gpt2", "olmo2"])
def test_maps_are_the_same_by_either_form(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = tiny_model(family), tiny_inputs(family)
    maps = ["attn_w", "attn_n", "attn_res_n", "atb"]
    used: list[bool] = []

    def noted(*args: Any) -> Any:
        used.append(True)
        return products_of(*args)

    monkeypatch.setattr(attention, "products_of", noted)
    by_products = normscope.analyze_inputs(model, inputs, maps=maps)
    assert used
    used.clear()
    monkeypatch.setattr(attention, "LARGEST", 0)
    by_vectors = normscope.analyze_inputs(model, inputs, maps=maps)
    assert not used
    for one, other in zip(by_products, by_vectors, strict=True):
        for a, b in zip(one.parts.values() or [one], other.parts.values() or [other], strict=True):
            pairs = [(a.transformed_norm, b.transformed_norm)]
            pairs += [(a[name], b[name]) for name in a]
            pairs += [(a.mixing_ratio[n], b.mixing_ratio[n]) for n in a.mixing_ratio]
            for found, expected in pairs:
                np.testing.assert_allclose(found.values, expected.values, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("left", [1.0, 1e-1, 1e-2, 1e-3])
def test_heads_that_cancel_in_float32(left: float) -> None:
    """Cells and the query's own vector, against sums built whole in float64."""
    model: Any = tiny_model("bert", dtype=torch.float32)
    with torch.no_grad(), normscope.capture(model) as captures:
        model(input_ids=tiny_inputs("bert")["input_ids"])  # no padding: no cell is zero
    one = captures[0]
    heads = one.shape[1]
    alpha, value, weight = one.alpha.clone(), one.value.clone(), one.projection.weight.clone()
    if left < 1:  # the second head of each pair undoes the first but for a fraction
        alpha[:, 1::2], value[:, 1::2] = alpha[:, ::2], value[:, ::2]
        weight[1::2] = -weight[::2] * (1 - left)
    projection = replace(one.projection, weight=weight, module=nn.Identity())
    taken = AttentionDecomposition(
        replace(one, weights=alpha, value=value, projection=projection),
        kernels="torch",
        precision="float64",
    )
    assert taken.products
    f = torch.einsum("bhke,heo->bhko", value.double(), weight.double())
    dense = torch.einsum("bhqk,bhko->bqko", alpha.double(), f)
    parts = torch.einsum("bhqk,bhk->bqk", alpha.double(), f.norm(dim=-1))
    assert heads % 2 == 0
    assert (dense.norm(dim=-1) / parts).mean() < 1.01 * left
    ((_, _, (lengths,)),) = taken.rows(weights=False)
    assert_close(lengths, dense.norm(dim=-1), rtol=1e-8, atol=0)
    assert taken.own is not None
    own = torch.stack([dense[:, i, i] for i in range(dense.shape[1])], dim=1)
    gap = (taken.own - own).norm(dim=-1) / own.norm(dim=-1)
    assert gap.max() < 1e-9
    # In the model's own precision: accurate relative to the parts.
    quick = AttentionDecomposition(taken.captured, kernels="torch")
    ((_, _, (lengths,)),) = quick.rows(weights=False)
    assert lengths.dtype == torch.float32
    assert ((lengths.double() - dense.norm(dim=-1)).abs() / parts).max() < PROMISED
    assert quick.own is not None
    gap = (quick.own.double() - own).norm(dim=-1) / parts.diagonal(dim1=1, dim2=2)
    assert gap.max() < PROMISED
