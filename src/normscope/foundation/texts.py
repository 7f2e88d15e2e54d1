r"""Text as it is written to files and shown to people: JSON, CSV, control characters, long names.

Python's strings may hold half of a surrogate pair, which UTF-8 cannot encode. It is written as an
escape sequence such as \ud800. In JSON that is the character itself, which is read back.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_QUOTED = 200  # characters of a name in a message
# What a spreadsheet takes for a formula. Apostrophes before it count, so that one can be removed.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


def utf8(text: str) -> bytes:
    """Return a text in UTF-8, with half of a surrogate pair as an escape sequence."""
    return text.encode("utf-8", "backslashreplace")


def to_json(value: Any, *, indent: int | None = None, compact: bool = False) -> str:
    """Return plain data as JSON, in which only what must be is escaped; refuse NaN and infinity.

    Encode it with `utf8`: what cannot be encoded becomes an escape sequence of JSON.
    """
    separators = (",", ":") if compact else None
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )


def json_line(value: Any, *, indent: int | None = None) -> bytes:
    """Return plain data as the bytes of a JSON file or of a line of one."""
    return utf8(to_json(value, indent=indent) + "\n")


def csv_lines(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield rows as lines of a CSV file; floats have all their digits.

    A text that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    writer = csv.writer(_Echo(), lineterminator="\r\n")  # so that both are quoted in a cell
    for row in rows:
        yield writer.writerow([_cell(value) for value in row]).removesuffix("\r\n") + "\n"


class _Echo:
    """Returns each line that a `csv.writer` writes, which `writerow` returns in turn."""

    def write(self, line: str) -> str:
        return line


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def printable(text: str) -> str:
    """Return a text for a terminal, with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def quoted(name: object) -> str:
    """Return a name in quotes, with control characters escaped; a long one without its middle."""
    return shortened(repr(str(name)), _QUOTED)


def shortened(text: str, most: int) -> str:
    """Return a text without its middle if it has more than `most` characters."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]}…{text[-(most // 3) :]}"
