"""Every family, every attention call: the parts are the model's own output, the maps are the maths.

All models are tiny, in float64, with all parameters random; batches are padded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

import normscope
from normscope.capture import Capture, Projection
from normscope.decomposition.attention import AttentionDecomposition
from normscope.decomposition.cells import DRAWS, Cells, Positions
from normscope.decomposition.layer import LayerView
from normscope.decomposition.scopes import HEAD_MAPS
from normscope.engine.options import CHOICES
from normscope.errors import ExactnessError
from normscope.kernels import gram_matrices, quadratic_norms
from normscope.kernels.gram import BLOCK
from normscope.models.architectures import FAMILIES, tiny_inputs, tiny_model
from normscope.testing import check_architecture, random_inputs, randomize_
from tests.helpers import reference

# Layers of the tiny models: 3, or 2 + 3 for two towers, or encoder, decoder and cross.
CALLS = {"encoder-decoder": 2 + 3 + 3, "vision-text": 2 + 3}


@pytest.mark.parametrize("name", FAMILIES)
def test_family_is_seen_exactly(name: str) -> None:
    """Outputs bit-identical to eager attention, and Σ αf + b_O the real output within 1e-10."""
    proof = check_architecture(tiny_model(name), tiny_inputs(name), bound=1e-10)
    group = FAMILIES[name].group
    assert sum(proof.attentions.values()) == CALLS.get(group, 3)
    kinds = {key.split()[-1] for key in proof.attentions}
    assert kinds == ({"self", "cross"} if group == "encoder-decoder" else {"self"})


@pytest.mark.parametrize("name", FAMILIES)
def test_family_maps_equal_loops(name: str) -> None:
    """Every map of every call, and the output itself, against loops over single vectors."""
    model: Any = tiny_model(name)
    with torch.no_grad(), normscope.capture(model) as captures:
        model(**tiny_inputs(name))
    for captured in captures:
        _compare_with_loops(captured, row=1)


def maps_of(captured: Capture, heads: str) -> dict[str, Tensor]:
    view = LayerView(captured)
    maps = view.maps(HEAD_MAPS) if heads == "sum" else view.head_maps(HEAD_MAPS)
    return {name: made.values for name, made in maps.items() if made.values is not None}


def _compare_with_loops(captured: Capture, row: int) -> None:
    alpha, value = captured.alpha[row].numpy(), captured.value[row].numpy()
    bias = captured.projection.bias
    f = reference.vectors_from_values(value, captured.projection.weight.numpy())
    b_o = np.zeros(f.shape[-1]) if bias is None else bias.numpy()
    assert_allclose(captured.output[row].numpy(), reference.output(alpha, f, b_o), atol=1e-12)
    taken = AttentionDecomposition(captured)
    expected = reference.norms(alpha, f)
    for heads in CHOICES["heads"]:
        for name, array in maps_of(captured, heads).items():
            found = array[row].numpy()
            assert_allclose(found, expected[f"{name} {heads}"], rtol=1e-10, atol=1e-14)
    assert_allclose(taken.transformed_norm[row].numpy(), expected["transformed_norm"], rtol=1e-11)


# ------------------------------------- from the weights alone, without anything that was captured


def _bert(model: Any, layer: int) -> tuple[list[Tensor], Tensor]:
    attention = model.encoder.layer[layer].attention
    return [attention.self.value.weight.T, attention.self.value.bias,
            attention.output.dense.weight.T], attention.output.dense.bias  # fmt: skip


def _albert(model: Any, layer: int) -> tuple[list[Tensor], Tensor]:
    attention = model.encoder.albert_layer_groups[0].albert_layers[0].attention
    return [attention.value.weight.T, attention.value.bias,
            attention.dense.weight.T], attention.dense.bias  # fmt: skip


def _gpt2(model: Any, layer: int) -> tuple[list[Tensor], Tensor]:
    attention = model.transformer.h[layer].attn
    return [attention.c_attn.weight[:, 64:], attention.c_attn.bias[64:],
            attention.c_proj.weight], attention.c_proj.bias  # fmt: skip


def _llama(model: Any, layer: int) -> tuple[list[Tensor], Tensor]:
    attention = model.model.layers[layer].self_attn
    return [attention.v_proj.weight.T, attention.v_proj.bias,
            attention.o_proj.weight.T], attention.o_proj.bias  # fmt: skip


@pytest.mark.parametrize(
    ("name", "weights", "norm", "groups"),
    [
        ("bert", _bert, None, 4),
        ("albert", _albert, None, 4),
        ("gpt2", _gpt2, lambda m, n: m.transformer.h[n].ln_1, 4),
        ("llama", _llama, lambda m, n: m.model.layers[n].input_layernorm, 2),
    ],
)
@torch.no_grad()
def test_maps_from_the_weights_alone(name: str, weights: Any, norm: Any, groups: int) -> None:
    """analyze_inputs() against f(x) = (x W_V + b_V) W_O computed from hidden states by hand."""
    model: Any = tiny_model(name)
    inputs = tiny_inputs(name)
    results = normscope.analyze_inputs(model, inputs, heads="each")
    summed = normscope.analyze_inputs(model, inputs)
    model.set_attn_implementation("eager")
    out = model(**inputs, output_attentions=True, output_hidden_states=True)
    for layer in range(3):
        (w_v, b_v, w_o), _ = weights(model, layer)
        for row, result in enumerate(results):
            n = int(inputs["attention_mask"][row].sum())
            x = out.hidden_states[layer][row, :n]
            x = (x if norm is None else norm(model, layer)(x)).numpy()
            e = w_v.shape[1] // groups
            f = []
            for h in range(4):
                g = slice(h // (4 // groups) * e, (h // (4 // groups) + 1) * e)
                own = slice(h * e, (h + 1) * e)
                f.append(
                    reference.transformed(x, w_v[:, g].numpy(), b_v[g].numpy(), w_o[own].numpy())
                )
            alpha = out.attentions[layer][row, :, :n, :n].numpy()
            expected = reference.norms(alpha, np.stack(f))
            assert_allclose(result["attn_w"][layer], alpha, atol=1e-14)
            assert_allclose(
                result["attn_n"][layer], expected["attn_n each"], rtol=1e-10, atol=1e-13
            )
            assert_allclose(
                summed[row]["attn_n"][layer], expected["attn_n sum"], rtol=1e-10, atol=1e-13
            )
            assert_allclose(
                result.transformed_norm[layer], expected["transformed_norm"], rtol=1e-11
            )


@torch.no_grad()
def test_cross_attention_from_the_weights_alone() -> None:
    model: Any = tiny_model("marian")
    inputs = tiny_inputs("marian")
    results = normscope.analyze_inputs(model, inputs)
    model.set_attn_implementation("eager")
    out = model(**inputs, output_attentions=True)
    for layer in range(3):
        attention = model.model.decoder.layers[layer].encoder_attn
        for row, result in enumerate(results):
            source = int(inputs["attention_mask"][row].sum())
            target = int(inputs["decoder_attention_mask"][row].sum())
            x = out.encoder_last_hidden_state[row, :source].numpy()
            heads = attention.num_heads
            e = 32 // heads
            f = np.stack([
                reference.transformed(
                    x,
                    attention.v_proj.weight.T[:, h * e : (h + 1) * e].numpy(),
                    attention.v_proj.bias[h * e : (h + 1) * e].numpy(),
                    attention.out_proj.weight.T[h * e : (h + 1) * e].numpy(),
                )
                for h in range(heads)
            ])  # fmt: skip
            alpha = out.cross_attentions[layer][row, :, :target, :source].numpy()
            expected = reference.norms(alpha, f)
            assert result.cross["attn_n"].shape == (3, target, source)
            assert_allclose(result.cross["attn_n"][layer], expected["attn_n sum"], rtol=1e-10)
            assert_allclose(result.cross["attn_w"][layer], expected["attn_w sum"], rtol=1e-10)


# ------------------------------------------------------------------------ accuracy in float32


@pytest.mark.parametrize("left", [1e0, 1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("groups", [8, 2])
def test_cancelling_heads_keep_six_digits(left: float, groups: int) -> None:
    """Heads whose sum is ``left`` of its parts, float32 inputs, against a float64 dense sum."""
    draw = torch.Generator().manual_seed(7)
    heads, e, hidden, queries, keys = 8, 16, 64, 5, 7
    value = torch.randn(2, groups, keys, e, generator=draw)
    weight = torch.randn(heads, e, hidden, generator=draw)
    alpha = torch.rand(2, heads, queries, keys, generator=draw)
    if left < 1:  # the second head of each pair undoes the first but for a fraction
        weight[1::2] = -weight[::2] * (1 - left)
        if groups == heads:
            value[:, 1::2] = value[:, ::2]
        alpha[:, 1::2] = alpha[:, ::2]
    grams = gram_matrices(value, weight.double())
    summed, single = quadratic_norms(alpha, grams.matrices)[0], grams.single
    wide = value.double().repeat_interleave(heads // groups, dim=1)
    f = torch.einsum("bhke,heo->bhko", wide, weight.double())
    dense = torch.einsum("bhqk,bhko->bqko", alpha.double(), f).norm(dim=-1)
    assert (dense / torch.einsum("bhqk,bhk->bqk", alpha.double(), f.norm(dim=-1))).mean() < 2 * left
    assert ((summed - dense).abs() / dense).max() < 1e-8
    assert ((single - f.norm(dim=-1)).abs() / single).max() < 1e-12


def test_blocks_of_keys_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    value = torch.randn(2, 2, 11, 4, generator=draw)
    weight = torch.randn(4, 4, 16, generator=draw)
    alpha = torch.rand(2, 4, 3, 11, generator=draw)
    own = torch.rand(2, 4, 11, generator=draw)
    whole = gram_matrices(value, weight.double(), own=own)
    norms = quadratic_norms(alpha, whole.matrices)[0]
    monkeypatch.setitem(BLOCK, "cpu", 300)  # two keys at a time
    cut = gram_matrices(value, weight.double(), own=own)
    assert cut.diagonal is not None
    assert whole.diagonal is not None
    assert_allclose(quadratic_norms(alpha, cut.matrices)[0], norms, rtol=1e-13)
    assert_allclose(cut.single.numpy(), whole.single.numpy(), rtol=1e-13)
    assert_allclose(cut.diagonal.numpy(), whole.diagonal.numpy(), rtol=1e-13)


@pytest.mark.parametrize(("dtype", "bound"), [
    (torch.float64, 1e-14), (torch.float32, 2e-6), (torch.bfloat16, 3e-2), (torch.float16, 4e-3),
])  # fmt: skip
@pytest.mark.parametrize("name", ["bert", "llama", "marian"])
def test_reconstruction_in_every_dtype(name: str, dtype: torch.dtype, bound: float) -> None:
    proof = check_architecture(tiny_model(name, dtype=dtype), tiny_inputs(name, dtype=dtype))
    assert proof.worst < bound


# ------------------------------------------------------------------ the proof itself can fail


def _without_bias(captured: Capture) -> Capture:
    from dataclasses import replace

    broken = Projection("", captured.projection.weight, None)
    return replace(captured, projection=broken)


def test_gap_sees_a_dropped_bias() -> None:
    model: Any = tiny_model("bert")
    with torch.no_grad(), normscope.capture(model) as captures:
        model(**tiny_inputs("bert"))
    for captured, bound in ((captures[0], 1e-14), (_without_bias(captures[0]), None)):
        gap = LayerView(captured).maps(HEAD_MAPS)["attn_n"].gap()
        assert gap.min() > 1e-3 if bound is None else gap.max() < bound


def drawn_of(taken: AttentionDecomposition, real: Tensor, layer: int) -> Cells:
    drawn = Positions(real, real).cells(layer)
    assert drawn is not None
    return taken.at(*drawn)


def test_spot_check_sees_one_wrong_factor() -> None:
    model: Any = tiny_model("llama")
    with torch.no_grad(), normscope.capture(model) as captures:
        model(**tiny_inputs("llama"))
    taken = AttentionDecomposition(captures[0])
    real = torch.ones(3, 9, dtype=torch.bool)
    drawn = [drawn_of(taken, real, layer) for layer in range(DRAWS)]
    for heads in CHOICES["heads"]:
        for name, array in maps_of(captures[0], heads).items():
            right = [cells.gap(cells.of(array), weight=name == "attn_w") for cells in drawn]
            wrong = [cells.gap(cells.of(array * 1.001), weight=name == "attn_w") for cells in drawn]
            assert max(spots.max() for spots in right) < 1e-14
            # Causal: cells before the diagonal hold nothing, and any factor is right there.
            assert (torch.stack(wrong) > 1e-7).double().mean() > 0.5


def test_spot_check_draws_real_positions_only() -> None:
    model: Any = tiny_model("bert")
    with torch.no_grad(), normscope.capture(model) as captures:
        model(**tiny_inputs("bert"))
    taken = AttentionDecomposition(captures[0])
    real = tiny_inputs("bert")["attention_mask"].bool()
    array = maps_of(captures[0], "sum")["attn_n"]
    array = array.masked_fill(~(real[:, :, None] & real[:, None, :]), torch.nan)
    for layer in range(DRAWS):
        cells = drawn_of(taken, real, layer)
        assert cells.gap(cells.of(array), weight=False).max() < 1e-14


def test_check_architecture_refuses_too_tight_a_bound() -> None:
    with pytest.raises(ExactnessError, match="more than 1e-30"):
        check_architecture(tiny_model("bert"), tiny_inputs("bert"), bound=1e-30)


def test_check_architecture_makes_its_own_inputs() -> None:
    model: Any = tiny_model("t5").train()
    proof = check_architecture(model)
    assert proof.worst < 1e-13
    assert model.training
    assert check_architecture(tiny_model("vit")).worst < 1e-13
    padded = random_inputs(model)["attention_mask"].sum(dim=1)
    assert padded.tolist() == [9, 8, 7]


def test_randomize_leaves_nothing_as_it_was() -> None:
    from transformers import BertConfig, BertModel

    small: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 8, "vocab_size": 20}  # fmt: skip
    model = BertModel(BertConfig(**small))
    before = {name: p.clone() for name, p in model.named_parameters()}
    randomize_(model, seed=1)
    assert all((p != before[name]).all() for name, p in model.named_parameters())
