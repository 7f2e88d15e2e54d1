"""Contents of a report: exhibits (tables and figures under the papers' names) and findings."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.measures.statistics import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The names of the 2021 paper's analyses, by scope.
ANALYSES = {
    "attn_w": "Attn-W",
    "attn_n": "Attn-N",
    "attn_res_w": "AttnRes-W",
    "attn_res_n": "AttnRes-N",
    "attn_res_ln_n": "AttnResLn-N",
}
# The same with words, for figures.
ANALYSIS_LABELS = {
    "attn_w": "Attn-W: weights",
    "attn_n": "Attn-N: norms",
    "attn_res_w": "AttnRes-W: weights, residual",
    "attn_res_n": "AttnRes-N: norms, residual",
    "attn_res_ln_n": "AttnResLn-N: whole block",
}
_FROM_ZERO = "; layers and heads count from 0"  # in the notes of tables


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A table or a figure of a paper, reproduced."""

    name: str  # as in the paper
    title: str
    convention: str  # how the published and the measured numbers are defined
    table: Table | None = None  # published next to measured numbers
    draw: Callable[[], Figure] | None = None
    data: Table | None = None  # all measured numbers, if the table shows only some of them

    @property
    def file(self) -> str:
        """The name of the exhibit in file names."""
        return re.sub(r"\W+", "-", self.name.lower()).strip("-")


@dataclass(frozen=True)
class Finding:
    """A finding of a paper, and whether the measured numbers agree with it."""

    statement: str
    published: str
    measured: str
    agrees: bool


@dataclass(frozen=True, eq=False)
class Report:
    """The contents of a report."""

    experiment: str
    paper: str
    warnings: tuple[str, ...]  # how model and text differ from the paper's
    facts: Mapping[str, str]  # model, data, counts
    findings: Sequence[Finding]
    exhibits: Sequence[Exhibit]
    signature: str
    sources: Sequence[str] = ()  # of the published numbers


@cache
def published() -> dict[str, Any]:
    """Return the published numbers and their sources; layers and heads count from 1."""
    text = (files("normscope.reproduce") / "published.json").read_text(encoding="utf-8")
    numbers: dict[str, Any] = json.loads(text)
    return numbers


def count_from_one(table: Table) -> Table:
    """Return the table with layers and heads counted from 1, as in the papers."""
    columns = {
        name: [number + 1 for number in values] if name in ("layer", "head") else values
        for name, values in table.lists().items()
    }
    return Table(columns, table.title, notes=table.notes.replace(_FROM_ZERO, ""))


def rows_with(table: Table, **entries: Any) -> list[dict[str, Any]]:
    """Return the rows that have these entries."""
    return [
        row for row in table.rows() if all(row[name] == value for name, value in entries.items())
    ]


def table_of(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return a table of rows; entries that a row does not have are None."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return Table({name: [row.get(name) for row in rows] for name in names})


def figure_of(axes: Any) -> Figure:
    """Return the figure that Axes, or the first of several, belong to."""
    figure: Figure = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()[0].figure
    return figure


def titled(axes: Any, title: str) -> Figure:
    """Return the figure that Axes belong to, with words above it that say what it shows."""
    from normscope.show.plots.style import headline

    figure = figure_of(axes)
    headline(figure, title)
    return figure


def format_value(value: Any) -> str:
    """Format a value for readers, with one digit more than most numbers in the papers."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if len(repr(value)) <= 6:  # a published number: keep its digits
            return repr(value)
        digits = 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
        return f"{value:.{digits}f}"
    return str(value)
