"""Rows that are in memory, or come as a stream; and what `data` may be."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from normscope.corpus.readers import (
    ALL,
    START,
    Choice,
    Fields,
    Found,
    Mark,
    Source,
    from_row,
    open_file,
)
from normscope.corpus.records import Content, Problem
from normscope.errors import InputError


class Memory:
    """Rows that Python has: a list, a dataset, a generator. Strings, pairs or dictionaries."""

    format = "rows"

    def __init__(self, rows: Iterable[Any], fields: Fields, name: str = "data") -> None:
        self.name, self.fields, self._rows = name, fields, rows
        self.sized = hasattr(rows, "__len__") and hasattr(rows, "__getitem__")
        self.expected: str | None = None  # the hash of the rows of a stream read before
        self._seen = hashlib.sha256()

    def count(self) -> int | None:
        return len(self._rows) if self.sized else None  # type: ignore[arg-type]

    def identity(self) -> dict[str, Any]:
        """A hash of all rows; of a stream, whose rows are not there yet, nothing."""
        told = {"name": self.name, "format": self.format}
        if not self.sized:
            return told
        known = getattr(self._rows, "_fingerprint", None)  # what datasets itself caches by
        if isinstance(known, str):
            return {**told, "rows": self.count(), "fingerprint": known}
        digest = hashlib.sha256()
        for found in self.read(START, ALL):
            digest.update(_bytes(found.content))
        return {**told, "rows": self.count(), "sha256": digest.hexdigest()}

    def where(self, number: int) -> str:
        return f"{self.name}, row {number + 1}"

    def read(self, start: Mark, choice: Choice) -> Iterator[Found]:
        for number, row in self._from(start.number, choice):
            content = from_row(self.where(number), row, self.fields)
            yield Found(number, content, Mark(0, number + 1))

    def marks(self, start: Mark, choice: Choice) -> Iterator[Mark]:
        if (count := self.count()) is None:
            raise InputError(
                "a stream of rows has no parts to hand out; give files, a list or a dataset"
            )
        return (Mark(0, number + 1) for number in choice.numbers(start.number, count))

    def _from(self, first: int, choice: Choice) -> Iterator[tuple[int, Any]]:
        rows: Any = self._rows
        if (count := self.count()) is not None:
            yield from ((n, rows[n]) for n in choice.numbers(first, count))
            return
        self._seen, number = hashlib.sha256(), -1
        for number, row in enumerate(islice(rows, choice.stop)):
            if number == first:
                self._compare()
            self._seen.update(f"{row!r}\n".encode(errors="surrogatepass"))
            if number >= first and choice.wanted(number):
                yield number, row
        if number < first:
            self._compare()

    def seen(self) -> str:
        """A hash of the rows of a stream so far."""
        return self._seen.hexdigest()

    def _compare(self) -> None:
        if self.expected not in (None, self.seen()):
            raise InputError(
                "the rows of the stream are not those that the run in this folder began with; "
                "give the same stream, another folder, or start anew (restart=True, --restart)"
            )


def _bytes(content: Content | Problem) -> bytes:
    """Something that differs when the content does."""
    return (repr(content) + "\n").encode(errors="surrogatepass")


def sources_of(
    data: Any, format_name: str | None = None, fields: Fields | None = None
) -> list[Source]:
    """One source for each file, or one for rows in memory.

    A string or a path is a file, and so is each item of a list of `Path`; every other iterable
    is taken for rows.
    """
    fields = fields or Fields()
    if isinstance(data, (str, os.PathLike)):
        return [open_file(Path(data), format_name, fields)]
    if isinstance(data, (list, tuple)):
        if not data:
            raise InputError("no data was given: give files or rows")
        paths = [isinstance(one, os.PathLike) for one in data]
        if all(paths):
            return [open_file(Path(one), format_name, fields) for one in data]
        if any(paths):
            raise InputError(
                "data are files (paths) or rows (strings, pairs), not both in one list"
            )
        if all(isinstance(one, str) and len(one) < 512 and Path(one).is_file() for one in data):
            raise InputError(
                "a list of strings is a list of texts, but these are names of files; give "
                "pathlib.Path objects for files"
            )
    if hasattr(data, "iloc"):  # pandas: rows in their order, whatever their labels are
        data = data.to_dict("records") if hasattr(data, "columns") else data.tolist()
    if format_name is not None:
        raise InputError("a format is that of a file; leave it out for rows in memory")
    if isinstance(data, dict) or not isinstance(data, Iterable):
        raise InputError(
            "data are files, a dataset, or an iterable of strings, pairs or dictionaries, not "
            f"{type(data).__name__}; of a DatasetDict give one split, as in data['train']"
        )
    return [Memory(data, fields)]
