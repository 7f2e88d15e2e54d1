"""A slow reference for mixtures of experts: every summand of every token, from the equations.

States are sums: (summand, hidden), one summand for each key, in cross-attention one for the
residual, and a last one for what belongs to no token. Routing is that of the model's own router.
Nothing is imported from the package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NODES: Any = np.polynomial.legendre.leggauss(200)


def norm(parts: Tensor, module: Any) -> Tensor:
    """Normalise a sum with its scale held; β belongs to the last summand."""
    whole = parts.sum(0)
    if isinstance(module, torch.nn.LayerNorm):
        spread = (whole.var(correction=0) + module.eps).sqrt()
        normed = module.weight * (parts - parts.mean(-1, keepdim=True)) / spread
        normed[-1] += module.bias
        return normed
    return module.weight * parts / (whole.square().mean() + module.variance_epsilon).sqrt()


def affine(parts: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a linear map (in, out); its bias belongs to the last summand."""
    product = parts @ weight
    if bias is not None:
        product[-1] += bias
    return product


def gated(gate: Tensor, up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Divide g(Σ gate) · Σ up among the summands, by integration along the straight path."""
    points, weights = (torch.from_numpy(array) for array in _NODES)
    t, weights = (points + 1) / 2, weights / 2
    u, v = gate.sum(0), up.sum(0)
    at = (t[:, None] * u).requires_grad_()
    with torch.enable_grad():
        values = activation(at)
        (slopes,) = torch.autograd.grad(values.sum(), at)
    of_up = (weights[:, None] * values.detach()).sum(0)
    of_gate = (weights[:, None] * t[:, None] * slopes).sum(0) * v
    return up * of_up + gate * of_gate


def mixtral(parts: Tensor, block: Any, routed: Any, token: int) -> Tensor:
    """Σ_e w_e · W_2 (g(W_1 p) ⊙ W_3 p), with the weights of the experts held."""
    _, weights, chosen = routed
    total = torch.zeros_like(parts)
    for weight, expert in zip(weights[token], chosen[token].tolist(), strict=True):
        gate_up = parts @ block.experts.gate_up_proj[expert].T
        gate, up = gate_up.chunk(2, dim=-1)
        inner = gated(gate, up, block.experts.act_fn)
        total += weight * inner @ block.experts.down_proj[expert].T
    return total


def deepseek_v3(parts: Tensor, block: Any, routed: Any, token: int) -> Tensor:
    """The same, and an expert that all tokens share."""
    shared = block.shared_experts
    gate, up = parts @ shared.gate_proj.weight.T, parts @ shared.up_proj.weight.T
    own = gated(gate, up, shared.act_fn) @ shared.down_proj.weight.T
    return mixtral(parts, block, routed, token) + own


def gpt_oss(parts: Tensor, block: Any, routed: Any, token: int) -> Tensor:
    """Experts with biases, clamped gates and (up + 1); a clamp keeps its slope from the origin."""
    _, weights, chosen = routed
    experts, total = block.experts, torch.zeros_like(parts)
    limit, alpha = experts.limit, experts.alpha

    def clamped(summands: Tensor, low: float | None) -> Tensor:
        whole = summands.sum(0)
        return summands * whole.clamp(min=low, max=limit) / whole

    for weight, expert in zip(weights[token], chosen[token].tolist(), strict=True):
        gate_up = affine(parts, experts.gate_up_proj[expert], experts.gate_up_proj_bias[expert])
        gate, up = clamped(gate_up[:, ::2], None), clamped(gate_up[:, 1::2], -limit)
        up[-1] += 1
        inner = gated(gate, up, lambda u: u * torch.sigmoid(alpha * u))
        out = affine(inner, experts.down_proj[expert], experts.down_proj_bias[expert])
        total += weight * out
    return total


def nllb_moe(parts: Tensor, block: Any, routed: Any, token: int) -> Tensor:
    """Experts with two linear maps, ReLU between them; the router's mask names those that run."""
    mask, weights = routed[:2]
    total = torch.zeros_like(parts)
    for place, expert in enumerate(mask[token].tolist()):
        dense = block.experts[f"expert_{expert}"]
        first = affine(parts, dense.fc1.weight.T, dense.fc1.bias)
        whole = first.sum(0)
        inner = first * (whole > 0)
        out = affine(inner, dense.fc2.weight.T, dense.fc2.bias)
        total += weights[token, place] * out * (1 - block.experts.moe_token_dropout)
    return total


# The norm before the feed-forward, the mixture, its router, and the mixture by hand.
MIXTURES: dict[str, tuple[str, str, str, Callable[[Tensor, Any, Any, int], Tensor]]] = {
    "mixtral": ("post_attention_layernorm", "mlp", "mlp.gate", mixtral),
    "gpt_oss": ("post_attention_layernorm", "mlp", "mlp.router", gpt_oss),
    "deepseek_v3": ("post_attention_layernorm", "mlp", "mlp.gate", deepseek_v3),
    "nllb-moe": ("ff_layer_norm", "ffn", "ffn.router", nllb_moe),
}


def summands(captured: Any, row: int) -> Tensor:
    """Return every summand of the residual sum, (query, summand, hidden)."""
    alpha, value = captured.alpha[row], captured.value[row]
    value = value.repeat_interleave(len(alpha) // len(value), dim=0)
    f = torch.einsum("hke,heo->hko", value, captured.projection.weight)
    parts = torch.einsum("hqk,hko->qko", alpha, f)
    residual = captured.residual[row]
    if captured.kind == "cross":
        parts = torch.cat([parts, residual[:, None]], dim=1)
    else:
        for query in range(len(parts)):
            parts[query, query] += residual[query]
    bias = captured.projection.bias
    last = torch.zeros_like(residual) if bias is None else bias.expand_as(residual)
    return torch.cat([parts, last[:, None]], dim=1)


def behind(name: str, layer: Any, routed: Any, row: int) -> tuple[Tensor, Tensor]:
    """Return what the mixture adds, and the layer's output, as (query, summand, hidden)."""
    before, block, _, by_hand = MIXTURES[name]
    module = layer.module
    z = summands(layer.last, row)
    added = torch.stack([
        by_hand(
            norm(parts, module.get_submodule(before)),
            module.get_submodule(block),
            routed,
            row * len(z) + query,
        )
        for query, parts in enumerate(z)
    ])  # fmt: skip
    return added, added + z
