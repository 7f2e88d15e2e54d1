"""Reproductions with a tiny model and a small text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from normscope.reproduce import Report, ReproduceOptions, reproduce


class Inputs(NamedTuple):
    """The folder of a model, and a text file."""

    model: Path
    text: Path

    def options(self, output: Path | None = None, **changes: Any) -> ReproduceOptions:
        """Return options for this model and this text."""
        return ReproduceOptions(str(self.model), (self.text,), output, **changes)


class Reports:
    """Reports by experiment, each made when it is first used, in a folder of its name."""

    def __init__(self, inputs: Inputs, folder: Path) -> None:
        self.inputs, self.folder = inputs, folder
        self._reports: dict[str, Report] = {}

    def __getitem__(self, name: str) -> tuple[Report, Path]:
        output = self.folder / name
        if name not in self._reports:
            self._reports[name] = reproduce(name, self.inputs.options(output))
        return self._reports[name], output


def rows_of(report: Report, name: str) -> list[dict[str, Any]]:
    """Return the rows of an exhibit's table."""
    (table,) = [exhibit.table for exhibit in report.exhibits if exhibit.name == name]
    assert table is not None
    return table.rows()
