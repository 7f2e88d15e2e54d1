"""Attention as a sum of weighted vectors (Kobayashi et al., EMNLP 2020).

    y_i = Σ_h Σ_j α_ij^h f_h(x_j) + b_O,      f_h(x_j) = (x_j W_V^h + b_V^h) W_O^h

b_V is part of f; b_O belongs to no token. The maps are α, ‖f‖, and ‖αf‖ for each head or for the
sum of the heads (the norm of the sum).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from normscope.capture import Capture
from normscope.kernels import Lengths, Linear, Scratch, weighted_norms
from normscope.shapes import Bool, Float

MAPS = ("attn_w", "attn_n")
Heads = Literal["sum", "each"]
HEADS: tuple[Heads, ...] = ("sum", "each")
# The largest relative gap to the model's own output that is rounding and not a mistake.
BOUNDS = {
    torch.float64: 1e-11,
    torch.float32: 1e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
TINY = torch.finfo(torch.float64).tiny
CELLS = 2  # of each row of a batch and each layer, computed again the slow way
DRAWS = 64  # layers with cells of their own


@dataclass(eq=False)
class Positions:
    """Which queries and keys of a batch are real, and random cells among them for spot checks."""

    queries: Bool[Tensor, "batch query"]
    keys: Bool[Tensor, "batch key"]

    def cells(self, layer: int) -> tuple[Tensor, Tensor]:
        """Queries and keys, (batch, CELLS), of the cells that a layer is judged by."""
        i, j = self._drawn
        return i[layer % DRAWS], j[layer % DRAWS]

    @cached_property
    def _drawn(self) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(0)
        return choose(self.queries, draw), choose(self.keys, draw)


@dataclass(frozen=True, eq=False)
class Cells:
    """Some cells the slow way: every head's vector αf built whole, in float64."""

    row: Tensor
    i: Tensor  # (batch, cell)
    j: Tensor
    alpha: Float[Tensor, "batch cell head"]
    vectors: Float[Tensor, "batch cell head out"]

    def of(self, array: Tensor) -> Tensor:
        """The same cells of a (batch, …, query, key) map."""
        return (
            array[self.row, self.i, self.j]
            if array.dim() == 3
            else array.movedim(1, -1)[self.row, self.i, self.j]
        )


class AttentionDecomposition:
    """One attention call, taken apart. Norms are float64; nothing of (query, key, hidden) size."""

    def __init__(self, captured: Capture, scratch: Scratch | None = None) -> None:
        self.captured = captured
        self.scratch = Scratch() if scratch is None else scratch
        self.alpha = captured.alpha
        self.value = captured.value
        self.bias = captured.projection.bias

    @cached_property
    def weight(self) -> Float[Tensor, "head head_size out"]:
        """W_O in float64."""
        return self.scratch.copy("weight", self.captured.projection.weight)

    @cached_property
    def lengths(self) -> Lengths:
        """Lengths of f and of Σ_h αf, and the vectors of the diagonal."""
        return self.measure(())

    def measure(self, chain: Sequence[Sequence[Linear]]) -> Lengths:
        """Also the lengths of L_1 Σ_h αf, L_2 L_1 Σ_h αf, …; kept as ``lengths``."""
        found = weighted_norms(self.alpha, self.value, self.weight, chain, self.scratch)
        self.__dict__["lengths"] = found
        return found

    @property
    def transformed_norm(self) -> Float[Tensor, "batch head key"]:
        """‖f_h(x_j)‖."""
        return self.lengths.single

    @cached_property
    def mean_weight(self) -> Float[Tensor, "batch query key"]:
        """α, the mean of the heads."""
        wide = torch.promote_types(self.alpha.dtype, torch.float32)
        return self.alpha.mean(dim=1, dtype=wide)

    def map(self, name: str, heads: Heads) -> Float[Tensor, "batch *head query key"]:
        """``attn_w`` or ``attn_n``; with a head axis for heads="each"."""
        if name == "attn_w" and heads == "sum":
            return self.mean_weight
        if name == "attn_w":
            return self.alpha.to(torch.promote_types(self.alpha.dtype, torch.float32))
        if heads == "sum":
            return self.lengths.summed[0]
        return self.alpha.double() * self.transformed_norm.unsqueeze(2)

    @cached_property
    def reconstructed(self) -> Float[Tensor, "batch query out"]:
        """Σ αf + b_O."""
        return self.captured.reconstruct()

    @cached_property
    def total(self) -> Float[Tensor, "batch query out"]:
        """Σ αf, in float64."""
        whole = self.reconstructed.double()
        return whole if self.bias is None else whole - self.bias

    def bias_share(self) -> Float[Tensor, "batch query"]:
        """‖b_O‖: what belongs to no token, the same for every query."""
        batch, _, queries, _ = self.alpha.shape
        if self.bias is None:
            return torch.zeros((batch, queries), dtype=torch.float64, device=self.alpha.device)
        return self.bias.double().norm().to(self.alpha.device).expand(batch, queries)

    @cached_property
    def gap(self) -> Float[Tensor, "batch query"]:
        """‖Σ αf + b_O − real output‖ relative to Σ_j ‖Σ_h αf‖ + ‖b_O‖, for each query."""
        difference = (self.reconstructed - self.captured.output).norm(dim=-1, dtype=torch.float64)
        size = self.lengths.summed[0].sum(dim=-1) + self.bias_share()
        return difference / size.clamp_min(TINY)

    def mixing_ratio(self, name: str) -> Float[Tensor, "batch query"]:
        """How much comes from the other tokens: of the weight, or of the sums' lengths."""
        if name == "attn_w":
            weights = self.mean_weight
            total = weights.sum(dim=-1)
            return total if self.own is None else total - weights.diagonal(dim1=-2, dim2=-1)
        return ratio(self.others, self.own)

    @property
    def own(self) -> Float[Tensor, "batch query out"] | None:
        """Σ_h αf of the query itself; None where no key is the query itself."""
        return None if self.captured.kind == "cross" else self.lengths.diagonal

    @cached_property
    def others(self) -> Float[Tensor, "batch query out"]:
        """Σ αf over all other tokens."""
        return self.total if self.own is None else self.total - self.own

    def at(self, i: Tensor, j: Tensor) -> Cells:
        """The vectors αf of some cells, (batch, cell) each, built whole."""
        row = torch.arange(len(self.alpha), device=self.alpha.device).unsqueeze(1)
        alpha = self.alpha[row, :, i, j].double()  # batch cell head
        value = self.value[row, :, j].double()
        if value.shape[-2] != alpha.shape[-1]:
            value = value.repeat_interleave(alpha.shape[-1] // value.shape[-2], dim=-2)
        rows = (alpha.unsqueeze(-1) * value).flatten(0, 1).transpose(0, 1)  # head (batch cell) e
        vectors = torch.bmm(rows, self.weight).transpose(0, 1).unflatten(0, i.shape)
        return Cells(row, i, j, alpha, vectors)

    def spot_check(
        self, made: Mapping[str, Tensor], heads: Heads, cells: Cells
    ) -> dict[str, Float[Tensor, " batch"]]:
        """For each map in ``made``, its worst gap to the definition at some cells of each row.

        The gap is relative to the sum of the norms of the cell's vectors.
        """
        norms = cells.vectors.norm(dim=-1)
        worst = {}
        for name, array in made.items():
            weights = name == "attn_w"
            parts = cells.alpha if weights else norms
            if heads == "each":
                whole = parts
            else:
                whole = (
                    cells.alpha.mean(dim=-1) if weights else cells.vectors.sum(dim=2).norm(dim=-1)
                )
            gap = (cells.of(array) - whole).abs()
            gap = gap if heads == "sum" else gap.amax(dim=-1)
            worst[name] = (gap / parts.sum(dim=-1).clamp_min(TINY)).amax(dim=-1)
        return worst


def ratio(
    others: Float[Tensor, "batch query out"], own: Float[Tensor, "batch query out"] | None
) -> Float[Tensor, "batch query"]:
    """‖others‖ / (‖others‖ + ‖own‖): norms of sums, not sums of norms."""
    mixed = others.norm(dim=-1)
    kept = torch.zeros_like(mixed) if own is None else own.norm(dim=-1)
    return mixed / (mixed + kept).clamp_min(TINY)


def choose(real: Bool[Tensor, "batch position"], draw: torch.Generator) -> Tensor:
    """(DRAWS, batch, CELLS) positions among the real ones of each row, with replacement."""
    chance = torch.rand(DRAWS, real.shape[0], CELLS, generator=draw, dtype=torch.float64)
    count = real.sum(dim=1, keepdim=True)
    rank = (chance.to(real.device) * count).long().clamp_max(count - 1)  # the rank-th real one
    order = real.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return order.expand(DRAWS, -1, -1).gather(2, rank)
