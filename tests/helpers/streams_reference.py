"""Slow references for methods that look into layers: loops written from the equations alone.

Two models are taken apart by hand, GPT-2 and Llama, and one encoder for DecompX, BERT.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.helpers.component_reference import _gelu, _rotated, _silu


@dataclass
class Layer:
    """One layer at one text: α (head, query, key), f (head, key, hidden) and states."""

    alpha: Tensor
    moved: Tensor
    bias: Tensor
    entering: Tensor
    attended: Tensor
    leaving: Tensor


@dataclass
class Taken:
    """A model taken apart: its layers, and the linear map behind the last state."""

    layers: list[Layer]
    scale: Tensor  # of the last norm, γ/σ, (position, hidden)
    centred: bool
    constant: Tensor  # logits that the last norm's β gives
    unembedding: Tensor  # (vocabulary, hidden)

    def written(self, part: Tensor, position: int) -> Tensor:
        """Return what a summand of the last state adds to every logit of a position."""
        if self.centred:
            part = part - part.mean()
        return self.unembedding @ (part * self.scale[position])


def _norm(x: Tensor, gamma: Tensor, beta: Tensor | None, eps: float) -> Tensor:
    if beta is None:
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gamma
    c = x - x.mean(-1, keepdim=True)
    return c / (c.square().mean(-1, keepdim=True) + eps).sqrt() * gamma + beta


def _alpha(q: Tensor, k: Tensor) -> Tensor:
    length = q.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    return torch.softmax((q @ k.mT / math.sqrt(q.shape[2])).masked_fill(~mask, -torch.inf), -1)


def gpt2(model: Any, ids: Tensor) -> Taken:
    """Take a GPT-2 apart at one row of ids."""
    w, config = model.state_dict(), model.config
    eps, heads = config.layer_norm_epsilon, config.n_head
    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][: len(ids)]
    layers = []
    for number in range(config.n_layer):
        at = f"transformer.h.{number}"
        normed = _norm(x, w[f"{at}.ln_1.weight"], w[f"{at}.ln_1.bias"], eps)
        qkv = normed @ w[f"{at}.attn.c_attn.weight"] + w[f"{at}.attn.c_attn.bias"]
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(0, 1) for t in qkv.chunk(3, -1))
        output = w[f"{at}.attn.c_proj.weight"].unflatten(0, (heads, -1))
        bias = w[f"{at}.attn.c_proj.bias"]
        alpha, moved = _alpha(q, k), v @ output
        attended = x + (alpha @ moved).sum(0) + bias
        normed = _norm(attended, w[f"{at}.ln_2.weight"], w[f"{at}.ln_2.bias"], eps)
        hidden = normed @ w[f"{at}.mlp.c_fc.weight"] + w[f"{at}.mlp.c_fc.bias"]
        hidden = torch.nn.functional.gelu(hidden, approximate="tanh")
        leaving = attended + hidden @ w[f"{at}.mlp.c_proj.weight"] + w[f"{at}.mlp.c_proj.bias"]
        layers.append(Layer(alpha, moved, bias, x, attended, leaving))
        x = leaving
    c = x - x.mean(-1, keepdim=True)
    sigma = (c.square().mean(-1, keepdim=True) + eps).sqrt()
    scale = w["transformer.ln_f.weight"] / sigma
    unembedding = w["lm_head.weight"]
    return Taken(layers, scale, True, unembedding @ w["transformer.ln_f.bias"], unembedding)


def llama(model: Any, ids: Tensor) -> Taken:
    """Take a Llama apart at one row of ids."""
    w, config = model.state_dict(), model.config
    eps, heads, groups = (
        config.rms_norm_eps,
        config.num_attention_heads,
        config.num_key_value_heads,
    )

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", torch.zeros(()))

    x = w["model.embed_tokens.weight"][ids]
    rates = model.model.rotary_emb.inv_freq.double()
    layers = []
    for number in range(config.num_hidden_layers):
        at = f"model.layers.{number}"
        normed = _norm(x, w[f"{at}.input_layernorm.weight"], None, eps)
        q, k, v = (linear(normed, f"{at}.self_attn.{n}_proj") for n in "qkv")
        q = _rotated(q.unflatten(-1, (heads, -1)).transpose(0, 1), rates)
        k = _rotated(k.unflatten(-1, (groups, -1)).transpose(0, 1), rates)
        v = v.unflatten(-1, (groups, -1)).transpose(0, 1)
        k, v = (t.repeat_interleave(heads // groups, dim=0) for t in (k, v))
        name = f"{at}.self_attn.o_proj"
        output = w[f"{name}.weight"].T.unflatten(0, (heads, -1))
        bias = w.get(f"{name}.bias", torch.zeros_like(x[0]))
        alpha, moved = _alpha(q, k), v @ output
        attended = x + (alpha @ moved).sum(0) + bias
        normed = _norm(attended, w[f"{at}.post_attention_layernorm.weight"], None, eps)
        gate = _silu(linear(normed, f"{at}.mlp.gate_proj"))[0]
        hidden = gate * linear(normed, f"{at}.mlp.up_proj")
        leaving = attended + linear(hidden, f"{at}.mlp.down_proj")
        layers.append(Layer(alpha, moved, bias, x, attended, leaving))
        x = leaving
    scale = w["model.norm.weight"] / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    nothing = torch.zeros(len(w["lm_head.weight"]), dtype=x.dtype)
    return Taken(layers, scale, False, nothing, w["lm_head.weight"])


def written_by_source(layer: Layer, taken: Taken, position: int, answer: int) -> Tensor:
    """Return what attention moves from each key into a logit of a position, (key,)."""
    shares = []
    for key in range(len(layer.entering)):
        part = sum(
            (layer.alpha[h, position, key] * layer.moved[h, key] for h in range(len(layer.alpha))),
            torch.zeros(()),
        )
        shares.append(taken.written(part, position)[answer])
    return torch.stack(shares)


def alti(layer: Layer) -> Tensor:
    """Return ALTI's map of a pre-norm layer, cell by cell, ℓ1."""
    length = len(layer.entering)
    closeness = torch.zeros(length, length, dtype=torch.float64)
    for i in range(length):
        whole = layer.attended[i]
        for j in range(length):
            part = (layer.alpha[:, i, j, None] * layer.moved[:, j]).sum(0)
            part = part + layer.entering[i] if i == j else part
            closeness[i, j] = max(0.0, float(whole.abs().sum() - (whole - part).abs().sum()))
        if not closeness[i].sum():
            closeness[i, i] = 1
    return closeness / closeness.sum(-1, keepdim=True)


# ---- DecompX


def divided(parts: Tensor, bias: Tensor, rule: str) -> Tensor:
    """Divide a bias among the components (component, hidden) of one position."""
    weights = []
    for number, part in enumerate(parts):
        dot = float(part @ bias)
        lengths = float(part.norm() * bias.norm())
        weights.append(
            {
                "absdot": abs(dot),
                "abssim": abs(dot) / lengths if lengths else 0.0,
                "norm": float(part.norm()),
                "equal": float(bool(part.abs().sum() > 0)),
                "cls": float(number == 0),
                "dot": dot,
            }[rule]
        )
    total = sum(weights)
    return torch.stack(
        [part + weight / total * bias for part, weight in zip(parts, weights, strict=True)]
    )


def decompx_bert(model: Any, ids: Tensor, rule: str, *, at_residual: bool) -> tuple[Tensor, Tensor]:
    """Return the shares of every token in every logit of a BERT classifier, and x^L_{i⇐k}."""
    w, config = model.state_dict(), model.config
    eps, heads, length = config.layer_norm_eps, config.num_attention_heads, len(ids)

    def spread(parts: Tensor, bias: Tensor) -> Tensor:
        return torch.stack([divided(parts[:, i], bias, rule) for i in range(length)], 1)

    def norm_of(parts: Tensor, value: Tensor, name: str) -> Tensor:
        c = value - value.mean(-1, keepdim=True)
        sigma = (c.square().mean(-1, keepdim=True) + eps).sqrt()
        parts = (parts - parts.mean(-1, keepdim=True)) / sigma * w[f"{name}.weight"]
        return spread(parts, w[f"{name}.bias"])

    table = "bert.embeddings."
    x = w[table + "word_embeddings.weight"][ids] + w[table + "token_type_embeddings.weight"][0]
    x = x + w[table + "position_embeddings.weight"][:length]
    x = _norm(x, w[table + "LayerNorm.weight"], w[table + "LayerNorm.bias"], eps)
    parts = torch.zeros(length, *x.shape, dtype=x.dtype)
    for i in range(length):
        parts[i, i] = x[i]
    for number in range(config.num_hidden_layers):
        at = f"bert.encoder.layer.{number}."
        q, k = (
            (x @ w[f"{at}attention.self.{n}.weight"].T + w[f"{at}attention.self.{n}.bias"])
            .unflatten(-1, (heads, -1))
            .transpose(0, 1)
            for n in ("query", "key")
        )
        alpha = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        output = w[at + "attention.output.dense.weight"]
        bias_v, bias_o = w[at + "attention.self.value.bias"], w[at + "attention.output.dense.bias"]
        values = parts @ w[at + "attention.self.value.weight"].T
        if number == 0:
            for i in range(length):
                values[i, i] += bias_v
            bias = bias_o
        else:
            bias = output @ bias_v + bias_o
        by_head = values.unflatten(-1, (heads, -1)).transpose(1, 2)  # component head key size
        moved = (alpha @ by_head).transpose(1, 2).flatten(2) @ output.T
        parts = spread(parts + moved, bias) if at_residual else parts + spread(moved, bias)
        parts = norm_of(parts, parts.sum(0), at + "attention.output.LayerNorm")
        inner = spread(
            parts @ w[at + "intermediate.dense.weight"].T, w[at + "intermediate.dense.bias"]
        )
        u = inner.sum(0)
        hidden = inner * (_gelu(u)[0] / u)
        branch = spread(hidden @ w[at + "output.dense.weight"].T, w[at + "output.dense.bias"])
        parts = norm_of(parts + branch, (parts + branch).sum(0), at + "output.LayerNorm")
        x = parts.sum(0)
    pooled = divided(
        parts[:, 0] @ w["bert.pooler.dense.weight"].T, w["bert.pooler.dense.bias"], rule
    )
    u = pooled.sum(0)
    pooled = pooled * (torch.tanh(u) / u)
    return divided(pooled @ w["classifier.weight"].T, w["classifier.bias"], rule), parts
