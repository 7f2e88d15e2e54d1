"""What the experiments on methods of attribution share: rows on disk, tables, pictures, reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.corpus.finished import CHUNK, FinishedRows, RowWork
from normscope.errors import InputError
from normscope.faithfulness.intervals import bootstrap_means
from normscope.faithfulness.result import MethodFigures
from normscope.foundation.files import make_folder
from normscope.measures.statistics import Table
from normscope.models.default import sha256_of
from normscope.reproduce.exhibits import Finding, Report, published, rows_with, table_of
from normscope.reproduce.measure import MEASURED, check_folder
from normscope.reproduce.measurements import ExhibitPlan, Measurements
from normscope.reproduce.options import ReproduceOptions
from normscope.show.plots.style import ink, panels, plain, set_title, styled, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESAMPLES = 2000
ROW, HEAD = 0.27, 1.15  # inches of a method and of the rest of a figure
WIDE = 30  # letters of a method's name


@dataclass(frozen=True, eq=False)
class MeasuredTables:
    """What a run measured.

    Attributes:
        tables: in long form, with a row for each method and figure.
        facts: model, data, counts.
        warnings: how they differ from the paper's.
        signature: how the numbers were computed.
    """

    tables: Mapping[str, Table]
    facts: Mapping[str, str]
    warnings: tuple[str, ...]
    signature: str


@dataclass(frozen=True)
class MethodExperiment:
    """An experiment that compares methods.

    Attributes:
        name: as on the command line.
        paper: the papers.
        measure: measures, or reads the rows that an earlier run left.
        exhibits: its tables and figures.
        findings: what the papers found.
        used: the options that it reads, beside those of every experiment.
    """

    name: str
    paper: str
    measure: Callable[[ReproduceOptions], MeasuredTables]
    exhibits: tuple[ExhibitPlan, ...]
    findings: Callable[[Measurements], list[Finding]]
    used: tuple[str, ...] = field(default=())

    def __call__(self, options: ReproduceOptions) -> Report:
        """Measure, or continue or read an earlier run in the same folder; return the report."""
        options.check(self.name, *self.used)
        if options.output is not None:
            check_folder(options.output)
            make_folder(options.output / MEASURED)
        measured = self.measure(options)
        measurements = Measurements(measured.tables, None, None, {}, {})
        plans = [plan for plan in self.exhibits if plan.available(measurements)]
        return Report(
            self.name,
            self.paper,
            measured.warnings,
            measured.facts,
            self.findings(measurements),
            [plan.make(measurements) for plan in plans],
            measured.signature,
            published()["sources"][self.name],
        )


# ---- files


def files_of(paths: Sequence[Path], suffixes: Sequence[str], where: str) -> list[Path]:
    """Return the files among some paths, and those in folders among them, with these suffixes.

    Args:
        paths: files and folders.
        suffixes: such as ".csv".
        where: what to give, for errors.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix.lower() in suffixes)
            if not inside:
                raise InputError(f"no {' or '.join(suffixes)} file is in {str(path)!r}; {where}")
            found += inside
        elif not path.is_file():
            raise InputError(f"there is no file {str(path)!r}; {where}")
        elif path.suffix.lower() not in suffixes:
            raise InputError(f"{path.name} does not end in {' or '.join(suffixes)}; {where}")
        else:
            found.append(path)
    if not found:
        raise InputError(f"no data was given; {where}")
    return found


def described(paths: Iterable[Path]) -> str:
    """Return names and hashes of files, for the facts of a report."""
    return ", ".join(f"{path.name} (sha256 {sha256_of(path)[:16]}…)" for path in paths)


def measured_rows(
    options: ReproduceOptions, name: str, header: Mapping[str, Any], count: int, work: RowWork
) -> list[dict[str, Any]]:
    """Return the record of every row; with an output folder, they are kept in it.

    A run with the same header continues behind the rows that are there. It may be of more rows, or
    of fewer.

    Args:
        options: the options of the run.
        name: the name of the file in the folder `measured`.
        header: what the records depend on.
        count: the number of rows.
        work: yields the records of some rows.
    """
    if options.output is None:
        numbers = list(range(count))
        chunks = [numbers[at : at + CHUNK] for at in range(0, count, CHUNK)]
        done = {at: record for chunk in chunks for at, record in work(chunk, lambda _: None)}
    else:
        path = make_folder(options.output / MEASURED) / f"{name}.jsonl"
        finished = FinishedRows(path, header)
        done = finished.complete(count, work, description=name, restart=options.restart)
    return [done[at] for at in range(count)]


# ---- tables


def long_table(figures: MethodFigures, **more: Any) -> list[dict[str, Any]]:
    """Return a row for each method and figure: mean, interval and number of texts."""
    kept = ("method", "figure", "mean", "low", "high", "texts")
    return [{**more, **{name: row[name] for name in kept}} for row in figures.rows()]


def mean_over_sets(
    groups: Mapping[str, MethodFigures], method: str, figure: str, seed: int = 0
) -> tuple[float, float, float]:
    """Return the mean of the means of several sets, and its interval.

    The texts of each set are resampled by themselves.
    """
    values = [group.each(method, figure)[:, None] for group in groups.values()]
    drawn = [
        bootstrap_means(column, RESAMPLES, seed + number) for number, column in enumerate(values)
    ]
    low, high = np.quantile(np.mean(drawn, axis=0), [0.025, 0.975])
    mean = np.mean([np.nanmean(column) for column in values])
    return float(mean), float(low), float(high)


def measured_value(table: Table, **entries: Any) -> dict[str, Any] | None:
    """Return the row of a long table that has these entries, or None."""
    found = rows_with(table, **entries)
    return found[0] if found else None


def interval_of(row: Mapping[str, Any], digits: int = 3) -> str:
    """Return an interval as text."""
    return f"[{row['low']:.{digits}f}, {row['high']:.{digits}f}]"


def beside(
    table: Table,
    figures: Mapping[str, str],
    published_rows: Mapping[str, Mapping[str, Any]],
    **chosen: Any,
) -> Table:
    """Return a wide table: for every method each figure, published and measured.

    Args:
        table: the measured numbers in long form.
        figures: the names of figures, and what they are called in the table.
        published_rows: for each method its name in the paper ("paper") and its published figures.
        chosen: entries that a row of the long table must have.
    """
    kept = rows_with(table, **chosen)
    methods = dict.fromkeys([row["method"] for row in kept])
    rows = []
    for method in methods:
        own = published_rows.get(method, {})
        row: dict[str, Any] = {"method": method, "in the paper": own.get("paper")}
        for figure, title in figures.items():
            (entry,) = [r for r in kept if (r["method"], r["figure"]) == (method, figure)]
            if any(figure in other for other in published_rows.values()):
                row[f"{title} published"] = own.get(figure)
            row[f"{title} measured"] = entry["mean"]
            row[f"{title} interval"] = interval_of(entry)
        rows.append(row)
    return table_of(rows)


# ---- figures


@dataclass(frozen=True)
class Panel:
    """One panel of `draw_beside`.

    Attributes:
        title: what it shows.
        rows: for each method its row of a long table.
        published: the published numbers, by method.
        higher: whether higher is better; None if neither is.
    """

    title: str
    rows: Sequence[Mapping[str, Any]]
    published: Mapping[str, float]
    higher: bool | None = True


@styled
def draw_beside(title: str, parts: Sequence[Panel]) -> Figure:
    """Draw measured means with their intervals, and published numbers as open diamonds.

    The methods of all panels are ordered by the first one.
    """
    from normscope.show.plots.style import headline

    order = sorted(parts[0].rows, key=lambda row: row["mean"], reverse=parts[0].higher is not False)
    names = [row["method"] for row in order]
    size = (2.4 + 3.2 / len(parts), HEAD + ROW * len(names))
    axes = panels(None, len(parts), size, sharey=True)
    for ax, part in zip(axes, parts, strict=True):
        by_name = {row["method"]: row for row in part.rows}
        for place, name in enumerate(names):
            if name in by_name:
                row = by_name[name]
                ax.hlines(place, row["low"], row["high"], color=ink("accent"), linewidth=2)
                ax.plot(row["mean"], place, "o", color=ink("accent"))
            if name in part.published:
                look = {"markerfacecolor": "none", "markersize": 6}
                ax.plot(part.published[name], place, "D", color=ink("ink"), **look)
        ax.margins(y=0.05)
        tidy(ax)
        set_title(ax, part.title)
        better = {True: "higher is better", False: "lower is better", None: ""}[part.higher]
        ax.set_xlabel(better)
    axes[0].set_yticks(range(len(names)))
    for label, name in zip(axes[0].set_yticklabels(names), names, strict=True):
        label.update(plain(name))
    axes[0].invert_yaxis()
    figure: Figure = axes[0].figure
    headline(figure, title)
    return figure
