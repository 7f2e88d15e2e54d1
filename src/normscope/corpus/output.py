"""What a finished run leaves in its folder.

statistics.json     signature, settings, account of the rows, all tables; the same bytes for
                    equal runs, however often they were interrupted
run.json            times, speed, engine: what differs between equal runs
tables/NAME.csv     one file for each table, and the same as .parquet
figures/NAME.png    where there is a figure for a table
report.html         all of it on one page that needs nothing else
maps/part-*.parquet the maps of every sequence, with --dump
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.corpus.checkpoint import FINISHED, Folder
from normscope.corpus.page import page
from normscope.corpus.records import Problem
from normscope.errors import InputError
from normscope.measures.statistics import Table
from normscope.results.arrays import import_tables


@dataclass(frozen=True, eq=False)
class CorpusResult:
    """The tables of a corpus, and how they came about."""

    tables: Mapping[str, Table]
    signature: str
    counts: Mapping[str, Any]
    """rows, sequences, tokens, cut (sequences that were too long), bad (by kind)."""
    problems: tuple[Problem, ...]
    """The first of the bad rows."""
    identity: Mapping[str, Any]
    """Model, data, settings and versions."""
    run: Mapping[str, Any]
    """Times and speed; empty for a run that was finished before."""
    folder: Path | None = None

    def __getitem__(self, name: str) -> Table:
        try:
            return self.tables[name]
        except KeyError:
            raise InputError(
                f"there is no table {name!r}; there are: {', '.join(self.tables)}"
            ) from None

    def __repr__(self) -> str:
        return f"CorpusResult({self.counts['sequences']} sequences; {', '.join(self.tables)})"

    def to_dict(self) -> dict[str, Any]:
        """What statistics.json holds: plain data; numbers that are not finite are None."""
        return {
            "signature": self.signature,
            "identity": self.identity,
            "counts": self.counts,
            "problems": [vars(one) for one in self.problems],
            "tables": {name: _plain(table) for name, table in self.tables.items()},
        }


def from_dict(data: Mapping[str, Any], folder: Path | None = None) -> CorpusResult:
    """The result that statistics.json tells of."""
    tables = {
        name: Table(
            {column: _numbers(values) for column, values in told["columns"].items()},
            told["title"],
            notes=told["notes"],
        )
        for name, told in data["tables"].items()
    }
    problems = tuple(Problem(**one) for one in data["problems"])
    return CorpusResult(
        tables, data["signature"], data["counts"], problems, data["identity"], {}, folder
    )


def _plain(table: Table) -> dict[str, Any]:
    columns = {
        name: [None if isinstance(v, float) and not math.isfinite(v) else v for v in values]
        for name, values in table.lists().items()
    }
    return {"title": table.title, "notes": table.notes, "columns": columns}


def _numbers(values: list[Any]) -> list[Any]:
    """NaN again, in a column of numbers."""
    known = [value for value in values if value is not None]
    if len(known) < len(values) and all(isinstance(v, (int, float)) for v in known):
        return [math.nan if value is None else value for value in values]
    return values


def write(folder: Folder, result: CorpusResult) -> None:
    """Write all files; statistics.json last, since it says that the run is finished."""
    for name, table in result.tables.items():
        folder.write(f"tables/{name}.csv", table.to_csv().encode())
        folder.write(f"tables/{name}.parquet", _parquet(table))
    drawn = figures(result.tables)
    for name, png in drawn.items():
        folder.write(f"figures/{name}.png", png)
    told = result.to_dict()
    folder.write("report.html", page(told, drawn).encode())
    folder.write("run.json", _json(result.run))
    folder.write(FINISHED, _json_with_tables(told))


def figures(tables: Mapping[str, Table]) -> dict[str, bytes]:
    """PNG files by name, for the tables that `normscope.show.plots.statistics_figures` draws."""
    from normscope.show import plots

    make = getattr(plots, "statistics_figures", None)
    if make is None:
        return {}
    drawn = {}
    for name, figure in dict(make(tables)).items():
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=144, metadata={"Software": None})
        drawn[name] = file.getvalue()
    return drawn


def _parquet(table: Table) -> bytes:
    file = io.BytesIO()
    import_tables("pyarrow.parquet").write_table(table.to_arrow(), file)
    return file.getvalue()


def _json(told: Mapping[str, Any]) -> bytes:
    return (json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _json_with_tables(told: Mapping[str, Any]) -> bytes:
    """The same, with each column of a table on a line of its own."""

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    tables = []
    for name, table in told["tables"].items():
        lines = [
            f"    {text(column)}: {text(values)}" for column, values in table["columns"].items()
        ]
        facts = f'"title": {text(table["title"])},\n   "notes": {text(table["notes"])}'
        joined = ",\n".join(lines)
        tables.append(f'  {text(name)}: {{\n   {facts},\n   "columns": {{\n{joined}\n   }}\n  }}')
    rest = {name: value for name, value in told.items() if name != "tables"}
    head = _json(rest).decode().removesuffix("\n}\n")
    body = ",\n".join(tables)
    return f'{head},\n "tables": {{\n{body}\n }}\n}}\n'.encode()
