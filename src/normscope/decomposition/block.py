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

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from normscope.capture import Capture
from normscope.layouts import NormParameters
from normscope.shapes import Float

Linear = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Norm:
    """A normalisation whose σ is held at what the whole vector gave it, biases included."""

    parameters: NormParameters
    sigma: Float[Tensor, "batch query"]

    @classmethod
    def at(cls, parameters: NormParameters, given: Float[Tensor, "batch query hidden"]) -> Norm:
        """The norm as it acted on ``given``."""
        return cls(parameters, parameters.sigma(given.double()).squeeze(-1))

    def linear(self, vectors: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        """γ ⊙ (v − mean v): the part that is the same for all queries."""
        centred, scale = self.parameters.centre(vectors), self.parameters.scale
        return centred if scale is None else centred * scale.to(vectors.dtype)

    def __call__(self, vectors: Float[Tensor, "batch query hidden"]) -> Tensor:
        """The linear part divided by each query's σ; β belongs to no vector."""
        return self.linear(vectors) / self.sigma.to(vectors.dtype).unsqueeze(-1)

    def bias(self, bias: Float[Tensor, "batch query hidden"]) -> Tensor:
        """What belongs to no token, β included."""
        made, beta = self(bias), self.parameters.bias
        return made if beta is None else made + beta.to(made.dtype)


@dataclass(frozen=True, eq=False)
class Parts:
    """Every key's vector for every query, in factored form; float64."""

    captured: Capture
    linear: tuple[Linear, ...]  # L, its steps in order
    weight: Float[Tensor, "batch query"]  # w_i
    own: Float[Tensor, "batch query hidden"]  # own_i
    mixed: Float[Tensor, "batch query hidden"]  # Σ_j w_i Σ_h α L f_h(x_j), own left out
    bias: Float[Tensor, "batch query hidden"]
    separate: bool  # own is a column of its own

    @classmethod
    def of_attention(cls, captured: Capture) -> Parts:
        """s_ij: attention alone."""
        whole = captured.reconstruct().double()
        bias = torch.zeros_like(whole)
        if captured.projection.bias is not None:
            bias += captured.projection.bias.double()
        ones = torch.ones_like(whole[..., 0])
        cross = captured.kind == "cross"
        return cls(captured, (), ones, torch.zeros_like(whole), whole - bias, bias, cross)

    def norm(self, norm: Norm) -> Parts:
        """Through a normalisation."""
        return replace(
            self,
            linear=(*self.linear, norm.linear),
            weight=self.weight / norm.sigma,
            own=norm(self.own),
            mixed=norm(self.mixed),
            bias=norm.bias(self.bias),
        )

    def scaled(self, factor: Tensor | float) -> Parts:
        """Through a fixed multiplier of the branch."""

        def times(vectors: Tensor) -> Tensor:
            return vectors * factor

        return replace(
            self,
            linear=(*self.linear, times),
            own=times(self.own),
            mixed=times(self.mixed),
            bias=times(self.bias),
        )

    def residual(self, states: Float[Tensor, "batch query hidden"]) -> Parts:
        """The residual connection: the query's own state, on the diagonal only."""
        return replace(self, own=self.own + states.double())

    # ---- what can be read off

    def transform(self, vectors: Tensor) -> Tensor:
        """L v."""
        for step in self.linear:
            vectors = step(vectors)
        return vectors

    @cached_property
    def output(self) -> Float[Tensor, "head head_size hidden"]:
        """L W_O: what turns a key's values into its vectors, in float64."""
        return self.transform(self.captured.projection.wide)

    def cells(self, i: Tensor, j: Tensor) -> Float[Tensor, "batch cell hidden"]:
        """v_ij at some cells (batch, cell), straight from the definition; no own column."""
        captured = self.captured
        row = torch.arange(len(i), device=i.device).unsqueeze(1)
        alpha = captured.alpha[row, :, i, j].double()
        value = captured.value[row, :, j].double()
        value = value.repeat_interleave(alpha.shape[-1] // value.shape[-2], dim=-2)
        weight = captured.projection.wide
        made = torch.einsum("bch,bche,heo->bco", alpha, value, weight)
        made = self.weight[row, i].unsqueeze(-1) * self.transform(made)
        return made if self.separate else made + self.own[row, i] * (i == j).unsqueeze(-1)
