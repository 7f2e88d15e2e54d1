"""Attention weights computed a block of queries at a time, never stored as a whole.

The weights softmax(scaling · q kᵀ + mask) can be recomputed from queries and keys whenever they are
needed, in (query, hidden) memory, while the model itself runs with its own fused attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from normscope.foundation.shapes import Float, Int
from normscope.kernels import ScoreInputs, triton_for

# The number of weights (of all heads) that a block may hold.
BLOCK = {"cpu": 2**22, "cuda": 2**26}


def lowest(dtype: torch.dtype) -> float:
    """Return the lowest number for a mask: float32's also in float64.

    Most models compute their softmax in float32, where lower numbers would overflow.
    """
    return max(torch.finfo(dtype).min, torch.finfo(torch.float32).min)


@dataclass(frozen=True, eq=False)
class Context:
    """What one pass over weights that are not stored gives."""

    own: Float[Tensor, "batch head query"] | None  # α_ii; None where no key is the query itself
    mixed: Float[Tensor, "batch query head head_size"]  # Σ_j αv
    size: Float[Tensor, "batch query head"] | None  # Σ_j α‖v‖; None if ``mixed`` is the model's


@dataclass(frozen=True, eq=False)
class Scores:
    """What the weights of one attention call are computed from."""

    query: Float[Tensor, "batch head query head_size"]
    key: Float[Tensor, "batch kv_head key head_size"]
    mask: Tensor | None  # (batch, 1 or head, query, key): True where admitted, or added
    scaling: float
    causal: bool  # in addition to the mask; the last query sees the last key
    context: Tensor  # Σ_j αv as the model computed it: (batch, query, head, head_size)

    @property
    def shape(self) -> torch.Size:
        """The shape of the weights: (batch, head, query, key)."""
        batch, heads, queries, _ = self.query.shape
        return torch.Size((batch, heads, queries, self.key.shape[2]))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights: at least float32."""
        return torch.promote_types(self.query.dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.query.device

    def clone(self) -> Scores:
        """Return a copy with memory of its own."""
        mask = None if self.mask is None else self.mask.clone()
        query, key, context = self.query.clone(), self.key.clone(), self.context.clone()
        return replace(self, query=query, key=key, mask=mask, context=context)

    def blocks(self, *, written: bool = True) -> Iterator[slice]:
        """Iterate over blocks of queries whose weights fit into memory.

        ``written``: the weights of all heads are stored for a block; otherwise one number per cell.
        """
        batch, heads, queries, keys = self.shape
        most = BLOCK.get(self.device.type, BLOCK["cuda"])
        step = max(1, most // (batch * (heads if written else 1) * keys))
        return (slice(i, min(i + step, queries)) for i in range(0, queries, step))

    @cached_property
    def flash(self) -> bool:
        """Whether weights are computed inside the kernels that use them: 16 bits, on a GPU."""
        return self.query.element_size() == 2 and triton_for("auto", self.device) is not None

    def rows(self, queries: slice) -> Float[Tensor, "batch head rows key"]:
        """Return the weights of some queries."""
        return self._softmax(queries) if self._whole is None else self._whole[:, :, queries]

    @cached_property
    def _whole(self) -> Float[Tensor, "batch head query key"] | None:
        """All weights if they fit into a block, else None."""
        if self.flash or self.shape.numel() > BLOCK.get(self.device.type, BLOCK["cuda"]):
            return None
        return self._softmax(slice(0, self.shape[2]))

    def _softmax(self, queries: slice) -> Float[Tensor, "batch head rows key"]:
        # A row that sees no key (padding) becomes uniform, as in eager attention.
        return self._scores(queries, lowest(self.dtype)).softmax(dim=-1)

    @cached_property
    def lse(self) -> Float[Tensor, "batch head query"]:
        """The log-sum-exp of each row of scores, by which the softmax divides."""
        if self.flash:
            from normscope.kernels import triton

            inputs = ScoreInputs(
                self.query, self.key, scaling=self.scaling, causal=self.causal, mask=self.mask
            )
            lse: Tensor = triton.attention_lse(inputs)
            return lse
        return torch.cat([self._scores(rows).logsumexp(dim=-1) for rows in self.blocks()], dim=2)

    def survey(self, value: Float[Tensor, "batch kv_head key head_size"]) -> Context:
        """Return the weight of each query for itself, and Σ_j αv.

        The weights are None where queries and keys are not the same positions. With flash
        kernels, Σ_j αv is the model's own.
        """
        square = self.shape[2] == self.shape[3]
        if self.flash:
            return Context(self._diagonal() if square else None, self.context, None)
        value = value.to(self.dtype)
        value = torch.cat([value, torch.linalg.vecdot(value, value).sqrt_().unsqueeze(-1)], dim=-1)
        value = value.repeat_interleave(self.shape[1] // value.shape[1], dim=1)
        own, mixed = [], []
        for rows in self.blocks():
            alpha = self.rows(rows)
            mixed.append((alpha @ value).transpose(1, 2))
            if square:
                own.append(alpha.diagonal(offset=rows.start, dim1=-2, dim2=-1))
        both = mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=1)
        return Context(torch.cat(own, dim=2) if square else None, both[..., :-1], both[..., -1])

    def _diagonal(self) -> Float[Tensor, "batch head query"]:
        """α_ii, from the products of each query with its own key."""
        key = self.key.repeat_interleave(self.shape[1] // self.key.shape[1], dim=1)
        scores = (self.query.to(self.dtype) * key.to(self.dtype)).sum(dim=-1) * self.scaling
        if self.mask is not None:
            own = self.mask.diagonal(dim1=-2, dim2=-1)
            boolean = own.dtype == torch.bool
            scores = scores.masked_fill(~own, -torch.inf) if boolean else scores + own
        return (scores - self.lse).exp().nan_to_num(0.0)

    def some(self, i: Int[Tensor, "batch some"]) -> Float[Tensor, "batch head some key"]:
        """Return the weights of chosen queries, by a softmax of their own."""
        row = torch.arange(len(i), device=i.device).unsqueeze(1)
        query = self.query[row, :, i].transpose(1, 2)
        mask = self.mask
        if mask is not None:
            mask = mask.expand(len(i), *mask.shape[1:])[row, :, i].transpose(1, 2)
        if self.causal:
            visible = torch.arange(self.shape[3], device=i.device) <= i.unsqueeze(-1)
            mask = visible.unsqueeze(1)
        chosen = replace(self, query=query, mask=mask, causal=False)
        return chosen._softmax(slice(0, i.shape[1]))

    def _scores(
        self, queries: slice, hidden: float = -torch.inf
    ) -> Float[Tensor, "batch head rows key"]:
        """The masked scores of some queries; ``hidden`` stands for those of hidden keys."""
        query = self.query[:, :, queries].to(self.dtype) * self.scaling
        key = self.key.to(self.dtype)
        groups, rows = key.shape[1], query.shape[2]
        scores = query.unflatten(1, (groups, -1)).flatten(2, 3) @ key.transpose(2, 3)
        scores = scores.unflatten(2, (-1, rows)).flatten(1, 2)
        if self.mask is not None:
            mask = self.mask[:, :, queries]
            scores = (
                scores.masked_fill_(~mask, hidden)
                if mask.dtype == torch.bool
                else scores.add_(mask.to(scores.dtype))
            )
        if self.causal:
            offset = self.shape[3] - self.shape[2]
            last = torch.arange(queries.start, queries.start + rows, device=scores.device) + offset
            later = torch.arange(self.shape[3], device=scores.device) > last.unsqueeze(1)
            scores.masked_fill_(later, hidden)
        return scores
