"""Tables for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from normscope.measures.statistics import Table
from normscope.results.arrays import printable

SHOWN = 24  # rows of a table
HEADING = 9  # characters in a line of a column's name


def listing(tables: Mapping[str, Table]) -> Iterator[tuple[Any, int]]:
    """Each table with its first rows, and the width below which its numbers would be cut off.

    Intervals are left to the files: with them a line would be three times as long.
    """
    from rich import box
    from rich.table import Table as Shown

    for name, table in tables.items():
        lists = table.lists()
        columns = {one: values for one, values in lists.items() if not _is_bound(one, lists)}
        rows = len(table)
        said = [f"the first {SHOWN} of {rows} rows"] if rows > SHOWN else []
        said += ["intervals are in the files of --output"] if len(columns) < len(lists) else []
        shown = Shown(
            title=f"{table.title} ({name})" if table.title else name,
            caption="; ".join(said) or None,
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
        yield shown, width


def _is_bound(name: str, there: Mapping[str, Any]) -> bool:
    base, _, end = name.rpartition("_")
    return end in ("low", "high") and base in there


def _heading(name: str) -> list[str]:
    """A long name in several lines, each ending with an underscore."""
    lines = [""]
    for part in re.split("(?<=_)", name):
        if lines[-1] and len(lines[-1] + part) > HEADING:
            lines.append("")
        lines[-1] += part
    return lines


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value))
