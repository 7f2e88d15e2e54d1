"""A slow reference for attribution: component vectors pushed forwards, from the equations alone.

Every state is carried with the component vectors that it is the sum of: one for each source, and a
last one for biases and for what a tangent leaves of its value. Two models are written out: BERT, a
post-norm classifier with a tanh pooler, and Llama, pre-norm with grouped heads, rotary positions
and a gated feed-forward. Nothing is imported from the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class State:
    """Values (1 or 2, …), the input's and the baseline's, and components (component, …)."""

    value: Tensor
    parts: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> State:
        """Apply a linear function."""
        return State(function(self.value), function(self.parts))


def _gelu(u: Tensor) -> tuple[Tensor, Tensor]:
    cumulative = (1 + torch.erf(u / math.sqrt(2))) / 2
    density = torch.exp(-u.square() / 2) / math.sqrt(2 * math.pi)
    return u * cumulative, cumulative + u * density


def _silu(u: Tensor) -> tuple[Tensor, Tensor]:
    s = 1 / (1 + torch.exp(-u))
    return u * s, s * (1 + u * (1 - s))


def _tanh(u: Tensor) -> tuple[Tensor, Tensor]:
    t = torch.tanh(u)
    return t, 1 - t.square()


# Value and derivative.
ACTIVATIONS = {"gelu": _gelu, "silu": _silu, "tanh": _tanh}


class Components:
    """How components pass an operation; `method` and `gate` are those of the package's rules."""

    def __init__(self, method: str, gate: str = "half") -> None:
        self.method, self.gate = method, "gate" if method == "cp_lrp" else gate
        self.secant = method == "secant"

    def close(self, value: Tensor, parts: Tensor) -> State:
        """Give the bias component what the components leave of the value."""
        if self.secant:
            return State(value, parts)
        rest = value[0] - parts.sum(0)
        return State(value, torch.cat([parts[:-1], (parts[-1] + rest)[None]]))

    def linear(self, x: State, weight: Tensor, bias: Tensor | None) -> State:
        """Return x Wᵀ + b."""
        value = x.value @ weight.T
        return self.close(value if bias is None else value + bias, x.parts @ weight.T)

    def add(self, a: State, b: State) -> State:
        """Return a + b."""
        return State(a.value + b.value, a.parts + b.parts)

    def activation(self, x: State, name: str) -> State:
        """Return g(x), elementwise."""
        value, slope = ACTIVATIONS[name](x.value)
        if self.secant:
            factor = (value[0] - value[1]) / (x.value[0] - x.value[1])
            factor = torch.where(x.value[0] == x.value[1], slope[0], factor)
        else:
            factor = (slope if self.method == "input_x_gradient" else value / x.value)[0]
        return self.close(value, x.parts * factor)

    def norm(
        self, x: State, scale: Tensor, bias: Tensor | None, eps: float, centred: bool
    ) -> State:
        """Return γ c/√(mean c² + ε) + β, with or without centring."""

        def centre(t: Tensor) -> Tensor:
            return t - t.mean(-1, keepdim=True) if centred else t

        c, parts = centre(x.value), centre(x.parts)
        root = (c.square().mean(-1, keepdim=True) + eps).sqrt()
        value = c / root * scale + (0 if bias is None else bias)
        if self.secant:
            change = ((c[0] + c[1]) * parts).mean(-1, keepdim=True)
            inverse = -change / (root[0] * root[1] * (root[0] + root[1]))
            through = (1 / root[0] + 1 / root[1]) / 2 * parts + (c[0] + c[1]) / 2 * inverse
        elif self.method == "input_x_gradient":
            along = (c[0] * parts).mean(-1, keepdim=True)
            through = parts / root[0] - c[0] * along / root[0] ** 3
        else:
            through = parts / root[0]
        return self.close(value, through * scale)

    def attention(self, q: State, k: State, v: State, mask: Tensor) -> State:
        """Return softmax(q kᵀ/√e) v of (head, position, size) states."""
        scale = 1 / math.sqrt(q.value.shape[-1])
        scores = (q.value @ k.value.mT * scale).masked_fill(~mask, -torch.inf)
        alpha = torch.softmax(scores, -1)
        value = alpha @ v.value
        if self.method in ("frozen", "cp_lrp"):
            return self.close(value, alpha[0] @ v.parts)
        if self.secant:
            return State(value, self._secant_attention(q, k, v, scores, scale))
        to_query, to_key, to_alpha, to_value = (
            (0.5, 0.5, 0.5, 0.5) if self.method == "attn_lrp" else (1, 1, 1, 1)
        )
        s = to_query * q.parts @ k.value[0].mT + to_key * q.value[0] @ k.parts.mT
        s = s * scale
        p = alpha[0] * (s - (alpha[0] * s).sum(-1, keepdim=True))
        return self.close(value, to_alpha * p @ v.value[0] + to_value * alpha[0] @ v.parts)

    def _secant_attention(
        self, q: State, k: State, v: State, scores: Tensor, scale: float
    ) -> Tensor:
        q_mean, k_mean, v_mean = (state.value.mean(0) for state in (q, k, v))
        s = (q.parts @ k_mean.mT + q_mean @ k.parts.mT) * scale
        logs = torch.log_softmax(scores, -1)
        p = logs.exp()
        ratio = torch.where(torch.isinf(logs[0]), 0, logs[0] - logs[1])
        mean = torch.where(ratio == 0, p[0], (p[0] - p[1]) / torch.where(ratio == 0, 1, ratio))
        weights = mean / mean.sum(-1, keepdim=True)
        change = mean * (s - (weights * s).sum(-1, keepdim=True))
        return change @ v_mean + p.mean(0) @ v.parts

    def gated(self, u: State, v: State, name: str) -> State:
        """Return g(u)·v."""
        g, slope = ACTIVATIONS[name](u.value)
        value = g * v.value
        if self.secant:
            hidden = self.activation(u, name)
            parts = hidden.parts * v.value.mean(0) + g.mean(0) * v.parts
            return State(value, parts)
        through_gate = u.parts * (g / u.value * v.value)[0]
        through_up = v.parts * g[0]
        if self.method == "input_x_gradient":
            return self.close(value, u.parts * slope[0] * v.value[0] + through_up)
        if self.gate == "ig":
            integral = _path_integral(u.value[0], name)
            theta = (g / u.value)[0]
            parts = v.parts * u.value[0] * integral + u.parts * v.value[0] * (theta - integral)
            return self.close(value, parts)
        share = {"half": 0.5, "gate": 0.0, "up": 1.0}[self.gate]  # of the gate
        return self.close(value, share * through_gate + (1 - share) * through_up)


def _path_integral(u: Tensor, name: str, intervals: int = 2000) -> Tensor:
    """Return ∫₀¹ t θ(tu) dt = ∫₀¹ g(tu)/u dt, by Simpson's rule."""
    t = torch.linspace(0, 1, intervals + 1, dtype=u.dtype).view(-1, *[1] * u.dim())
    weights = torch.ones(intervals + 1, dtype=u.dtype)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    values, _ = ACTIVATIONS[name](t * u)
    return (values * weights.view_as(t)).sum(0) / (3 * intervals) / u


# Changes the components of a state in the middle: (kind, layer, state) -> state. Kinds: "state",
# what enters a layer; "context", (head, position, size); "feed_forward", its output.
Regroup = Callable[[str, int, State], State]


def _same(kind: str, layer: int, state: State) -> State:
    return state


def _heads(x: State, heads: int) -> State:
    return x.map(lambda t: t.unflatten(-1, (heads, -1)).transpose(-3, -2))


def _merged(x: State) -> State:
    return x.map(lambda t: t.transpose(-3, -2).flatten(-2))


def bert(
    model: Any, sources: State, how: Components, regroup: Regroup = _same, layers: int = 3
) -> State:
    """Return the logits of a BERT classifier; ``sources`` are sums of embeddings, unnormed."""
    weights = model.state_dict()
    eps, heads = model.config.layer_norm_eps, model.config.num_attention_heads

    def linear(x: State, name: str) -> State:
        return how.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x: State, name: str) -> State:
        return how.norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"], eps, centred=True)

    x = norm(sources, "bert.embeddings.LayerNorm")
    length = x.value.shape[1]
    everything = torch.ones(length, length, dtype=torch.bool)
    for layer in range(layers):
        at = f"bert.encoder.layer.{layer}"
        x = regroup("state", layer, x)
        q, k, v = (
            _heads(linear(x, f"{at}.attention.self.{name}"), heads)
            for name in ("query", "key", "value")
        )
        context = regroup("context", layer, how.attention(q, k, v, everything))
        output = linear(_merged(context), f"{at}.attention.output.dense")
        x = norm(how.add(x, output), f"{at}.attention.output.LayerNorm")
        hidden = how.activation(linear(x, f"{at}.intermediate.dense"), "gelu")
        output = regroup("feed_forward", layer, linear(hidden, f"{at}.output.dense"))
        x = norm(how.add(x, output), f"{at}.output.LayerNorm")
    x = regroup("state", layers, x)
    pooled = how.activation(linear(x.map(lambda t: t[:, 0]), "bert.pooler.dense"), "tanh")
    return linear(pooled, "classifier")


def bert_embeddings(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """Return the embeddings of one row by part, (position, hidden)."""
    weights = model.state_dict()
    at = "bert.embeddings."
    return {
        "word": weights[at + "word_embeddings.weight"][ids],
        "token_type": weights[at + "token_type_embeddings.weight"][torch.zeros_like(ids)],
        "position": weights[at + "position_embeddings.weight"][: len(ids)],
    }


def llama(
    model: Any, sources: State, how: Components, regroup: Regroup = _same, layers: int = 3
) -> State:
    """Return the logits of a Llama language model at the last position."""
    weights, config = model.state_dict(), model.config
    heads, groups = config.num_attention_heads, config.num_key_value_heads

    def linear(x: State, name: str) -> State:
        return how.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(x: State, name: str) -> State:
        return how.norm(x, weights[f"{name}.weight"], None, config.rms_norm_eps, centred=False)

    x = sources
    length = x.value.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    rates = model.model.rotary_emb.inv_freq.double()  # rounded to float32 when they were made
    for layer in range(layers):
        at = f"model.layers.{layer}"
        x = regroup("state", layer, x)
        normed = norm(x, f"{at}.input_layernorm")
        q = _heads(linear(normed, f"{at}.self_attn.q_proj"), heads)
        k, v = (_heads(linear(normed, f"{at}.self_attn.{n}_proj"), groups) for n in "kv")
        q, k = (state.map(lambda t: _rotated(t, rates)) for state in (q, k))
        k, v = (
            state.map(lambda t: t.repeat_interleave(heads // groups, dim=-3)) for state in (k, v)
        )
        context = regroup("context", layer, how.attention(q, k, v, causal))
        x = how.add(x, linear(_merged(context), f"{at}.self_attn.o_proj"))
        normed = norm(x, f"{at}.post_attention_layernorm")
        gate, up = linear(normed, f"{at}.mlp.gate_proj"), linear(normed, f"{at}.mlp.up_proj")
        output = linear(how.gated(gate, up, "silu"), f"{at}.mlp.down_proj")
        x = how.add(x, regroup("feed_forward", layer, output))
    x = regroup("state", layers, x)
    return linear(norm(x.map(lambda t: t[:, -1]), "model.norm"), "lm_head")


def llama_embeddings(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """Return the embeddings of one row by part, (position, hidden)."""
    return {"word": model.state_dict()["model.embed_tokens.weight"][ids]}


def _rotated(x: Tensor, rates: Tensor) -> Tensor:
    """Turn the pairs (i, i + size/2) of (…, position, size) vectors by their position's angle."""
    size = x.shape[-1]
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * rates
    first, second = x[..., : size // 2], x[..., size // 2 :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def sources_of(embeddings: dict[str, Tensor], baseline: dict[str, Tensor] | None = None) -> State:
    """Return a component for each part and position, and one for biases.

    With a baseline, the components are those of the difference.
    """
    values = [sum(embeddings.values(), torch.zeros(()))]
    if baseline is not None:
        values.append(sum(baseline.values(), torch.zeros(())))
    parts = []
    for part, vectors in embeddings.items():
        change = vectors if baseline is None else vectors - baseline[part]
        for position in range(len(vectors)):
            component = torch.zeros_like(vectors)
            component[position] = change[position]
            parts.append(component)
    return State(torch.stack(values), torch.stack([*parts, torch.zeros_like(parts[0])]))


def ungrouped(sources: State, count: int) -> State:
    """Give everything to the last of ``count`` + 1 components."""
    whole = sources.parts.sum(0)[None]
    return State(sources.value, torch.cat([torch.zeros(count, *whole.shape[1:]), whole]))


def cut(kind: str, layer: int, pieces: Callable[[State], Tensor]) -> Regroup:
    """Cut one state of an ungrouped run into pieces, (piece, …), a component each."""

    def regroup(here: str, at: int, state: State) -> State:
        if (here, at) != (kind, layer):
            return state
        parts = pieces(state)
        rest = state.parts.sum(0) - parts.sum(0)
        return State(state.value, torch.cat([parts, rest[None]]))

    return regroup
