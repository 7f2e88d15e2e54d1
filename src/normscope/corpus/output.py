"""The result of a corpus run, and the files that it leaves in its folder.

statistics.json     signature, settings, counts of the rows, all tables; equal runs give the same
                    bytes, however often they were interrupted
run.json            times, speed, engine: what differs between equal runs
tables/NAME.csv     one file for each table, and the same as .parquet
figures/NAME.png    figures of the tables that have one
report.html         everything on one page that needs no other file
maps/part-*.parquet the maps of every sequence, with --dump
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.corpus.checkpoint import FINISHED, Folder
from normscope.corpus.page import page
from normscope.corpus.records import Problem
from normscope.errors import InputError
from normscope.foundation.texts import json_line, to_json
from normscope.measures.statistics.base import Table
from normscope.results.arrays import import_tables


@dataclass(frozen=True, eq=False)
class CorpusResult:
    """The tables of a corpus run.

    Attributes:
        tables: The tables by name; `result[name]` is one of them.
        signature: One line that says how the numbers were made.
        counts: Numbers of rows, sequences, tokens, sequences that were cut, and bad rows by kind.
        problems: The first bad rows.
        identity: Model, data, settings and versions.
        run: Times and speed; empty for a run that was finished before.
        folder: The folder of the run, or None.
    """

    tables: Mapping[str, Table]
    signature: str
    counts: Mapping[str, Any]
    problems: tuple[Problem, ...]
    identity: Mapping[str, Any]
    run: Mapping[str, Any]
    folder: Path | None = None

    def __getitem__(self, name: str) -> Table:
        try:
            return self.tables[name]
        except KeyError:
            raise InputError(
                f"there is no table {name!r}; the tables are: {', '.join(self.tables)}"
            ) from None

    def __repr__(self) -> str:
        return f"CorpusResult({self.counts['sequences']} sequences; {', '.join(self.tables)})"

    def to_dict(self) -> dict[str, Any]:
        """Return the content of statistics.json: plain data, with None for NaN and infinity."""
        return {
            "signature": self.signature,
            "identity": self.identity,
            "counts": self.counts,
            "problems": [vars(problem) for problem in self.problems],
            "tables": {name: _plain(table) for name, table in self.tables.items()},
        }


def from_dict(data: Mapping[str, Any], folder: Path | None = None) -> CorpusResult:
    """Return the result from the content of statistics.json."""
    try:
        tables = {
            name: Table(
                {column: _numbers(values) for column, values in table["columns"].items()},
                table["title"],
                notes=table["notes"],
            )
            for name, table in data["tables"].items()
        }
        problems = tuple(Problem(**fields) for fields in data["problems"])
        facts = data["signature"], data["counts"], problems, data["identity"]
        kinds = (str, dict, tuple, dict)
        if not all(isinstance(one, kind) for one, kind in zip(facts, kinds, strict=True)):
            raise TypeError("signature, counts or identity are of another kind")
    except (LookupError, TypeError, AttributeError) as problem:
        raise InputError(
            f"{FINISHED} is damaged ({problem!r:.200}); start a new run with --restart "
            "(restart=True), or give another folder"
        ) from problem
    return CorpusResult(tables, *facts, {}, folder)


def _plain(table: Table) -> dict[str, Any]:
    columns = {
        name: [None if isinstance(v, float) and not math.isfinite(v) else v for v in values]
        for name, values in table.lists().items()
    }
    return {"title": table.title, "notes": table.notes, "columns": columns}


def _numbers(values: list[Any]) -> list[Any]:
    """Replace None by NaN in a column of numbers."""
    present = [value for value in values if value is not None]
    if len(present) < len(values) and all(isinstance(v, (int, float)) for v in present):
        return [math.nan if value is None else value for value in values]
    return values


def write(folder: Folder, result: CorpusResult) -> None:
    """Write all files; statistics.json last, since it marks the run as finished."""
    for name, table in result.tables.items():
        folder.write(f"tables/{name}.csv", table.to_csv())
        folder.write(f"tables/{name}.parquet", _parquet(table))
    pictures = figures(result.tables)
    for name, png in pictures.items():
        folder.write(f"figures/{name}.png", png)
    content = result.to_dict()
    folder.write("report.html", page(content, pictures))
    folder.write("run.json", json_line(result.run, indent=1))
    folder.write(FINISHED, _json_with_tables(content))


def figures(tables: Mapping[str, Table]) -> dict[str, bytes]:
    """Return PNG files by name, for the tables of which there is a figure."""
    from normscope.show import plots

    pictures = {}
    for name, figure in plots.statistics_figures(tables).items():
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=144, metadata={"Software": None})
        pictures[name] = file.getvalue()
    return pictures


def _parquet(table: Table) -> bytes:
    file = io.BytesIO()
    import_tables("pyarrow.parquet").write_table(table.to_arrow(), file)
    return file.getvalue()


def _json_with_tables(content: Mapping[str, Any]) -> str:
    """Return plain data as JSON, with each column of a table on a line of its own."""
    text = to_json
    tables = []
    for name, table in content["tables"].items():
        lines = [
            f"    {text(column)}: {text(values)}" for column, values in table["columns"].items()
        ]
        facts = f'"title": {text(table["title"])},\n   "notes": {text(table["notes"])}'
        joined = ",\n".join(lines)
        tables.append(f'  {text(name)}: {{\n   {facts},\n   "columns": {{\n{joined}\n   }}\n  }}')
    rest = {name: value for name, value in content.items() if name != "tables"}
    head = to_json(rest, indent=1).removesuffix("\n}")
    body = ",\n".join(tables)
    return f'{head},\n "tables": {{\n{body}\n }}\n}}\n'
