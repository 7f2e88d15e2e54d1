"""The map of one scope of one attention call, with the data to judge its exactness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from normscope.decomposition.block import Parts, length
from normscope.decomposition.cells import TINY, Cells
from normscope.decomposition.scopes import Scope
from normscope.foundation.shapes import Bool, Float, Int
from normscope.kernels import Linear

SEGMENT = 64  # keys per segment in the search for the largest values of a long row


@dataclass(frozen=True, eq=False)
class Reduce:
    """The reductions of a map's rows to keep instead of the map."""

    top: int = 0  # the largest contributors of each query; 1 for argmax
    row_sum: bool = False
    category: Float[Tensor, "batch key category"] | None = None  # 1 where a key belongs to it


KEEP_NOTHING = Reduce()  # keep only the row sums that the judge needs


@dataclass(eq=False)
class ScopeMap:
    """The map of one scope: lengths of (query, hidden) vectors, and rows added in blocks."""

    scope: Scope
    keys: Bool[Tensor, "batch key"]  # which keys are real, not padding
    queries: int
    own: Tensor | None = None  # (batch, query): ‖v_ii‖, or the length of the residual's column
    others: Tensor | None = None  # ‖Σ_{j≠i} v_ij‖
    bias: Tensor | None = None  # length of what belongs to no token
    difference: Tensor | None = None  # ‖parts + bias − the model's own state‖
    weight: Tensor | float = 1.0  # w_i
    level: int = 0  # index of the scope's Gram matrices
    column: bool = False  # whether the residual is an extra last column
    vectors_at: Callable[[Cells], Tensor] | None = None  # v_ij at some cells, from the definition
    steps: Sequence[Linear] | None = None  # L; None behind a feed-forward
    reduce: Reduce | None = None  # None keeps the whole map
    drawn: tuple[Tensor, Tensor] | None = None  # cells to spot-check

    values: Tensor | None = None  # (batch, *head, query, key), unless reduced
    sums: Tensor | None = None  # over keys, (batch, query)
    at_cells: Tensor | None = None  # the values of the drawn cells
    gaps: Tensor | None = None  # (batch,): the worst of each row, if a kernel computed it
    reduced: dict[str, Tensor] = field(default_factory=dict)
    mixing_ratio: Tensor | None = None  # (batch, query)

    @classmethod
    def of_parts(
        cls, scope: Scope, parts: Parts, real: Tensor, keys: Tensor, level: int = 0
    ) -> ScopeMap:
        """Measure the (query, hidden) vectors of a scope with torch's operations."""
        others = length(parts.others)
        zero = torch.zeros_like(others)
        return cls(
            scope,
            keys,
            others.shape[1],
            own=zero if parts.own is None else length(parts.own),
            others=others,
            bias=zero if parts.bias is None else length(parts.bias) + zero,
            difference=length(parts.difference(real)),
            weight=parts.weight,
            level=level,
            column=scope.with_residual and parts.separate,
            vectors_at=parts.at,
            steps=parts.linear,
        )

    # ---- filling in rows

    def rows(
        self, block: slice, norms: Sequence[Float[Tensor, "batch rows key"]]
    ) -> Float[Tensor, "batch rows keys"]:
        """Return the lengths of some queries' vectors, from those of L Σ_h αf."""
        lengths, weight = norms[self.level], self.weight
        if isinstance(weight, Tensor):
            lengths = lengths * weight[:, block].unsqueeze(-1)
        if not self.scope.with_residual:
            return lengths
        assert self.own is not None
        own = self.own[:, block]
        if self.column:
            return torch.cat([lengths, own.unsqueeze(-1)], dim=-1)
        lengths = lengths if isinstance(weight, Tensor) else lengths.clone()
        lengths.diagonal(offset=block.start, dim1=-2, dim2=-1).copy_(own)
        return lengths

    def add(self, block: slice, rows: Float[Tensor, "batch rows key"]) -> None:
        """Add the rows of a block of queries."""
        self.sums = self._put(self.sums, block, rows.sum(dim=-1))
        self.keep(block, rows)

    def keep(self, block: slice, rows: Float[Tensor, "batch rows key"]) -> None:
        """Keep the rows of a block of queries or their reductions, and the drawn cells."""
        if self.drawn is not None:
            self.at_cells = self._drawn_cells(block, rows, *self.drawn)
        if self.reduce is None:
            self.values = self._put(self.values, block, rows)
            return
        for name, reduced in self._reduced(rows, self.reduce).items():
            self.reduced[name] = self._put(self.reduced.get(name), block, reduced)

    def reduce_to(self, reduce: Reduce) -> None:
        """Keep the reductions of the map instead of the map."""
        assert self.values is not None
        values, self.values, self.drawn, self.reduce = self.values, None, None, reduce
        self.keep(slice(0, self.queries), values)

    def _drawn_cells(self, block: slice, rows: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Return the values of the drawn cells that are known so far."""
        row = torch.arange(len(i), device=i.device).unsqueeze(1)
        if rows.shape[1] == self.queries:
            return rows[row, i, j]
        values = rows[row, (i - block.start).clamp(0, rows.shape[1] - 1), j]
        inside = (i >= block.start) & (i < block.stop)
        return values if self.at_cells is None else torch.where(inside, values, self.at_cells)

    def _reduced(self, rows: Float[Tensor, "batch rows key"], reduce: Reduce) -> dict[str, Tensor]:
        """Return the reductions of some rows."""
        kept: dict[str, Tensor] = {"row_sum": rows.sum(dim=-1)} if reduce.row_sum else {}
        extra = rows.shape[-1] - self.keys.shape[-1]  # the residual's column
        if reduce.top:
            ranked = rows
            if self._padded:  # every real key ranks before padding, however small its value
                real = torch.nn.functional.pad(self.keys, (0, extra), value=True).unsqueeze(1)
                ranked = rows.masked_fill(~real, -1)
            values, keys = largest_of(ranked, min(reduce.top, rows.shape[-1]))
            kept |= {"top_value": values, "top_key": keys}
        if reduce.category is not None:
            members = reduce.category.to(rows.dtype)
            kept["category"] = rows[..., : rows.shape[-1] - extra] @ members
        return kept

    @cached_property
    def _padded(self) -> bool:
        return not bool(self.keys.all())

    def _put(self, whole: Tensor | None, block: slice, rows: Tensor) -> Tensor:
        if block.stop - block.start == self.queries:
            return rows
        if whole is None:
            whole = rows.new_empty((len(rows), self.queries, *rows.shape[2:]))
        whole[:, block] = rows
        return whole

    # ---- reading

    def ratio(self) -> Float[Tensor, "batch query"]:
        """Return the mixing ratio ‖others‖ / (‖others‖ + ‖own‖), of norms of sums."""
        assert self.own is not None
        assert self.others is not None
        return self.others / (self.others + self.own).clamp_min(TINY)

    def gap(self) -> Float[Tensor, "batch query"]:
        """Return the gap of parts and bias to the model's own state, relative to their lengths."""
        assert self.sums is not None
        assert self.difference is not None
        bias = 0.0 if self.bias is None else self.bias
        return self.difference / (self.sums + bias).clamp_min(TINY)

    def spot_gap(self, cells: Cells) -> Float[Tensor, " batch"]:
        """Return the gap of the drawn cells to the definition."""
        assert self.at_cells is not None
        if self.scope.weight or self.vectors_at is None:
            return cells.gap(self.at_cells, weight=self.scope.weight, sums=self.sums)
        assert self.sums is not None
        assert self.vectors_at is not None
        mean = self.sums / (self.keys.shape[1] + self.column)
        vectors = self.vectors_at(cells)
        return cells.gap_to_vectors(self.at_cells, vectors, self._parts_at(cells), mean)

    def _parts_at(self, cells: Cells) -> Float[Tensor, "batch cell"]:
        """Σ_h w_i ‖L αf_h‖ of some cells: what their lengths are accurate relative to."""
        if self.steps is None:
            return torch.zeros_like(cells.alpha[..., 0])
        vectors = cells.vectors
        for step in self.steps:
            vectors = step(vectors)
        parts, weight = vectors.norm(dim=-1).sum(dim=-1), self.weight
        return parts * (weight[cells.row, cells.i] if isinstance(weight, Tensor) else weight)


def largest_of(
    values: Float[Tensor, "batch rows key"], count: int
) -> tuple[Float[Tensor, "batch rows rank"], Int[Tensor, "batch rows rank"]]:
    """Return the largest values of each row and their keys.

    In long rows, the maxima of segments of keys are compared first, so that a row is read only
    once: the largest values lie in the segments with the largest maxima.
    """
    keys = values.shape[-1]
    if keys < 2 * SEGMENT * count or keys % SEGMENT:
        top = values.topk(count, dim=-1)
        return top.values, top.indices
    segments = values.unflatten(-1, (SEGMENT, -1))  # batch rows member group
    chosen = segments.amax(dim=2).topk(count, dim=-1).indices
    index = chosen.unsqueeze(2).expand(-1, -1, SEGMENT, -1)
    top = segments.gather(3, index).flatten(2).topk(count, dim=-1)
    member, rank = top.indices // count, top.indices % count
    return top.values, member * segments.shape[3] + chosen.gather(2, rank)
