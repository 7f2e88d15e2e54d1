"""A map as it is made, a block of queries at a time: kept whole, or reduced on the way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.foundation.shapes import Bool, Float, Int

SEGMENT = 64
REDUCTIONS = ("mixing_ratio", "row_sum", "argmax", "top16", "category")


@dataclass(frozen=True, eq=False)
class Reduce:
    """What is left of a map that is not kept."""

    top: int = 0  # largest contributors of each query; 1 for argmax
    row_sum: bool = False
    category: Float[Tensor, "batch key category"] | None = None  # 1 where a key belongs


def check_reductions(names: Any) -> tuple[str, ...]:
    """The reductions asked for, each once, or an error that lists the valid ones."""
    listed = isinstance(names, Iterable) and not isinstance(names, str)
    chosen = tuple(dict.fromkeys(names)) if listed else (names,)
    unknown = [n for n in chosen if n not in REDUCTIONS and not _is_top(n)]
    if unknown or not chosen:
        given = ", ".join(map(repr, unknown)) or "none"
        raise InputError(
            f"unknown reduction: {given}; valid are {', '.join(REDUCTIONS)}, with any number after "
            "top"
        )
    return chosen


def _is_top(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"top[1-9]\d*", name) is not None


def largest(names: Sequence[str]) -> int:
    """How many contributors of each query are wanted."""
    tops = [int(name[3:]) for name in names if name.startswith("top")]
    return max([*tops, 1 if "argmax" in names else 0])


def largest_of(
    values: Float[Tensor, "batch rows key"], count: int
) -> tuple[Float[Tensor, "batch rows rank"], Int[Tensor, "batch rows rank"]]:
    """The largest values of each row and where they are.

    Of long rows the maxima of some keys each are looked at first, keys that are far apart: the
    largest values are among those of the largest maxima, and a row is read once.
    """
    keys = values.shape[-1]
    if keys < 2 * SEGMENT * count or keys % SEGMENT:
        top = values.topk(count, dim=-1)
        return top.values, top.indices
    together = values.unflatten(-1, (SEGMENT, -1))  # batch rows member group
    chosen = together.amax(dim=2).topk(count, dim=-1).indices
    index = chosen.unsqueeze(2).expand(-1, -1, SEGMENT, -1)
    top = together.gather(3, index).flatten(2).topk(count, dim=-1)
    member, rank = top.indices // count, top.indices % count
    return top.values, member * together.shape[3] + chosen.gather(2, rank)


class Rows:
    """One map of one attention call, filled by :meth:`add`."""

    def __init__(
        self,
        shape: Sequence[int],
        keys: Bool[Tensor, "batch key"],
        reduce: Reduce | None,
        cells: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.shape, self.keys, self.reduce = tuple(shape), keys, reduce
        self.padded = reduce is not None and reduce.top > 0 and not bool(keys.all())
        self.values: Tensor | None = None  # (batch, query, key), unless it is reduced
        self.sums: Tensor | None = None  # (batch, query)
        self.cells = cells  # (batch, cell) queries and keys whose values are noted
        self.at: Tensor | None = None  # (batch, cell)
        self.reduced: dict[str, Tensor] = {}

    def add(self, here: slice, norms: Float[Tensor, "batch rows key"]) -> None:
        """Take in some queries' rows."""
        self.sums = self._put(self.sums, here, norms.sum(dim=-1))
        if self.cells is not None:
            i, j = self.cells
            row = torch.arange(len(i), device=i.device).unsqueeze(1)
            seen = norms[row, (i - here.start).clamp(0, norms.shape[1] - 1), j]
            inside = (i >= here.start) & (i < here.stop)
            self.at = seen if self.at is None else torch.where(inside, seen, self.at)
        if self.reduce is None:
            self.values = self._put(self.values, here, norms)
            return
        made: dict[str, Tensor] = {"row_sum": norms.sum(dim=-1)} if self.reduce.row_sum else {}
        extra = norms.shape[-1] - self.keys.shape[-1]  # the residual's column
        if self.reduce.top:
            ranked = norms
            if self.padded:  # has no weight; no real key, however small, is to come after it
                real = torch.nn.functional.pad(self.keys, (0, extra), value=True).unsqueeze(1)
                ranked = norms.masked_fill(~real, -1)
            values, keys = largest_of(ranked, min(self.reduce.top, norms.shape[-1]))
            made |= {"top_value": values, "top_key": keys}
        if self.reduce.category is not None:
            of = self.reduce.category.to(norms.dtype)
            made["category"] = norms[..., : norms.shape[-1] - extra] @ of
        for name, rows in made.items():
            self.reduced[name] = self._put(self.reduced.get(name), here, rows)

    def _put(self, whole: Tensor | None, here: slice, rows: Tensor) -> Tensor:
        if here.stop - here.start == self.shape[1]:
            return rows
        if whole is None:
            whole = rows.new_empty((self.shape[0], self.shape[1], *rows.shape[2:]))
        whole[:, here] = rows
        return whole
