"""Attention as a sum of weighted vectors (Kobayashi et al., EMNLP 2020).

    y_i = Σ_h Σ_j α_ij^h f_h(x_j) + b_O,      f_h(x_j) = (x_j W_V^h + b_V^h) W_O^h

b_V is part of f; b_O belongs to no token. The maps are α, ‖f‖, and ‖αf‖ for each head or for the
sum of the heads (the norm of the sum).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from normscope.capture import Capture
from normscope.kernels import Lengths, weighted_norms
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


class AttentionDecomposition:
    """One attention call, taken apart. Norms are float64; nothing of (query, key, hidden) size."""

    def __init__(self, captured: Capture, lengths: Lengths | None = None) -> None:
        self.captured = captured
        self._known = lengths  # where they have been computed with other scopes
        self.alpha = captured.alpha
        self.value = captured.value
        self.weight = captured.projection.wide

    @cached_property
    def lengths(self) -> Lengths:
        """Lengths of f and of Σ_h αf, and the vectors of the diagonal."""
        if self._known is not None:
            return self._known
        return weighted_norms(self.alpha, self.value, [self.weight])[0]

    @property
    def transformed_norm(self) -> Float[Tensor, "batch head key"]:
        """‖f_h(x_j)‖."""
        return self.lengths.single

    def map(self, name: str, heads: Heads) -> Float[Tensor, "batch *head query key"]:
        """``attn_w`` or ``attn_n``; with a head axis for heads="each"."""
        if name == "attn_w":
            wide = torch.promote_types(self.alpha.dtype, torch.float32)
            return self.alpha.mean(dim=1, dtype=wide) if heads == "sum" else self.alpha.to(wide)
        if heads == "sum":
            return self.lengths.summed
        return self.alpha.double() * self.transformed_norm.unsqueeze(2)

    @cached_property
    def _reconstructed(self) -> Tensor:
        return self.captured.reconstruct()

    def bias_share(self) -> Float[Tensor, "batch query"]:
        """‖b_O‖: what belongs to no token, the same for every query."""
        bias = self.captured.projection.bias
        length = torch.zeros((), dtype=torch.float64) if bias is None else bias.double().norm()
        return length.to(self.alpha.device).expand(self.alpha.shape[0], self.alpha.shape[2])

    def gap(self) -> Float[Tensor, "batch query"]:
        """‖Σ αf + b_O − real output‖ relative to Σ_j ‖Σ_h αf‖ + ‖b_O‖, for each query."""
        difference = (self._reconstructed - self.captured.output).double().norm(dim=-1)
        return difference / (self.lengths.summed.sum(dim=-1) + self.bias_share()).clamp_min(TINY)

    def mixing_ratio(self, name: str) -> Float[Tensor, "batch query"]:
        """How much comes from the other tokens: of the weight, or of the sums' lengths."""
        if name == "attn_w":
            weights = self.map("attn_w", "sum")
            total = weights.sum(dim=-1)
            return total if self._cross else total - weights.diagonal(dim1=-2, dim2=-1)
        bias = self.captured.projection.bias
        total = self._reconstructed.double() - (0.0 if bias is None else bias.double())
        own = torch.zeros_like(total) if self._cross else self.lengths.diagonal
        assert own is not None
        return ratio(total - own, own)

    @property
    def _cross(self) -> bool:
        """Whether no key is the query itself."""
        return self.captured.kind == "cross" or self.lengths.diagonal is None

    def spot_check(
        self,
        made: Mapping[str, Tensor],
        heads: Heads,
        queries: Bool[Tensor, "batch query"],
        keys: Bool[Tensor, "batch key"],
    ) -> dict[str, Float[Tensor, " batch"]]:
        """For each map in ``made``, its worst gap to the definition at random cells of each row.

        The vectors αf of a cell are built whole, in float64, and measured; the gap is relative to
        the sum of their norms. Only real positions are drawn.
        """
        draw = torch.Generator().manual_seed(self.captured.layer)
        row = torch.arange(len(self.alpha), device=self.alpha.device).unsqueeze(1)
        i, j = choose(queries, draw), choose(keys, draw)  # batch cell
        alpha = self.alpha[row, :, i, j].double()  # batch cell head
        value = self.value[row, :, j].double()
        if value.shape[-2] != alpha.shape[-1]:
            value = value.repeat_interleave(alpha.shape[-1] // value.shape[-2], dim=-2)
        vectors = ((alpha.unsqueeze(-1) * value).unsqueeze(-2) @ self.weight).squeeze(-2)
        norms = vectors.norm(dim=-1)
        worst = {}
        for name, array in made.items():
            parts = alpha if name == "attn_w" else norms
            whole = alpha.mean(dim=-1) if name == "attn_w" else vectors.sum(dim=2).norm(dim=-1)
            if heads == "sum":
                gap = (array[row, i, j] - whole).abs()
            else:
                gap = (array[row, :, i, j] - parts).abs().amax(dim=-1)
            worst[name] = (gap / parts.sum(dim=-1).clamp_min(TINY)).amax(dim=-1)
        return worst


def ratio(
    others: Float[Tensor, "batch query out"], own: Float[Tensor, "batch query out"]
) -> Float[Tensor, "batch query"]:
    """‖others‖ / (‖others‖ + ‖own‖): norms of sums, not sums of norms."""
    mixed, kept = others.norm(dim=-1), own.norm(dim=-1)
    return mixed / (mixed + kept).clamp_min(TINY)


def choose(real: Bool[Tensor, "batch position"], draw: torch.Generator) -> Tensor:
    """(batch, CELLS) positions among the real ones of each row, with replacement."""
    chance = torch.rand(real.shape[0], CELLS, generator=draw, dtype=torch.float64)
    chance = chance.to(real.device)
    if bool(real.all()):
        return (chance * real.shape[1]).long()
    count = real.sum(dim=1, keepdim=True)
    rank = (chance * count).long().clamp_max(count - 1)  # the rank-th real one
    return real.to(torch.int8).argsort(dim=1, descending=True, stable=True).gather(1, rank)
