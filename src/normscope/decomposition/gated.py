"""Attention whose vectors depend on the query, because an elementwise gate acts on the heads.

    y_i = Σ_h Σ_j α_ij^h f_hi(x_j) + b_O,      f_hi(x_j) = (v_j^h ⊙ g_i^h) W_O^h

g_i is held at its value. A key then has no vectors of its own, whose Gram matrix would serve all
queries: the vectors of all cells are built, for a block of queries at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from normscope.decomposition.attention import AttentionDecomposition
from normscope.errors import UnsupportedModelError
from normscope.foundation.shapes import Float
from normscope.kernels import Grams, Linear

CELLS = {"cpu": 2**11, "cuda": 2**15}  # of a block: their vectors are built


class GatedDecomposition(AttentionDecomposition):
    """The same for attention whose heads are gated elementwise, with other kernels."""

    def measure(self, chain: Sequence[Sequence[Linear]]) -> Grams:
        """Note the maps L_1, L_2 L_1, … of which lengths are wanted; no Gram matrix is made."""
        self._chain = [(), *chain]
        own = self.captured.own_vectors(torch.float64) if self.rebuilt else None
        batch, _, _, keys = self.captured.shape
        self._grams = Grams([], self.captured.value.new_zeros(batch, 0, keys), own)
        return self._grams

    @property
    def products(self) -> bool:
        """Whether Gram matrices are made from products of W_O with itself."""
        return False

    def rows(self, weights: bool) -> Iterator[tuple[slice, Tensor | None, list[Tensor]]]:
        """Yield blocks of queries: their weights, and ‖L Σ_h αf‖ for each L measured."""
        if self._grams is None:
            self.measure(())
        batch, _, queries, keys = self.captured.shape
        most = CELLS.get(self.captured.device.type, CELLS["cuda"])
        step = max(1, most // (batch * keys))
        for start in range(0, queries, step):
            block = slice(start, min(start + step, queries))
            vectors = self._gated(block, slice(0, keys)) @ self.flat_weight
            lengths = []
            for steps in self._chain:
                for linear in steps:
                    vectors = linear(vectors, out=vectors)
                squares = torch.linalg.vecdot(vectors, vectors)
                lengths.append(squares.sqrt_().transpose(1, 2))
            yield block, self.captured.rows(block), lengths

    @cached_property
    def flat_weight(self) -> Float[Tensor, "features out"]:
        """W_O in the precision of the lengths."""
        return self.captured.projection.weight.flatten(0, 1).to(self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        wide = torch.promote_types(self.captured.output.dtype, torch.float32)
        return torch.float64 if self.rebuilt else wide

    def _gated(
        self, i: slice, j: slice, text: slice = slice(None)
    ) -> Float[Tensor, "text keys rows features"]:
        """Return α v ⊙ g of every cell of a block, heads merged."""
        value, gate = self.value[text, :, j].to(self._dtype), self.captured.gate
        assert gate is not None
        gate, alpha = gate[text, i], self.captured.scaled_rows(i)[text, :, :, j]
        heads = alpha.shape[1]
        value = value.repeat_interleave(heads // value.shape[1], dim=1)
        by_cell = alpha.to(self._dtype).permute(0, 3, 2, 1).unsqueeze(-1)  # text key row head 1
        weighted = by_cell * value.permute(0, 2, 1, 3).unsqueeze(2)
        return (weighted * gate.to(self._dtype).unsqueeze(1)).flatten(3)

    def cell_weights(
        self, text: slice, j: slice, i: slice
    ) -> Float[Tensor, "text keys features rows"]:
        """Return α v ⊙ g of a block's cells: the weights of the rows of W_O in their vectors.

        Every number of a head then counts as a head of its own, whose vector is a row of W_O, the
        same for all keys.
        """
        return self._gated(i, j, text).transpose(2, 3)

    def head_norms(self) -> Float[Tensor, "batch head query key"]:
        """Compute ‖αf‖ of every head, in float64."""
        batch, heads, queries, keys = self.captured.shape
        triangular = torch.linalg.qr(self.weight.transpose(1, 2), mode="r").R  # ‖vW‖ = ‖R vᵀ‖
        norms = self.weight.new_empty((batch, heads, queries, keys))
        most = CELLS.get(self.captured.device.type, CELLS["cuda"])
        step = max(1, most // (batch * keys))
        for start in range(0, queries, step):
            block = slice(start, min(start + step, queries))
            gated = self._gated(block, slice(0, keys)).double().unflatten(3, (heads, -1))
            vectors = torch.einsum("bkqhe,hre->bhqkr", gated, triangular)
            norms[:, :, block] = vectors.norm(dim=-1)
        return norms

    def own_parts(self) -> Float[Tensor, "batch query"]:
        """Compute Σ_h ‖α_ii f_i(x_i)‖, relative to which the sum of these vectors is accurate."""
        own = self.captured.own_weight()
        gate = self.captured.gate
        assert own is not None
        assert gate is not None
        value = self.value.double().repeat_interleave(own.shape[1] // self.value.shape[1], dim=1)
        weighted = value * own.double().unsqueeze(-1) * gate.double().transpose(1, 2)
        return (weighted @ self.weight).norm(dim=-1).sum(dim=1)

    @property
    def transformed_norm(self) -> Float[Tensor, "batch head key"]:
        """Raise UnsupportedModelError: ‖f(x_j)‖ is another for every query."""
        raise UnsupportedModelError(
            f"{self.captured.name}: an elementwise gate acts between the heads and their output "
            "projection, so a key's vector f(x) is another for every query, and ‖f(x)‖ is not "
            "one number. Maps of weights and of weighted norms are defined"
        )
