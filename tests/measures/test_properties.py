"""Properties of f: found weights against named ones, norms against dense matrices and loops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch import Tensor

from normscope.capture import capture, eager
from normscope.errors import InputError, UnsupportedModelError
from normscope.measures.properties import (
    OutputBias,
    affine_maps,
    expansion_rate,
    layernorm_scale,
    singular_values,
)
from normscope.models.architectures import tiny_inputs, tiny_model
from tests.helpers.captures import state
from tests.helpers.tiny import tokenizer

Array = np.ndarray[Any, Any]
# Where W_V is: a module of its own, shared by query heads or by layers; the last third of a fused
# one (as Conv1D too); interleaved by head; after grouped queries and keys; time before batch.
PLACES = [
    "bert", "albert", "deberta-v2", "llama", "gpt2", "modernbert", "phi3", "gpt_neox", "bloom",
    "falcon", "falcon (grouped)", "falcon (alibi)", "gpt_neo", "vit",
]  # fmt: skip


def numpy(tensor: Any) -> Array:
    return np.asarray(tensor.detach().numpy())


def affine(w_v: Array, b_v: Array, w_o: Array, b_o: Array | None = None) -> Array:
    """[[W, 0], [b, 1]] of (x, 1) ↦ (f(x), 1), entry by entry from what it does to unit vectors."""
    d_in, d_out = w_v.shape[0], w_o.shape[1]
    f = np.zeros((d_in + 1, d_out + 1))
    origin = b_v @ w_o + (0 if b_o is None else b_o)
    for row, unit in enumerate(np.eye(d_in)):
        f[row, :d_out] = (unit @ w_v + b_v) @ w_o + (0 if b_o is None else b_o) - origin
    f[d_in, :d_out] = origin
    f[d_in, d_out] = 1
    return f


def frobenius(matrix: Array) -> float:
    return math.sqrt(sum(float(entry) ** 2 for entry in matrix.flatten()))


def of_bert(layer: Any) -> tuple[Array, Array, Array, Array]:
    """W_V, b_V, W_O, b_O of a BERT layer by their names."""
    value, dense = layer.attention.self.value, layer.attention.output.dense
    return numpy(value.weight).T, numpy(value.bias), numpy(dense.weight).T, numpy(dense.bias)


# ---- expansion rate


@pytest.mark.parametrize("bias", ["without", "with_output_bias", "released"])
def test_expansion_rate_of_bert_from_its_named_weights(bias: OutputBias) -> None:
    model: Any = tiny_model("bert")
    expected = []
    for layer in model.encoder.layer:
        w_v, b_v, w_o, b_o = of_bert(layer)
        f = affine(w_v, b_v, w_o, b_o if bias == "with_output_bias" else None)
        if bias == "released":  # b_O is a column that the values are multiplied with
            f[:-1, -1] = w_v @ b_o
            f[-1, -1] = 1 + b_v @ b_o
        expected.append(frobenius(f) / math.sqrt(33))
    found = expansion_rate(model, bias=bias)
    assert_allclose(found.values, expected, rtol=1e-13)
    assert found.axes == ("layer",)
    assert found.name == f"expansion_rate bias={bias}"


def test_the_conventions_differ() -> None:
    model = tiny_model("bert")
    biases: list[OutputBias] = ["without", "with_output_bias", "released"]
    rates = [expansion_rate(model, bias=bias).values for bias in biases]
    gaps = [np.abs(rates[i] - rates[j]).min() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert min(gaps) > 1e-3
    assert_array_equal(expansion_rate(model).values, rates[0])


def test_scaled_identities_by_hand() -> None:
    """x ↦ 6x: d singular values of 6 and the corner's 1."""
    model: Any = tiny_model("bert")
    with torch.no_grad():
        for layer in model.encoder.layer:
            value, dense = layer.attention.self.value, layer.attention.output.dense
            value.weight.copy_(2 * torch.eye(32))
            dense.weight.copy_(3 * torch.eye(32))
            value.bias.zero_()
            dense.bias.fill_(5)
    without = math.sqrt((32 * 36 + 1) / 33)
    assert_allclose(expansion_rate(model).values, [without] * 3, rtol=1e-14)
    whole = math.sqrt((32 * 36 + 32 * 25 + 1) / 33)
    rates = expansion_rate(model, bias="with_output_bias").values
    assert_allclose(rates, [whole] * 3, rtol=1e-14)
    assert_allclose(singular_values(model, 1, 2), [6] * 8 + [1], rtol=1e-14)


def test_stacks_and_kinds_are_kept_apart() -> None:
    model: Any = tiny_model("marian")

    def by_hand(attention: Any) -> float:
        value, out = attention.v_proj, attention.out_proj
        f = affine(numpy(value.weight).T, numpy(value.bias), numpy(out.weight).T)
        return frobenius(f) / math.sqrt(33)

    sides = model.model.encoder.layers, model.model.decoder.layers
    expected = [
        ("encoder", "self", [by_hand(layer.self_attn) for layer in sides[0]]),
        ("decoder", "self", [by_hand(layer.self_attn) for layer in sides[1]]),
        (None, "cross", [by_hand(layer.encoder_attn) for layer in sides[1]]),
    ]
    for stack, kind, rates in expected:
        found = expansion_rate(model, stack=stack, kind=kind)  # type: ignore[arg-type]
        assert_allclose(found.values, rates, rtol=1e-13)
    both = r"in: model\.encoder\.layers, model\.decoder\.layers; "
    with pytest.raises(InputError, match=both + "none was chosen"):
        expansion_rate(model)
    with pytest.raises(InputError, match=both + "stack='layers' fits 2"):
        singular_values(model, 0, 0, stack="layers")
    with pytest.raises(InputError, match=both + "stack='vision' fits 0"):
        layernorm_scale(model, inputs=tiny_inputs("marian"), stack="vision")
    with pytest.raises(InputError, match="BertModel has no cross-attention"):
        expansion_rate(tiny_model("bert"), kind="cross")


# ---- finding W_V


@pytest.mark.parametrize("name", PLACES)
def test_the_weights_found_make_the_values_of_another_input(name: str) -> None:
    model: Any = tiny_model(name)
    maps = affine_maps(model, inputs=tiny_inputs(name))
    read: list[Tensor] = []

    def note(module: Any, args: Any, kwargs: Any) -> None:
        read.append(next(t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)))

    other = tiny_inputs(name, batch=2, length=6, seed=1)
    with torch.no_grad(), capture(model) as captures:
        modules = {model.get_submodule(found.name) for found in maps}
        hooks = [m.register_forward_pre_hook(note, with_kwargs=True) for m in modules]
        model(**other)
    for hook in hooks:
        hook.remove()
    assert len(maps) == len(captures) == len(read) == 3
    for found, captured, x in zip(maps, captures, read, strict=True):
        value = torch.einsum("bjd,dge->bgje", x, found.value)
        if found.value_bias is not None:
            value = value + found.value_bias[:, None]
        assert_allclose(numpy(value), numpy(captured.value), atol=1e-12)
        assert_array_equal(numpy(found.output), numpy(captured.projection.weight))


def test_time_first_and_cross_attention_of_fsmt() -> None:
    """As many rows as positions: only the values tell batch and time apart."""
    model: Any = tiny_model("fsmt")
    inputs = tiny_inputs("fsmt", batch=9, length=9)
    for kind, stack, module in (("self", "encoder", "self_attn"), ("cross", "", "encoder_attn")):
        maps = affine_maps(model, inputs=inputs, kind=kind, stack=stack)  # type: ignore[arg-type]
        for found in maps:
            assert found.name.endswith(module)
            weight = model.get_submodule(found.name).v_proj.weight
            assert_array_equal(numpy(found.value.flatten(1)), numpy(weight.T))


def test_values_that_are_not_affine_in_x_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"layers\.0\.self_attn\.kv_b_proj, but from"):
        expansion_rate(tiny_model("deepseek_v3"))
    with pytest.raises(UnsupportedModelError, match=r"layers\.0\.self_attn: no linear module"):
        singular_values(tiny_model("olmo"), 0, 0)
    unclipped: Any = tiny_model("olmo")
    unclipped.config.clip_qkv = None
    assert expansion_rate(unclipped).shape == (3,)


def test_models_that_read_no_ids() -> None:
    assert expansion_rate(tiny_model("vit")).shape == (3,)
    rates = expansion_rate(tiny_model("clip"), inputs=tiny_inputs("clip"), stack="vision")
    assert rates.shape == (2,)


# ---- singular values


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_singular_values_are_those_of_the_whole_matrix(name: str) -> None:
    model: Any = tiny_model(name)
    if name == "bert":
        w_v, b_v, w_o, _ = of_bert(model.encoder.layer[1])
        size, value_head = 8, 2
    else:  # four heads of 12, of which neighbours share a value head
        attention = model.model.layers[1].self_attn
        w_v, b_v = numpy(attention.v_proj.weight).T, numpy(attention.v_proj.bias)
        w_o = numpy(attention.o_proj.weight).T
        size, value_head = 12, 1
    of_value = slice(size * value_head, size * (value_head + 1))
    f = affine(w_v[:, of_value], b_v[of_value], w_o[2 * size : 3 * size])
    expected = np.linalg.svd(f, compute_uv=False)
    found = singular_values(model, 1, 2)
    assert found.shape == (size + 1,)
    assert_allclose(found, expected[: size + 1], rtol=1e-12)
    assert expected[size + 1 :].max() < 1e-12
    assert (np.diff(found) <= 0).all()


def test_a_layer_or_head_that_is_not_there_is_refused() -> None:
    model = tiny_model("bert")
    with pytest.raises(InputError, match="no layer 3; valid: 0 to 2"):
        singular_values(model, 3, 0)
    with pytest.raises(InputError, match="no head -1; valid: 0 to 3"):
        singular_values(model, 0, -1)


# ---- layernorm_scale


def by_loops(
    model: Any, inputs: Mapping[str, Any], norm: str, real: Tensor, *, rms: bool, offset: float
) -> list[tuple[float, float]]:
    """Mean |γ| and mean |γ|/σ_i of each call of one norm, from what the model really gave it."""
    module, calls = model.get_submodule(norm), []
    eps = getattr(module, "eps", None) or getattr(module, "variance_epsilon", None)

    def note(module: Any, args: Any, kwargs: Any) -> None:
        calls.append(next(t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)))

    hook = module.register_forward_pre_hook(note, with_kwargs=True)
    # As under capture: RMSNorms round to float32, and so amplify what sdpa changes in the last bit.
    with torch.no_grad(), eager(model):
        model(**inputs)
    hook.remove()
    gamma = [abs(g + offset) for g in module.weight.tolist()]
    rows = []
    for given in calls:
        ratios = []
        for vector in given[real].tolist():
            mean = 0.0 if rms else sum(vector) / len(vector)
            variance = sum((entry - mean) ** 2 for entry in vector) / len(vector)
            ratios.append(sum(g / math.sqrt(variance + eps) for g in gamma) / len(gamma))
        rows.append((sum(gamma) / len(gamma), sum(ratios) / len(ratios)))
    return rows


NORMS = [
    ("bert", "encoder.layer.{}.attention.output.LayerNorm", "after", False, 0.0),
    ("gpt2", "transformer.h.{}.ln_1", "before", False, 0.0),
    ("llama", "model.layers.{}.input_layernorm", "before", True, 0.0),
    ("olmo2", "model.layers.{}.post_attention_layernorm", "branch", True, 0.0),
    ("gemma2", "model.layers.{}.post_attention_layernorm", "branch", True, 1.0),
]


@pytest.mark.parametrize(("name", "path", "place", "rms", "offset"), NORMS)
def test_layernorm_scale_is_that_of_loops_over_real_tokens(
    name: str, path: str, place: str, rms: bool, offset: float
) -> None:
    model: Any = tiny_model(name)
    inputs = tiny_inputs(name)
    real = inputs["attention_mask"].bool()
    assert not real.all()  # there is padding
    paths = [path.format(layer) for layer in range(3)]
    with torch.no_grad():
        for norm in paths:
            model.get_submodule(norm).weight[::3] -= 2  # some γ are negative
    loops = [by_loops(model, inputs, norm, real, rms=rms, offset=offset)[0] for norm in paths]
    found = layernorm_scale(model, inputs=inputs)
    assert found.norms == tuple(paths)
    assert found.places == (place,) * 3
    assert_allclose(found.gamma, [gamma for gamma, _ in loops], rtol=1e-12)
    assert_allclose(found.scale, [scale for _, scale in loops], rtol=1e-12)


def test_a_norm_that_layers_share_is_read_once_for_each() -> None:
    model, inputs = tiny_model("albert"), tiny_inputs("albert")
    found = layernorm_scale(model, inputs=inputs)
    assert len(set(found.norms)) == 1
    real = inputs["attention_mask"].bool()
    loops = by_loops(model, inputs, found.norms[0], real, rms=False, offset=0.0)
    assert_allclose(found.scale, [scale for _, scale in loops], rtol=1e-12)
    assert len(set(found.gamma)) == 1
    assert len(set(found.scale)) == 3


def test_decoder_and_cross_norms_follow_the_decoder_mask() -> None:
    model, inputs = tiny_model("marian"), tiny_inputs("marian")
    real = inputs["decoder_attention_mask"].bool()
    for kind, norm in (("self", "self_attn_layer_norm"), ("cross", "encoder_attn_layer_norm")):
        found = layernorm_scale(model, inputs=inputs, stack="decoder", kind=kind)  # type: ignore[arg-type]
        assert found.norms[1] == f"model.decoder.layers.1.{norm}"
        loops = by_loops(model, inputs, found.norms[1], real, rms=False, offset=0.0)
        assert_allclose((found.gamma[1], found.scale[1]), loops[0], rtol=1e-12)


def test_time_first_norms_of_fsmt_with_as_many_rows_as_positions() -> None:
    model = tiny_model("fsmt")
    inputs: dict[str, Any] = tiny_inputs("fsmt", batch=9, length=9) | {"use_cache": True}
    found = layernorm_scale(model, inputs=inputs, stack="encoder")
    real = inputs["attention_mask"].bool().T
    assert not torch.equal(real, real.T)
    loops = by_loops(model, inputs, found.norms[1], real, rms=False, offset=0.0)
    assert_allclose((found.gamma[1], found.scale[1]), loops[0], rtol=1e-12)


def test_a_layer_without_a_norm_has_no_scale() -> None:
    found = layernorm_scale(tiny_model("modernbert"), inputs=tiny_inputs("modernbert"))
    assert found.places == ("none", "before", "before")  # the embeddings are normalised already
    assert_array_equal(np.isnan(found.gamma), [True, False, False])
    assert_array_equal(np.isnan(found.scale), [True, False, False])


def test_texts_give_what_their_ids_give_and_padding_does_not_count() -> None:
    model = tiny_model("bert")
    texts = ["the cat sat on the mat .", "it ran ."]
    words = tokenizer()(texts, padding=True, return_tensors="pt")
    found = layernorm_scale(model, tokenizer(), texts)
    from_ids = layernorm_scale(model, inputs=dict(words))
    assert_array_equal(found.scale, from_ids.scale)
    each = [layernorm_scale(model, tokenizer(), text).scale for text in texts]
    lengths = words["attention_mask"].sum(dim=1).tolist()
    assert lengths == [9, 5]
    assert_allclose(found.scale, np.average(each, axis=0, weights=lengths), rtol=1e-12)


def test_what_layernorm_scale_needs_is_asked_for() -> None:
    model, text = tiny_model("bert"), "the cat"
    for given in ((), (tokenizer(),), (None, text)):
        with pytest.raises(InputError, match="give a tokenizer and a text, or inputs="):
            layernorm_scale(model, *given)
    with pytest.raises(InputError, match="give a tokenizer and a text, or inputs="):
        layernorm_scale(model, tokenizer(), text, inputs=tiny_inputs("bert"))
    with pytest.raises(InputError, match="encoder–decoder"):
        layernorm_scale(tiny_model("marian"), tokenizer(), text)


# ---- manners


def test_the_model_is_left_as_it_was_also_after_a_refusal() -> None:
    model: Any = tiny_model("bert")
    model.encoder.layer[1].train()
    before = state(model)
    expansion_rate(model)
    layernorm_scale(model, inputs=tiny_inputs("bert"))
    refused: Any = tiny_model("deepseek_v3")
    before_refusal = state(refused)
    with pytest.raises(UnsupportedModelError):
        expansion_rate(refused)
    assert state(model) == before
    assert state(refused) == before_refusal


def test_half_precision_weights_give_the_rate_of_the_rounded_weights() -> None:
    model: Any = tiny_model("gpt_neox", dtype=torch.bfloat16)
    rounded = expansion_rate(model).values
    assert_allclose(rounded, expansion_rate(model.double()).values, rtol=1e-13)
