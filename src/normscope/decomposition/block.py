"""Attention, residual and normalisation as one sum (Kobayashi et al., EMNLP 2021).

The vector that key j adds to query i stays, up to the feed-forward's activation, of the form

    v_ij = w_i · Σ_h α_ij^h L f_h(x_j) + δ_ij · own_i

with L linear and the same for all queries, w_i a number, and own_i what reached the diagonal
through residual connections. A norm whose σ_i is held fixed adds γ ⊙ (v − mean v) to L and divides
w_i and own_i by σ_i. So no (query, key, hidden) array is needed: lengths off the diagonal come from
a Gram matrix for each key, the diagonal and the sums over keys from arrays of (query, hidden) size.
What belongs to no token (b_O, γ(b_O − mean b_O)/σ, β) is carried along as ``bias``.

In cross-attention the residual is the decoder's own state and no key of the source: ``own`` is then
a column of its own, the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from normscope.decomposition.attention import TINY, AttentionDecomposition, Cells
from normscope.decomposition.norms import NormParameters
from normscope.foundation.shapes import Float
from normscope.kernels import Linear


@dataclass(frozen=True, eq=False)
class Norm:
    """A normalisation whose σ is held at what the whole vector gave it, biases included."""

    parameters: NormParameters
    given: Float[Tensor, "batch query hidden"]  # what it acted on

    @cached_property
    def sigma(self) -> Float[Tensor, "batch query"]:
        """What it divided by, a block of queries at a time."""
        given, sigma = self.given, self.parameters.sigma
        wide = torch.promote_types(given.dtype, torch.float32)
        step = max(1, 2**24 // given[:, :1].numel())
        made = [sigma(part.to(wide)).squeeze(-1) for part in given.split(step, dim=1)]
        return made[0] if len(made) == 1 else torch.cat(made, dim=1)

    @cached_property
    def linear(self) -> Linear:
        """γ ⊙ (v − mean v): the part that is the same for all queries."""
        return Linear(self.parameters.centred, self.parameters.scale)

    def __call__(
        self, vectors: Float[Tensor, "*stack batch query hidden"], out: Tensor | None = None
    ) -> Tensor:
        """The linear part divided by each query's σ; β belongs to no vector."""
        sigma = self.sigma.to(vectors.dtype).unsqueeze(-1)
        return torch.div(self.linear(vectors, out=out), sigma, out=out)

    def bias(self, bias: Float[Tensor, "*batch *query hidden"] | None) -> Tensor | None:
        """What belongs to no token, β included."""
        beta = self.parameters.bias
        if bias is None:
            return None if beta is None else beta.double().expand(1, 1, -1)
        made = self(bias)
        return made if beta is None else made.add_(beta)


@dataclass(frozen=True, eq=False)
class Parts:
    """Every key's vector for every query, in factored form."""

    alone: AttentionDecomposition
    linear: tuple[Linear, ...]  # L, its steps in order
    weight: Float[Tensor, "batch query"] | float  # w_i
    own: Float[Tensor, "batch query hidden"] | None  # v_ii, or the residual's column; None: zero
    others: Float[Tensor, "batch query hidden"]  # Σ_j v_ij over the other keys
    bias: Float[Tensor, "*batch *query hidden"] | None

    @classmethod
    def of_attention(cls, alone: AttentionDecomposition) -> Parts:
        """s_ij: attention alone."""
        bias = None if alone.bias is None else alone.bias.to(alone.others).expand(1, 1, -1)
        return cls(alone, (), 1.0, alone.own, alone.others, bias)

    def norm(self, norm: Norm) -> Parts:
        """Through a normalisation."""
        both = [self.others] if self.own is None else [self.others, self.own]
        name, shape = f"normed {len(self.linear)}", (len(both), *self.others.shape)
        stacked = self.alone.scratch.take(name, shape, self.others, self.others.dtype)
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
        """Through a fixed multiplier of the branch."""
        return replace(
            self,
            linear=(*self.linear, scale),
            own=None if self.own is None else scale(self.own),
            others=scale(self.others),
            bias=None if self.bias is None else scale(self.bias),
        )

    def residual(self, states: Float[Tensor, "batch query hidden"]) -> Parts:
        """The residual connection: the query's own state, on the diagonal only."""
        own = states.to(self.others.dtype) if self.own is None else self.own + states
        return replace(self, own=own)

    # ---- what can be read off

    @property
    def separate(self) -> bool:
        """Whether the query's own state is a column of its own."""
        return self.alone.own is None

    def whole(self) -> Float[Tensor, "batch query hidden"]:
        """Σ_j v_ij, without the bias."""
        return self.others if self.own is None else self.others + self.own

    @cached_property
    def residual_alone(self) -> Float[Tensor, "batch query hidden"]:
        """What reached the diagonal through residual connections."""
        own = torch.zeros_like(self.others) if self.own is None else self.own
        if self.alone.own is None:
            return own
        return own - self._weighted(self.transform(self.alone.own))

    def _weighted(self, vectors: Float[Tensor, "batch query hidden"]) -> Tensor:
        weight = self.weight
        return vectors * (weight.unsqueeze(-1) if isinstance(weight, Tensor) else weight)

    def transform(self, vectors: Tensor) -> Tensor:
        """L v."""
        for step in self.linear:
            vectors = step(vectors)
        return vectors

    @property
    def output(self) -> Float[Tensor, "head head_size hidden"]:
        """L W_O: what turns a key's values into its vectors, in float64."""
        return self.transform(self.alone.weight)

    def cells(self, cells: Cells) -> Float[Tensor, "batch cell hidden"]:
        """v_ij at some cells, straight from the definition; no own column."""
        made, weight = self.transform(cells.vectors.sum(dim=2)), self.weight
        if isinstance(weight, Tensor):
            made = weight[cells.row, cells.i].unsqueeze(-1) * made
        if self.separate:
            return made
        return made + self.residual_alone[cells.row, cells.i] * (cells.i == cells.j).unsqueeze(-1)


def length(vectors: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows"]:
    """‖v‖. Squares are added up in pairs: torch's norm adds one to the other, and loses a digit."""
    return torch.linalg.vecdot(vectors, vectors).sqrt().double()


@dataclass(frozen=True, eq=False)
class Known:
    """Lengths of (query, hidden) vectors of one scope, (batch, query) each."""

    own: Tensor  # ‖v_ii‖, or of the residual's column
    others: Tensor
    bias: Tensor
    difference: Tensor  # of the parts and the bias to the model's own state
    weight: Tensor | float  # w_i

    @classmethod
    def of(cls, parts: Parts, real: Float[Tensor, "batch query hidden"]) -> Known:
        """By torch's operations."""
        others = length(parts.others)
        none = torch.zeros_like(others)
        if parts.linear or parts.own is not parts.alone.own:
            away = parts.others - real
            for part in (parts.own, parts.bias):
                away = away if part is None else away.add_(part)
        else:  # attention alone: as it was before it was parted
            away = parts.alone.reconstructed - real
        return cls(
            none if parts.own is None else length(parts.own),
            others,
            none if parts.bias is None else length(parts.bias) + none,
            length(away),
            parts.weight,
        )


@dataclass(frozen=True, eq=False)
class Factored:
    """A scope without an activation: its vectors' lengths, and which Gram matrices are its own."""

    alone: AttentionDecomposition
    level: int
    known: Known
    residual: bool  # whether a residual connection has been passed
    cells: Callable[[Cells], Tensor]  # v_ij at some cells, the slow way

    @property
    def keys(self) -> int:
        """How many, the residual's column included."""
        return self.alone.captured.shape[3] + self._column

    @property
    def _column(self) -> bool:
        return self.residual and self.alone.own is None

    def mixing_ratio(self) -> Float[Tensor, "batch query"]:
        """‖others‖ / (‖others‖ + ‖own‖)."""
        return self.known.others / (self.known.others + self.known.own).clamp_min(TINY)

    def rows(
        self, here: slice, norms: Sequence[Float[Tensor, "batch rows key"]]
    ) -> Float[Tensor, "batch rows keys"]:
        """The lengths of some queries, from those of L Σ_h αf."""
        made, weight = norms[self.level], self.known.weight
        if isinstance(weight, Tensor):
            made = made * weight[:, here].unsqueeze(-1)
        if not self.residual:
            return made
        own = self.known.own[:, here]
        if self._column:
            return torch.cat([made, own.unsqueeze(-1)], dim=-1)
        made = made if isinstance(weight, Tensor) else made.clone()
        made.diagonal(offset=here.start, dim1=-2, dim2=-1).copy_(own)
        return made
