"""DecompX, direct logit, ALTI-Logit, Chefer and rollout, against loops from the equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from normscope.attribution.account import RowShares
from normscope.attribution.methods import decompx
from normscope.attribution.methods.call import MethodCall
from normscope.attribution.methods.table import BIAS_RULES, method_of
from normscope.attribution.passes import explain
from normscope.errors import InputError, UnsupportedModelError
from normscope.linearisation.rules import rules_of
from normscope.models.architectures import tiny_inputs, tiny_model
from normscope.testing import FullPrecision
from tests.helpers import streams_reference as reference
from tests.helpers.explained import by_position, last_position
from tests.helpers.written_out import IDS, written

pytestmark = pytest.mark.usefixtures("unchecked_types")

ANSWER = 5
TAKEN = {"gpt2": reference.gpt2, "llama": reference.llama}


def shares(model: Any, method: str, value: Any = None, **inputs: Any) -> RowShares:
    """Explain a logit at the last position, in float64 throughout."""
    inputs = inputs or {"input_ids": IDS}
    with FullPrecision():
        chosen = method_of(method)
        return chosen.shares(MethodCall(model, inputs, value or last_position(inputs), chosen))


def part_of(result: RowShares, part: str) -> np.ndarray:
    (found,) = [source.shares[0, 0] for source in result.sources if source.part == part]
    return np.asarray(found)


# ---- DecompX


@pytest.mark.parametrize("at", ["residual", "branch"])
@pytest.mark.parametrize("rule", BIAS_RULES)
def test_decompx_is_its_equations(rule: str, at: str) -> None:
    by_hand = written("bert")
    result = shares(by_hand.model, f"decompx:{rule},at={at}", by_hand.value)
    expected, vectors = reference.decompx_bert(
        by_hand.model, IDS[0], rule, at_residual=at == "residual"
    )
    own = expected[:, by_hand.answer].numpy()
    size = np.abs(own).sum()
    np.testing.assert_allclose(result.sources[0].shares[0, 0], own, rtol=0, atol=1e-11 * size)
    np.testing.assert_allclose(result.value[0, 0], own.sum(), rtol=0, atol=1e-11 * size)
    np.testing.assert_allclose(result.bias, 0, atol=1e-12 * size)
    lengths = shares(by_hand.model, f"decompx_norm:{rule},at={at}", by_hand.value)
    first = vectors[:, 0].norm(dim=-1).numpy()  # of the position that the pooler reads
    np.testing.assert_allclose(lengths.sources[0].shares[0, 0], first, rtol=1e-10)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gptj", "opt", "qwen2"])
def test_components_of_any_family_add_up(name: str) -> None:
    for method in ("decompx", "decompx:equal,at=branch"):
        result = shares(tiny_model(name), method)
        assert result.error.max() < 1e-13
        np.testing.assert_allclose(result.bias, 0, atol=1e-12)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_without_biases_decompx_is_the_bias_token_form(name: str) -> None:
    model = tiny_model(name)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    try:
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):
                parameter.data.zero_()
        token = shares(model, "decompx:token")
        np.testing.assert_allclose(token.bias, 0, atol=1e-13)
        for rule in BIAS_RULES:
            result = shares(model, f"decompx:{rule}")
            expected = by_position(token)
            np.testing.assert_allclose(result.sources[0].shares, expected, rtol=0, atol=1e-13)
    finally:
        model.load_state_dict(before)


def test_the_bias_token_form_is_the_frozen_network() -> None:
    model = tiny_model("gpt2")
    value = last_position({"input_ids": IDS})
    frozen = explain(model, {"input_ids": IDS}, value, rules_of("frozen"))
    np.testing.assert_array_equal(by_position(shares(model, "decompx:token")), by_position(frozen))
    lengths = MethodCall(model, {"input_ids": IDS}, value, method_of("decompx_norm"))
    maps = decompx.lengths_by_layer(lengths)
    assert [layer.shape for layer in maps] == [(1, 6, 6)] * len(maps)
    assert not np.triu(maps[-1][0], 1).any()  # nothing comes from later tokens


def test_decompx_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(UnsupportedModelError, match="two stacks"):
        shares(tiny_model("bart"), "decompx", **tiny_inputs("bart"))
    with pytest.raises(InputError, match="has 600 tokens; the limit is 512"):
        shares(tiny_model("llama"), "decompx", input_ids=torch.ones(1, 600, dtype=torch.long))


# ---- what layers write


@pytest.mark.parametrize("name", TAKEN)
def test_direct_logit_is_what_attention_writes(name: str) -> None:
    model, taken = tiny_model(name), TAKEN[name](tiny_model(name), IDS[0])
    last = IDS.shape[1] - 1
    result = shares(model, "direct_logit")
    expected = torch.stack(
        [reference.written_by_source(layer, taken, last, ANSWER) for layer in taken.layers]
    ).sum(0)
    np.testing.assert_allclose(part_of(result, "attention"), expected, rtol=0, atol=1e-12)
    embedding = taken.written(taken.layers[0].entering[last], last)[ANSWER]
    assert part_of(result, "embedding")[last] == pytest.approx(float(embedding), abs=1e-12)
    assert not part_of(result, "embedding")[:last].any()
    rest = sum(
        taken.written(layer.leaving[last] - layer.attended[last] + layer.bias, last)[ANSWER]
        for layer in taken.layers
    )
    assert result.bias[0, 0] == pytest.approx(float(rest + taken.constant[ANSWER]), abs=1e-12)
    with FullPrecision(), torch.no_grad():
        assert result.value[0, 0] == pytest.approx(float(model(IDS).logits[0, -1, ANSWER]))
    assert result.error.max() < 1e-14


@pytest.mark.parametrize("name", TAKEN)
def test_the_lens_reads_every_layer_as_if_it_were_the_last(name: str) -> None:
    model, taken = tiny_model(name), TAKEN[name](tiny_model(name), IDS[0])
    result = shares(model, "direct_logit")
    assert result.lens is not None
    states = [taken.layers[0].entering, *(layer.leaving for layer in taken.layers)]
    whole: Any = model
    norm = whole.transformer.ln_f if name == "gpt2" else whole.model.norm
    with FullPrecision(), torch.no_grad():
        expected = [float(whole.lm_head(norm(state))[-1, ANSWER]) for state in states]
    np.testing.assert_allclose(result.lens[0, 0], expected, rtol=0, atol=1e-12)
    assert result.lens[0, 0, -1] == pytest.approx(result.value[0, 0], abs=1e-13)
    assert shares(model, "direct_logit:lens=no").lens is None


@pytest.mark.parametrize("name", TAKEN)
def test_alti_logit_by_horner_is_the_matrix_form(name: str) -> None:
    model, taken = tiny_model(name), TAKEN[name](tiny_model(name), IDS[0])
    last = IDS.shape[1] - 1
    below = torch.eye(len(IDS[0]), dtype=torch.float64)
    expected = torch.zeros(len(IDS[0]), dtype=torch.float64)
    for layer in taken.layers:
        expected += reference.written_by_source(layer, taken, last, ANSWER) @ below
        below = reference.alti(layer) @ below
    result = shares(model, "alti_logit")
    np.testing.assert_allclose(part_of(result, "attention"), expected, rtol=0, atol=1e-11)
    np.testing.assert_allclose(below.sum(-1), 1, rtol=1e-12)


def test_blocks_of_cells_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from normscope.attribution.methods import streams

    whole = shares(tiny_model("llama"), "alti_logit")
    monkeypatch.setattr(streams, "CELLS", 200)
    blocks = shares(tiny_model("llama"), "alti_logit")
    np.testing.assert_allclose(
        part_of(blocks, "attention"), part_of(whole, "attention"), atol=1e-14
    )


def test_with_identity_maps_alti_logit_is_direct_logit(monkeypatch: pytest.MonkeyPatch) -> None:
    from normscope.attribution.methods import streams

    def identity(view: Any) -> torch.Tensor:
        length = view.captured.shape[-1]
        return torch.eye(length, dtype=torch.float64)[None]

    monkeypatch.setattr(streams, "alti_map", identity)
    direct = shares(tiny_model("gpt2"), "direct_logit:lens=no")
    result = shares(tiny_model("gpt2"), "alti_logit")
    np.testing.assert_allclose(
        part_of(result, "attention"), part_of(direct, "attention"), atol=1e-14
    )


@pytest.mark.parametrize("name", ["gpt_neox", "gemma2", "gptj", "mixtral", "olmo2", "bloom"])
def test_streams_of_other_layouts_add_up(name: str) -> None:
    result = shares(tiny_model(name), "alti_logit")
    assert result.error.max() < (1e-7 if name in ("mixtral", "gemma2", "olmo2") else 1e-13)


def test_post_norm_models_are_refused_with_a_remedy() -> None:
    by_hand = written("bert")
    with pytest.raises(UnsupportedModelError, match=r'post-norm.*method="frozen"'):
        shares(by_hand.model, "direct_logit", by_hand.value)


# ---- Chefer, rollout


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_chefer_is_its_rule_with_eager_attention(name: str) -> None:
    by_hand = written(name)
    by_hand.model.set_attn_implementation("sdpa")
    result = shares(by_hand.model, "chefer", by_hand.value)
    by_hand.model.set_attn_implementation("eager")
    with FullPrecision():
        output = by_hand.model(IDS, output_attentions=True)
        (value,) = by_hand.value(output)[0]
        gradients = torch.autograd.grad(value, output.attentions)
    relevance = torch.eye(IDS.shape[1], dtype=torch.float64)
    for alpha, gradient in zip(output.attentions, gradients, strict=True):
        mean = (alpha[0] * gradient[0]).clamp_min(0).mean(0)
        relevance = relevance + mean @ relevance
    row = relevance[0 if name == "bert" else -1].detach().numpy()
    np.testing.assert_allclose(result.sources[0].shares[0, 0], row, rtol=1e-10)
    eager = shares(by_hand.model, "chefer", by_hand.value)
    np.testing.assert_allclose(eager.sources[0].shares[0, 0], row, rtol=1e-10)
    by_hand.model.set_attn_implementation("sdpa")


def test_chefer_of_two_stacks_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="attn_lrp or frozen"):
        shares(tiny_model("bart"), "chefer", **tiny_inputs("bart"))


def test_rollout_is_the_product_of_the_maps() -> None:
    model, taken = tiny_model("gpt2"), reference.gpt2(tiny_model("gpt2"), IDS[0])
    identity = torch.eye(IDS.shape[1], dtype=torch.float64)
    product = identity
    for layer in taken.layers:
        rows = layer.alpha.mean(0) + identity
        product = (rows / rows.sum(-1, keepdim=True)) @ product
    result = shares(model, "rollout:attn_w")
    np.testing.assert_allclose(result.sources[0].shares[0, 0], product[-1], rtol=1e-10)
    for normalize in ("auto", "yes"):
        product = identity
        for layer in taken.layers:
            parts = (layer.alpha[..., None] * layer.moved[:, None]).sum(0)
            parts = parts + identity[..., None] * layer.entering[:, None]
            rows = parts.norm(dim=-1)
            sums = rows.sum(-1, keepdim=True)
            product = rows / (sums if normalize == "yes" else sums.max()) @ product
        result = shares(model, f"rollout:attn_res_n,normalize={normalize}")
        np.testing.assert_allclose(result.sources[0].shares[0, 0], product[-1], rtol=1e-9)
    with pytest.raises(InputError, match="there is no map 'attention'; valid: attn_w"):
        shares(model, "rollout:attention")
