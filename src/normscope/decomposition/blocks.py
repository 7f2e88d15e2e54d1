"""The vectors of all cells, built for a block of queries and keys of one text at a time.

Lengths need no vectors. What compares a vector with another one in a norm other than ℓ2, or sends
it through a layer, does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.decomposition.attention import AttentionDecomposition
from normscope.decomposition.block import Parts
from normscope.decomposition.gated import GatedDecomposition
from normscope.foundation.shapes import Bool, Float
from normscope.kernels import head_vectors

CELLS = {"cpu": 2**21, "cuda": 2**27}  # numbers in the vectors of a block
QUERIES = 64  # of a block; the fewer, the more blocks a causal mask leaves empty


@dataclass(frozen=True, eq=False)
class CellBlock:
    """The vectors of some cells of one text, in factored form; the residual is not in them."""

    text: int
    queries: slice
    keys: slice
    weights: Float[Tensor, "keys queries term"]
    vectors: Float[Tensor, "keys term hidden"]
    heads: int

    def summed(self) -> Float[Tensor, "keys queries hidden"]:
        """Return w_i L Σ_h αf of every cell."""
        return torch.bmm(self.weights, self.vectors)

    def by_head(self) -> Iterator[Float[Tensor, "keys queries hidden"]]:
        """Yield w_i L αf of every cell, one head after another."""
        size = self.weights.shape[2] // self.heads
        for start in range(0, self.heads * size, size):
            term = slice(start, start + size)
            yield torch.bmm(self.weights[..., term], self.vectors[:, term])

    def meeting(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return where a query meets itself: keys and queries in the block, and the position."""
        first = max(self.keys.start, self.queries.start)
        last = min(self.keys.stop, self.queries.stop)
        at = torch.arange(first, max(first, last), device=self.weights.device)
        return at - self.keys.start, at - self.queries.start, at


def cell_blocks(
    parts: Parts, dtype: torch.dtype, memory: int, scale: int = 1
) -> Iterator[CellBlock]:
    """Yield the blocks of all cells that have any weight, and those in which a query meets itself.

    Args:
        parts: whose vectors to build.
        dtype: of the vectors.
        memory: bytes for the vectors of a block, and for those of the keys of a block.
        scale: how many numbers are made of each number of a vector.
    """
    attention = parts.attention
    batch, heads, queries, keys = attention.captured.shape
    output = parts.output.to(dtype)
    hidden = output.shape[-1]
    most = min(memory // 2 // dtype.itemsize, CELLS.get(attention.captured.device.type, 2**27))
    rows_step = min(queries, QUERIES)
    keys_step = min(keys, max(1, most // (hidden * max(rows_step * scale, heads))))
    for text in range(batch):
        for start in range(0, keys, keys_step):
            span = slice(start, min(start + keys_step, keys))
            vectors = _key_vectors(attention, output, text, span)
            for first in range(0, queries, rows_step):
                rows = slice(first, min(first + rows_step, queries))
                weights = _cell_weights(attention, text, span, rows).to(dtype)
                met = span.start < rows.stop and rows.start < span.stop
                if not met and not bool(weights.any()):
                    continue
                if isinstance(parts.weight, Tensor):
                    weights = weights * parts.weight[text, None, rows, None].to(dtype)
                yield CellBlock(text, rows, span, weights, vectors, heads)


def _key_vectors(
    attention: AttentionDecomposition, output: Tensor, text: int, span: slice
) -> Float[Tensor, "keys term hidden"]:
    if isinstance(attention, GatedDecomposition):
        return output.flatten(0, 1).expand(span.stop - span.start, -1, -1)
    value = attention.value[text : text + 1, :, span].to(output.dtype)
    return head_vectors(value, output)[:, 0].transpose(0, 1).contiguous()


def _cell_weights(
    attention: AttentionDecomposition, text: int, span: slice, rows: slice
) -> Float[Tensor, "keys queries term"]:
    if isinstance(attention, GatedDecomposition):
        return attention.cell_weights(slice(text, text + 1), span, rows)[0].transpose(1, 2)
    alpha = attention.captured.scaled_rows(rows)[text, :, :, span]
    return alpha.permute(2, 1, 0)


def row_shares(
    values: Float[Tensor, "batch query keys"], own: bool | None
) -> Float[Tensor, "batch query keys"]:
    """Divide every row by its sum; a row of zeros becomes that of the identity.

    ``own``: whether queries and keys are the same positions. If not, the row of zeros has a 1 in
    the last column, that of the residual; None where there is no such column: it then stays zero.
    """
    sums = values.sum(dim=-1, keepdim=True)
    shares = values / torch.where(sums > 0, sums, 1.0)
    if own is None:
        return shares
    zero = (sums <= 0).squeeze(-1)
    where = shares.diagonal(dim1=1, dim2=2) if own else shares[..., -1]
    where.masked_fill_(zero, 1.0)
    return shares


def weighted_cells(parts: Parts) -> Bool[Tensor, "batch query key"]:
    """Return which cells have any weight in some head."""
    captured = parts.attention.captured
    return torch.cat([captured.rows(rows).ne(0).any(dim=1) for rows in captured.blocks()], dim=1)
