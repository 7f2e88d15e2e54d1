"""The feed-forward block as a sum over keys (Kobayashi et al., ICLR 2024).

The block is W_1, an activation g, W_2, a residual connection and norms. All but g is linear once
the norms' σ are fixed; g is split over its summands by integrated gradients along the straight
path, which have a closed form: each neuron distributes g(p) − g(0) in proportion to the summands of
p. The residual carries the attention block's own decomposition and is added for every key.

Here the vectors themselves must be built: for a block of keys and queries at a time, within a
memory budget. All queries share the first projection of a key's vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from normscope.decomposition.activations import Activation, gated_shares, secant
from normscope.decomposition.block import Norm, Parts
from normscope.decomposition.cells import Cells
from normscope.decomposition.maps import ScopeMap
from normscope.decomposition.scopes import Scope
from normscope.foundation.shapes import Float
from normscope.kernels import Linear, head_vectors

FFBias = Literal["path", "fixed"]
FF_BIASES: tuple[FFBias, ...] = ("path", "fixed")


@dataclass(frozen=True, eq=False)
class FeedForwardWeights:
    """The linear maps of a feed-forward, (in, out), and its activation."""

    first: Float[Tensor, "hidden inner"]
    first_bias: Float[Tensor, " inner"] | None
    gate: Float[Tensor, "hidden inner"] | None  # input of the activation in gated blocks
    gate_bias: Float[Tensor, " inner"] | None
    second: Float[Tensor, "inner out"]
    second_bias: Float[Tensor, " out"] | None
    activation: Activation


@dataclass(frozen=True, eq=False)
class ActivationShares:
    """Factors by which a neuron multiplies its summands: first_j · first + gate_j · gate."""

    first: Float[Tensor, "batch query inner"]
    gate: Float[Tensor, "batch query inner"] | None
    bias: Float[Tensor, "batch query out"]  # belongs to no token; b_2 included


def activation_shares(
    weights: FeedForwardWeights, parts: Parts, ff_bias: FFBias
) -> ActivationShares:
    """Integrate gradients through the activation, in closed form, in float64.

    With "path", the bias is a summand like the others, and its share includes g(0). With "fixed",
    the bias is present from the start of the path, and its share is g(bias).
    """
    whole, g = parts.whole().double(), weights.activation
    first = whole @ weights.first.double()
    bias = torch.zeros_like(whole) if parts.bias is None else parts.bias.to(whole).expand_as(whole)
    first_bias = _affine(bias, weights.first, weights.first_bias)
    fixed = ff_bias == "fixed"
    if weights.gate is None:
        slope = secant(g, first + first_bias, first_bias if fixed else None)
        start = g(first_bias if fixed else torch.zeros_like(first_bias))
        rest = start if fixed else start + slope * first_bias
        return ActivationShares(slope, None, _affine(rest, weights.second, weights.second_bias))
    gate = whole @ weights.gate.double()
    gate_bias = _affine(bias, weights.gate, weights.gate_bias)
    bases = (gate_bias, first_bias) if fixed else (None, None)
    up, through = gated_shares(g, gate + gate_bias, first + first_bias, *bases)
    rest = g(gate_bias) * first_bias if fixed else up * first_bias + through * gate_bias
    return ActivationShares(up, through, _affine(rest, weights.second, weights.second_bias))


def _affine(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = states @ weight.double()
    return product if bias is None else product + bias.double()


@dataclass(frozen=True, eq=False)
class FeedForwardSplit:
    """The feed-forward block that reads ``parts`` and adds to ``carried``, split over keys."""

    weights: FeedForwardWeights
    parts: Parts  # what enters W_1
    carried: Parts  # what the residual carries: the attention block's own decomposition
    branch: Norm | None  # on the branch
    scale: Linear | None  # of the branch
    after: Norm | None  # on the sum
    ff_bias: FFBias
    memory: int  # bytes for the largest arrays
    dtype: torch.dtype  # of the large products

    def measure(
        self, scopes: Sequence[Scope], real: Callable[[str], Tensor], keys: Tensor
    ) -> list[ScopeMap]:
        """Measure the scopes FF, FF+RES and, where a norm follows, FF+RES+LN, in one pass.

        ``real`` returns the model's own state at the end of a scope; ``keys`` says which keys are
        real.
        """
        alpha, separate = self.parts.attention.alpha, self.parts.separate
        batch, _, queries, key_count = alpha.shape
        count, out = 2 + (self.after is not None), self.weights.second.shape[1]
        shape = (batch, queries, key_count + separate)
        norms = [alpha.new_zeros(shape, dtype=torch.float64) for _ in range(count)]
        own = [alpha.new_zeros((*shape[:2], out), dtype=torch.float64) for _ in range(count)]
        total = [torch.zeros_like(vectors) for vectors in own]
        own_first, own_gate = self._first(self.parts.residual_alone)
        for j, i, first, gate, carried in self._blocks(None if separate else (own_first, own_gate)):

            def of(state: Tensor, i: slice = i) -> Tensor:
                return state[:, None, i]

            stages = self._stages(first, gate, carried, of)
            start, stop = max(i.start, j.start), min(i.stop, j.stop)
            for stage, vectors in enumerate(stages):
                norms[stage][:, i, j] = vectors.norm(dim=-1).transpose(1, 2).double()
                total[stage][:, i] += vectors.sum(dim=1).double()
                if start < stop and not separate:
                    own[stage][:, start:stop] = _meeting(vectors, i, j).double()
        if separate:
            residual = self.carried.residual_alone
            column = self._stages(own_first, own_gate, residual, lambda state: state)
            for stage, vectors in enumerate(column):
                own[stage] = vectors
                norms[stage][..., -1] = vectors.norm(dim=-1)
                total[stage] += vectors
        return [
            self._map(stage, scope, norms[stage], own[stage], total[stage], real(scope.name), keys)
            for stage, scope in enumerate(scopes)
        ]

    def _map(
        self,
        stage: int,
        scope: Scope,
        norms: Tensor,
        own: Tensor,
        total: Tensor,
        real: Tensor,
        keys: Tensor,
    ) -> ScopeMap:
        """Return one scope's map with the data to judge it."""
        others, bias = total - own, self._bias[stage]
        whole = others + own
        whole = whole if bias is None else whole + bias
        zero = torch.zeros(own.shape[:2], dtype=torch.float64, device=own.device)
        return ScopeMap(
            scope,
            keys,
            own.shape[1],
            own=own.norm(dim=-1),
            others=others.norm(dim=-1),
            bias=zero if bias is None else bias.norm(dim=-1) + zero,
            difference=(whole - real).norm(dim=-1),
            column=self.parts.separate,
            vectors_at=self._vectors_at(stage),
            values=norms,
            sums=norms.sum(dim=-1),
        )

    def _stages(
        self,
        first: Tensor,
        gate: Tensor | None,
        carried: Tensor,
        of: Callable[[Tensor], Tensor],
    ) -> list[Tensor]:
        """Return each scope's vectors, from the summands of the pre-activation.

        ``of`` selects the entries of these summands' queries from a (batch, query, …) array.
        """
        dtype = first.dtype
        inner = first * of(self._shares.first).to(dtype)
        if gate is not None and self._shares.gate is not None:
            inner = inner + gate * of(self._shares.gate).to(dtype)
        vectors = inner @ self.weights.second.to(dtype)
        if self.branch is not None:
            sigma = of(self.branch.sigma.unsqueeze(-1)).to(dtype)
            vectors = self.branch.linear(vectors) / sigma
        vectors = vectors if self.scale is None else self.scale(vectors)
        stages = [vectors, vectors + carried]
        if self.after is not None:
            sigma = of(self.after.sigma.unsqueeze(-1)).to(dtype)
            stages.append(self.after.linear(stages[1]) / sigma)
        return stages

    @cached_property
    def _shares(self) -> ActivationShares:
        return activation_shares(self.weights, self.parts, self.ff_bias)

    @cached_property
    def _bias(self) -> list[Tensor | None]:
        bias: Tensor | None = self._shares.bias
        bias = bias if self.branch is None else self.branch.bias(bias)
        assert bias is not None
        bias = bias if self.scale is None else self.scale(bias)
        summed = bias if self.carried.bias is None else bias + self.carried.bias
        return [bias, summed] if self.after is None else [bias, summed, self.after.bias(summed)]

    def _first(self, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
        """Apply W_1, and the gate's projection where there is one."""
        weights = self.weights
        gate = None if weights.gate is None else vectors @ weights.gate.to(vectors.dtype)
        return vectors @ weights.first.to(vectors.dtype), gate

    def _weight(self, parts: Parts, i: slice) -> Tensor | float:
        weight = parts.weight
        return weight[:, None, i, None].to(self.dtype) if isinstance(weight, Tensor) else weight

    def _steps(self) -> tuple[int, int]:
        """Return how many keys and queries a block may have within the memory budget."""
        batch, heads, queries, keys = self.parts.attention.alpha.shape
        inner = self.weights.first.shape[1] * (1 if self.weights.gate is None else 2)
        out = self.weights.second.shape[1]
        half = self.memory // 2 // (batch * self.dtype.itemsize)
        keys_step = min(keys, max(1, half // (heads * (inner + 2 * out))))
        return keys_step, min(queries, max(1, half // (keys_step * (2 * inner + 5 * out))))

    def _blocks(
        self, own: tuple[Tensor, Tensor | None] | None
    ) -> Iterator[tuple[slice, slice, Tensor, Tensor | None, Tensor]]:
        """Yield blocks of keys and queries: the summands of W_1's outputs, and what is carried.

        ``own`` is added where a query meets itself. Blocks without any weight are left out.
        """
        alpha = self.parts.attention.alpha
        keys_step, queries_step = self._steps()
        # With W_1 folded into the output weights, each key and head needs only one small product.
        folded, folded_gate = self._first(self.parts.output)
        weights_first, weights_carried = folded.to(self.dtype), self.carried.output.to(self.dtype)
        weights_gate = None if folded_gate is None else folded_gate.to(self.dtype)
        columns, rows = _cut(alpha.shape[3], keys_step), _cut(alpha.shape[2], queries_step)
        # A causal mask leaves blocks empty; read which from the device in one transfer.
        filled = torch.stack([alpha[:, :, i, j].any() for j in columns for i in rows]).tolist()
        for number, j in enumerate(columns):
            value = self.parts.attention.value[:, :, j]
            first = _by_key(value, weights_first)
            gate = None if weights_gate is None else _by_key(value, weights_gate)
            carried = _by_key(value, weights_carried)
            for i, any_weight in zip(rows, filled[number * len(rows) :], strict=False):
                on = slice(max(i.start, j.start), min(i.stop, j.stop))
                if on.start >= on.stop and not any_weight:
                    continue
                weights = alpha[:, :, i, j].permute(0, 3, 2, 1).to(self.dtype)  # key query head
                into = weights * self._weight(self.parts, i)
                kept = (weights * self._weight(self.carried, i)) @ carried
                inner, inner_gate = into @ first, None if gate is None else into @ gate
                if own is not None and on.start < on.stop:
                    _meeting(inner, i, j).add_(own[0][:, on])
                    _meeting(kept, i, j).add_(self.carried.residual_alone[:, on])
                    if inner_gate is not None and own[1] is not None:
                        _meeting(inner_gate, i, j).add_(own[1][:, on])
                yield j, i, inner, inner_gate, kept

    def _vectors_at(self, stage: int) -> Callable[[Cells], Tensor]:
        """Return a function that builds the vectors of some cells, in float64."""

        def vectors(cells: Cells) -> Tensor:
            first, gate = self._first(self.parts.at(cells))
            carried = self.carried.at(cells)
            return self._stages(first, gate, carried, lambda s: s[cells.row, cells.i])[stage]

        return vectors


def _by_key(value: Tensor, weight: Tensor) -> Float[Tensor, "batch key head out"]:
    return head_vectors(value, weight).permute(1, 2, 0, 3)


def _cut(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _meeting(
    vectors: Float[Tensor, "batch keys rows out"], i: slice, j: slice
) -> Float[Tensor, "batch on out"]:
    """Return a view of where a query of block i meets itself among the keys of block j."""
    on = slice(max(i.start, j.start), min(i.stop, j.stop))
    keys, rows = (slice(on.start - x.start, on.stop - x.start) for x in (j, i))
    return vectors[:, keys, rows].diagonal(dim1=1, dim2=2).transpose(1, 2)
