"""Attention, residual and normalisation as one sum (Kobayashi et al., EMNLP 2021).

The vector that key j adds to query i stays, up to the feed-forward's activation, of the form

    v_ij = w_i · Σ_h α_ij^h L f_h(x_j) + δ_ij · own_i

with L linear and the same for all queries, w_i a number, and own_i what reached the diagonal
through residual connections. A norm with fixed σ_i appends γ ⊙ (v − mean v) to L and divides w_i
and own_i by σ_i. So no (query, key, hidden) array is needed: lengths off the diagonal come from a
Gram matrix for each key, the diagonal and the sums over keys from arrays of (query, hidden) size.
What belongs to no token (b_O, γ(b_O − mean b_O)/σ, β) is carried along as ``bias``.

In cross-attention the residual is the decoder's own state, which is not a key of the source:
``own`` is then an extra column, the last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from normscope.decomposition.attention import AttentionDecomposition
from normscope.decomposition.cells import Cells
from normscope.decomposition.norms import NormParameters
from normscope.foundation.shapes import Float
from normscope.kernels import Linear


@dataclass(frozen=True, eq=False)
class Norm:
    """A normalisation with σ fixed at its value for the whole vector, biases included."""

    parameters: NormParameters
    inputs: Float[Tensor, "batch query hidden"]  # the vectors that it normalised

    @cached_property
    def sigma(self) -> Float[Tensor, "batch query"]:
        """σ_i, computed for a block of queries at a time."""
        wide = torch.promote_types(self.inputs.dtype, torch.float32)
        step = max(1, 2**24 // self.inputs[:, :1].numel())
        sigmas = [
            self.parameters.sigma(block.to(wide)).squeeze(-1)
            for block in self.inputs.split(step, dim=1)
        ]
        return sigmas[0] if len(sigmas) == 1 else torch.cat(sigmas, dim=1)

    @cached_property
    def linear(self) -> Linear:
        """γ ⊙ (v − mean v): the part that is the same for all queries."""
        return Linear(self.parameters.centred, self.parameters.scale)

    def __call__(
        self, vectors: Float[Tensor, "*stack batch query hidden"], out: Tensor | None = None
    ) -> Tensor:
        """Return the linear part divided by each query's σ; β belongs to no vector."""
        sigma = self.sigma.to(vectors.dtype).unsqueeze(-1)
        return torch.div(self.linear(vectors, out=out), sigma, out=out)

    def bias(self, bias: Float[Tensor, "*batch *query hidden"] | None) -> Tensor | None:
        """Return what belongs to no token after the norm, β included."""
        beta = self.parameters.bias
        if bias is None:
            return None if beta is None else beta.double().expand(1, 1, -1)
        normed = self(bias)
        return normed if beta is None else normed.add_(beta)


@dataclass(frozen=True, eq=False)
class Parts:
    """Every key's vector for every query, in factored form."""

    attention: AttentionDecomposition
    linear: tuple[Linear, ...]  # L, its steps in order
    weight: Float[Tensor, "batch query"] | float  # w_i
    own: Float[Tensor, "batch query hidden"] | None  # v_ii, or the residual's column; None: zero
    others: Float[Tensor, "batch query hidden"]  # Σ_j v_ij over the other keys
    bias: Float[Tensor, "*batch *query hidden"] | None

    @classmethod
    def of_attention(cls, attention: AttentionDecomposition) -> Parts:
        """Return s_ij: attention alone."""
        bias = attention.bias
        bias = None if bias is None else bias.to(attention.others).expand(1, 1, -1)
        return cls(attention, (), 1.0, attention.own, attention.others, bias)

    def norm(self, norm: Norm) -> Parts:
        """Return the parts after a normalisation."""
        both = [self.others] if self.own is None else [self.others, self.own]
        name, shape = f"normed {len(self.linear)}", (len(both), *self.others.shape)
        stacked = self.attention.scratch.take(name, shape, self.others, self.others.dtype)
        others, *own = norm(torch.stack(both, out=stacked), out=stacked)
        return replace(
            self,
            linear=(*self.linear, norm.linear),
            weight=self.weight / norm.sigma,
            own=own[0] if own else None,
            others=others,
            bias=norm.bias(self.bias),
        )

    def scaled(self, scale: Linear) -> Parts:
        """Return the parts after a fixed multiplier of the branch."""
        return replace(
            self,
            linear=(*self.linear, scale),
            own=None if self.own is None else scale(self.own),
            others=scale(self.others),
            bias=None if self.bias is None else scale(self.bias),
        )

    def residual(self, states: Float[Tensor, "batch query hidden"]) -> Parts:
        """Return the parts with the query's own state added, on the diagonal only."""
        own = states.to(self.others.dtype) if self.own is None else self.own + states
        return replace(self, own=own)

    # ---- reading

    @property
    def separate(self) -> bool:
        """Whether the query's own state is a column of its own."""
        return self.attention.own is None

    def whole(self) -> Float[Tensor, "batch query hidden"]:
        """Return Σ_j v_ij, without the bias."""
        return self.others if self.own is None else self.others + self.own

    def difference(
        self, real: Float[Tensor, "batch query hidden"]
    ) -> Float[Tensor, "batch query hidden"]:
        """Return all parts and the bias, less the model's own state."""
        if not self.linear and self.own is self.attention.own:
            return self.attention.reconstructed - real  # attention alone, before it is split
        difference = self.others - real
        for part in (self.own, self.bias):
            difference = difference if part is None else difference.add_(part)
        return difference

    @cached_property
    def residual_alone(self) -> Float[Tensor, "batch query hidden"]:
        """What reached the diagonal through residual connections."""
        own = torch.zeros_like(self.others) if self.own is None else self.own
        if self.attention.own is None:
            return own
        return own - self._weighted(self.transform(self.attention.own))

    def _weighted(self, vectors: Float[Tensor, "batch query hidden"]) -> Tensor:
        weight = self.weight
        return vectors * (weight.unsqueeze(-1) if isinstance(weight, Tensor) else weight)

    def transform(self, vectors: Tensor) -> Tensor:
        """Return L v."""
        for step in self.linear:
            vectors = step(vectors)
        return vectors

    @property
    def output(self) -> Float[Tensor, "head head_size hidden"]:
        """L W_O: what turns a key's values into its vectors, in float64."""
        return self.transform(self.attention.weight)

    def at(self, cells: Cells) -> Float[Tensor, "batch cell hidden"]:
        """Return v_ij at some cells, from the definition; the residual's column has no cells."""
        vectors, weight = self.transform(cells.vectors.sum(dim=2)), self.weight
        if isinstance(weight, Tensor):
            vectors = weight[cells.row, cells.i].unsqueeze(-1) * vectors
        if self.separate:
            return vectors
        on_diagonal = (cells.i == cells.j).unsqueeze(-1)
        return vectors + self.residual_alone[cells.row, cells.i] * on_diagonal


def length(vectors: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows"]:
    """Return ‖v‖ in float64.

    The squares are added pairwise: torch's own norm adds them one after another and loses a digit.
    """
    return torch.linalg.vecdot(vectors, vectors).sqrt().double()
