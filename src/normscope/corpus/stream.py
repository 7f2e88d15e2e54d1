"""The rows of all sources as one stream, divided into blocks.

A block is a fixed number of selected rows. It is the unit of work: rows are sorted by length
within a block, a worker measures one block at a time, and a run is continued between two blocks.
What is measured of a block depends on its rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import Any

import numpy as np

from normscope.corpus.readers import Mark, RowFilter, RowSource
from normscope.corpus.records import Position, Problem, Record
from normscope.errors import InputError
from normscope.foundation.hashing import INCREMENT, MASK, Unsigned, mix

_SEED_INCREMENT = 0xD1342543DE82EF95
_AT_ONCE = 1 << 20  # rows


def row_hash(keys: Unsigned, seed: int) -> Unsigned:
    """Return a pseudo-random number below 2**64 for each row; no two rows share one.

    Args:
        keys: The number of a row, or a uint64 array of such numbers.
        seed: Another seed gives other numbers.
    """
    offset: Any = (seed + 1) * _SEED_INCREMENT & MASK
    return mix((keys * INCREMENT + offset) & MASK)


@dataclass(frozen=True)
class Selection:
    """The rows with a number below `limit` and a hash up to `threshold`; None selects all."""

    limit: int | None = None
    threshold: int | None = None
    seed: int = 0

    def __contains__(self, key: int) -> bool:
        return (self.limit is None or key < self.limit) and (
            self.threshold is None or row_hash(key, self.seed) <= self.threshold
        )


def select(
    rows: int | None, limit: int | None, sample: int | float | None, seed: int
) -> tuple[Selection, int | None]:
    """Return a selection of rows, and how many rows it has (None if that is not known).

    Args:
        rows: The number of rows, or None if it is not known.
        limit: The number of rows to select from, from the first; None selects from all.
        sample: A share of these (a float up to 1.0) or a number (an integer), chosen by a hash of
            the row's number, so that the choice depends on nothing else.
        seed: Another seed selects other rows.
    """
    if limit is not None and (not _is_integer(limit) or limit < 1):
        raise InputError(f"limit must be an integer of at least 1, but is {limit!r}")
    total = rows if limit is None or rows is None else min(rows, limit)
    if sample is None:
        return Selection(limit, None, seed), total
    if isinstance(sample, float):
        if not 0 < sample <= 1:
            raise InputError(
                f"sample must be a share above 0 and up to 1.0, or an integer number of rows, but "
                f"is {sample!r}"
            )
        threshold = min(int(sample * 2.0**64), MASK)
        expected = None if total is None else round(total * sample)
        return Selection(limit, threshold, seed), expected
    if not _is_integer(sample) or sample < 1:
        raise InputError(f"sample must have at least 1 row, but is {sample!r}")
    if total is None:
        raise InputError(
            f"sample is a number of rows, {sample}, but the number of rows in a stream is "
            f"unknown; give a share, such as 0.01"
        )
    if sample >= total:
        return Selection(limit, None, seed), total
    return Selection(limit, _smallest(total, sample, seed), seed), sample


def _is_integer(number: object) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


def _smallest(total: int, count: int, seed: int) -> int:
    """Return the count-th smallest hash of the rows below `total`."""
    kept = np.empty(0, dtype=np.uint64)
    for start in range(0, total, _AT_ONCE):
        keys = np.arange(start, min(total, start + _AT_ONCE), dtype=np.uint64)
        kept = np.concatenate([kept, row_hash(keys, seed)])
        if len(kept) > count:
            kept = np.partition(kept, count - 1)[:count]
    return int(kept.max())


@dataclass(frozen=True)
class RowBlock:
    """Consecutive selected rows that were read, and where the next block begins."""

    index: int
    items: tuple[Record | Problem, ...]
    after: Position


@dataclass(frozen=True)
class Span:
    """A block that is not read yet: where it begins, its number of rows, where it ends."""

    index: int
    start: Position
    count: int
    after: Position


class Stream:
    """The selected rows of all sources, one source after the other."""

    def __init__(self, sources: Sequence[RowSource], selection: Selection, block_rows: int) -> None:
        self.sources, self.selection, self.block_rows = sources, selection, block_rows
        self._bases = [0]  # the number of rows before each source
        for source in sources[:-1]:
            if (rows := source.count()) is None:
                raise InputError(
                    f"{source.name!r} has an unknown number of rows; only the last of "
                    "several sources may be a stream"
                )
            self._bases.append(self._bases[-1] + rows)

    def blocks(self, start: Position, first: int) -> Iterator[RowBlock]:
        """Read the blocks from a position on, which are numbered from `first`."""
        rows, index = self._rows(start), first
        while block := list(islice(rows, self.block_rows)):
            yield _block(index, block)
            index += 1

    def spans(self, start: Position, first: int) -> Iterator[Span]:
        """Return the spans of the same blocks, without reading them."""
        positions, index, begin = self._positions(start), first, start
        while ends := list(islice(positions, self.block_rows)):
            yield Span(index, begin, len(ends), ends[-1])
            begin, index = ends[-1], index + 1

    def read(self, span: Span) -> RowBlock:
        """Read the block of a span."""
        rows = list(islice(self._rows(span.start), span.count))
        if len(rows) < span.count:
            raise InputError(
                f"the data shrank while they were being read: block {span.index} has "
                f"{len(rows)} rows instead of {span.count}; do not change the files during a run"
            )
        return _block(span.index, rows)

    def _rows(self, start: Position) -> Iterator[tuple[Record | Problem, Position]]:
        """Return each selected row from a position on, and where the next row begins."""
        for index, source, mark, base in self._sources_from(start):
            for number, content, after in source.read(mark, self._filter(base)):
                if isinstance(content, Problem):
                    yield content, Position(index, *after)
                else:
                    record = Record(base + number, source.where(number), content)
                    yield record, Position(index, *after)

    def _positions(self, start: Position) -> Iterator[Position]:
        for index, source, mark, base in self._sources_from(start):
            for after in source.marks(mark, self._filter(base)):
                yield Position(index, *after)

    def _filter(self, base: int) -> RowFilter:
        limit = self.selection.limit
        stop = None if limit is None else max(0, limit - base)
        return RowFilter(lambda number: base + number in self.selection, stop)

    def _sources_from(self, start: Position) -> Iterator[tuple[int, RowSource, Mark, int]]:
        """Return number, source, first row and number of earlier rows of each source to read."""
        for index in range(start.source, len(self.sources)):
            mark = Mark(start.offset, start.number) if index == start.source else Mark()
            yield index, self.sources[index], mark, self._bases[index]


def _block(index: int, rows: Sequence[tuple[Record | Problem, Position]]) -> RowBlock:
    return RowBlock(index, tuple(item for item, _ in rows), rows[-1][1])
