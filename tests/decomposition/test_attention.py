"""Parts of the decomposition, each by its definition: spot checks, rows, shares, σ in blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from normscope.capture import Capture, capture
from normscope.capture.layers import LayerCapture, capture_layers
from normscope.decomposition import cells as cells_module
from normscope.decomposition.attention import AttentionDecomposition
from normscope.decomposition.block import Norm, length
from normscope.decomposition.cells import Positions, choose
from normscope.decomposition.layer import LayerView
from normscope.decomposition.maps import SEGMENT, Reduce, ScopeMap, largest_of
from normscope.decomposition.norms import NormParameters
from normscope.decomposition.scopes import SCOPES
from normscope.linearisation.activations import KNOWN, derivative, gated_shares, secant
from normscope.models.architectures import tiny_inputs, tiny_model

EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    make = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=make)


def captured(name: str, how: Any = "eager") -> list[Capture]:
    model: Any = tiny_model(name)
    with torch.no_grad(), capture(model, attention=how) as found:
        model(**tiny_inputs(name))
    return found


# ---- spot checks


@pytest.mark.parametrize("how", ["eager", "fused"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_gaps_are_relative_to_the_parts_of_a_cell(name: str, how: str) -> None:
    (one, *_) = captured(name, how)
    taken = AttentionDecomposition(one)
    batch, heads, queries, _ = one.shape
    i = torch.tensor([[0, queries - 1]] * batch)
    j = torch.tensor([[0, 1]] * batch)
    cells = taken.at(i, j)
    assert (cells.context_gap is not None) == (how == "fused")
    alpha, weight = one.alpha.double(), one.projection.weight.double()
    groups = one.value.shape[1]
    for b in range(batch):
        for c in range(2):
            for h in range(heads):
                a = alpha[b, h, i[b, c], j[b, c]]
                vector = a * one.value[b, h * groups // heads, j[b, c]].double() @ weight[h]
                assert_close(cells.alpha[b, c, h], a, **EXACT)
                assert_close(cells.vectors[b, c, h], vector, **EXACT)
    lengths = cells.vectors.norm(dim=-1)
    right = {
        ("attn_w", "each"): (cells.alpha, cells.alpha.sum(dim=-1)),
        ("attn_w", "sum"): (cells.alpha.mean(dim=-1), cells.alpha.sum(dim=-1)),
        ("attn_n", "each"): (lengths, lengths.sum(dim=-1)),
        ("attn_n", "sum"): (cells.vectors.sum(dim=2).norm(dim=-1), lengths.sum(dim=-1)),
    }
    for (map, _), (values, size) in right.items():
        assert cells.gap(values, weight=map == "attn_w").max() < 1e-12
        wrong = values.clone()
        wrong[0].view(2, -1)[1, 0] += 0.125  # the second cell of the first row
        found = cells.gap(wrong, weight=map == "attn_w")
        assert_close(found[0], 0.125 / size[0, 1], rtol=1e-9, atol=0)
        assert found[1:].max() < 1e-12


def test_weights_made_anew_are_held_against_the_models_own_sums() -> None:
    (one, *_) = captured("llama", "fused")
    weights: Any = one.weights
    i = torch.zeros(one.shape[0], 1, dtype=torch.long)
    weights.context[0, 0, 1] += 0.5  # of one row, query and head
    taken = AttentionDecomposition(one)
    cells = taken.at(i, i)
    assert cells.context_gap is not None
    value = one.value.repeat_interleave(one.shape[1] // one.value.shape[1], dim=1)[0, 1]
    size = (weights.some(i)[0, 1, 0] * value.norm(dim=-1)).sum()
    moved = 0.5 * value.shape[-1] ** 0.5
    assert_close(cells.context_gap[0], (moved / size).double(), rtol=1e-6, atol=0)
    assert cells.context_gap[1:].max() < 1e-6
    worst = cells._worst(torch.full_like(cells.context_gap, 1e-3))
    assert worst[0] == cells.context_gap[0]
    assert (worst[1:] == 1e-3).all()


def test_cells_are_drawn_among_what_is_real() -> None:
    real = torch.tensor([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    found = choose(real, 3)
    assert found.shape == (cells_module.DRAWS, 3, cells_module.CELLS)
    for row in range(3):
        assert set(found[:, row].flatten().tolist()) == set(real[row].nonzero()[:, 0].tolist())
    places = Positions(real, real, every=3)
    assert places.cells(1) is places.cells(2) is None
    for layer in (0, 3, 3 * cells_module.DRAWS + 3):
        drawn = places.cells(layer)
        assert drawn is not None
        assert torch.equal(drawn[0], choose(real, 0)[layer % cells_module.DRAWS])
        assert torch.equal(drawn[1], choose(real, 1)[layer % cells_module.DRAWS])


def test_ratios_of_lengths() -> None:
    lengths = numbers(2, 3).abs(), numbers(2, 3, seed=1).abs()
    keys = torch.ones(2, 4, dtype=torch.bool)
    made = ScopeMap(SCOPES["attn_n"], keys, 3, own=lengths[0], others=lengths[1])
    assert_close(made.ratio(), lengths[1] / (lengths[0] + lengths[1]), **EXACT)
    made.own = made.others = torch.zeros(2, 3).double()
    assert (made.ratio() == 0).all()


# ---- rows


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("keys", [5, 2 * SEGMENT - 1, 2 * SEGMENT, 6 * SEGMENT, 6 * SEGMENT + 1])
def test_the_largest_of_long_rows(keys: int, count: int) -> None:
    values = numbers(2, 3, keys)
    found, where = largest_of(values, count)
    expected = values.sort(dim=-1, descending=True)
    assert torch.equal(found, expected.values[..., :count])
    assert torch.equal(where, expected.indices[..., :count])


@pytest.mark.parametrize("step", [1, 3, 7])
@pytest.mark.parametrize("extra", [0, 1])
def test_rows_come_in_blocks(extra: int, step: int) -> None:
    """A whole map or what is left of it, whatever the blocks; with a residual's column or not."""
    batch, queries, keys = 2, 7, 6
    norms = numbers(batch, queries, keys + extra).abs()
    real = torch.ones(batch, keys, dtype=torch.bool)
    real[1, 4:] = False
    of = numbers(batch, keys, 3, seed=2)
    cells = torch.tensor([[0, 6], [3, 2]]), torch.tensor([[5, 0], [1, 3]])
    reduce = Reduce(top=9, row_sum=True, category=of)
    whole = ScopeMap(SCOPES["attn_res_n"], real, queries, drawn=cells)
    least = ScopeMap(SCOPES["attn_res_n"], real, queries, reduce=reduce, drawn=cells)
    for start in range(0, queries, step):
        here = slice(start, min(start + step, queries))
        for one in (whole, least):
            one.add(here, norms[:, here])
    for one in (whole, least):
        assert one.sums is not None
        assert one.at_cells is not None
        assert_close(one.sums, norms.sum(dim=-1), **EXACT)
        for b in range(batch):
            for c in range(2):
                assert one.at_cells[b, c] == norms[b, cells[0][b, c], cells[1][b, c]]
    assert whole.values is not None
    assert torch.equal(whole.values, norms)
    assert least.values is None
    made = least.reduced
    assert_close(made["row_sum"], norms.sum(dim=-1), **EXACT)
    assert_close(made["category"], norms[..., :keys] @ of, **EXACT)
    for b in range(batch):
        places = [*real[b].nonzero()[:, 0].tolist(), *range(keys, keys + extra)]
        for i in range(queries):
            order = sorted(places, key=lambda j: -float(norms[b, i, j]))
            assert made["top_key"][b, i, : len(order)].tolist() == order
            assert_close(made["top_value"][b, i, : len(order)], norms[b, i, order], **EXACT)
            assert (made["top_value"][b, i, len(order) :] == -1).all()  # of padding


# ---- shares of an activation


@pytest.mark.parametrize("based", [False, True])
@pytest.mark.parametrize("name", ["silu", "gelu", "tanh", "mish"])
def test_shares_of_a_gated_product(name: str, based: bool) -> None:
    """∫ g dt and ∫ g'·up dt along the straight path, by a fine trapezium rule."""
    g = KNOWN.get(name, torch.nn.functional.mish)
    gate, up = 2 * numbers(40), numbers(40, seed=1)
    g0, u0 = (numbers(40, seed=2), numbers(40, seed=3)) if based else (0 * gate, 0 * up)
    found = gated_shares(g, gate, up, *((g0, u0) if based else (None, None)))
    t = torch.linspace(0, 1, 4001, dtype=torch.float64)[:, None]
    path, other = g0 + t * (gate - g0), u0 + t * (up - u0)
    first = torch.trapezoid(g(path), t, dim=0)
    second = torch.trapezoid(derivative(g, path) * other, t, dim=0)
    assert_close(found[0], first, rtol=1e-6, atol=1e-6)
    assert_close(found[1], second, rtol=1e-6, atol=1e-6)
    whole = g(gate) * up - g(g0) * u0
    assert_close(found[0] * (up - u0) + found[1] * (gate - g0), whole, **EXACT)


def test_a_secant_near_zero_keeps_its_digits() -> None:
    """tanh(p) / p on both sides of the place where a series takes over."""
    p = torch.tensor([1e-9, 3e-4, 9.9e-4, 1.01e-3, 0.02, -8e-4]).double()
    exact = [1 - x**2 / 3 + 2 * x**4 / 15 - 17 * x**6 / 315 for x in p.tolist()]
    assert_close(
        secant(torch.tanh, p), torch.tensor(exact, dtype=torch.float64), rtol=3e-14, atol=0
    )
    assert secant(torch.tanh, torch.zeros(1)).tolist() == [1]


def test_the_residuals_column_is_the_last_behind_an_activation_too() -> None:
    model: Any = tiny_model("marian")
    seen = 0

    def take(whole: LayerCapture) -> None:
        nonlocal seen
        if whole.cross is not None:
            for made in LayerView(whole.cross, whole).maps(("atb_ff", "atb_ff_res")).values():
                assert made.own is not None
                assert made.values is not None
                assert_close(made.values[..., -1], made.own, **EXACT)
                assert made.values.shape[-1] == whole.cross.shape[3] + 1
                seen += 1

    with torch.no_grad(), capture_layers(model, take):
        model(**tiny_inputs("marian"))
    assert seen == 6


# ---- norms


def test_sigma_is_made_of_some_queries_at_a_time() -> None:
    """Three queries of 2²⁴ numbers each, written down once: more than is looked at at once."""
    given = torch.tensor([1.0, -2.0, 3.0]).double().view(1, 3, 1).expand(1, 3, 2**24)
    found = Norm(NormParameters(None, None, False, 0.25, torch.float64), given).sigma
    assert_close(found, torch.tensor([[1.25, 4.25, 9.25]]).double().sqrt(), **EXACT)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sigma_of_narrow_states_is_good_to_float32(dtype: torch.dtype, centred: bool) -> None:
    """Also with a few places a thousand times as large as the others, as trained models have."""
    given = torch.randn(2, 5, 4096, generator=torch.Generator().manual_seed(0))
    given[:, 1:3, ::1024] *= 1000
    given = given.to(dtype)
    form = NormParameters(None, None, centred, 1e-6, torch.float32)
    exact = form.sigma(given.double()).squeeze(-1)
    assert_close(Norm(form, given).sigma.double(), exact, rtol=2e-7, atol=0)
    lengths = given.double().norm(dim=-1)
    assert_close(length(given.float()), lengths, rtol=2e-7, atol=0)
