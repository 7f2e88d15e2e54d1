"""ALTI, GlobEnc, value zeroing, effective attention and flow routes against their definitions.

Tiny models of every layout, in float64, with all parameters random.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import normscope
from normscope.decomposition import blocks, closeness, zeroing
from normscope.decomposition.scopes import RELATED, SCOPES
from normscope.errors import ExactnessError, InputError
from normscope.models.architectures import tiny_inputs, tiny_model
from normscope.testing import FullPrecision
from tests.helpers import reference, related_reference

Array = NDArray[np.float64]
MAPS = [*RELATED, "globenc", "globenc_ff", "attn_w", "attn_res_n"]
# Where layers and the modules of the attention block are; then its norms.
LAYERS = {
    "bert": "encoder.layer",
    "gpt2": "transformer.h",
    "llama": "model.layers",
    "olmo2": "model.layers",
    "gemma2": "model.layers",
    "gpt_neox": "gpt_neox.layers",
    "mixtral": "model.layers",
    "marian": "model.encoder.layers",
}
AFTER = {"bert": "attention.output.LayerNorm", "marian": "self_attn_layer_norm"}
BRANCH = {"olmo2": "post_attention_layernorm", "gemma2": "post_attention_layernorm"}
VALUES = {
    "bert": ("attention.self.value", related_reference._rows),
    "gpt2": ("attn.c_attn", related_reference._third),
    "gpt_neox": ("attention.query_key_value", related_reference._interleaved),
    **dict.fromkeys(
        ("llama", "olmo2", "gemma2", "mixtral", "marian"),
        ("self_attn.v_proj", related_reference._rows),
    ),
}


@cache
def run(name: str, **options: Any) -> Any:
    """The results of a family; computed once, since no test changes them."""
    with FullPrecision():
        return normscope.analyze_inputs(tiny_model(name), tiny_inputs(name), maps=MAPS, **options)


def states_of(name: str) -> tuple[list[Any], list[Any]]:
    """The attention calls of the layers, and what enters each layer."""
    model: Any = tiny_model(name)
    layers = model.get_submodule(LAYERS[name])
    given: list[Any] = []
    hooks = [
        layer.register_forward_pre_hook(
            lambda m, args, kwargs: given.append(args[0] if args else kwargs["hidden_states"]),
            with_kwargs=True,
        )
        for layer in layers
    ]
    with torch.no_grad(), FullPrecision(), normscope.capture(model) as captures:
        model(**tiny_inputs(name))
    for hook in hooks:
        hook.remove()
    return [c for c in captures if LAYERS[name] in c.name and c.kind == "self"], given


def linear_norm(module: Any, name: str) -> tuple[Array, float, bool]:
    gamma = module.weight.detach().numpy() + (name == "gemma2")
    eps = next(getattr(module, e) for e in ("eps", "variance_epsilon") if hasattr(module, e))
    return gamma, eps, isinstance(module, torch.nn.LayerNorm)


@pytest.mark.parametrize("name", LAYERS)
def test_closeness_routes_and_effective_attention_against_loops(name: str) -> None:
    model, results = tiny_model(name), run(name)
    captures, given = states_of(name)
    layers: Any = model.get_submodule(LAYERS[name])
    row = 1
    result: Any = results[row].encoder if name == "marian" else results[row]
    expected: Any
    real = tiny_inputs(name)["attention_mask"][row].bool().numpy()
    for number, (captured, x) in enumerate(zip(captures, given, strict=True)):
        alpha = captured.alpha[row].numpy()[:, real][:, :, real]
        value = captured.value[row].numpy()[:, real]
        f = reference.vectors_from_values(value, captured.projection.weight.numpy())
        bias = captured.projection.bias
        b_o = np.zeros(f.shape[-1]) if bias is None else bias.numpy()
        heads = alpha[..., None] * f[:, None]  # head query key hidden
        x = x[row].numpy()[real]
        attended = heads.sum(axis=(0, 2)) + b_o
        whole = attended
        if name in BRANCH:
            norm: Any = layers[number].get_submodule(BRANCH[name])
            gamma, eps, centred = linear_norm(norm, name)
            heads = np.stack(
                [reference.layer_norm(h, attended, gamma, eps, centred) for h in heads]
            )
            with FullPrecision():
                whole = norm(torch.from_numpy(attended)).detach().numpy()
        whole = whole + x
        expected = related_reference.routes(heads, x, whole)
        assert_allclose(result["flow_routes"][number], expected, rtol=1e-8, atol=1e-12)
        parts = reference.add_residual(heads.sum(axis=0), x)
        if name in AFTER:
            norm = layers[number].get_submodule(AFTER[name])
            parts = reference.layer_norm(parts, whole, *linear_norm(norm, name))
            whole = norm(torch.from_numpy(whole)).detach().numpy()
        for order, scope in ((1, "alti"), (2, "alti_l2")):
            expected = related_reference.alti(parts, whole, order)
            assert_allclose(result[scope][number], expected, rtol=1e-8, atol=1e-12)
        each = np.stack([related_reference.effective(a, v) for a, v in zip(alpha, f, strict=True)])
        assert_allclose(result["effective"][number], each.mean(axis=0), atol=1e-10)
        if name not in AFTER:  # no norm follows: GlobEnc closes the attention block
            assert_allclose(result["globenc"][number], reference.lengths(parts), rtol=1e-10)


@pytest.mark.parametrize("name", LAYERS)
def test_value_zeroing_is_running_the_layer_again(name: str) -> None:
    """The shortcut, through norms, gated feed-forwards and experts, against a second forward."""
    model, inputs, results = tiny_model(name), tiny_inputs(name), run(name)
    path, zero = VALUES[name]
    row, number = 1, 1
    layers: Any = model.get_submodule(LAYERS[name])
    layer = layers[number]
    result = results[row].encoder if name == "marian" else results[row]
    size = inputs["input_ids"].shape[1]
    cells = related_reference.zeroed(
        model, inputs, layer, layer.get_submodule(path), zero, row, (size, size)
    )
    real = inputs["attention_mask"][row].bool().numpy()
    expected = related_reference.shares(cells[real][:, real])
    assert_allclose(result["value_zeroing"][number], expected, rtol=1e-6, atol=1e-9)


def test_cross_attention_has_the_residual_in_a_column() -> None:
    model: Any = tiny_model("marian")
    inputs, row, number = tiny_inputs("marian"), 1, 2
    result = run("marian")[row].cross
    layer = model.model.decoder.layers[number]
    given: list[Any] = []
    hook = layer.self_attn_layer_norm.register_forward_hook(lambda m, a, o: given.append(o))
    with torch.no_grad(), normscope.capture(model) as captures:
        model(**inputs)
    hook.remove()
    captured: Any = [c for c in captures if c.kind == "cross"][number]
    source = inputs["attention_mask"][row].bool().numpy()
    target = inputs["decoder_attention_mask"][row].bool().numpy()
    f = reference.vectors_from_values(
        captured.value[row].numpy()[:, source], captured.projection.weight.numpy()
    )
    alpha = captured.alpha[row].numpy()[:, target][:, :, source]
    heads = alpha[..., None] * f[:, None]
    x = given[0][row].numpy()[target]
    whole = heads.sum(axis=(0, 2)) + captured.projection.bias.numpy() + x
    expected = related_reference.routes(heads, x, whole, column=True)
    assert_allclose(result["flow_routes"][number], expected, rtol=1e-9, atol=1e-12)
    parts = np.concatenate([heads.sum(axis=0), x[:, None]], axis=1)
    norm = layer.encoder_attn_layer_norm
    parts = reference.layer_norm(parts, whole, *linear_norm(norm, "marian"))
    whole = norm(torch.from_numpy(whole)).detach().numpy()
    for order, scope in ((1, "alti"), (2, "alti_l2")):
        expected = related_reference.alti(parts, whole, order)
        assert_allclose(result[scope][number], expected, rtol=1e-9, atol=1e-12)
    # The source's values only: the residual has none.
    size = len(target), len(source)
    module = layer.encoder_attn.v_proj
    zero = related_reference._rows
    cells = related_reference.zeroed(model, inputs, layer, module, zero, row, size)
    expected = related_reference.shares(cells[target][:, source])
    assert_allclose(result["value_zeroing"][number], expected, rtol=1e-6, atol=1e-9)


@torch.no_grad()
def test_globenc_of_bert_against_loops() -> None:
    """Both norms with their own σ, without and with the feed-forward by its slope Φ."""
    model: Any = tiny_model("bert")
    results, (captures, given) = run("bert"), states_of("bert")
    row = 1
    real = tiny_inputs("bert")["attention_mask"][row].bool().numpy()
    for number, module in enumerate(model.encoder.layer):
        captured = captures[number]
        f = reference.vectors_from_values(
            captured.value[row].numpy()[:, real], captured.projection.weight.numpy()
        )
        s = reference.attention_vectors(captured.alpha[row].numpy()[:, real][:, :, real], f)
        z = reference.add_residual(s, given[number][row].numpy()[real])
        whole = z.sum(axis=1) + captured.projection.bias.numpy()
        first = module.attention.output.LayerNorm
        p = reference.layer_norm(z, whole, *linear_norm(first, "bert"))
        states = first(torch.from_numpy(whole))
        pre = module.intermediate.dense(states)
        entering = module.output.dense(torch.nn.functional.gelu(pre)) + states
        second = linear_norm(module.output.LayerNorm, "bert")
        without = reference.layer_norm(p, entering.numpy(), *second)
        assert_allclose(results[row]["globenc"][number], reference.lengths(without), rtol=1e-9)
        slope = torch.special.ndtr(pre).numpy()[:, None]
        w1, w2 = (m.weight.T.numpy() for m in (module.intermediate.dense, module.output.dense))
        r = p + (slope * (p @ w1)) @ w2
        with_ff = reference.layer_norm(r, entering.numpy(), *second)
        assert_allclose(results[row]["globenc_ff"][number], reference.lengths(with_ff), rtol=1e-9)


# ------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("name", ["bert", "llama", "marian"])
def test_rows_are_shares_and_masked_keys_have_none(name: str) -> None:
    parts = run(name)[1].parts or {"": run(name)[1]}
    for kind, result in parts.items():
        for scope in result:
            if SCOPES[scope].shares:
                assert_allclose(result[scope].values.sum(axis=-1), 1, rtol=1e-12)
                assert result[scope].values.min() >= 0
            if name == "llama" or kind == "decoder":
                above = np.triu_indices(len(result.tokens), 1)
                assert (result[scope].values[:, *above] == 0).all()


def test_a_single_token_belongs_to_itself() -> None:
    ids = torch.tensor([[5]])
    result = normscope.analyze_inputs(tiny_model("gpt2"), {"input_ids": ids}, maps=RELATED)[0]
    for scope in RELATED:
        assert_allclose(result[scope].values, 1, rtol=1e-12)


def test_effective_attention_is_idempotent_and_the_weights_within_the_rank() -> None:
    """Eight numbers a head: nothing can be left out below nine keys, and something above."""
    model = tiny_model("gpt2")
    ids = torch.arange(2, 22).reshape(1, 20)
    names = ["effective", "attn_w"]
    result = normscope.analyze_inputs(model, {"input_ids": ids}, maps=names, heads="each")[0]
    alpha, found = result["attn_w"].values, result["effective"].values
    assert result["effective"].signed
    assert_allclose(found[:, :, :8], alpha[:, :, :8], atol=1e-11)
    assert np.abs(found - alpha)[:, :, 12:].max() > 1e-3
    assert (found[..., np.triu_indices(20, 1)[0], np.triu_indices(20, 1)[1]] == 0).all()
    with torch.no_grad(), normscope.capture(model) as captures:
        model(input_ids=ids)
    for number, captured in enumerate(captures):
        f = reference.vectors_from_values(
            captured.value[0].numpy(), captured.projection.weight.numpy()
        )
        assert_allclose(found[number] @ f, alpha[number] @ f, atol=1e-11)
        again = [related_reference.effective(a, v) for a, v in zip(found[number], f, strict=True)]
        assert_allclose(found[number], again, atol=1e-10)


def test_shares_of_the_feed_forward_come_with_the_routes() -> None:
    model: Any = tiny_model("gpt2")
    result, inputs, row = run("gpt2")[1], tiny_inputs("gpt2"), 1
    outputs: list[Any] = []
    hooks = [
        module.register_forward_hook(
            lambda m, a, o: outputs.append((o if isinstance(o, torch.Tensor) else o[0])[row])
        )
        for layer in model.transformer.h
        for module in (layer.mlp, layer)
    ]
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    real = inputs["attention_mask"][row].bool()
    for number in range(3):
        added, whole = (t[real].numpy() for t in outputs[2 * number : 2 * number + 2])
        for i, share in enumerate(result.ff_share["flow_routes"][number]):
            both = [
                related_reference.closeness(whole[i], part, 1)
                for part in (added[i], whole[i] - added[i])
            ]
            assert share == pytest.approx(both[0] / sum(both), rel=1e-9)


@pytest.mark.parametrize("name", ["bert", "llama", "marian"])
def test_blocks_batches_and_the_way_in_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small blocks, fused attention, rows one at a time, and float32 within rounding."""
    whole, inputs = run(name), tiny_inputs(name)
    monkeypatch.setitem(blocks.CELLS, "cpu", 1200)
    monkeypatch.setattr(blocks, "QUERIES", 5)
    fused = run.__wrapped__(name, attention="fused" if name == "llama" else "eager")
    single = tiny_model(name, dtype=torch.float32)
    narrow = normscope.analyze_inputs(single, inputs, maps=MAPS)
    with FullPrecision():
        alone = normscope.analyze_inputs(
            tiny_model(name), {k: v[1:2] for k, v in inputs.items()}, maps=MAPS
        )
    for other, rtol, atol in (
        (fused[1], 1e-9, 1e-12), (alone[0], 1e-8, 1e-11), (narrow[1], 2e-3, 1e-5),
    ):  # fmt: skip
        for part, result in (whole[1].parts or {"": whole[1]}).items():
            compared = getattr(other, part) if part else other
            for scope in result:
                if scope != "effective" or rtol < 1e-3:
                    assert_allclose(
                        compared[scope].values, result[scope].values, rtol=rtol, atol=atol
                    )


def test_reductions_of_shares_and_refusals() -> None:
    model, inputs = tiny_model("bert"), tiny_inputs("bert")
    reduced = normscope.analyze_inputs(model, inputs, maps=["alti"], reduce=["argmax", "row_sum"])[
        1
    ]
    full = normscope.analyze_inputs(model, inputs, maps=["alti"])[1]["alti"]
    assert_allclose(reduced.row_sum["alti"].values, 1)
    assert (reduced.argmax["alti"].values == full.values.argmax(axis=-1)).all()
    with pytest.raises(InputError, match="effective may be negative"):
        normscope.analyze_inputs(model, inputs, maps=["effective"], reduce=["argmax"])
    with pytest.raises(InputError, match="no single head: alti"):
        normscope.analyze_inputs(model, inputs, maps=["alti"], heads="each")


# ------------------------------------------------------------------ mistakes are never returned


def test_the_wrong_norm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = closeness.closeness
    monkeypatch.setattr(closeness, "_closeness_2", lambda size, inner, lengths: inner.clamp_min(0))
    with pytest.raises(ExactnessError, match="alti_l2"):
        normscope.analyze_inputs(tiny_model("bert"), tiny_inputs("bert"), maps=["alti_l2"])
    calls = []

    def other_norm_in_blocks(whole: Any, parts: Any, order: int) -> Any:
        calls.append(order)
        return right(whole, parts, 2 if parts.dtype != torch.float64 or len(calls) < 3 else order)

    monkeypatch.setattr(closeness, "closeness", other_norm_in_blocks)
    with pytest.raises(ExactnessError, match="alti"):
        normscope.analyze_inputs(tiny_model("bert"), tiny_inputs("bert"), maps=["alti"])


@pytest.mark.parametrize("scope", ["alti", "alti_l2", "flow_routes", "globenc", "value_zeroing"])
def test_a_residual_that_is_off_is_refused(scope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from normscope.decomposition.block import Parts
    from normscope.decomposition.chain import LayerChain

    right = Parts.residual
    monkeypatch.setattr(Parts, "residual", lambda self, states: right(self, states * 1.01))
    carried = LayerChain.residual.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(LayerChain, "residual", property(lambda self: carried(self) * 1.01))
    with pytest.raises(ExactnessError, match=rf"{scope} of encoder\.layer\.0"):
        normscope.analyze_inputs(tiny_model("bert"), tiny_inputs("bert"), maps=[scope])


def test_a_tail_without_its_norm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeroing.Tail, "_normed", lambda self, states, path: states)
    with pytest.raises(ExactnessError, match="value_zeroing"):
        normscope.analyze_inputs(tiny_model("bert"), tiny_inputs("bert"), maps=["value_zeroing"])


def test_a_projection_over_hidden_keys_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from normscope.decomposition import effective

    def all_keys(seen: Any, *, single: bool) -> Any:
        every = torch.arange(seen.shape[1])
        return [(torch.arange(len(seen)), every)]

    monkeypatch.setattr(effective, "_groups", all_keys)
    ids = torch.arange(2, 22).reshape(1, 20)
    with pytest.raises(ExactnessError, match="effective"):
        normscope.analyze_inputs(tiny_model("gpt2"), {"input_ids": ids}, maps=["effective"])
