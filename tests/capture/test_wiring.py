"""Layouts that are read from a pass: the grammar on layers written by hand, and what breaks it.

What is read for transformers' families is proved in tests/models/test_layouts.py, equation by
equation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.capture.layers import layer_around, layers_of
from normscope.errors import UnsupportedModelError
from normscope.models.architectures import tiny_model
from normscope.models.layouts import Attention, FeedForward, Layout, Opaque
from normscope.testing import check_layers, check_untouched
from tests.helpers.wired import attend, carried, residual_after_norms, stack


def read(forward: Callable[[Any, Tensor], Any]) -> Layout:
    model, inputs = stack(forward)
    known = layers_of(model, inputs)
    assert list(known) == ["layers.0", "layers.1"]
    (layout,) = {layout for _, layout in known.values()}
    return layout


def at(**wiring: Any) -> Attention:
    return Attention(module="attention", output="attention.out", **wiring)


def ff(**wiring: Any) -> FeedForward:
    return FeedForward(**{"first": "up", "second": "down", "activation": "act", **wiring})


PRE = at(before="norm1")


# ---- wirings that the grammar describes


def plain(m: Any, x: Tensor) -> Any:
    h = x + m.attention(x)
    return h + m.down(m.act(m.up(h))), None


def post_norm(m: Any, x: Tensor) -> Tensor:
    h = m.norm1(m.dropout(m.attention(x)) + x)
    return m.norm2(m.down(m.act(m.up(h))) + h)


def pre_norm_in_place(m: Any, x: Tensor) -> Tensor:
    h = x.clone()
    h += m.attention(m.norm1(x))
    f = m.down(m.act(m.up(m.norm2(h)).view(-1, 24))).view(h.shape).clone()
    f.add_(h)
    return f


def sandwich(m: Any, x: Tensor) -> Tensor:
    h = x + m.norm3(m.attention(m.norm1(x)))
    return h + m.norm4(m.down(m.act(m.gate(m.norm2(h))) * m.up(m.norm2(h))))


def scaled(m: Any, x: Tensor) -> Tensor:
    h = x + m.gamma * m.attention(m.norm1(x))
    return torch.add(h, m.down(m.act(m.up(m.norm2(h)))), alpha=m.factor)


def unnamed_number(m: Any, x: Tensor) -> Tensor:
    h = x + m.attention(m.norm1(x)) / 4
    return h + m.down(m.act(m.up(m.norm2(h)))) * 0.75


def packed(m: Any, x: Tensor) -> Tensor:
    h = attend(m, x)
    first, gate = m.wide(m.norm2(h)).chunk(2, dim=-1)
    return h + m.down(m.act(gate) * first)


def packed_in_rows(m: Any, x: Tensor) -> Tensor:
    h = attend(m, x)
    both = m.wide(m.norm2(h)).view(*x.shape[:2], 2, -1)
    return h + m.down(F.gelu(both[..., 0, :]) * both[..., 1, :])


def function(m: Any, x: Tensor) -> Tensor:
    h = attend(m, x)
    p = m.up(m.norm2(h))
    return h + m.down(0.5 * p * (1 + torch.erf(p / 2**0.5)))


def chunked(m: Any, x: Tensor) -> Tensor:
    h = m.norm1(x + m.attention(x))
    parts = [m.norm2(c + m.down(m.act(m.up(c)))) for c in h.split(2, dim=1)]
    return torch.cat(parts, dim=1)


def parallel(m: Any, x: Tensor) -> Tensor:
    f = m.down(m.act(m.up(m.norm2(x))))
    f += m.attention(m.norm1(x))
    return x + f


def parallel_with_one_norm(m: Any, x: Tensor) -> Tensor:
    h = m.norm1(x)
    return m.down(m.act(m.up(h))) + (x + m.attention(h))


def experts(m: Any, x: Tensor) -> Tensor:
    h = attend(m, x)
    routed = torch.zeros_like(h)
    rows = m.norm2(h)
    routed[:, ::2] = m.narrow(rows)[:, ::2] * m.gate(rows)[:, ::2, :1].sigmoid()
    return h + routed + m.down(m.up(rows))


def two_feed_forwards(m: Any, x: Tensor) -> Tensor:
    h = m.norm1(x + m.attention(x))
    for _ in range(2):
        h = m.norm2(h + m.down(m.act(m.up(h))))
    return h


def summed_after(m: Any, x: Tensor) -> Tensor:
    h = attend(m, x)
    return 0.5 * (h + m.down(m.act(m.up(m.norm2(h)))))


def residual_twice(m: Any, x: Tensor) -> Tensor:
    h = attend(m, x)
    return h + m.down(m.act(m.up(m.norm2(h)))) + x


def softmax_for_activation(m: Any, x: Tensor) -> Tensor:
    h = attend(m, x)
    return h + m.down(m.up(m.norm2(h)).softmax(-1))


WIRED: dict[Callable[[Any, Tensor], Any], Layout] = {
    plain: Layout(at(), ff()),
    post_norm: Layout(at(after="norm1"), ff(after="norm2")),
    pre_norm_in_place: Layout(PRE, ff(before="norm2")),
    sandwich: Layout(at(before="norm1", branch="norm3"),
                     ff(before="norm2", branch="norm4", gate="gate")),
    scaled: Layout(at(before="norm1", scale="gamma"), ff(before="norm2", scale="factor")),
    unnamed_number: Layout(at(before="norm1", scale=0.25), ff(before="norm2", scale=0.75)),
    packed: Layout(PRE, ff(before="norm2", first="wide", packed="gate_last")),
    packed_in_rows: Layout(
        PRE, ff(before="norm2", first="wide", packed="gate_first", activation="gelu")),
    function: Layout(PRE, ff(before="norm2", activation="gelu")),
    chunked: Layout(at(after="norm1"), ff(after="norm2")),
    carried: Layout(at(before="norm1", carry="gamma"),
                    ff(before="norm2", carry="factor", after="norm3")),
    residual_after_norms: Layout(
        at(before="norm1", normed=True, carry=2.0, after="norm2"), ff()),
    parallel: Layout(PRE, ff(before="norm2"), parallel=True),
    parallel_with_one_norm: Layout(PRE, ff(before="norm1"), parallel=True),
    softmax_for_activation: Layout(PRE, Opaque(before="norm2")),
    # Nothing behind the attention block is taken apart.
    experts: Layout(PRE, Opaque()),
    two_feed_forwards: Layout(at(after="norm1"), Opaque()),
    summed_after: Layout(PRE, Opaque()),
    residual_twice: Layout(PRE, Opaque()),
}  # fmt: skip


@pytest.mark.parametrize("forward", WIRED)
def test_wirings(forward: Callable[[Any, Tensor], Any]) -> None:
    assert read(forward) == WIRED[forward]
    if forward is not chunked:
        model, inputs = stack(forward)
        assert max(check_layers(model, inputs).values()) < 1e-13


# ---- wirings that are refused


def one_norm_in_two_places(m: Any, x: Tensor) -> Tensor:
    h = attend(m, x)
    return h + m.down(m.act(m.up(m.norm1(h))))


def no_residual(m: Any, x: Tensor) -> Tensor:
    return x * m.attention(m.norm1(x))


def attention_of_another_state(m: Any, x: Tensor) -> Tensor:
    return x + m.attention(m.norm1(m.narrow(x)))


def half_feed_forward_first(m: Any, x: Tensor) -> Tensor:
    return attend(m, x + 0.5 * m.down(m.act(m.up(m.norm2(x)))))


def attention_is_scaled_by_a_state(m: Any, x: Tensor) -> Tensor:
    return x + m.narrow(x) * m.attention(m.norm1(x))


def attention_added_twice(m: Any, x: Tensor) -> Tensor:
    h = m.attention(m.norm1(x))
    return m.norm2(h + x + h)


@pytest.mark.parametrize(
    ("forward", "formula"),
    [
        (one_norm_in_two_places, r"x \+ attention\(.*\) \+ down\(act\(up\(norm1\(.*"),
        (no_residual, r"x · attention\(.*"),
        (attention_of_another_state, r"x \+ attention\(.*"),
        (half_feed_forward_first, r"x \+ function\(down\(act\(up\(norm2\(x\)\)\)\)\) \+ att.*"),
        (attention_is_scaled_by_a_state, r"x \+ narrow\(x\) · attention\(.*"),
        (attention_added_twice, r"norm2\(attention\(.*\) \+ x \+ attention\(.*"),
    ],
)
def test_refusals(forward: Callable[[Any, Tensor], Any], formula: str) -> None:
    model, inputs = stack(forward)
    assert not layers_of(model, inputs)
    with pytest.raises(UnsupportedModelError, match=rf"layers\.0 \(Bench\).*makes {formula}"):
        layer_around(model, "layers.0.attention")


def test_the_model_is_left_as_it_was() -> None:
    model, inputs = stack(pre_norm_in_place)
    model.train()
    with check_untouched(model):
        layers_of(model, inputs)


def test_a_model_that_fails_is_left_as_it_was() -> None:
    def fails(m: Any, x: Tensor) -> Tensor:
        attend(m, x)
        raise ValueError("no such thing")

    model, inputs = stack(fails)
    with check_untouched(model), pytest.raises(ValueError, match="no such thing"):
        layers_of(model, inputs)


# ---- what is read off transformers' families


def pre(norm: str, **parts: Any) -> Attention:
    return Attention(before=norm, **parts)


O_PROJ: dict[str, str] = {"module": "self_attn", "output": "self_attn.o_proj"}
LLAMA = FeedForward(
    first="mlp.up_proj", gate="mlp.gate_proj", second="mlp.down_proj", activation="mlp.act_fn",
    before="post_attention_layernorm",
)  # fmt: skip
FAMILY: dict[str, tuple[str, Layout]] = {
    "bert": ("encoder.layer.0", Layout(
        Attention(module="attention.self", output="attention.output.dense",
                  after="attention.output.LayerNorm"),
        FeedForward(first="intermediate.dense", second="output.dense",
                    activation="intermediate.intermediate_act_fn", after="output.LayerNorm"))),
    "llama": ("model.layers.0", Layout(pre("input_layernorm", **O_PROJ), LLAMA)),
    "granite": ("model.layers.0", Layout(
        pre("input_layernorm", scale="residual_multiplier", **O_PROJ),
        FeedForward(**{**vars(LLAMA), "scale": "residual_multiplier"}))),
    "gemma2": ("model.layers.0", Layout(
        pre("input_layernorm", branch="post_attention_layernorm", **O_PROJ),
        FeedForward(**{**vars(LLAMA), "before": "pre_feedforward_layernorm",
                       "branch": "post_feedforward_layernorm"}))),
    "mixtral": ("model.layers.0", Layout(
        pre("input_layernorm", **O_PROJ), Opaque(module="mlp", before=LLAMA.before))),
    "gptj": ("transformer.h.0", Layout(
        pre("ln_1", module="attn", output="attn.out_proj"),
        FeedForward(first="mlp.fc_in", second="mlp.fc_out", activation="mlp.act", before="ln_1"),
        parallel=True)),
    "esm": ("encoder.layer.0", Layout(
        pre("attention.LayerNorm", module="attention.self", output="attention.output.dense"),
        FeedForward(first="intermediate.dense", second="output.dense", activation="gelu",
                    before="LayerNorm"))),
    "phi3": ("model.layers.0", Layout(
        pre("input_layernorm", **O_PROJ),
        FeedForward(first="mlp.gate_up_proj", second="mlp.down_proj", packed="gate_first",
                    activation="mlp.activation_fn", before="post_attention_layernorm"))),
    "t5": ("decoder.block.0", Layout(
        pre("layer.0.layer_norm", module="layer.0.SelfAttention",
            output="layer.0.SelfAttention.o"),
        FeedForward(first="layer.2.DenseReluDense.wi", second="layer.2.DenseReluDense.wo",
                    activation="layer.2.DenseReluDense.act", before="layer.2.layer_norm"),
        pre("layer.1.layer_norm", module="layer.1.EncDecAttention",
            output="layer.1.EncDecAttention.o"))),
    "albert": ("encoder.albert_layer_groups.0.albert_layers.0", Layout(
        Attention(module="attention", output="attention.dense", after="attention.LayerNorm"),
        FeedForward(first="ffn", second="ffn_output", activation="activation",
                    after="full_layer_layer_norm"))),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILY)
def test_families(name: str) -> None:
    path, layout = FAMILY[name]
    assert layers_of(tiny_model(name))[path][1] == layout
