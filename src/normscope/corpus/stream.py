"""The rows of all sources as one stream, cut into blocks that are always the same.

A block is a fixed number of wanted rows in a row. It is the unit of everything: rows are sorted by
length inside a block, a block is one piece of work for a worker, and a run is continued between
two blocks. What comes out of a block depends on nothing but its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from normscope.corpus.readers import Choice, Mark, Source
from normscope.corpus.records import Position, Problem, Record
from normscope.errors import InputError

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mixed(key: int, seed: int) -> int:
    """A number below 2**64 that looks random; no two keys share one (splitmix64)."""
    z = (key * _GOLDEN + (seed + 1) * 0xD1342543DE82EF95) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@dataclass(frozen=True)
class Selection:
    """Which rows are wanted: those before a limit whose hash is small enough."""

    limit: int | None = None
    threshold: int | None = None
    seed: int = 0

    def __contains__(self, key: int) -> bool:
        return (self.limit is None or key < self.limit) and (
            self.threshold is None or mixed(key, self.seed) <= self.threshold
        )


def select(
    rows: int | None, limit: int | None, sample: int | float | None, seed: int
) -> tuple[Selection, int | None]:
    """The selection asked for, and how many rows it has (None: not known before they are read).

    Args:
        rows: how many there are, where that is known.
        limit: only the first rows, so many.
        sample: of these a share (a float up to 1.0) or a number (an int), chosen by a hash of
            each row's number, so that the choice depends on nothing else.
        seed: another one chooses other rows.
    """
    if limit is not None and (not _whole(limit) or limit < 1):
        raise InputError(f"limit is a number of rows from 1 on, but was given {limit!r}")
    total = rows if limit is None or rows is None else min(rows, limit)
    if sample is None:
        return Selection(limit, None, seed), total
    if isinstance(sample, float):
        if not 0 < sample <= 1:
            raise InputError(
                f"a sample is a share above 0 and up to 1.0, or a whole number of rows; given: "
                f"{sample!r}"
            )
        threshold = min(int(sample * 2.0**64), _MASK)
        expected = None if total is None else round(total * sample)
        return Selection(limit, threshold, seed), expected
    if not _whole(sample) or sample < 1:
        raise InputError(f"a sample has at least 1 row, but was given {sample!r}")
    if total is None:
        raise InputError(
            "to choose a number of rows one must know how many there are, and a stream does not "
            "tell; give a share, such as 0.01"
        )
    if sample >= total:
        return Selection(limit, None, seed), total
    return Selection(limit, _smallest(total, sample, seed), seed), sample


def _whole(number: object) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


def _smallest(total: int, count: int, seed: int) -> int:
    """The count-th smallest hash of the keys below `total`."""
    kept = np.empty(0, dtype=np.uint64)
    for start in range(0, total, 1 << 20):
        keys = np.arange(start, min(total, start + (1 << 20)), dtype=np.uint64)
        kept = np.concatenate([kept, _mixed_all(keys, seed)])
        if len(kept) > count:
            kept = np.partition(kept, count - 1)[:count]
    return int(kept.max())


def _mixed_all(keys: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """`mixed` of many keys at once; unsigned numbers wrap around by themselves."""
    shift = np.uint64(((seed + 1) * 0xD1342543DE82EF95) & _MASK)
    z = keys * np.uint64(_GOLDEN) + shift
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class Block:
    """Some rows in a row, read; and where the next block begins."""

    index: int
    items: tuple[Record | Problem, ...]
    after: Position


@dataclass(frozen=True)
class Span:
    """A block not read yet: where it begins, how many wanted rows it has, where it ends."""

    index: int
    start: Position
    count: int
    after: Position


class Stream:
    """All sources, one after the other, without the rows that are not selected."""

    def __init__(self, sources: Sequence[Source], selection: Selection, block_rows: int) -> None:
        self.sources, self.selection, self.block_rows = sources, selection, block_rows
        self._bases = [0]
        for source in sources[:-1]:
            if (rows := source.count()) is None:
                raise InputError("a stream of rows can only be the last part of a corpus")
            self._bases.append(self._bases[-1] + rows)

    def blocks(self, start: Position, first: int) -> Iterator[Block]:
        """The blocks from a position on, numbered from `first`."""
        rows, index = self._rows(start), first
        while found := list(islice(rows, self.block_rows)):
            yield Block(index, tuple(item for item, _ in found), found[-1][1])
            index += 1

    def spans(self, start: Position, first: int) -> Iterator[Span]:
        """The same blocks, without their rows."""
        marks, index, begin = self._marks(start), first, start
        while found := list(islice(marks, self.block_rows)):
            yield Span(index, begin, len(found), found[-1])
            begin, index = found[-1], index + 1

    def read(self, span: Span) -> Block:
        """One block, wherever it was cut off."""
        found = list(islice(self._rows(span.start), span.count))
        if len(found) < span.count:
            raise InputError("the data became shorter while it was read; leave the files alone")
        return Block(span.index, tuple(item for item, _ in found), found[-1][1])

    def _rows(self, start: Position) -> Iterator[tuple[Record | Problem, Position]]:
        for at, source, mark, base in self._parts(start):
            for number, content, after in source.read(mark, self._choice(base)):
                if isinstance(content, Problem):
                    yield content, Position(at, *after)
                else:
                    record = Record(base + number, source.where(number), content)
                    yield record, Position(at, *after)

    def _marks(self, start: Position) -> Iterator[Position]:
        for at, source, mark, base in self._parts(start):
            for after in source.marks(mark, self._choice(base)):
                yield Position(at, *after)

    def _choice(self, base: int) -> Choice:
        limit = self.selection.limit
        stop = None if limit is None else max(0, limit - base)
        return Choice(lambda number: base + number in self.selection, stop)

    def _parts(self, start: Position) -> Iterator[tuple[int, Source, Mark, int]]:
        for at in range(start.source, len(self.sources)):
            mark = Mark(start.offset, start.number) if at == start.source else Mark()
            yield at, self.sources[at], mark, self._bases[at]
