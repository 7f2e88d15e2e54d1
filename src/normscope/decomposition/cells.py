"""Cells of a map that are computed a second time, directly from the definition.

Completeness alone does not reveal every mistake: the sum is right even if the residual is added to
the wrong cells. So a few random cells of some layers are built as whole vectors, and their gap to
the fast form counts in the error.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normscope.foundation.shapes import Bool, Float, Int

TINY = torch.finfo(torch.float64).tiny
NEGLIGIBLE = 1e-6  # of a row: rounding of smaller numbers is measured relative to this
CELLS = 2  # checked in each row of a batch and each layer
DRAWS = 64  # layers with cells of their own; later layers reuse these


@dataclass(eq=False)
class Positions:
    """Which queries and keys of a batch are real, and random cells among them for spot checks."""

    queries: Bool[Tensor, "batch query"]
    keys: Bool[Tensor, "batch key"]
    every: int = 1  # check the cells of one layer in this many

    def cells(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Return (batch, CELLS) queries and keys to spot-check in this layer, or None."""
        if layer % self.every:
            return None
        queries, keys = self._drawn
        return queries[layer % DRAWS], keys[layer % DRAWS]

    def drawn_queries(self, layer: int) -> Int[Tensor, "batch cell"]:
        """Return queries of each row whose projection is checked in this layer."""
        return self._drawn[0][layer % DRAWS]

    @cached_property
    def _drawn(self) -> tuple[Tensor, Tensor]:
        return choose(self.queries, 0), choose(self.keys, 1)

    def to(self, device: torch.device) -> Positions:
        """Return the positions on another device."""
        if self.queries.device == device:
            return self
        return Positions(self.queries.to(device), self.keys.to(device), self.every)

    @classmethod
    def all(cls, shape: torch.Size, device: torch.device, every: int = 1) -> Positions:
        """Return positions without padding for weights of shape (batch, head, query, key)."""
        batch, _, queries, keys = shape
        real = [torch.ones(batch, n, dtype=torch.bool, device=device) for n in (queries, keys)]
        return cls(real[0], real[1], every)


@dataclass(frozen=True, eq=False)
class Cells:
    """Some cells built from the definition: every head's vector αf as a whole, in float64."""

    row: Tensor
    i: Tensor  # (batch, cell)
    j: Tensor
    alpha: Float[Tensor, "batch cell head"]
    vectors: Float[Tensor, "batch cell head out"]
    context_gap: Float[Tensor, " batch"] | None  # if weights are recomputed from q and k
    scale: Float[Tensor, "batch cell head"] | None = None  # held, multiplies α

    def of(self, array: Tensor) -> Tensor:
        """Return the same cells of a (batch, …, query, key) map."""
        if array.dim() == 3:
            return array[self.row, self.i, self.j]
        return array.movedim(1, -1)[self.row, self.i, self.j]

    def gap(
        self,
        values: Float[Tensor, "batch cell *head"],
        *,
        weight: bool,
        sums: Float[Tensor, "batch query"] | None = None,
    ) -> Float[Tensor, " batch"]:
        """Return the worst gap of a map of attention alone, relative to the cell's parts.

        ``values`` are the map's own cells: weights (``weight=True``) or norms, with a head axis
        for maps of single heads. ``sums`` are those of all heads of the rows of norms. Parts count
        as at least a millionth of their row: weights far below that are rounded to few digits, or
        to zero.
        """
        parts = self.alpha if weight else self.vectors.norm(dim=-1)
        if values.dim() == 3:
            gaps = (values - parts).abs().amax(dim=-1)
        elif weight:
            gaps = (values - parts.mean(dim=-1)).abs()
        else:
            gaps = (values - self.vectors.sum(dim=2).norm(dim=-1)).abs()
        size = parts.abs().sum(dim=-1).clamp_min(NEGLIGIBLE * parts.shape[-1] if weight else TINY)
        if sums is not None and not weight:
            size = torch.maximum(size, NEGLIGIBLE * sums[self.row, self.i])
        return self._worst((gaps / size).amax(dim=-1))

    def gap_of_norms(self, norms: Float[Tensor, "batch head key"]) -> Float[Tensor, " batch"]:
        """Return the worst gap of ‖f_h(x_j)‖ to the vectors, relative to those of all heads."""
        lengths = self.vectors.norm(dim=-1)
        alpha = self.alpha if self.scale is None else self.alpha * self.scale
        gaps = (alpha.abs() * norms[self.row, :, self.j] - lengths).abs().amax(dim=-1)
        return (gaps / lengths.sum(dim=-1).clamp_min(TINY)).amax(dim=-1)

    def gap_to_vectors(
        self, values: Tensor, vectors: Tensor, parts: Tensor, mean: Float[Tensor, "batch query"]
    ) -> Float[Tensor, " batch"]:
        """Return the worst gap to the vectors' lengths.

        It is relative to the largest of the lengths, the row's mean, and ``parts``, the sum of the
        lengths of the heads' vectors, of which little is left where heads cancel.
        """
        lengths = vectors.norm(dim=-1)
        size = torch.maximum(lengths + mean[self.row, self.i], parts)
        return self._worst(((values - lengths).abs() / size.clamp_min(TINY)).amax(dim=-1))

    def _worst(self, gaps: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """Return the larger of the gaps and the gap of the weights they were computed from."""
        return gaps if self.context_gap is None else torch.maximum(gaps, self.context_gap)


@functools.cache  # recorded graphs read these numbers, so they are never freed
def _chances(batch: int, seed: int, device: torch.device) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(DRAWS, batch, CELLS, generator=draw, dtype=torch.float64).to(device)


def choose(real: Bool[Tensor, "batch position"], seed: int) -> Tensor:
    """Draw (DRAWS, batch, CELLS) positions among the real ones of each row, with replacement."""
    chance = _chances(real.shape[0], seed, real.device)
    count = real.sum(dim=1, keepdim=True)
    rank = (chance * count).long().clamp_max(count - 1)  # take the rank-th real position
    order = real.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return order.expand(DRAWS, -1, -1).gather(2, rank)
