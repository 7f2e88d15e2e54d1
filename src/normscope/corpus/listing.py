"""The tables of a run for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.table import Table as TerminalTable

from normscope.foundation.texts import printable
from normscope.measures.statistics.base import Table

SHOWN = 24  # rows of a table
HEADING = 9  # characters in a line of a heading


def listing(tables: Mapping[str, Table]) -> Iterator[tuple[TerminalTable, int]]:
    """Yield each table with its first rows, and the width that it needs.

    Intervals are left out, since they would make lines three times as long.
    """
    for name, table in tables.items():
        yield _terminal_table(name, table)


def _terminal_table(name: str, table: Table) -> tuple[TerminalTable, int]:
    lists = table.lists()
    columns = {column: v for column, v in lists.items() if not _is_bound(column, lists)}
    remarks = [f"the first {SHOWN} of {len(table)} rows"] if len(table) > SHOWN else []
    remarks += ["intervals are in the files of --output"] if len(columns) < len(lists) else []
    shown = TerminalTable(
        title=f"{table.title} ({name})" if table.title else name,
        caption="; ".join(remarks) or None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
    )
    width = 0
    for column, values in columns.items():
        numeric = all(isinstance(value, (int, float)) for value in values)
        heading = _heading(column)
        least = max(map(len, [*heading, *(_cell(value) for value in values[:SHOWN])]))
        width += least + 3
        shown.add_column(
            "\n".join(heading),
            justify="right" if numeric else "left",
            min_width=least,
            overflow="fold",
        )
    for row in list(zip(*columns.values(), strict=True))[:SHOWN]:
        shown.add_row(*(_cell(value) for value in row))
    return shown, width


def _is_bound(name: str, columns: Mapping[str, Any]) -> bool:
    base, _, end = name.rpartition("_")
    return end in ("low", "high") and base in columns


def _heading(name: str) -> list[str]:
    """Split a long name into lines, which end with an underscore."""
    lines = [""]
    for part in re.split("(?<=_)", name):
        if lines[-1] and len(lines[-1] + part) > HEADING:
            lines.append("")
        lines[-1] += part
    return lines


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value))
