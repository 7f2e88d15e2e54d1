"""Where rows come from: files by their format, or rows that are in memory already.

A source reads from any `Mark` on, one row at a time, and knows how many rows it has. Rows are
numbered from 0, bad ones and skipped ones included, so a row's number never depends on what else
is read or left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from normscope.corpus.records import Content, Problem
from normscope.errors import InputError

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
LONGEST_LINE = 1 << 24  # bytes; a file with no line ends must not fill the memory
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Choice:
    """Which rows of a source are wanted, by number; from `stop` on none are."""

    wanted: Callable[[int], bool] = lambda _: True
    stop: int | None = None

    def numbers(self, start: int, rows: int) -> Iterator[int]:
        """The wanted ones of a source whose rows are found by number."""
        last = rows if self.stop is None else min(rows, self.stop)
        return filter(self.wanted, range(start, last))


ALL = Choice()


class Mark(NamedTuple):
    """Where a row begins in its source: the byte (0 where rows are not lines), and its number."""

    offset: int = 0
    number: int = 0


START = Mark()


class Found(NamedTuple):
    """A row that was read: its number, its content or its problem, and where the next begins."""

    number: int
    content: Content | Problem
    after: Mark


@dataclass(frozen=True)
class Fields:
    """What the fields of a row are called in JSONL, Parquet and dictionaries."""

    text: str = "text"
    pair: str = "text_pair"


@runtime_checkable
class Source(Protocol):
    """Rows in an order that never changes."""

    name: str
    format: str

    def count(self) -> int | None:
        """How many rows; None where only reading to the end tells."""

    def where(self, number: int) -> str:
        """What a report calls a row."""

    def identity(self) -> dict[str, Any]:
        """What a continued run compares, to be sure that these are the same rows."""

    def read(self, start: Mark, choice: Choice) -> Iterator[Found]:
        """The rows from a mark on whose numbers are wanted."""

    def marks(self, start: Mark, choice: Choice) -> Iterator[Mark]:
        """Where the row after each of those begins, without looking into the rows."""


def open_file(path: Path, format_name: str | None = None, fields: Fields | None = None) -> Source:
    """The source for a file, by its suffix or by the format that is named."""
    fields = fields or Fields()
    if format_name is not None and format_name not in FORMATS:
        raise InputError(f"unknown format {format_name!r}; the formats are: {', '.join(FORMATS)}")
    try:
        if not path.is_file():
            what = "is a folder, not a file" if path.is_dir() else "does not exist"
            raise InputError(f"the data file {str(path)!r} {what}; give the files by name")
    except OSError as problem:
        raise InputError(f"cannot read {str(path)!r}: {problem.strerror}") from None
    chosen = format_name or SUFFIXES.get(path.suffix.lower())
    if chosen is None:
        raise InputError(
            f"cannot tell the format of {str(path)!r} from its name; it may end in "
            f"{', '.join(SUFFIXES)}, or say what it is with --format {'|'.join(FORMATS)}"
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


@dataclass(frozen=True)
class Summary:
    """A file in short."""

    size: int
    sha256: str
    lines: int


def summarise(path: Path) -> Summary:
    """Size, hash of the whole content, and the number of lines, in one pass."""
    digest, lines, size, last = hashlib.sha256(), 0, 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            lines += chunk.count(b"\n")
            size += len(chunk)
            last = chunk[-1:]
    return Summary(size, digest.hexdigest(), lines + (last != b"\n"))


class SourceFile:
    """What all files share."""

    format: str

    def __init__(self, path: Path) -> None:
        self.path, self.name = path.resolve(), path.name  # workers may have another folder

    @cached_property
    def summary(self) -> Summary:
        return summarise(self.path)

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
    """One row a line: text, JSON, or a pair with a tab between."""

    def __init__(self, path: Path, format_name: str, fields: Fields) -> None:
        super().__init__(path)
        self.format, self.fields = format_name, fields

    def count(self) -> int:
        return self.summary.lines

    def where(self, number: int) -> str:
        return f"{self.name}, line {number + 1}"

    def read(self, start: Mark, choice: Choice) -> Iterator[Found]:
        for number, line, after in self._lines(start, choice):
            yield Found(number, self._content(number, line), after)

    def marks(self, start: Mark, choice: Choice) -> Iterator[Mark]:
        return (after for _, _, after in self._lines(start, choice))

    def _lines(self, start: Mark, choice: Choice) -> Iterator[tuple[int, bytes | None, Mark]]:
        offset, number = start
        with self.path.open("rb") as file:
            file.seek(offset)
            while number != choice.stop and (line := file.readline(LONGEST_LINE)):
                offset += len(line)
                kept: bytes | None = line
                while len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                    line, kept = file.readline(LONGEST_LINE), None
                    offset += len(line)
                if choice.wanted(number):
                    yield number, kept, Mark(offset, number + 1)
                number += 1

    def _content(self, number: int, line: bytes | None) -> Content | Problem:
        where = self.where(number)
        if line is None:
            return Problem(where, "line", f"the line is longer than {LONGEST_LINE} bytes")
        if number == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")  # what some editors put first
        try:
            text = line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            return not_utf8(where, error)
        if self.format == "text" or not text.strip():
            return checked(where, text)
        if self.format == "tsv":
            first, tab, second = text.partition("\t")
            if not tab or "\t" in second:
                found = text.count("\t") + 1
                return Problem(
                    where, "missing", f"a pair has 2 fields with a tab between, not {found}"
                )
            return checked(where, first, second)
        try:
            row = json.loads(text)
        except RecursionError:
            return Problem(where, "json", "the JSON is nested too deep")
        except ValueError as error:
            return Problem(where, "json", f"broken JSON: {error}")
        return from_row(where, row, self.fields)


class ClarkFile(SourceFile):
    """Clark et al.'s pickle: a list of {"tokens": [...], "attns": array}; the tokens are kept."""

    format = "clark"

    @cached_property
    def _all(self) -> list[Any]:
        from normscope.corpus.pickles import load

        rows = load(self.path)
        if not isinstance(rows, list):
            raise InputError(
                f"{str(self.path)!r} holds one {type(rows).__name__}; Clark et al.'s files hold a "
                'list of {"tokens": [...], "attns": array}'
            )
        return [row.get("tokens") if isinstance(row, dict) else row for row in rows]

    def count(self) -> int:
        return len(self._all)

    def read(self, start: Mark, choice: Choice) -> Iterator[Found]:
        for number in choice.numbers(start.number, self.count()):
            content = self._content(self.where(number), self._all[number])
            yield Found(number, content, Mark(0, number + 1))

    def marks(self, start: Mark, choice: Choice) -> Iterator[Mark]:
        return (Mark(0, number + 1) for number in choice.numbers(start.number, self.count()))

    def _content(self, where: str, tokens: Any) -> Content | Problem:
        if tokens is None:
            return Problem(where, "missing", "the row has no tokens")
        if not isinstance(tokens, (list, tuple)) or not all(isinstance(t, str) for t in tokens):
            return Problem(where, "type", "the tokens are not a list of strings")
        if not tokens:
            return Problem(where, "empty", "the row has no tokens")
        return Content(tokens=tuple(tokens))


def from_row(where: str, row: Any, fields: Fields) -> Content | Problem:
    """A string, a pair of strings, or a dictionary with text (and text_pair)."""
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
    """The text, if it is one."""
    for name, value in (("text", text), ("second text", pair)):
        if value is None and name != "text":
            continue
        if not isinstance(value, str):
            kind = type(value).__name__
            return Problem(where, "type", f"the {name} is no string but {kind}: {value!r:.60}")
        if not value.strip():
            return Problem(where, "empty", f"the {name} is empty")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            message = f"character {error.start} of the {name} is half of a surrogate pair"
            return Problem(where, "encoding", message)
    return Content(text, pair)


def not_utf8(where: str, error: UnicodeDecodeError) -> Problem:
    """Bytes that are no UTF-8."""
    byte = error.object[error.start]
    return Problem(where, "encoding", f"not UTF-8: byte 0x{byte:02x} at place {error.start}")
