"""Whole layers: every family and every scope, against the model's own states and against loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

import normscope
from normscope.capture.layers import LayerCapture, capture_layers, layers_of
from normscope.decomposition.available import available
from normscope.decomposition.chain import DecompositionOptions, scopes_of
from normscope.decomposition.feedforward import FF_BIASES
from normscope.decomposition.layer import LayerView
from normscope.decomposition.scopes import NAMES
from normscope.linearisation.activations import KNOWN, recognise, secant
from normscope.models.architectures import FAMILIES, tiny_inputs, tiny_model
from normscope.testing import FullPrecision
from tests.helpers import reference
from tests.helpers.wired import carried, residual_after_norms, stack

POST = ["attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n", "atb", "atb_ff",
        "atb_ff_res", "atb_ff_res_ln", "whole_layer"]  # fmt: skip
PRE = ["attn_w", "attn_n", "attn_res_w", "attn_res_n", "atb", "atb_ln", "atb_ln_ff",
       "atb_ln_ff_res", "whole_layer"]  # fmt: skip
BRANCH = ["attn_w", "attn_n", "attn_res_w", "attn_res_n", "atb", "atb_ff", "atb_ff_res",
          "whole_layer"]  # fmt: skip
PARALLEL = ["attn_w", "attn_n", "attn_res_w", "attn_res_n", "atb", "atb_ln_ff_res", "whole_layer"]
SCOPES = {"pre": PRE, "post": POST, "branch": BRANCH, "sandwich": PRE}
# What every layer has; some need what follows the attention, up to the layer's end.
ALL = ["effective", "alti", "alti_l2", "globenc", "globenc_ff", "value_zeroing", "flow_routes"]
TO_THE_END = {"atb_ln", "whole_layer", "globenc", "globenc_ff", "value_zeroing"}
# What a family has where its norm's place does not say it.
PARALLEL_FAMILIES = {"gpt_neox", "gptj", "phi", "cohere", "falcon", "falcon (grouped)"}
# Their maps behind the experts come from replay; see test_replayed.
EXPERT_FAMILIES = {"mixtral", "gpt_oss", "deepseek_v3", "nllb-moe"}


def run(name: str, take: Any, **options: Any) -> None:
    model = tiny_model(name)
    with torch.no_grad(), FullPrecision(), capture_layers(model, take):
        model(**tiny_inputs(name), **options)


@pytest.mark.parametrize("name", FAMILIES)
def test_scopes_of_every_family(name: str) -> None:
    """Which maps there are follows from the layout, and is what the paper's scopes would be."""
    expected = SCOPES[FAMILIES[name].norm]
    expected = [*(PARALLEL if name in PARALLEL_FAMILIES else expected), *ALL]
    for (_, kind), names in available(tiny_model(name)).items():
        two = FAMILIES[name].group == "encoder-decoder"
        follows = not (
            two and kind == "self" and "cross" in {k for _, k in available(tiny_model(name))}
        )
        decoder_self = not follows and "decoder" in _
        wanted = (
            [n for n in expected if "_ff" not in n and n not in TO_THE_END]
            if decoder_self
            else expected
        )
        assert list(names) == wanted


@pytest.mark.parametrize("ff_bias", FF_BIASES)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_scope_is_complete(name: str, ff_bias: Any) -> None:
    """Parts and bias are the model's own state within 1e-9, and cells are what they claim."""
    seen: set[str] = set()

    def take(layer: LayerCapture) -> None:
        for captured in (layer.attention, layer.cross):
            if captured is None:
                continue
            view = LayerView(captured, layer, how=DecompositionOptions(ff_bias, memory=100_000))
            batch, _, queries, keys = captured.shape
            maps = view.maps(view.scopes)
            gaps = view.take_gaps()  # of completeness and of random cells
            for scope, made in maps.items():
                assert made.values is not None
                seen.add(f"{captured.kind} {scope}")
                assert gaps[scope].max() < 1e-9, scope
                assert made.values.min() >= 0 or made.scope.signed
                alone = ("attn_w", "attn_n", "effective", "value_zeroing")
                extra = captured.kind == "cross" and scope not in alone
                assert made.values.shape == (batch, queries, keys + extra)
                if made.scope.related:
                    continue
                assert made.gap().max() < 1e-9, scope
                assert made.at_cells is not None
                assert made.mixing_ratio is not None
                assert made.mixing_ratio.min() >= 0
                assert made.mixing_ratio.max() <= 1 + 1e-12

    run(name, take)
    expected = {
        f"{kind} {s}" for (_, kind), names in available(tiny_model(name)).items() for s in names
    }
    if name in EXPERT_FAMILIES:
        expected = {scope for scope in expected if "_ff" not in scope and "whole" not in scope}
    assert expected <= seen


# ------------------------------------------------------------------------- the 2021 maps by loops


def _norm_of(module: Any) -> tuple[np.ndarray, np.ndarray, float]:
    return module.weight.numpy(), module.bias.numpy(), module.eps


@torch.no_grad()
def test_bert_block_against_loops() -> None:
    """Maps, ratios and bias of all five analyses from named weights and hidden states alone."""
    model: Any = tiny_model("bert")
    inputs = tiny_inputs("bert")
    maps = ["attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n"]
    results = normscope.analyze_inputs(model, inputs, maps=maps)
    model.set_attn_implementation("eager")
    out = model(**inputs, output_attentions=True, output_hidden_states=True)
    for layer, module in enumerate(model.encoder.layer):
        attention, dense = module.attention.self, module.attention.output.dense
        gamma, beta, eps = _norm_of(module.attention.output.LayerNorm)
        for row, result in enumerate(results):
            n = int(inputs["attention_mask"][row].sum())
            x = out.hidden_states[layer][row, :n].numpy()
            alpha = out.attentions[layer][row, :, :n, :n].numpy()
            e = 8
            f = np.stack([
                reference.transformed(
                    x,
                    attention.value.weight.T[:, h * e : (h + 1) * e].numpy(),
                    attention.value.bias[h * e : (h + 1) * e].numpy(),
                    dense.weight.T[h * e : (h + 1) * e].numpy(),
                )
                for h in range(4)
            ])  # fmt: skip
            s = reference.attention_vectors(alpha, f)
            z = reference.add_residual(s, x)
            whole = z.sum(axis=1) + dense.bias.numpy()
            p = reference.layer_norm(z, whole, gamma, eps)
            mean = alpha.mean(axis=0)
            expected = {
                "attn_w": (mean, mean.sum(axis=1) - np.diag(mean)),
                "attn_n": (reference.lengths(s), reference.mixing_ratio(s)),
                "attn_res_w": (
                    mean / 2 + np.eye(n) / 2,
                    (mean.sum(axis=1) - np.diag(mean)) / 2,
                ),
                "attn_res_n": (reference.lengths(z), reference.mixing_ratio(z)),
                "attn_res_ln_n": (reference.lengths(p), reference.mixing_ratio(p)),
            }
            for name, (values, ratios) in expected.items():
                assert_allclose(result[name][layer], values, rtol=1e-10, atol=1e-12)
                assert_allclose(result.mixing_ratio[name][layer], ratios, rtol=1e-10)
            b_o = dense.bias.numpy()
            spread = np.sqrt(((whole - whole.mean(axis=1, keepdims=True)) ** 2).mean(axis=1) + eps)
            rest = gamma * (b_o - b_o.mean()) / spread[:, None] + beta
            assert_allclose(result.bias_share["attn_n"][layer], np.linalg.norm(b_o), rtol=1e-10)
            assert_allclose(
                result.bias_share["attn_res_ln_n"][layer], np.linalg.norm(rest, axis=1), rtol=1e-10
            )


@torch.no_grad()
def test_llama_residual_against_loops() -> None:
    """A pre-norm model with RMSNorm and grouped heads, through the norm before its feed-forward."""
    model: Any = tiny_model("llama")
    inputs = tiny_inputs("llama")
    layers: list[LayerCapture] = []
    with FullPrecision(), capture_layers(model, layers.append):
        model(**inputs)
    for layer in layers:
        made: Any = LayerView(layer.last, layer).maps(["attn_res_n", "atb_ln"])
        captured = layer.last
        norm: Any = layer.module.get_submodule("post_attention_layernorm")
        for row in range(3):
            f = reference.vectors_from_values(
                captured.value[row].numpy(), captured.projection.weight.numpy()
            )
            s = reference.attention_vectors(captured.alpha[row].numpy(), f)
            assert captured.residual is not None
            z = reference.add_residual(s, captured.residual[row].numpy())
            assert_allclose(made["attn_res_n"].values[row], reference.lengths(z), rtol=1e-10)
            assert captured.projection.bias is not None
            whole = z.sum(axis=1) + captured.projection.bias.numpy()
            gamma, eps = norm.weight.numpy(), norm.variance_epsilon
            p = reference.layer_norm(z, whole, gamma, eps, centred=False)
            assert_allclose(made["atb_ln"].values[row], reference.lengths(p), rtol=1e-10)


@pytest.mark.parametrize("forward", [carried, residual_after_norms])
@torch.no_grad()
def test_factors_of_the_residual_against_loops(forward: Any) -> None:
    """A residual that is multiplied by a vector, and one that is twice the norm of the input."""
    model, inputs = stack(forward)
    layers: list[LayerCapture] = []
    given: list[Tensor] = []
    for module in model.layers:
        module.register_forward_pre_hook(lambda m, args: given.append(args[0]))
    layers_of(model, inputs)
    given.clear()
    with capture_layers(model, layers.append):
        model(**inputs)
    for layer, x in zip(layers, given, strict=True):
        block: Any = layer.module
        residual = block.gamma * x if forward is carried else 2 * block.norm1(x)
        made: Any = LayerView(layer.last, layer).maps(["attn_res_n", "atb"])
        captured = layer.last
        for row in range(2):
            f = reference.vectors_from_values(
                captured.value[row].numpy(), captured.projection.weight.numpy()
            )
            s = reference.attention_vectors(captured.alpha[row].numpy(), f)
            z = reference.add_residual(s, residual[row].numpy())
            assert_allclose(made["attn_res_n"].values[row], reference.lengths(z), rtol=1e-10)
            if forward is residual_after_norms:
                whole = z.sum(axis=1) + block.attention.out.bias.numpy()
                gamma, _, eps = _norm_of(block.norm2)
                z = reference.layer_norm(z, whole, gamma, eps)
            assert_allclose(made["atb"].values[row], reference.lengths(z), rtol=1e-10)


# ------------------------------------------------------------- the feed-forward, by integration

NODES: Any = np.polynomial.legendre.leggauss(300)


def integrated_gradients(function: Any, parts: Tensor, base: Tensor) -> Tensor:
    """c_j = ∫ parts_j · ∇function(base + t Σ parts) dt for every j, by 300 nodes and autograd."""
    nodes, weights = (torch.from_numpy(one) for one in NODES)
    at = base + (nodes[:, None] + 1) / 2 * parts.sum(dim=0)

    def slope(at: Tensor, part: Tensor) -> Tensor:
        made: Tensor = torch.func.jvp(function, (at,), (part,))[1]
        return made

    of_parts = torch.func.vmap(slope, in_dims=(None, 0))
    slopes = torch.func.vmap(of_parts, in_dims=(0, None))(at, parts)  # node part …
    return torch.einsum("n,np...->p...", weights / 2, slopes)


@pytest.mark.parametrize("ff_bias", FF_BIASES)
@pytest.mark.parametrize(
    "name", ["bert", "gpt2", "llama", "phi3", "gemma2", "modernbert", "opt", "carried"]
)
def test_feed_forward_against_numerical_integration(name: str, ff_bias: Any) -> None:
    """F_ij + carried_ij from 300-point integrated gradients of W_2 g(W_1 ·), vector by vector."""
    layers: list[LayerCapture] = []
    model, inputs = (
        stack(carried)
        if name == "carried"
        else (tiny_model(name), tiny_inputs(name, batch=1, length=5))
    )
    if name == "opt":  # ReLU: 300 nodes are poor where it bends; a smooth activation instead
        for layer in model.model.decoder.layers:
            layer.activation_fn = torch.nn.Tanh()
    context = capture_layers(model, layers.append, inputs=inputs)
    with torch.no_grad(), FullPrecision(), context:
        model(**inputs)
    layer = layers[1]
    view = LayerView(layer.last, layer, how=DecompositionOptions(ff_bias))
    scope = next(s for s in view.scopes if s.endswith("_ff"))
    made: Any = view.maps([scope, f"{scope}_res"])
    ff = view.chain.feed_forward()
    weights, into, passed = ff.weights, view.parts("ff_input"), view.parts("block")

    def core(states: Tensor, bias: Tensor) -> Tensor:
        first = states @ weights.first + bias @ weights.first
        first = first if weights.first_bias is None else first + weights.first_bias
        if weights.gate is None:
            inner = weights.activation(first)
        else:
            gate = (states + bias) @ weights.gate
            gate = gate if weights.gate_bias is None else gate + weights.gate_bias
            inner = weights.activation(gate) * first
        return inner @ weights.second

    keys = torch.arange(5).unsqueeze(0)
    for i in range(5):
        query = torch.full((1, 5), i)
        parts = into.at(view.attention.at(query, keys))[0]
        bias = torch.zeros_like(parts[0]) if into.bias is None else into.bias[0, i]
        shares = _shares(core, weights, parts, bias, ff_bias)
        if ff.branch is not None:
            shares = ff.branch.linear(shares) / ff.branch.sigma[0, i]
        shares = shares if ff.scale is None else ff.scale(shares)
        norms = made[scope].values[0, i]
        assert_allclose(norms, shares.norm(dim=-1), rtol=1e-8, atol=1e-10)
        kept = passed.at(view.attention.at(query, keys))[0]
        summed = shares + (0.3 * kept if name == "carried" else kept)
        assert_allclose(
            made[f"{scope}_res"].values[0, i], summed.norm(dim=-1), rtol=1e-8, atol=1e-10
        )


def _shares(core: Any, weights: Any, parts: Tensor, bias: Tensor, ff_bias: str) -> Tensor:
    if ff_bias == "fixed":
        return integrated_gradients(lambda v: core(v, bias), parts, torch.zeros_like(bias))
    # On the path, everything that belongs to no token grows with t as well: W_1's own bias too.
    inner = weights.first.shape[1]
    one = torch.zeros(len(bias) + 1, dtype=torch.float64)

    def grown(v: Tensor) -> Tensor:
        states, t = v[:-1], v[-1]
        first = states @ weights.first
        first = first if weights.first_bias is None else first + t * weights.first_bias
        if weights.gate is None:
            made = weights.activation(first)
        else:
            gate = states @ weights.gate
            gate = gate if weights.gate_bias is None else gate + t * weights.gate_bias
            made = weights.activation(gate) * first
        assert made.shape[-1] == inner
        return made @ weights.second

    rows = torch.cat([parts, torch.zeros(len(parts), 1, dtype=torch.float64)], dim=1)
    own = torch.cat([bias, torch.ones(1, dtype=torch.float64)]).unsqueeze(0)
    return integrated_gradients(grown, torch.cat([rows, own]), one)[:-1]


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("fixed", [False, True])
def test_secants_against_integration_of_the_derivative(known: str, fixed: bool) -> None:
    """(g(p) − g(b)) / (p − b) near and far, for p within ±30, ReLU by its exact pieces."""
    draw = torch.Generator().manual_seed(3)
    p = torch.randn(400, generator=draw, dtype=torch.float64) * 10
    p[:40] *= 1e-9
    p[:4] = 0
    base = (
        torch.randn(400, generator=draw, dtype=torch.float64) * 3
        if fixed
        else torch.zeros(400).double()
    )
    p[40:80] = base[40:80] + 1e-8 * p[40:80]
    found = secant(KNOWN[known], p, base if fixed else None)
    if known == "relu":
        kink = torch.where(base * p < 0, p / (p - base), (p > 0).double())
        pieces = torch.where(base > 0, torch.where(p > 0, torch.ones(400).double(), 1 - kink), kink)
        assert_allclose(found, pieces, rtol=1e-9, atol=1e-9)
        return
    total = torch.zeros_like(p)
    for part in range(8):  # in eight pieces, so that steep functions are integrated well
        for node, weight in zip(*np.polynomial.legendre.leggauss(64), strict=True):
            t = (part + (node + 1) / 2) / 8
            at = (base + t * (p - base)).requires_grad_(True)
            total += weight / 16 * torch.autograd.grad(KNOWN[known](at).sum(), at)[0]
    assert_allclose(found, total.detach(), rtol=1e-9, atol=1e-11)


def test_an_activation_nobody_knows_has_a_secant_too() -> None:
    """mish, with g(0) = 0 but no closed form here, and softplus, with g(0) ≠ 0."""
    p = torch.cat([torch.linspace(-20, 20, 101), torch.tensor([0.0, 1e-12, -1e-7, 1e-3])]).double()
    for g in (torch.nn.functional.mish, torch.nn.functional.softplus):
        assert recognise(g) is None
        found = secant(g, p)
        far = p.abs() > 1e-4
        assert_allclose(found[far], ((g(p) - g(torch.zeros_like(p))) / p)[far], rtol=1e-10)
        zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(g(zero).sum(), zero)
        assert_allclose(found[p == 0], slope, rtol=1e-12)


def test_a_new_activation_is_complete_in_a_model() -> None:
    model: Any = tiny_model("bert")
    for layer in model.encoder.layer:
        layer.intermediate.intermediate_act_fn = torch.nn.Softplus()
    results = normscope.analyze_inputs(model, tiny_inputs("bert"), maps=["atb_ff_res_ln"])
    assert max(r.error["atb_ff_res_ln"] for r in results) < 1e-13


# ------------------------------------------------------------------------------- identities


def test_identities_and_batches() -> None:
    model: Any = tiny_model("bert")
    inputs = tiny_inputs("bert")
    many = normscope.analyze_inputs(model, inputs, maps=POST)
    for row, result in enumerate(many):
        n = int(inputs["attention_mask"][row].sum())
        one = normscope.analyze_inputs(
            model, {k: v[row : row + 1, :n] for k, v in inputs.items()}, maps=POST
        )[0]
        assert_allclose(
            result.mixing_ratio["attn_res_w"].values, result.mixing_ratio["attn_w"].values / 2
        )
        assert_allclose(result["atb"].values, result["attn_res_ln_n"].values)
        for name in POST:
            assert_allclose(result[name].values, one[name].values, rtol=1e-10, atol=1e-13)
            assert_allclose(
                result.mixing_ratio[name].values, one.mixing_ratio[name].values, rtol=1e-10
            )


@pytest.mark.parametrize("memory", [1, 20_000, "3KB", "2GB"])
def test_memory_changes_nothing(memory: Any) -> None:
    model, inputs = tiny_model("llama"), tiny_inputs("llama")
    one = normscope.analyze_inputs(model, inputs, maps=PRE, memory=memory)
    other = normscope.analyze_inputs(model, inputs, maps=PRE)
    for a, b in zip(one, other, strict=True):
        for name in PRE:
            assert_allclose(a[name].values, b[name].values, rtol=1e-10, atol=1e-13)


def test_causal_cells_stay_zero_through_the_layer() -> None:
    result = normscope.analyze_inputs(tiny_model("gpt2"), tiny_inputs("gpt2"), maps=PRE)[0]
    for name in PRE:
        assert np.triu(result[name].values, k=1).max() == 0


def test_a_parallel_feed_forward_is_all_the_querys_own() -> None:
    """Off the diagonal the map after it is the attention's; on it, the norm of all that is own."""
    result = normscope.analyze_inputs(tiny_model("gptj"), tiny_inputs("gptj"), maps=PARALLEL)[0]
    before, after = result["attn_n"].values, result["atb_ln_ff_res"].values
    off = ~np.eye(before.shape[-1], dtype=bool)
    assert_allclose(after[:, off], before[:, off])
    assert (np.abs(np.diagonal(after - before, axis1=1, axis2=2)) > 1e-3).all()


def test_layers_are_found_without_running() -> None:
    layers = layers_of(tiny_model("t5"))
    assert list(layers) == [*(f"encoder.block.{n}" for n in range(2)),
                            *(f"decoder.block.{n}" for n in range(3))]  # fmt: skip
    layout = layers["decoder.block.0"][1]
    assert scopes_of(layout, "self") == ("attn_w", "attn_n", "attn_res_w", "attn_res_n", "atb")
    assert set(scopes_of(layout, "cross")) <= set(NAMES)
