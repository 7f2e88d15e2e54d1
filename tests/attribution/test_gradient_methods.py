"""Gradients, integrated gradients, SmoothGrad and perturbation, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from normscope import attribute_inputs
from normscope.attribution.account import RowShares
from normscope.attribution.methods import gradients
from normscope.attribution.methods.call import MethodCall
from normscope.attribution.methods.table import method_of
from normscope.attribution.passes import explain
from normscope.linearisation.rules import rules_of
from normscope.models.architectures import tiny_inputs, tiny_model
from normscope.testing import FullPrecision
from tests.helpers.explained import by_position, last_position

pytestmark = pytest.mark.usefixtures("unchecked_types")

IDS = torch.tensor([[7, 21, 9, 33, 14, 50]])
OTHER = torch.tensor([[7, 40, 9, 12, 14, 8]])


def shares(model: Any, method: str, baseline: Any = None, **inputs: Any) -> RowShares:
    inputs = inputs or {"input_ids": IDS}
    chosen = method_of(method)
    with FullPrecision():
        return chosen.shares(MethodCall(model, inputs, last_position(inputs), chosen, baseline))


def embedded(model: Any, ids: Tensor) -> Tensor:
    table = model.get_input_embeddings().weight
    return table[ids].detach()


def value_of(model: Any, embeddings: Tensor) -> Tensor:
    with FullPrecision():
        logits: Tensor = model(inputs_embeds=embeddings).logits
    return logits[0, -1, 5]


def gradient(model: Any, embeddings: Tensor) -> Tensor:
    leaf = embeddings.clone().requires_grad_()
    return torch.autograd.grad(value_of(model, leaf), leaf)[0][0]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_gradient_norms_are_those_of_autograd(name: str) -> None:
    model = tiny_model(name)
    g = gradient(model, embedded(model, IDS))
    expected = {"l2": g.norm(dim=-1), "l1": g.abs().sum(-1), "sum": g.sum(-1).abs()}
    for norm, lengths in expected.items():
        result = shares(model, f"gradient_norm:{norm}")
        np.testing.assert_allclose(result.sources[0].shares[0, 0], lengths, rtol=1e-11)
        assert [source.part for source in result.sources] == ["word"]


def test_plain_gradients_are_those_of_the_tangent_rules() -> None:
    model = tiny_model("bart")
    inputs = tiny_inputs("bart")
    value = last_position(inputs)
    plain = gradients.gradients_of(
        MethodCall(model, inputs, value, method_of("gradient_norm")), inputs
    )
    expected = explain(model, inputs, value, rules_of("input_x_gradient"))
    found = {}
    for source, g in zip(plain.sources, plain.gradients, strict=True):
        if g is not None:
            found[source.stack, source.part] = (g[0] * source.leaf.detach()).sum(-1)
    for known in expected.sources:
        if (known.stack, known.part) in found:
            own = found[known.stack, known.part].numpy()
            np.testing.assert_allclose(known.shares[:, 0], own, rtol=0, atol=1e-10)
    assert {stack for stack, _ in found} == {"encoder", "decoder"}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_integrated_gradients_are_a_sum_over_the_path(name: str) -> None:
    model = tiny_model(name)
    start, end = embedded(model, OTHER), embedded(model, IDS)
    points, weights = np.polynomial.legendre.leggauss(7)
    mean = sum(
        weight / 2 * gradient(model, start + (point + 1) / 2 * (end - start))
        for point, weight in zip(points, weights, strict=True)
    )
    expected = ((end - start)[0] * mean).sum(-1)
    result = shares(model, "integrated_gradients:7", {"input_ids": OTHER})
    np.testing.assert_allclose(by_position(result)[0, 0], expected, rtol=0, atol=1e-12)
    change = float((value_of(model, end) - value_of(model, start)).detach())
    assert result.value[0, 0] == pytest.approx(change, abs=1e-12)
    gap = abs(change - float(expected.sum())) / float(expected.abs().sum())
    assert result.error[0, 0] == pytest.approx(gap, rel=1e-6)


def test_the_gap_of_integrated_gradients_goes_to_zero() -> None:
    model = tiny_model("gpt2")
    gaps = [
        float(shares(model, f"integrated_gradients:{n}", {"input_ids": OTHER}).error.max())
        for n in (1, 4, 16, 64)
    ]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 1e-3
    assert gaps[-1] < 1e-10


class OneActivation(nn.Module):
    """y = Σ_n a_n g(Σ_k w_n x_k + b_n): one layer with an activation, of the sum of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embed = nn.Embedding(60, 6)
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator).double()

    def forward(self, input_ids: Tensor) -> Tensor:
        output: Tensor = self.last(torch.tanh(self.first(self.embed(input_ids).sum(1))))
        return output


def test_integrated_gradients_of_one_activation_have_a_closed_form() -> None:
    model: Any = OneActivation()
    chosen = method_of("integrated_gradients:64")
    call = MethodCall(
        model, {"input_ids": IDS}, lambda output: output, chosen, {"input_ids": OTHER}
    )
    result = chosen.shares(call)
    ends = [model.embed.weight[ids[0]].detach() for ids in (IDS, OTHER)]
    u, v = (model.first(x.sum(0)).detach() for x in ends)
    slope = (torch.tanh(u) - torch.tanh(v)) / (u - v)
    weights = (model.last.weight[0] * slope) @ model.first.weight
    expected = ((ends[0] - ends[1]) @ weights).detach()
    np.testing.assert_allclose(result.sources[0].shares[0, 0], expected, rtol=0, atol=1e-9)


def test_on_a_linear_model_gradients_are_exact_shares() -> None:
    model: Any = OneActivation()
    weights = (model.last.weight @ model.first.weight)[0].detach()
    linear = lambda ids: model.last(model.first(model.embed(ids).sum(1)))  # noqa: E731
    model.forward = lambda input_ids: linear(input_ids)
    x = model.embed.weight[IDS[0]].detach()
    expected = (x @ weights).numpy()
    value = lambda output: output  # noqa: E731
    inputs = {"input_ids": IDS}
    exact = explain(model, inputs, value, rules_of("input_x_gradient"))
    np.testing.assert_allclose(by_position(exact)[0, 0], expected, rtol=0, atol=1e-12)
    chosen = method_of("integrated_gradients:1")
    result = chosen.shares(MethodCall(model, inputs, value, chosen, {"input_ids": OTHER}))
    change = ((x - model.embed.weight[OTHER[0]].detach()) @ weights).numpy()
    np.testing.assert_allclose(result.sources[0].shares[0, 0], change, rtol=0, atol=1e-12)


def test_smoothgrad_is_a_mean_over_noisy_copies() -> None:
    model = tiny_model("gpt2")
    end = embedded(model, IDS)
    scale = 0.3 * float(end.max() - end.min())
    total = torch.zeros_like(end[0])
    for number in range(5):
        draw = torch.Generator().manual_seed(2 * 100_003 + number)
        noise = torch.randn(end[0].shape, generator=draw, dtype=torch.float64)
        total += gradient(model, end + scale * noise) / 5
    result = shares(model, "smoothgrad:5,noise=0.3,seed=2")
    np.testing.assert_allclose(result.sources[0].shares[0, 0], total.norm(dim=-1), rtol=1e-9)
    still = shares(model, "smoothgrad:2,noise=0")
    plain = shares(model, "gradient_norm")
    np.testing.assert_allclose(still.sources[0].shares, plain.sources[0].shares, rtol=1e-10)


def test_copies_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from normscope.attribution.methods import call

    model = tiny_model("gpt2")
    cases = [("smoothgrad:7", None), ("integrated_gradients:9", {"input_ids": OTHER})]
    cases += [("erasure", None), ("blank_out", {"input_ids": OTHER})]
    whole = [by_position(shares(model, method, baseline)) for method, baseline in cases]
    monkeypatch.setattr(call, "TOKENS", 13)
    for (method, baseline), expected in zip(cases, whole, strict=True):
        found = by_position(shares(model, method, baseline))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt"])
def test_erasure_masks_one_key_after_another(name: str) -> None:
    model = tiny_model(name)
    length = IDS.shape[1]
    numbers = torch.arange(length)[None]
    with FullPrecision(), torch.no_grad():
        mask = torch.ones_like(IDS)
        own = model(IDS, attention_mask=mask, position_ids=numbers).logits[0, -1, 5]
        expected = []
        for position in range(length):
            erased = mask.clone()
            erased[0, position] = 0
            changed = model(IDS, attention_mask=erased, position_ids=numbers)
            expected.append(float(own - changed.logits[0, -1, 5]))
    result = shares(model, "erasure")
    np.testing.assert_allclose(result.sources[0].shares[0, 0], expected, rtol=0, atol=1e-12)
    assert np.abs(result.sources[0].shares).min() > 1e-9


def test_blank_out_replaces_one_token_after_another() -> None:
    model = tiny_model("gpt2")
    with FullPrecision(), torch.no_grad():
        own = model(IDS).logits[0, -1, 5]
        expected = []
        for position in range(IDS.shape[1]):
            changed = IDS.clone()
            changed[0, position] = OTHER[0, position]
            expected.append(float(own - model(changed).logits[0, -1, 5]))
    result = shares(model, "blank_out", {"input_ids": OTHER})
    np.testing.assert_allclose(result.sources[0].shares[0, 0], expected, rtol=0, atol=1e-12)
    assert result.sources[0].shares[0, 0, 0] == 0  # the same token in both


def test_blank_out_of_both_sides_of_a_translation() -> None:
    model, inputs = tiny_model("bart"), tiny_inputs("bart")
    (first, *_) = attribute_inputs(model, inputs, answer=5, method="blank_out", baseline="zero")
    assert set(first.sides) == {"source", "target"}
    assert (first.scores.values != 0).all()


def test_zero_is_the_default_where_there_is_no_mask_token() -> None:
    model = tiny_model("gpt2")
    (default,) = attribute_inputs(model, {"input_ids": IDS}, answer=5, method="blank_out")
    (zero,) = attribute_inputs(
        model, {"input_ids": IDS}, answer=5, method="blank_out", baseline="zero"
    )
    np.testing.assert_array_equal(default.scores, zero.scores)
    assert default.settings["baseline"] == "zero"
    assert not default.complete
