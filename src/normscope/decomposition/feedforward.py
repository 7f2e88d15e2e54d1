"""The feed-forward block as a sum over keys (Kobayashi et al., ICLR 2024).

The block is W_1, an activation g, W_2, a residual connection and norms. All but g is linear once
the norms' σ are fixed; g is split over its summands by integrated gradients along the straight
path, which is closed: each neuron hands out g(p) − g(0) in proportion to the summands of p. The
residual carries the attention block's own decomposition and is added for every key.

There is no way around the vectors here: they are made for a block of keys and queries at a time,
within a memory budget, the first projection of a key's vectors being shared by all queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from normscope.decomposition.activations import Activation, gated_shares, secant
from normscope.decomposition.attention import Cells
from normscope.decomposition.block import Norm, Parts
from normscope.foundation.shapes import Float
from normscope.kernels import Linear, head_vectors

FFBias = Literal["path", "fixed"]
FF_BIASES: tuple[FFBias, ...] = ("path", "fixed")


@dataclass(frozen=True, eq=False)
class Weights:
    """The linear maps of a feed-forward, (in, out), and its activation."""

    first: Float[Tensor, "hidden inner"]
    first_bias: Float[Tensor, " inner"] | None
    gate: Float[Tensor, "hidden inner"] | None  # goes through the activation where there is one
    gate_bias: Float[Tensor, " inner"] | None
    second: Float[Tensor, "inner out"]
    second_bias: Float[Tensor, " out"] | None
    activation: Activation


@dataclass(frozen=True, eq=False)
class Shares:
    """What a neuron hands to each summand: first_j · first + gate_j · gate; and the rest."""

    first: Float[Tensor, "batch query inner"]
    gate: Float[Tensor, "batch query inner"] | None
    bias: Float[Tensor, "batch query out"]  # belongs to no token; b_2 included


def shares(weights: Weights, parts: Parts, ff_bias: FFBias) -> Shares:
    """Integrated gradients through the activation, in closed form, in float64.

    "path": the bias is a summand like the others, with a share of its own, and g(0) stays with
    it. "fixed": the bias is there from the start, and g(bias) stays with it.
    """
    whole, g = parts.whole().double(), weights.activation
    first = whole @ weights.first.double()
    bias = torch.zeros_like(whole) if parts.bias is None else parts.bias.to(whole).expand_as(whole)
    first_bias = _affine(bias, weights.first, weights.first_bias)
    fixed = ff_bias == "fixed"
    if weights.gate is None:
        slope = secant(g, first + first_bias, first_bias if fixed else None)
        start = g(first_bias if fixed else torch.zeros_like(first_bias))
        left = start if fixed else start + slope * first_bias
        return Shares(slope, None, _affine(left, weights.second, weights.second_bias))
    gate = whole @ weights.gate.double()
    gate_bias = _affine(bias, weights.gate, weights.gate_bias)
    bases = (gate_bias, first_bias) if fixed else (None, None)
    up, through = gated_shares(g, gate + gate_bias, first + first_bias, *bases)
    left = g(gate_bias) * first_bias if fixed else up * first_bias + through * gate_bias
    return Shares(up, through, _affine(left, weights.second, weights.second_bias))


def _affine(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    made = states @ weight.double()
    return made if bias is None else made + bias.double()


@dataclass(eq=False)
class Measured:
    """One scope of one layer: lengths, and what is needed to judge them."""

    norms: Float[Tensor, "batch query key"]  # the residual's column last where it has one
    own: Float[Tensor, "batch query out"] | None  # v_ii, or the residual's column; None: zero
    others: Float[Tensor, "batch query out"]  # Σ over all other keys
    bias: Float[Tensor, "*batch *query out"] | None
    cells: Callable[[Cells], Tensor]  # v_ij at some cells, the slow way

    def whole(self) -> Float[Tensor, "batch query out"]:
        """All parts and the bias: what the model itself has here."""
        whole = self.others if self.own is None else self.others + self.own
        return whole if self.bias is None else whole + self.bias


@dataclass(frozen=True, eq=False)
class FeedForward:
    """The feed-forward block that reads ``parts`` and adds to ``carried``."""

    weights: Weights
    parts: Parts  # what enters W_1
    carried: Parts  # what the residual carries: the attention block's own decomposition
    branch: Norm | None  # on the branch
    scale: Linear | None  # of the branch
    after: Norm | None  # on the sum
    ff_bias: FFBias
    memory: int  # bytes for the largest arrays
    dtype: torch.dtype  # of the large products

    def measure(self) -> list[Measured]:
        """The scopes FF, FF+RES and, where a norm follows, FF+RES+LN, in one pass."""
        alpha, separate = self.parts.alone.alpha, self.parts.separate
        batch, _, queries, keys = alpha.shape
        count, out = 2 + (self.after is not None), self.weights.second.shape[1]
        shape = (batch, queries, keys + separate)
        norms = [alpha.new_zeros(shape, dtype=torch.float64) for _ in range(count)]
        own = [alpha.new_zeros((*shape[:2], out), dtype=torch.float64) for _ in range(count)]
        total = [torch.zeros_like(one) for one in own]
        own_first, own_gate = self._first(self.parts.residual_alone)
        for j, i, first, gate, carried in self._blocks(None if separate else (own_first, own_gate)):

            def of(state: Tensor, i: slice = i) -> Tensor:
                return state[:, None, i]

            stages = self._stages(first, gate, carried, of)
            start, stop = max(i.start, j.start), min(i.stop, j.stop)
            for scope, vectors in enumerate(stages):
                norms[scope][:, i, j] = vectors.norm(dim=-1).transpose(1, 2).double()
                total[scope][:, i] += vectors.sum(dim=1).double()
                if start < stop and not separate:
                    own[scope][:, start:stop] = _meeting(vectors, i, j).double()
        if separate:
            kept = self.carried.residual_alone
            column = self._stages(own_first, own_gate, kept, lambda state: state)
            for scope, vectors in enumerate(column):
                own[scope] = vectors
                norms[scope][..., -1] = vectors.norm(dim=-1)
                total[scope] += vectors
        return [
            Measured(norms[s], own[s], total[s] - own[s], self._bias[s], self._cells(s))
            for s in range(count)
        ]

    def _stages(
        self,
        first: Tensor,
        gate: Tensor | None,
        carried: Tensor,
        of: Callable[[Tensor], Tensor],
    ) -> list[Tensor]:
        """From the summands of the pre-activation to each scope's vectors.

        ``of`` picks, from a (batch, query, …) array, the entries of the queries in question.
        """
        dtype = first.dtype
        inner = first * of(self._shares.first).to(dtype)
        if gate is not None and self._shares.gate is not None:
            inner = inner + gate * of(self._shares.gate).to(dtype)
        made = inner @ self.weights.second.to(dtype)
        if self.branch is not None:
            made = self.branch.linear(made) / of(self.branch.sigma.unsqueeze(-1)).to(dtype)
        made = made if self.scale is None else self.scale(made)
        stages = [made, made + carried]
        if self.after is not None:
            sigma = of(self.after.sigma.unsqueeze(-1)).to(dtype)
            stages.append(self.after.linear(stages[1]) / sigma)
        return stages

    @cached_property
    def _shares(self) -> Shares:
        return shares(self.weights, self.parts, self.ff_bias)

    @cached_property
    def _bias(self) -> list[Tensor | None]:
        made: Tensor | None = self._shares.bias
        made = made if self.branch is None else self.branch.bias(made)
        assert made is not None
        made = made if self.scale is None else self.scale(made)
        summed = made if self.carried.bias is None else made + self.carried.bias
        return [made, summed] if self.after is None else [made, summed, self.after.bias(summed)]

    def _first(self, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
        """Through W_1, and through the gate's projection where there is one."""
        weights = self.weights
        gate = None if weights.gate is None else vectors @ weights.gate.to(vectors.dtype)
        return vectors @ weights.first.to(vectors.dtype), gate

    def _weight(self, parts: Parts, i: slice) -> Tensor | float:
        weight = parts.weight
        return weight[:, None, i, None].to(self.dtype) if isinstance(weight, Tensor) else weight

    def _blocks(
        self, own: tuple[Tensor, Tensor | None] | None
    ) -> Iterator[tuple[slice, slice, Tensor, Tensor | None, Tensor]]:
        """Blocks of keys and queries: the summands of W_1's outputs, and what is carried.

        ``own`` is added where a query meets itself. Blocks without any weight are left out.
        """
        alpha = self.parts.alone.alpha
        batch, heads, queries, keys = alpha.shape
        inner = self.weights.first.shape[1] * (1 if self.weights.gate is None else 2)
        out, size = self.weights.second.shape[1], self.dtype.itemsize
        half = self.memory // 2 // (batch * size)
        keys_step = min(keys, max(1, half // (heads * (inner + 2 * out))))
        queries_step = min(queries, max(1, half // (keys_step * (2 * inner + 5 * out))))
        # Folded into the output weights, W_1 costs each key and head one small product.
        folded, folded_gate = self._first(self.parts.output)
        weights_first, weights_carried = folded.to(self.dtype), self.carried.output.to(self.dtype)
        weights_gate = None if folded_gate is None else folded_gate.to(self.dtype)
        columns, rows = _cut(keys, keys_step), _cut(queries, queries_step)
        # A causal mask leaves blocks empty: all are asked in one reading from the device.
        filled = torch.stack([alpha[:, :, i, j].any() for j in columns for i in rows]).tolist()
        for number, j in enumerate(columns):
            value = self.parts.alone.value[:, :, j]
            first = _by_key(value, weights_first)
            gate = None if weights_gate is None else _by_key(value, weights_gate)
            carried = _by_key(value, weights_carried)
            for i, some in zip(rows, filled[number * len(rows) :], strict=False):
                on = slice(max(i.start, j.start), min(i.stop, j.stop))
                if on.start >= on.stop and not some:
                    continue
                weights = alpha[:, :, i, j].permute(0, 3, 2, 1).to(self.dtype)  # key query head
                into = weights * self._weight(self.parts, i)
                kept = (weights * self._weight(self.carried, i)) @ carried
                one, two = into @ first, None if gate is None else into @ gate
                if own is not None and on.start < on.stop:
                    _meeting(one, i, j).add_(own[0][:, on])
                    _meeting(kept, i, j).add_(self.carried.residual_alone[:, on])
                    if two is not None and own[1] is not None:
                        _meeting(two, i, j).add_(own[1][:, on])
                yield j, i, one, two, kept

    def _cells(self, scope: int) -> Callable[[Cells], Tensor]:
        """The vectors of some cells, each made by itself, in float64."""

        def made(cells: Cells) -> Tensor:
            first, gate = self._first(self.parts.cells(cells))
            carried = self.carried.cells(cells)
            return self._stages(first, gate, carried, lambda s: s[cells.row, cells.i])[scope]

        return made


def _by_key(value: Tensor, weight: Tensor) -> Float[Tensor, "batch key head out"]:
    return head_vectors(value, weight).permute(1, 2, 0, 3)


def _cut(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _meeting(
    vectors: Float[Tensor, "batch keys rows out"], i: slice, j: slice
) -> Float[Tensor, "batch on out"]:
    """Where a query of the block i meets itself among the keys of the block j; a view."""
    on = slice(max(i.start, j.start), min(i.stop, j.stop))
    keys, rows = (slice(on.start - x.start, on.stop - x.start) for x in (j, i))
    return vectors[:, keys, rows].diagonal(dim1=1, dim2=2).transpose(1, 2)
