"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from normscope.report import printable
from normscope.statistics import Table

SHOWN = 24  # rows of a table


def listing(tables: Mapping[str, Table]) -> Iterator[Any]:
    """Each table with its first rows."""
    from rich.table import Table as Shown

    for name, table in tables.items():
        rows = len(table)
        more = f"the first {SHOWN} of {rows} rows" if rows > SHOWN else None
        shown = Shown(title=table.title or name, caption=more, title_justify="left")
        lists = table.lists()
        for column, values in lists.items():
            numeric = all(isinstance(value, (int, float)) for value in values)
            shown.add_column(column, justify="right" if numeric else "left")
        for row in list(zip(*lists.values(), strict=True))[:SHOWN]:
            shown.add_row(*(_cell(value) for value in row))
        yield shown


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else printable(str(value))
