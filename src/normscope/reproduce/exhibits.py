"""What a reproduction shows: tables and figures under the papers' names, and findings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from normscope.measures.statistics import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ANALYSES = {
    "attn_w": "Attn-W",
    "attn_n": "Attn-N",
    "attn_res_w": "AttnRes-W",
    "attn_res_n": "AttnRes-N",
    "attn_res_ln_n": "AttnResLn-N",
}


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A table or a figure of a paper, made anew."""

    name: str  # as the paper calls it
    title: str
    convention: str  # how its numbers are made, published and measured
    table: Table | None = None  # published beside measured
    draw: Callable[[], Figure] | None = None
    data: Table | None = None  # all numbers, where the table shows a part of them

    @property
    def file(self) -> str:
        """Its name in file names."""
        return re.sub(r"\W+", "-", self.name.lower()).strip("-")


@dataclass(frozen=True)
class Finding:
    """Something that a paper found, and whether the numbers measured here say the same."""

    statement: str
    published: str
    measured: str
    agrees: bool


@dataclass(frozen=True, eq=False)
class Report:
    """One reproduction, ready to be written."""

    experiment: str
    paper: str
    warnings: tuple[str, ...]  # first of all: what is not as in the paper
    facts: Mapping[str, str]  # model, data, counts
    findings: Sequence[Finding]
    exhibits: Sequence[Exhibit]
    signature: str
    sources: Sequence[str] = ()  # where the published numbers were read


@cache
def published() -> dict[str, Any]:
    """The published numbers, with where they were read; layers and heads count from 1."""
    import json

    text = (files("normscope.reproduce") / "published.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def from_one(table: Table) -> Table:
    """The same table with layers and heads counted from 1, as in the papers."""
    columns = {
        name: [one + 1 for one in values] if name in ("layer", "head") else values
        for name, values in table.lists().items()
    }
    return Table(columns, table.title, notes=table.notes.replace(_FROM_ZERO, ""))


_FROM_ZERO = "; layers and heads count from 0"


def rows_of(table: Table, **chosen: Any) -> list[dict[str, Any]]:
    """The rows that have these entries."""
    return [
        row for row in table.rows() if all(row[name] == value for name, value in chosen.items())
    ]


def table_of(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None) -> Table:
    """Rows as a table; what a row lacks is None."""
    listed = list(rows)
    names = list(columns or dict.fromkeys(name for row in listed for name in row))
    return Table({name: [row.get(name) for row in listed] for name in names})


def shown(value: Any) -> str:
    """A cell for readers: as many digits as the papers have, and one to spare."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if len(repr(value)) <= 6:  # printed in a paper, with the digits it has there
            return repr(value)
        digits = 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
        return f"{value:.{digits}f}"
    return str(value)
