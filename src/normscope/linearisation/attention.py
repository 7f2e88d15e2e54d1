"""The linear maps that stand for fused attention, softmax(scaling · q kᵀ + mask) v."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.kernels.inputs import ScoreInputs
from normscope.linearisation.operators import (
    Cotangents,
    Operator,
    Saved,
    fused,
    own_graph,
    wide,
)
from normscope.linearisation.secants import first_half, halves, logarithmic_mean

BLOCK = 2**24  # scores in one block of queries


@dataclass(frozen=True)
class Call:
    """The arguments of `scaled_dot_product_attention` beside queries, keys and values."""

    mask: Tensor | None
    causal: bool
    scale: float | None

    def scaling(self, q: Tensor) -> float:
        """Return the factor of the scores."""
        return 1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale

    def scores(self, q: Tensor, k: Tensor, queries: slice) -> Tensor:
        """Return the masked scores of some of the queries; keys have as many heads as queries."""
        scores = (q[..., queries, :] * self.scaling(q)) @ k.mT
        if self.causal:
            at = torch.arange(q.shape[-2], device=q.device)[queries]
            later = torch.arange(k.shape[-2], device=q.device) > at[:, None]
            scores = scores.masked_fill(later, -torch.inf)
        if self.mask is not None:
            mask = self.mask if self.mask.shape[-2] == 1 else self.mask[..., queries, :]
            if mask.dtype == torch.bool:
                scores = scores.masked_fill(~mask, -torch.inf)
            else:
                scores = scores + mask
        return scores


def blocks(q: Tensor, k: Tensor) -> Iterator[slice]:
    """Iterate over blocks of queries that keep the arrays of scores small."""
    step = max(1, BLOCK // max(1, math.prod(q.shape[:-2]) * k.shape[-2]))
    for start in range(0, q.shape[-2], step):
        yield slice(start, start + step)


def repeated(states: Tensor, heads: int) -> Tensor:
    """Return keys or values with one head for each head of the queries."""
    groups = heads // states.shape[1] if states.dim() == 4 else 1
    return states if groups == 1 else states.repeat_interleave(groups, dim=1)


def summed(cotangent: Tensor, heads: int) -> Tensor:
    """Return the sum over the heads of the queries that share a key or value head."""
    if cotangent.dim() != 4 or cotangent.shape[1] == heads:
        return cotangent
    return cotangent.unflatten(1, (heads, -1)).sum(2)


class HeldAttention(Operator):
    """Attention with its weights held, for components that are pushed forwards.

    Backwards, torch's own derivative for the values is faster.
    """

    def __init__(self, attention: Callable[..., Tensor], call: Call) -> None:
        self.attention, self.call = attention, call

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Saved]:
        return self.attention(q, k, v), (q, k)

    def _weights(self, saved: Saved, rows: slice) -> Tensor:
        q, k = (t.to(wide(t.dtype)) for t in saved)
        scores = self.call.scores(q, repeated(k, q.shape[1]), rows)
        return torch.softmax(scores, -1).nan_to_num(0.0)  # a row that is masked as a whole

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        q, k = saved
        g = cotangent.to(wide(q.dtype))
        parts = [self._weights(saved, rows).mT @ g[..., rows, :] for rows in blocks(q, k)]
        return None, None, summed(torch.stack(parts).sum(0), k.shape[1]).to(cotangent.dtype)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        component = components[2]
        assert component is not None
        q, k = saved
        values = repeated(component, q.shape[1]).to(wide(q.dtype))
        parts = [self._weights(saved, rows) @ values for rows in blocks(q, k)]
        return torch.cat(parts, dim=-2).to(component.dtype)


class FusedAttention(HeldAttention):
    """Attention with its weights held, whose backward pass is for the values alone.

    torch's own backward pass computes the cotangents of queries and keys too.
    """

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Saved]:
        with torch.enable_grad(), own_graph():  # only asked for its log-sum-exp
            context = self.attention(q, k, v.detach().requires_grad_())
        node = context.grad_fn
        lse = getattr(node, "_saved_logsumexp", getattr(node, "_saved_log_sumexp", None))
        return context.detach(), (q, k, lse)

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        q, k, lse = saved
        inputs = ScoreInputs(q, k, self.call.scaling(q), self.call.causal, self.call.mask)
        kernels = fused(cotangent)
        assert kernels is not None  # `can_fuse` is asked before
        if lse is None:
            lse = kernels.attention_lse(inputs)
        return None, None, kernels.value_cotangents(inputs, lse, cotangent)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        return super().push(saved[:2], components)


def can_fuse(q: Tensor, k: Tensor, call: Call) -> bool:
    """Return whether the backward pass for values alone has a kernel for these inputs."""
    if q.dtype not in (torch.float16, torch.bfloat16) or q.dim() != 4 or fused(q) is None:
        return False
    return not call.causal or q.shape[-2] == k.shape[-2]


class SecantAttention(Operator):
    """Attention of pairs: midpoints for both products, the logarithmic mean for the softmax.

    A fourth state is the mask of the call, where that depends on the inputs.
    """

    def __init__(self, attention: Callable[..., Tensor], call: Call) -> None:
        self.attention, self.call = attention, call

    def run(self, *states: Tensor) -> tuple[Tensor, Saved]:
        return self.attention(*states), states

    def _wide(self, saved: Saved) -> list[Tensor]:
        q, k, v = (t.to(wide(t.dtype)) for t in saved[:3])
        return [q, repeated(k, q.shape[1]), repeated(v, q.shape[1])]

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        q, k, v = self._wide(saved)
        ((g, _),) = halves(cotangent.to(q.dtype))
        q_mean, k_mean, v_mean = ((end + start) / 2 for end, start in halves(q, k, v))
        dq, dk, dv = torch.zeros_like(q_mean), torch.zeros_like(k_mean), torch.zeros_like(v_mean)
        of_mask = []
        for rows in blocks(q, k):
            p, mean, weights = logarithmic_mean(self.call.scores(q, k, rows), -1)
            part = g[..., rows, :]
            dv += p.mT @ part
            scaled = mean * (part @ v_mean.mT)
            ds = scaled - weights * scaled.sum(-1, keepdim=True)
            if len(saved) > 3:
                of_mask.append(ds)
            ds = ds * self.call.scaling(q)
            dq[..., rows, :] = ds @ k_mean
            dk += ds.mT @ q_mean[..., rows, :]
        grads = tuple(
            first_half(summed(d, state.shape[1]).to(state.dtype))
            for d, state in zip((dq, dk, dv), saved[:3], strict=True)
        )
        if not of_mask:
            return grads
        mask, scores = saved[3], torch.cat(of_mask, dim=-2)
        return *grads, first_half(scores.sum_to_size(len(mask) // 2, *mask.shape[1:]).to(mask))

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        q, k, v = self._wide(saved)
        q_mean, k_mean, v_mean = ((end + start) / 2 for end, start in halves(q, k, v))
        dq, dk, dv = (
            torch.zeros_like(mean)
            if component is None
            else repeated(component[: len(component) // 2].to(q.dtype), q.shape[1])
            for component, mean in zip(components[:3], (q_mean, k_mean, v_mean), strict=True)
        )
        of_mask = components[3] if len(components) > 3 else None
        outputs = []
        for rows in blocks(q, k):
            p, mean, weights = logarithmic_mean(self.call.scores(q, k, rows), -1)
            ds = dq[..., rows, :] @ k_mean.mT + q_mean[..., rows, :] @ dk.mT
            ds = ds * self.call.scaling(q)
            if of_mask is not None:
                of_rows = of_mask[: len(of_mask) // 2]
                ds = ds + (of_rows if of_rows.shape[-2] == 1 else of_rows[..., rows, :])
            dp = mean * (ds - (weights * ds).sum(-1, keepdim=True))
            outputs.append(p @ dv + dp @ v_mean)
        return first_half(torch.cat(outputs, dim=-2).to(saved[0].dtype))
