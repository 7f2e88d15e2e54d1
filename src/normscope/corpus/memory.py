"""Rows that are in memory or come from an iterator, and the kinds of data that a run takes."""

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
    Mark,
    RowFields,
    RowFilter,
    RowSource,
    SourceRow,
    from_row,
    open_file,
)
from normscope.corpus.records import Content, Problem
from normscope.errors import InputError


class Memory:
    """Rows of a Python object: a list, a dataset, or an iterator, which is called a stream.

    Attributes:
        sized: Whether rows can be read by number; False for a stream.
        expected: The hash of the rows of a stream that an earlier run has read, or None.
    """

    format = "rows"

    def __init__(self, rows: Iterable[Any], fields: RowFields, name: str = "data") -> None:
        self.name, self.fields, self._rows = name, fields, rows
        self.sized = hasattr(rows, "__len__") and hasattr(rows, "__getitem__")
        self.expected: str | None = None
        self._seen = hashlib.sha256()

    def count(self) -> int | None:
        return len(self._rows) if self.sized else None  # type: ignore[arg-type]

    def identity(self) -> dict[str, Any]:
        """Return a hash of all rows; for a stream, nothing that depends on its rows."""
        identity: dict[str, Any] = {"name": self.name, "format": self.format}
        if not self.sized:
            return identity
        identity["rows"] = self.count()
        fingerprint = getattr(self._rows, "_fingerprint", None)  # the hash of a datasets.Dataset
        if isinstance(fingerprint, str):
            return {**identity, "fingerprint": fingerprint}
        digest = hashlib.sha256()
        for row in self.read(START, ALL):
            digest.update(_bytes(row.content))
        return {**identity, "sha256": digest.hexdigest()}

    def where(self, number: int) -> str:
        return f"{self.name}, row {number + 1}"

    def read(self, start: Mark, chosen: RowFilter) -> Iterator[SourceRow]:
        for number, row in self._from(start.number, chosen):
            content = from_row(self.where(number), row, self.fields)
            yield SourceRow(number, content, Mark(0, number + 1))

    def marks(self, start: Mark, chosen: RowFilter) -> Iterator[Mark]:
        if (count := self.count()) is None:
            raise InputError(
                "the rows of a stream cannot be divided among workers; give files, a list or a "
                "dataset"
            )
        return (Mark(0, number + 1) for number in chosen.numbers(start.number, count))

    def _from(self, first: int, chosen: RowFilter) -> Iterator[tuple[int, Any]]:
        rows: Any = self._rows
        if (count := self.count()) is not None:
            yield from ((n, rows[n]) for n in chosen.numbers(first, count))
            return
        self._seen, number = hashlib.sha256(), -1
        for number, row in enumerate(islice(rows, chosen.stop)):
            if number == first:
                self._compare()
            self._seen.update(f"{row!r}\n".encode(errors="surrogatepass"))
            if number >= first and chosen.wanted(number):
                yield number, row
        if number < first:
            self._compare()

    def seen(self) -> str:
        """Return a hash of the rows of a stream that were read so far."""
        return self._seen.hexdigest()

    def _compare(self) -> None:
        if self.expected not in (None, self.seen()):
            raise InputError(
                "the rows of the stream differ from those that the run in this folder started "
                "with; "
                "give the same stream, another folder, or start a new run (restart=True, "
                "--restart)"
            )


def _bytes(content: Content | Problem) -> bytes:
    """Return bytes that differ if the content does."""
    return (repr(content) + "\n").encode(errors="surrogatepass")


def sources_of(
    data: Any, format_name: str | None = None, fields: RowFields | None = None
) -> list[RowSource]:
    """Return one source for each file, or one for rows in memory.

    A string or a path is a file, and so is each item of a list of `Path`. Every other iterable
    consists of rows.
    """
    fields = fields or RowFields()
    if isinstance(data, (str, os.PathLike)):
        return [open_file(Path(data), format_name, fields)]
    if isinstance(data, (list, tuple)):
        if not data:
            raise InputError("no data was given: give files or rows")
        paths = [isinstance(item, os.PathLike) for item in data]
        if all(paths):
            return [open_file(Path(path), format_name, fields) for path in data]
        if any(paths):
            raise InputError(
                "the data must be files (paths) or rows (strings, pairs), not both in one list"
            )
        if all(isinstance(row, str) and len(row) < 512 and Path(row).is_file() for row in data):
            raise InputError(
                "a list of strings is a list of texts, but these are names of files; give "
                "pathlib.Path objects for files"
            )
    if hasattr(data, "iloc"):  # pandas, whose rows are not found by their labels
        data = data.to_dict("records") if hasattr(data, "columns") else data.tolist()
    if format_name is not None:
        raise InputError(
            f"the format {format_name!r} is for files, but the data are rows in memory; leave it "
            "out"
        )
    if isinstance(data, dict) or not isinstance(data, Iterable):
        raise InputError(
            "the data must be files, a dataset, or an iterable of strings, pairs or dictionaries, "
            f"not {type(data).__name__}; of a DatasetDict, give one split, as in data['train']"
        )
    return [Memory(data, fields)]
