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
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from normscope.decomposition.block import Norm, Parts, length
from normscope.decomposition.cells import Cells
from normscope.decomposition.gated import GatedDecomposition
from normscope.decomposition.maps import ScopeMap
from normscope.decomposition.scopes import Scope
from normscope.foundation.shapes import Float
from normscope.kernels import (
    CellLinear,
    CellSums,
    Kernels,
    Linear,
    Scratch,
    cell_lengths,
    head_vectors,
    scaled_sums,
    sum_over_keys,
)
from normscope.linearisation.activations import Activation, gated_shares, secant

FFBias = Literal["path", "fixed"]
FF_BIASES: tuple[FFBias, ...] = ("path", "fixed")
CELLS = {"cpu": 512}  # of a block; more than fit into the cache make a CPU wait for its memory
QUERIES = {"cpu": 64}  # of a block; the smaller, the more blocks a causal mask leaves empty
FEW_BLOCKS = 4


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
        real. The vectors that leave W_2 are added up over the keys, cell by cell; the linear steps
        that follow are applied to the sum. So the difference to the model's state proves the cells.
        """
        separate, residual = self.parts.separate, self.carried.residual_alone
        norms, own, total, kept = self._cells()
        if separate:
            own = self._through(*self._first(self.parts.residual_alone), lambda state: state)
            total += own
        whole = self._stages(total, kept + residual, lambda state: state)
        itself = residual if separate or self.carried.own is None else self.carried.own
        own_stages = self._stages(own, itself, lambda state: state)
        for lengths, vectors in zip(norms, own_stages, strict=True):
            column = lengths[..., -1] if separate else lengths.diagonal(dim1=1, dim2=2)
            column.copy_(length(vectors))
        return [
            self._map(stage, scope, norms[stage], own_stages[stage], whole[stage], real, keys)
            for stage, scope in enumerate(scopes)
        ]

    def _cells(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Build the vectors of all cells, a block at a time.

        Returns their lengths (stage, batch, query, key); and, (batch, query, out) each, the
        vectors from W_2 where a query meets itself, the sum of these vectors over the keys, and the
        sum of what is carried, without the residual. The lengths on the diagonal are those before
        the residual is added to what is carried, and the residual's column is left empty.
        """
        alpha, separate = self.parts.attention.alpha, self.parts.separate
        batch, _, queries, keys = alpha.shape
        stages, out = 2 + (self.after is not None), self.weights.second.shape[1]
        norms = alpha.new_zeros((stages, batch, queries, keys + separate), dtype=torch.float64)
        own, total, kept = alpha.new_zeros((3, batch, queries, out), dtype=torch.float64)
        factors = [
            f.to(self.dtype) for f in (self._shares.first, self._shares.gate) if f is not None
        ]
        own_first = None if separate else self._own_first(factors)
        second = self.weights.second.to(self.dtype)
        scratch, kernels = Scratch(), self._kernels
        for rows, j, i, first, carried in self._blocks():
            inner = scaled_sums(first, [f[rows, i] for f in factors], scratch, kernels)
            on = slice(max(i.start, j.start), min(i.stop, j.stop))
            meets = own_first is not None and on.start < on.stop
            if own_first is not None and meets:
                _meeting(inner, i, j).add_(own_first[rows, on])
            vectors = scratch.take("vectors", (*inner.shape[:3], out), inner, self.dtype)
            torch.mm(inner.flatten(0, 2), second, out=vectors.flatten(0, 2))
            total[rows, i] += vectors.sum(dim=1)
            kept[rows, i] += sum_over_keys(carried)
            if meets:
                own[rows, on] = _meeting(vectors, i, j).double()
            branch, after = (_of_queries(step, rows, i) for step in self._linear_steps)
            lengths = cell_lengths(vectors, branch, carried, after, kernels)
            norms[:, rows, i, j] = lengths.transpose(-1, -2).double()
        return norms, own, total, kept

    def _map(
        self,
        stage: int,
        scope: Scope,
        norms: Tensor,
        own: Tensor,
        total: Tensor,
        real: Callable[[str], Tensor],
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
            difference=(whole - real(scope.name)).norm(dim=-1),
            column=self.parts.separate,
            vectors_at=self._vectors_at(stage),
            values=norms,
            sums=norms.sum(dim=-1),
        )

    def _through(
        self, first: Tensor, gate: Tensor | None, of: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the vectors that leave W_2, from the summands of the pre-activation.

        ``of`` selects the entries of these summands' queries from a (batch, query, …) array.
        """
        inner = first * of(self._shares.first).to(first.dtype)
        if gate is not None and self._shares.gate is not None:
            inner = inner + gate * of(self._shares.gate).to(first.dtype)
        return inner @ self.weights.second.to(first.dtype)

    def _stages(
        self, vectors: Tensor, carried: Tensor, of: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        """Return each scope's vectors, from those that leave W_2; ``of`` as in ``_through``."""
        dtype = vectors.dtype
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
    def _linear_steps(self) -> tuple[CellLinear | None, CellLinear | None]:
        """The steps between W_2 and the sum with the residual, and those after it."""
        scale = None if self.scale is None else self.scale.scale
        return self._linear_step(self.branch, scale), self._linear_step(self.after, None)

    def _linear_step(self, norm: Norm | None, scale: Tensor | None) -> CellLinear | None:
        if norm is None and scale is None:
            return None
        gamma = None if norm is None else norm.linear.scale
        factors = [factor.double() for factor in (scale, gamma) if factor is not None]
        factor: Tensor | None = None
        if factors:
            product = factors[0] if len(factors) == 1 else factors[0] * factors[1]
            size = self.weights.second.shape[1]
            factor = product.to(self.dtype).expand(size).contiguous()
        weight = None if norm is None else norm.sigma.double().reciprocal().to(self.dtype)
        return CellLinear(norm is not None and norm.linear.centred, factor, weight)

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

    def _own_first(self, factors: Sequence[Tensor]) -> Tensor:
        """Return what the residual adds to the input of W_2 where a query meets itself."""
        summands = self._first(self.parts.residual_alone.to(self._small))
        terms = zip((s for s in summands if s is not None), factors, strict=True)
        products = [summand.to(self.dtype) * factor for summand, factor in terms]
        return products[0] if len(products) == 1 else products[0] + products[1]

    @property
    def _kernels(self) -> Kernels:
        """Which kernels to use; those for a GPU read one vector for each key and head."""
        attention = self.parts.attention
        return "torch" if isinstance(attention, GatedDecomposition) else attention.kernels

    @property
    def _small(self) -> torch.dtype:
        """The dtype of the products that cells share; a CPU needs twice the time in float64."""
        on_cpu = self.parts.attention.alpha.device.type == "cpu"
        return self.dtype if on_cpu else torch.float64

    def _steps(self) -> tuple[int, int, int, int]:
        """Return the size of blocks: texts, keys with their head vectors, keys and queries.

        Half of the memory is for the head vectors of some keys, half for the cells of a block. On a
        CPU the cells of a block stay in its cache.
        """
        batch, heads, queries, keys = self.parts.attention.alpha.shape
        inner = self.weights.first.shape[1] * (1 if self.weights.gate is None else 2)
        out = self.weights.second.shape[1]
        device = self.parts.attention.alpha.device.type
        texts = 1 if device == "cpu" else batch
        half = self.memory // 2 // (texts * self.dtype.itemsize)
        with_vectors = min(keys, max(1, half // (heads * (inner + 2 * out))))
        cells = max(1, min(half // (inner + 2 * out), CELLS.get(device, half)))
        queries_step = min(queries, cells, QUERIES.get(device, 256))
        return texts, with_vectors, min(with_vectors, max(1, cells // queries_step)), queries_step

    def _blocks(self) -> Iterator[tuple[slice, slice, slice, list[CellSums], CellSums]]:
        """Yield blocks of texts, keys and queries: the summands of W_1's outputs, what is carried.

        Both are without the residual. Blocks without any weight, which a causal mask leaves, are
        left out if no query meets itself there.
        """
        attention = self.parts.attention
        if isinstance(attention, GatedDecomposition):
            yield from self._gated_blocks(attention)
            return
        batch, _, queries, keys = attention.alpha.shape
        texts, with_vectors, keys_step, queries_step = self._steps()
        # With W_1 folded into the output weights, each key and head needs only one small product.
        folded = self._first(self.parts.output.to(self._small))
        weights = [f.to(self.dtype) for f in (*folded, self.carried.output) if f is not None]
        columns = [_cut(cut, keys_step) for cut in _cut(slice(0, keys), with_vectors)]
        rows = _cut(slice(0, queries), queries_step)
        filled = _filled(attention.alpha, [j for cut in columns for j in cut], rows)
        for text in _cut(slice(0, batch), texts):
            for cut in columns:
                span = slice(cut[0].start, cut[-1].stop)
                vectors = [_by_key(attention.value[text, :, span], weight) for weight in weights]
                into, kept = self._weights(text, span)
                for j, i in ((j, i) for j in cut for i in rows):
                    on_diagonal = max(i.start, j.start) < min(i.stop, j.stop)
                    if not on_diagonal and not filled[j.start, i.start]:
                        continue
                    at = slice(j.start - span.start, j.stop - span.start)
                    *first, carried = (
                        CellSums(by_head[:, at, :, i], v[:, at])
                        for by_head, v in zip(
                            (into,) * (len(vectors) - 1) + (kept,), vectors, strict=True
                        )
                    )
                    yield text, j, i, first, carried

    def _gated_blocks(
        self, attention: GatedDecomposition
    ) -> Iterator[tuple[slice, slice, slice, list[CellSums], CellSums]]:
        """Yield the same blocks where an elementwise gate makes the vectors depend on the query."""
        batch, _, queries, keys = attention.captured.shape
        texts, with_vectors, keys_step, queries_step = self._steps()
        folded = [f for f in self._first(self.parts.output.to(self._small)) if f is not None]
        rows = [f.flatten(0, 1).to(self.dtype) for f in (*folded, self.carried.output)]
        owners = [*[self.parts] * len(folded), self.carried]
        for text in _cut(slice(0, batch), texts):
            for j in _cut(slice(0, keys), min(keys_step, with_vectors)):
                for i in _cut(slice(0, queries), queries_step):
                    weights = attention.cell_weights(text, j, i).to(self.dtype)
                    sums = []
                    for parts, weight in zip(owners, rows, strict=True):
                        factor = parts.weight
                        if isinstance(factor, Tensor):
                            factor = factor[text, None, None, i].to(weights)
                        vectors = weight.expand(*weights.shape[:2], *weight.shape)
                        sums.append(CellSums(weights * factor, vectors))
                    *first, carried = sums
                    yield text, j, i, first, carried

    def _weights(self, text: slice, span: slice) -> tuple[Tensor, Tensor]:
        """Return the weights of some keys' head vectors, before W_1 and in what is carried."""
        alpha = self.parts.attention.alpha[text, :, :, span].to(self.dtype)
        alpha = alpha.permute(0, 3, 1, 2).contiguous()  # text key head query

        def weighted(parts: Parts) -> Tensor:
            weight = parts.weight
            if not isinstance(weight, Tensor):
                return alpha if weight == 1 else alpha * weight
            return alpha * weight[text, None, None].to(self.dtype)

        into = weighted(self.parts)
        return into, into if self.carried is self.parts else weighted(self.carried)

    def _vectors_at(self, stage: int) -> Callable[[Cells], Tensor]:
        """Return a function that builds the vectors of some cells, in float64."""

        def vectors(cells: Cells) -> Tensor:
            first, gate = self._first(self.parts.at(cells))
            through = self._through(first, gate, lambda state: state[cells.row, cells.i])
            carried = self.carried.at(cells)
            return self._stages(through, carried, lambda state: state[cells.row, cells.i])[stage]

        return vectors


def _by_key(value: Tensor, weight: Tensor) -> Float[Tensor, "batch key head out"]:
    return head_vectors(value, weight).permute(1, 2, 0, 3).contiguous()


def _of_queries(step: CellLinear | None, rows: slice, i: slice) -> CellLinear | None:
    if step is None or step.weight is None:
        return step
    return replace(step, weight=step.weight[rows, i])


def _cut(whole: slice, step: int) -> list[slice]:
    """Cut a slice into parts of almost the same length, ``step`` at most."""
    size = whole.stop - whole.start
    even = -(-size // max(1, -(-size // step)))
    starts = range(whole.start, whole.stop, max(1, even))
    return [slice(start, min(start + even, whole.stop)) for start in starts]


def _filled(
    alpha: Float[Tensor, "batch head query key"], columns: Sequence[slice], rows: Sequence[slice]
) -> dict[tuple[int, int], bool]:
    """Tell which blocks have any weight, by the first key and query; one transfer from a device."""
    blocks = [(j, i) for j in columns for i in rows]
    names = [(j.start, i.start) for j, i in blocks]
    if len(blocks) <= FEW_BLOCKS:  # the device would wait for the answer
        return dict.fromkeys(names, True)
    weighted = alpha.ne(0).flatten(0, 1).any(dim=0)
    answers = torch.stack([weighted[i, j].any() for j, i in blocks]).tolist()
    return dict(zip(names, answers, strict=True))


def _meeting(
    vectors: Float[Tensor, "batch keys rows out"], i: slice, j: slice
) -> Float[Tensor, "batch on out"]:
    """Return a view of where a query of block i meets itself among the keys of block j."""
    on = slice(max(i.start, j.start), min(i.stop, j.stop))
    keys, rows = (slice(on.start - x.start, on.stop - x.start) for x in (j, i))
    return vectors[:, keys, rows].diagonal(dim1=1, dim2=2).transpose(1, 2)
