"""Attention as a sum of weighted vectors (Kobayashi et al., EMNLP 2020).

    y_i = Σ_h Σ_j α_ij^h f_h(x_j) + b_O,      f_h(x_j) = (x_j W_V^h + b_V^h) W_O^h

b_V is part of f; b_O belongs to no token. The maps are α, ‖f‖, and ‖αf‖ for each head or for the
sum of the heads (the norm of the sum).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from normscope.capture import Capture
from normscope.capture.scores import Scores
from normscope.foundation.shapes import Bool, Float
from normscope.kernels import (
    Grams,
    Kernels,
    Linear,
    Scratch,
    cholesky,
    flash_norms,
    gram_matrices,
    product_grams,
    products_of,
    quadratic_norms,
    triton_for,
)
from normscope.kernels.products import LARGEST

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
TF32 = 5e-3  # where torch.backends.cuda.matmul.allow_tf32 is set
TINY = torch.finfo(torch.float64).tiny
CANCELLED = 16  # a sum this much shorter than its parts is made again in float64
CELLS = 2  # of each row of a batch and each layer, computed again the slow way
DRAWS = 64  # layers with cells of their own


@dataclass(eq=False)
class Positions:
    """Which queries and keys of a batch are real, and random cells among them for spot checks."""

    queries: Bool[Tensor, "batch query"]
    keys: Bool[Tensor, "batch key"]

    every: int = 1  # which layers are looked at: each, or one in so many

    def cells(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Queries and keys, (batch, CELLS), of the cells that a layer is judged by, if it is."""
        if layer % self.every:
            return None
        i, j = self._drawn
        return i[layer % DRAWS], j[layer % DRAWS]

    @cached_property
    def _drawn(self) -> tuple[Tensor, Tensor]:
        return choose(self.queries, 0), choose(self.keys, 1)


@dataclass(frozen=True, eq=False)
class Cells:
    """Some cells the slow way: every head's vector αf built whole, in float64."""

    row: Tensor
    i: Tensor  # (batch, cell)
    j: Tensor
    alpha: Float[Tensor, "batch cell head"]
    vectors: Float[Tensor, "batch cell head out"]
    context_gap: Float[Tensor, " batch"] | None  # of the same queries, where weights are made anew

    def worst_of(self, gaps: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """Gaps of a map, and that of the weights they were made from."""
        return gaps if self.context_gap is None else torch.maximum(gaps, self.context_gap)

    def of(self, array: Tensor) -> Tensor:
        """The same cells of a (batch, …, query, key) map."""
        return (
            array[self.row, self.i, self.j]
            if array.dim() == 3
            else array.movedim(1, -1)[self.row, self.i, self.j]
        )


class AttentionDecomposition:
    """One attention call, taken apart. Norms are float64; nothing of (query, key, hidden) size."""

    def __init__(
        self, captured: Capture, scratch: Scratch | None = None, kernels: Kernels = "auto"
    ) -> None:
        self.captured, self.kernels = captured, kernels
        self.scratch = Scratch() if scratch is None else scratch
        self.value = captured.value
        self.bias = captured.projection.bias

    @cached_property
    def weight(self) -> Float[Tensor, "head head_size out"]:
        """W_O in float64."""
        return self.scratch.copy("weight", self.captured.projection.weight)

    @property
    def alpha(self) -> Float[Tensor, "batch head query key"]:
        """The attention weights as a whole."""
        return self.captured.alpha

    @cached_property
    def grams(self) -> Grams:
        """Gram matrices of f, lengths of f, and the vectors of the diagonal."""
        return self.measure(())

    def measure(self, chain: Sequence[Sequence[Linear]]) -> Grams:
        """Gram matrices also of L_1 f, L_2 L_1 f, …; kept as ``grams``."""
        projection = self.captured.projection
        if self.products:
            assert projection.module is not None
            products = products_of(projection.module, projection.weight, chain)
            matrices = product_grams(self.value, products, self.scratch)
            single = matrices[0].diagonal(dim1=2, dim2=3).transpose(1, 2).sqrt()
            found = Grams(matrices, single, self._own(single))
        else:
            own, weight = (
                self.captured.own_weight(),
                projection.weight if self.flash else self.weight,
            )
            found = gram_matrices(self.value, weight, chain, own, self.scratch, self.kernels)
        self.__dict__["grams"] = found
        return found

    @property
    def products(self) -> bool:
        """Whether Gram matrices are made from products of W_O with itself."""
        projection, device = self.captured.projection, self.captured.device
        small = projection.weight.shape[0] * projection.weight.shape[1] <= LARGEST
        ours = device.type == "cpu" and triton_for(self.kernels, device) is None
        return small and ours and projection.module is not None

    def _own(self, single: Float[Tensor, "batch head key"]) -> Tensor | None:
        """Σ_h α_ii f_h(x_i); made again in float64 where heads cancel, and rounding counts."""
        made, weights = self.captured.own_vectors(), self.captured.own_weight()
        if made is None or weights is None or made.dtype == torch.float64:
            return made
        lost = made.norm(dim=-1) < (weights * single).sum(dim=1) / CANCELLED
        if bool(lost.any()):
            alpha = weights.transpose(1, 2)[lost].double().unsqueeze(-1)
            value = self.value.transpose(1, 2)[lost].double()  # row group e
            value = value.repeat_interleave(alpha.shape[1] // value.shape[1], dim=1)
            rows = torch.einsum("rhe,heo->ro", alpha * value, self.weight)
            made[lost] = rows.to(made.dtype)
        return made

    @cached_property
    def flash(self) -> bool:
        """Whether the weights are made inside the kernels that need them."""
        weights = self.captured.weights
        made = isinstance(weights, Scores) and weights.query.element_size() == 2
        return made and triton_for(self.kernels, self.captured.device) is not None

    def rows(self, weights: bool) -> Iterator[tuple[slice, Tensor | None, list[Tensor]]]:
        """Blocks of queries: their weights if wanted, and ‖L Σ_h αf‖ for each L measured."""
        if self.flash:
            factors = [cholesky(grams) for grams in self.grams.matrices]
            for here in self.captured.blocks(written=weights):
                alpha = self.captured.rows(here) if weights else None
                yield here, alpha, flash_norms(self.captured.weights, factors, here)
            return
        for here in self.captured.blocks():
            alpha = self.captured.rows(here)
            norms = quadratic_norms(alpha, self.grams.matrices, self.scratch, self.kernels)
            yield here, alpha, norms

    @property
    def transformed_norm(self) -> Float[Tensor, "batch head key"]:
        """‖f_h(x_j)‖."""
        return self.grams.single

    def each(self, name: str) -> Float[Tensor, "batch head query key"]:
        """``attn_w`` or ``attn_n`` of every head."""
        if name == "attn_w":
            return self.alpha.to(torch.promote_types(self.alpha.dtype, torch.float32))
        return self.alpha.double() * self.transformed_norm.unsqueeze(2)

    @cached_property
    def reconstructed(self) -> Float[Tensor, "batch query out"]:
        """Σ αf + b_O."""
        return self.captured.reconstruct()

    @cached_property
    def total(self) -> Float[Tensor, "batch query out"]:
        """Σ αf."""
        whole = self.reconstructed
        return whole if self.bias is None else whole - self.bias.to(whole.dtype)

    def bias_share(self) -> Float[Tensor, "batch query"]:
        """‖b_O‖: what belongs to no token, the same for every query."""
        batch, _, queries, _ = self.captured.shape
        if self.bias is None:
            return torch.zeros((batch, queries), dtype=torch.float64, device=self.captured.device)
        return self.bias.double().norm().to(self.captured.device).expand(batch, queries)

    def gap(self, sums: Float[Tensor, "batch query"]) -> Float[Tensor, "batch query"]:
        """‖Σ αf + b_O − real output‖ relative to Σ_j ‖Σ_h αf‖, the given sums, + ‖b_O‖."""
        difference = (self.reconstructed - self.captured.output).norm(dim=-1, dtype=torch.float64)
        return difference / (sums + self.bias_share()).clamp_min(TINY)

    @cached_property
    def own(self) -> Float[Tensor, "batch query out"] | None:
        """Σ_h αf of the query itself; None where no key is the query itself."""
        made = self.grams.diagonal
        return None if made is None else made.to(self.reconstructed.dtype)

    @cached_property
    def others(self) -> Float[Tensor, "batch query out"]:
        """Σ αf over all other tokens."""
        if self.own is None:
            return self.total
        made = self.reconstructed - self.own
        return made if self.bias is None else made.sub_(self.bias.to(made.dtype))

    def at(self, i: Tensor, j: Tensor) -> Cells:
        """The vectors αf of some cells, (batch, cell) each, built whole."""
        row = torch.arange(len(i), device=i.device).unsqueeze(1)
        weights = self.captured.weights
        worst: Tensor | None = None
        if isinstance(weights, Scores):
            whole = weights.some(i)  # batch head cell key
            alpha = whole.gather(3, j[:, None, :, None].expand(*whole.shape[:3], 1))[..., 0]
            alpha, worst = alpha.transpose(1, 2).double(), self._context_gap(whole, row, i)
        else:
            alpha = weights[row, :, i, j].double()  # batch cell head
        value = self.value[row, :, j].double()
        if value.shape[-2] != alpha.shape[-1]:
            value = value.repeat_interleave(alpha.shape[-1] // value.shape[-2], dim=-2)
        rows = (alpha.unsqueeze(-1) * value).flatten(0, 1).transpose(0, 1)  # head (batch cell) e
        vectors = torch.bmm(rows, self.weight).transpose(0, 1).unflatten(0, i.shape)
        return Cells(row, i, j, alpha, vectors, worst)

    def _context_gap(self, alpha: Tensor, row: Tensor, i: Tensor) -> Float[Tensor, " batch"]:
        """Σ_j αv of some queries against what the model's fused attention made of them."""
        assert isinstance(self.captured.weights, Scores)
        value = self.value.to(alpha.dtype)
        value = value.repeat_interleave(alpha.shape[1] // value.shape[1], dim=1)
        made = (alpha @ value).transpose(1, 2)  # batch cell head e
        gap = (made - self.captured.weights.context[row, i]).norm(dim=-1)
        size = (alpha @ value.norm(dim=-1, keepdim=True)).squeeze(-1).transpose(1, 2)
        return (gap / size.clamp_min(torch.finfo(size.dtype).tiny)).flatten(1).amax(dim=1).double()

    def spot_check(
        self, name: str, values: Float[Tensor, "batch cell *head"], cells: Cells
    ) -> Float[Tensor, " batch"]:
        """The worst gap of ``attn_w`` or ``attn_n`` at some cells to its definition there.

        The gap is relative to the sum of the norms of the cell's vectors.
        """
        weights = name == "attn_w"
        parts = cells.alpha if weights else cells.vectors.norm(dim=-1)
        if values.dim() == 3:  # of every head
            gap = (values - parts).abs().amax(dim=-1)
        elif weights:
            gap = (values - parts.mean(dim=-1)).abs()
        else:
            gap = (values - cells.vectors.sum(dim=2).norm(dim=-1)).abs()
        return cells.worst_of((gap / parts.sum(dim=-1).clamp_min(TINY)).amax(dim=-1))


def ratio(
    others: Float[Tensor, "batch query out"], own: Float[Tensor, "batch query out"] | None
) -> Float[Tensor, "batch query"]:
    """‖others‖ / (‖others‖ + ‖own‖): norms of sums, not sums of norms."""
    mixed = others.norm(dim=-1)
    kept = torch.zeros_like(mixed) if own is None else own.norm(dim=-1)
    return mixed / (mixed + kept).clamp_min(TINY)


@functools.lru_cache(64)
def _chances(batch: int, seed: int, device: torch.device) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(DRAWS, batch, CELLS, generator=draw, dtype=torch.float64).to(device)


def choose(real: Bool[Tensor, "batch position"], seed: int) -> Tensor:
    """(DRAWS, batch, CELLS) positions among the real ones of each row, with replacement."""
    chance = _chances(real.shape[0], seed, real.device)
    count = real.sum(dim=1, keepdim=True)
    rank = (chance * count).long().clamp_max(count - 1)  # the rank-th real one
    order = real.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return order.expand(DRAWS, -1, -1).gather(2, rank)
