"""Attention weights that are never written down as a whole: a block of queries at a time.

Where an attention is known to be softmax(scaling · q kᵀ + mask), its weights can be made again from
queries and keys whenever they are needed, in (query, hidden) memory. The model itself then runs
with its own fused attention, untouched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from normscope.foundation.shapes import Float
from normscope.kernels.backend import fused


def lowest(dtype: torch.dtype) -> float:
    """The lowest number in a mask: float32's in float64 too, as most softmaxes are in float32."""
    return max(torch.finfo(dtype).min, torch.finfo(torch.float32).min)


# Weights (of all heads) that a block may hold.
BLOCK = {"cpu": 2**22, "cuda": 2**26}


@dataclass(frozen=True, eq=False)
class Scores:
    """What the weights of one attention call are made from."""

    query: Float[Tensor, "batch head query head_size"]
    key: Float[Tensor, "batch kv_head key head_size"]
    mask: Tensor | None  # (batch, 1 or head, query, key): True where admitted, or added
    scaling: float
    causal: bool  # on top of the mask; the last query sees the last key
    context: Tensor  # Σ_j αv as the model made it: (batch, query, head, head_size)

    @property
    def shape(self) -> torch.Size:
        """(batch, head, query, key), as the weights would have."""
        batch, heads, queries, _ = self.query.shape
        return torch.Size((batch, heads, queries, self.key.shape[2]))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return torch.promote_types(self.query.dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        """Where they are made."""
        return self.query.device

    def clone(self) -> Scores:
        """The same, in memory of its own."""
        mask = None if self.mask is None else self.mask.clone()
        query, key, context = self.query.clone(), self.key.clone(), self.context.clone()
        return replace(self, query=query, key=key, mask=mask, context=context)

    def blocks(self, *, written: bool = True) -> Iterator[slice]:
        """Queries whose weights fit into a block, of all heads or (not written) of one."""
        batch, heads, queries, keys = self.shape
        most = BLOCK.get(self.device.type, BLOCK["cuda"])
        step = max(1, most // (batch * (heads if written else 1) * keys))
        return (slice(i, min(i + step, queries)) for i in range(0, queries, step))

    @cached_property
    def flash(self) -> bool:
        """Whether the weights are made inside the kernels that need them: 16 bits, on a GPU."""
        return self.query.element_size() == 2 and fused("auto", self.device) is not None

    @cached_property
    def _whole(self) -> Float[Tensor, "batch head query key"] | None:
        """All weights, where they fit into a block."""
        if self.flash or self.shape.numel() > BLOCK.get(self.device.type, BLOCK["cuda"]):
            return None
        return self._softmax(slice(0, self.shape[2]))

    def rows(self, here: slice) -> Float[Tensor, "batch head rows key"]:
        """The weights of some queries."""
        return self._softmax(here) if self._whole is None else self._whole[:, :, here]

    def _softmax(self, here: slice) -> Float[Tensor, "batch head rows key"]:
        # A row that sees nothing becomes even, as in eager attention; it is padding.
        return self._scores(here, lowest(self.dtype)).softmax(dim=-1)

    @cached_property
    def lse(self) -> Float[Tensor, "batch head query"]:
        """The logarithm of Σ_j exp(score), which the softmax divides by."""
        if self.flash:
            from normscope.kernels import triton

            how: Any = {"scaling": self.scaling, "causal": self.causal, "mask": self.mask}
            made: Tensor = triton.attention_lse(self.query, self.key, **how)
            return made
        return torch.cat([self._scores(i).logsumexp(dim=-1) for i in self.blocks()], dim=2)

    def survey(
        self, value: Float[Tensor, "batch kv_head key head_size"]
    ) -> tuple[Float[Tensor, "batch head query"] | None, Tensor]:
        """In one pass: the weight of each query for itself, and Σ_j αv, (batch, query, head, e).

        Where the weights never leave a kernel, the latter is the model's own.
        """
        square = self.shape[2] == self.shape[3]
        if self.flash:
            return self._diagonal() if square else None, self.context
        value = value.to(self.dtype).repeat_interleave(self.shape[1] // value.shape[1], dim=1)
        own, mixed = [], []
        for here in self.blocks():
            alpha = self.rows(here)
            mixed.append((alpha @ value).transpose(1, 2))
            own += [alpha.diagonal(offset=here.start, dim1=-2, dim2=-1)] if square else []
        return torch.cat(own, dim=2) if square else None, torch.cat(mixed, dim=1)

    def _diagonal(self) -> Float[Tensor, "batch head query"]:
        key = self.key.repeat_interleave(self.shape[1] // self.key.shape[1], dim=1)
        scores = (self.query.to(self.dtype) * key.to(self.dtype)).sum(dim=-1) * self.scaling
        if self.mask is not None:
            own = self.mask.diagonal(dim1=-2, dim2=-1)
            hidden = own.dtype == torch.bool
            scores = scores.masked_fill(~own, -torch.inf) if hidden else scores + own
        return (scores - self.lse).exp().nan_to_num(0.0)

    def some(self, i: Tensor) -> Float[Tensor, "batch head some key"]:
        """The weights of chosen queries, (batch, some), by a softmax of their own."""
        row = torch.arange(len(i), device=i.device).unsqueeze(1)
        query = self.query[row, :, i].transpose(1, 2)
        mask = self.mask
        if mask is not None:
            mask = mask.expand(len(i), *mask.shape[1:])[row, :, i].transpose(1, 2)
        if self.causal:
            seen = torch.arange(self.shape[3], device=i.device) <= i.unsqueeze(-1)
            mask = seen.unsqueeze(1)
        chosen = replace(self, query=query, mask=mask, causal=False)
        return chosen._softmax(slice(0, i.shape[1]))

    def _scores(
        self, here: slice, hidden: float = -torch.inf
    ) -> Float[Tensor, "batch head rows key"]:
        query = self.query[:, :, here].to(self.dtype) * self.scaling
        key = self.key.to(self.dtype)
        groups, rows = key.shape[1], query.shape[2]
        made = query.unflatten(1, (groups, -1)).flatten(2, 3) @ key.transpose(2, 3)
        made = made.unflatten(2, (-1, rows)).flatten(1, 2)
        if self.mask is not None:
            mask = self.mask[:, :, here]
            made = (
                made.masked_fill_(~mask, hidden)
                if mask.dtype == torch.bool
                else made.add_(mask.to(made.dtype))
            )
        if self.causal:
            offset = self.shape[3] - self.shape[2]
            last = torch.arange(here.start, here.start + rows, device=made.device) + offset
            later = torch.arange(self.shape[3], device=made.device) > last.unsqueeze(1)
            made.masked_fill_(later, hidden)
        return made


# -------------------------------------------------------------------- which attention is known

# Everything that a plain eager attention function mentions.
_PLAIN = {
    *("repeat_kv", "num_key_value_groups", "torch", "matmul", "transpose", "size", "shape", "nn"),
    *("functional", "softmax", "float32", "to", "dtype", "dropout", "training", "contiguous"),
    "type",
}
# What a call may say beside queries, keys, values and the mask, without changing the formula.
_HARMLESS = {
    *("scaling", "dropout", "is_causal", "sliding_window", "position_ids", "cache_position"),
    "use_cache",
}


def is_plain(function: Callable[..., Any]) -> bool:
    """Whether an eager attention function is softmax(scaling · q kᵀ + mask) v, by name and deed."""
    names = getattr(function, "__code__", None)
    return names is not None and set(names.co_names) <= _PLAIN and _does_plainly(function)


@functools.cache
def _does_plainly(function: Callable[..., Any]) -> bool:
    class Asked(nn.Module):
        num_key_value_groups = 2

    draw = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    query, mask = random(2, 4, 5, 8), random(2, 1, 5, 7)
    # One that does not repeat value heads is only ever called with as many as there are queries'.
    for groups in (4, 2) if "repeat_kv" in function.__code__.co_names else (4,):
        key, value = random(2, groups, 7, 8), random(2, groups, 7, 8)
        asked = Asked().eval()
        asked.num_key_value_groups = 4 // groups
        try:
            made, _ = function(asked, query, key, value, mask, scaling=0.3, dropout=0.0)
        except Exception:  # whatever it asks for, it is not plain
            return False
        alpha = Scores(query, key, mask, 0.3, False, made).rows(slice(0, 5))
        expected = (alpha @ value.repeat_interleave(4 // groups, dim=1)).transpose(1, 2)
        if made.shape != expected.shape or (made - expected).abs().max() > 1e-6:
            return False
    return True


def is_plain_call(module: nn.Module, query: Tensor, key: Tensor, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a plain function has no argument that would make it another one."""
    if kwargs.get("dropout") or query.dim() != 4:
        return False
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if causal and 1 < query.shape[2] != key.shape[2]:
        return False  # what a causal mask means then is the function's own affair
    return all(v is None or v is False or k in _HARMLESS for k, v in kwargs.items())


def scores_of(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, context: Tensor, kwargs: Any
) -> Scores:
    """What transformers' sdpa attention computes its weights from."""
    scaling = kwargs.get("scaling")
    if mask is not None:  # one row may stand for all queries
        mask = mask.expand(-1, -1, query.shape[2], -1)
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    return Scores(
        query.detach(),
        key.detach(),
        mask,
        query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        bool(causal) and mask is None and query.shape[2] > 1,
        context.detach(),
    )
