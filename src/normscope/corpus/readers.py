"""Read the rows of files, by their format.

A source reads its rows one at a time, from any `Mark`, and knows how many rows it has. Rows are
numbered from 0, and bad and skipped rows are counted, so that the number of a row does not depend
on what is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from normscope.corpus.records import Content, Problem
from normscope.corpus.snapshot import FileSummary, open_snapshot, summarise
from normscope.errors import InputError
from normscope.foundation.files import check_name

FORMATS = ("text", "jsonl", "tsv", "parquet", "clark")
SUFFIXES = {
    f".{ending}": name
    for name, endings in {
        "text": ("txt", "text", "raw"),
        "jsonl": ("jsonl", "ndjson"),
        "tsv": ("tsv",),
        "parquet": ("parquet",),
        "clark": ("pkl", "pickle"),
    }.items()
    for ending in endings
}
LONGEST_LINE = 1 << 24  # bytes; a file without line ends must not fill the memory


@dataclass(frozen=True)
class RowFilter:
    """Which rows of a source to read: those that `wanted` accepts, with numbers below `stop`."""

    wanted: Callable[[int], bool] = lambda _: True
    stop: int | None = None

    def numbers(self, start: int, rows: int) -> Iterator[int]:
        """Return the numbers from `start`, in a source with `rows` rows."""
        last = rows if self.stop is None else min(rows, self.stop)
        return filter(self.wanted, range(start, last))


ALL = RowFilter()


class Mark(NamedTuple):
    """Where a row begins in its source: the byte offset (0 unless rows are lines), its number."""

    offset: int = 0
    number: int = 0


START = Mark()


class SourceRow(NamedTuple):
    """A row that was read: its number, its content or problem, and where the next row begins."""

    number: int
    content: Content | Problem
    after: Mark


@dataclass(frozen=True)
class RowFields:
    """The names of the fields with the texts of a row, in JSONL, Parquet and dictionaries."""

    text: str = "text"
    pair: str = "text_pair"


@runtime_checkable
class RowSource(Protocol):
    """Rows in a fixed order."""

    name: str
    format: str

    def count(self) -> int | None:
        """Return the number of rows, or None if it is known only at the end."""

    def where(self, number: int) -> str:
        """Return the place of a row, as reports show it."""

    def identity(self) -> dict[str, Any]:
        """Return what identifies the rows, for comparison when a run is continued."""

    def read(self, start: Mark, chosen: RowFilter) -> Iterator[SourceRow]:
        """Read the chosen rows from a mark on."""

    def marks(self, start: Mark, chosen: RowFilter) -> Iterator[Mark]:
        """Return where the row after each of these begins, without parsing the rows."""


def open_file(
    path: Path, format_name: str | None = None, fields: RowFields | None = None
) -> RowSource:
    """Return the source for a file, whose format is given or told by its suffix."""
    fields = fields or RowFields()
    if format_name is not None and format_name not in FORMATS:
        raise InputError(f"unknown format {format_name!r}; the formats are: {', '.join(FORMATS)}")
    try:
        if not check_name(path).is_file():
            what = "is a folder, not a file" if path.is_dir() else "does not exist"
            raise InputError(f"the data file {str(path)!r} {what}; give the files by name")
    except OSError as problem:
        raise InputError(f"cannot read {str(path)!r}: {problem.strerror}") from None
    chosen = format_name or SUFFIXES.get(path.suffix.lower())
    if chosen is None:
        raise InputError(
            f"cannot tell the format of {str(path)!r} from its name; the name may end in "
            f"{', '.join(SUFFIXES)}; otherwise give the format (--format {'|'.join(FORMATS)})"
        )
    try:
        with path.open("rb"):
            pass
    except OSError as problem:
        raise InputError(f"cannot read {str(path)!r}: {problem.strerror}") from None
    if chosen == "parquet":
        from normscope.corpus.parquet import ParquetFile

        return ParquetFile(path, fields)
    return ClarkFile(path) if chosen == "clark" else LineFile(path, chosen, fields)


class SourceFile:
    """The base of all sources that are files."""

    format: str

    def __init__(self, path: Path) -> None:
        self.path, self.name = path.resolve(), path.name  # workers may run in another folder

    @cached_property
    def summary(self) -> FileSummary:
        return summarise(self.path)

    def open(self) -> BufferedReader:
        """Open the file for reading what was there when it was summarised."""
        return open_snapshot(self.path, self.summary)

    def identity(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "format": self.format,
            "bytes": self.summary.size,
            "sha256": self.summary.sha256,
        }

    def where(self, number: int) -> str:
        return f"{self.name}, row {number + 1}"


class LineFile(SourceFile):
    """A file with a row in each line: text, JSON, or two texts separated by a tab."""

    def __init__(self, path: Path, format_name: str, fields: RowFields) -> None:
        super().__init__(path)
        self.format, self.fields = format_name, fields

    def count(self) -> int:
        return self.summary.lines

    def where(self, number: int) -> str:
        return f"{self.name}, line {number + 1}"

    def read(self, start: Mark, chosen: RowFilter) -> Iterator[SourceRow]:
        for number, line, after in self._lines(start, chosen):
            yield SourceRow(number, self._content(number, line), after)

    def marks(self, start: Mark, chosen: RowFilter) -> Iterator[Mark]:
        return (after for _, _, after in self._lines(start, chosen))

    def _lines(self, start: Mark, chosen: RowFilter) -> Iterator[tuple[int, bytes | None, Mark]]:
        """Return number, content (None if it is too long) and end of each chosen line."""
        offset, number = start
        with self.open() as file:
            file.seek(offset)
            while number != chosen.stop and (line := file.readline(LONGEST_LINE)):
                offset += len(line)
                kept: bytes | None = line
                while len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                    line, kept = file.readline(LONGEST_LINE), None
                    offset += len(line)
                if chosen.wanted(number):
                    yield number, kept, Mark(offset, number + 1)
                number += 1

    def _content(self, number: int, line: bytes | None) -> Content | Problem:
        where = self.where(number)
        if line is None:
            return Problem(where, "line", f"the line is longer than {LONGEST_LINE} bytes")
        if number == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
        try:
            text = line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            return not_utf8(where, error)
        if self.format == "text" or not text.strip():
            return checked(where, text)
        if self.format == "tsv":
            first, tab, second = text.partition("\t")
            if not tab or "\t" in second:
                fields = text.count("\t") + 1
                return Problem(
                    where, "missing", f"a pair has 2 fields with a tab between, not {fields}"
                )
            return checked(where, first, second)
        try:
            row = json.loads(text)
        except RecursionError:
            return Problem(where, "json", "the JSON is nested too deeply")
        except ValueError as error:
            return Problem(where, "json", f"broken JSON: {error}")
        return from_row(where, row, self.fields)


class ClarkFile(SourceFile):
    """Clark et al.'s pickle, a list of {"tokens": [...], "attns": array}; the tokens are read."""

    format = "clark"

    @cached_property
    def _rows(self) -> list[Any]:
        from normscope.corpus.pickles import load

        rows = load(self.path, self.open())
        if not isinstance(rows, list):
            raise InputError(
                f"{str(self.path)!r} holds one {type(rows).__name__}; Clark et al.'s files hold a "
                'list of {"tokens": [...], "attns": array}'
            )
        return [row.get("tokens") if isinstance(row, dict) else row for row in rows]

    def count(self) -> int:
        return len(self._rows)

    def read(self, start: Mark, chosen: RowFilter) -> Iterator[SourceRow]:
        for number in chosen.numbers(start.number, self.count()):
            content = self._content(self.where(number), self._rows[number])
            yield SourceRow(number, content, Mark(0, number + 1))

    def marks(self, start: Mark, chosen: RowFilter) -> Iterator[Mark]:
        return (Mark(0, number + 1) for number in chosen.numbers(start.number, self.count()))

    def _content(self, where: str, tokens: Any) -> Content | Problem:
        if tokens is None:
            return Problem(where, "missing", "the row has no tokens")
        if not isinstance(tokens, (list, tuple)) or not all(isinstance(t, str) for t in tokens):
            return Problem(where, "type", "the tokens are not a list of strings")
        if not tokens:
            return Problem(where, "empty", "the row has no tokens")
        broken = next((at for at, token in enumerate(tokens) if _is_broken(token)), None)
        if broken is not None:
            return Problem(where, "encoding", f"token {broken} has half of a surrogate pair")
        return Content(tokens=tuple(tokens))


def _is_broken(text: str) -> bool:
    """Tell whether a text has half of a surrogate pair, which no tokenizer takes."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def from_row(where: str, row: Any, fields: RowFields) -> Content | Problem:
    """Return the content of a string, a pair of strings, or a dictionary with these fields."""
    if isinstance(row, str):
        return checked(where, row)
    if isinstance(row, dict):
        if row.get(fields.text) is None:
            there = ", ".join(map(repr, list(row)[:8])) or "nothing"
            return Problem(where, "missing", f"no field {fields.text!r}; there is: {there:.200}")
        return checked(where, row[fields.text], row.get(fields.pair))
    if isinstance(row, Sequence) and len(row) == 2 and all(isinstance(o, str) for o in row):
        return checked(where, *row)
    return Problem(
        where, "type", f"a row is a string, two strings or a dictionary, not {row!r:.60}"
    )


def checked(where: str, text: Any, pair: Any = None) -> Content | Problem:
    """Return the content of a row, or a problem if a text is not a string, empty or invalid."""
    for name, value in (("text", text), ("second text", pair)):
        if value is None and name != "text":
            continue
        if not isinstance(value, str):
            kind = type(value).__name__
            return Problem(where, "type", f"the {name} is not a string but {kind}: {value!r:.60}")
        if not value.strip():
            return Problem(where, "empty", f"the {name} is empty")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            message = f"character {error.start} of the {name} is half of a surrogate pair"
            return Problem(where, "encoding", message)
    return Content(text, pair)


def not_utf8(where: str, error: UnicodeDecodeError) -> Problem:
    """Return the problem of a row that is not UTF-8."""
    byte = error.object[error.start]
    return Problem(where, "encoding", f"not UTF-8: byte 0x{byte:02x} at position {error.start}")
