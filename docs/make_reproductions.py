"""Draw the figures of docs/reproductions from the numbers stored there.

    python docs/make_reproductions.py

Nothing is measured again: the numbers of a figure are in the folder `tables` of its report. What
depends on the weights alone (singular values, the maps of one sentence) is computed with the
default model, which is the model of these reports.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
REPORTS = DOCS / "reproductions"
sys.path.insert(0, str(ROOT))  # for experiments

from experiments.nmt import report as nmt_report  # noqa: E402
from normscope import models  # noqa: E402
from normscope.measures.statistics import Table  # noqa: E402
from normscope.reproduce.exhibits import Exhibit  # noqa: E402
from normscope.reproduce.measure import CorpusExperiment  # noqa: E402
from normscope.reproduce.measurements import Measurements  # noqa: E402
from normscope.reproduce.report import picture  # noqa: E402
from normscope.reproduce.run import EXPERIMENTS  # noqa: E402

# Of the amplified pairs, the reports keep those that are shown.
PAIRS = {"layer": "layer", "query": "query_token", "key": "key_token", "cells": "count"}


def read(path: Path) -> Table:
    """Read a CSV file, or a compressed one."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as lines:
        head, *rows = csv.reader(lines)
    columns = zip(*rows, strict=True)
    return Table(
        dict(zip(head, ([_value(text) for text in column] for column in columns), strict=True))
    )


def _value(text: str) -> Any:
    """Return what a cell of a table was before it was written."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


def stored(experiment: CorpusExperiment, model: Any, tokenizer: Any) -> Measurements:
    """Return the stored numbers of a report, under the names they have in a run."""
    folder, tables = REPORTS / experiment.name / "tables", {}
    for plan in experiment.exhibits:
        file = Exhibit(plan.name, "", "").file
        if isinstance(plan.data, str):
            for path in sorted(folder.glob(f"{file}-data.csv*")):
                tables[plan.data] = read(path)
    pairs = folder / "top-amplified-pairs.csv"
    if pairs.is_file():
        columns = read(pairs).columns
        tables["amplification_pairs"] = Table({new: columns[old] for old, new in PAIRS.items()})
    return Measurements(tables, model, tokenizer, {}, {})


def main() -> None:
    """Write all figures."""
    model, tokenizer = models.load(None)
    for experiment in EXPERIMENTS.values():
        measurements = stored(experiment, model, tokenizer)
        for plan in experiment.exhibits:
            if plan.draw is not None:
                file = f"{Exhibit(plan.name, '', '').file}.png"
                path = REPORTS / experiment.name / "figures" / file
                path.write_bytes(picture(plan.draw(measurements)))
                print(path.relative_to(ROOT))
    folder = REPORTS / "emnlp2020-nmt"
    with contextlib.redirect_stdout(io.StringIO()):  # the tables
        nmt_report.write(folder)
    for path in sorted(folder.glob("*.png")):
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
