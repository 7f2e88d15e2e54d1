"""Figures of several methods over texts: means, intervals, paired differences, tables, files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.faithfulness.conventions import Figure
from normscope.faithfulness.intervals import intervals
from normscope.foundation.files import check_file, write_file
from normscope.foundation.texts import csv_lines, json_line, printable
from normscope.results.arrays import import_tables

FORMAT, VERSION = "normscope.faithfulness", 1
RESAMPLES = 9999
COLUMNS = ("method", "figure", "mean", "low", "high", "texts", "higher_is_better")
DIFFERENCES = ("method", "minus", "figure", "mean", "low", "high", "texts", "verdict")


class MethodFigures:
    """Figures of several methods, one number for each text.

    Args:
        figures: what was measured.
        values: for each method an array (text, figure); NaN where a figure is not defined for a
            text, which is then left out of its mean.
        texts: the names of the texts, such as their numbers.
        settings: the conventions of each metric, and the methods.
        signature: how the numbers were computed, in one line.
        problems: why texts were left out, one line for each.
        sampling: bootstrap resamples of the texts for the intervals (0 for no intervals), the share
            of the resamples within an interval, and the seed of the resampling.
    """

    def __init__(
        self,
        figures: Sequence[Figure],
        values: Mapping[str, Any],
        *,
        texts: Sequence[str] | None = None,
        settings: Mapping[str, str] | None = None,
        signature: str = "",
        problems: Sequence[str] = (),
        sampling: tuple[int, float, int] = (RESAMPLES, 0.95, 0),
    ) -> None:
        self.figures = tuple(figures)
        self.methods = tuple(values)
        columns = len(self.figures)
        self.values = {
            name: np.asarray(array, dtype=np.float64).reshape(-1, columns)
            for name, array in values.items()
        }
        counts = {len(array) for array in self.values.values()}
        if len(counts) != 1 or not columns:
            raise InputError(
                f"every method needs one row for each text, but they have {sorted(counts)}"
            )
        (count,) = counts
        self.texts = tuple(map(str, range(count))) if texts is None else tuple(map(str, texts))
        if len(self.texts) != count:
            raise InputError(f"there are {len(self.texts)} names for {count} texts")
        self.settings = {str(name): str(value) for name, value in (settings or {}).items()}
        self.signature, self.problems = signature, tuple(problems)
        self.resamples, self.confidence, self.seed = sampling
        if self.resamples < 0 or not 0 < self.confidence < 1:
            raise InputError(
                "resamples must not be negative, and confidence lies between 0 and 1, not "
                f"{self.resamples} and {self.confidence}"
            )

    # ---- reading

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        names = ", ".join(figure.name for figure in self.figures)
        return f"MethodFigures({len(self)} texts; {', '.join(self.methods)}; {names})"

    def _at(self, figure: str) -> int:
        names = [entry.name for entry in self.figures]
        if figure not in names:
            raise InputError(f"there is no figure {figure!r}; the figures are: {', '.join(names)}")
        return names.index(figure)

    def _of(self, method: str) -> NDArray[np.float64]:
        if method not in self.values:
            listed = ", ".join(self.methods)
            raise InputError(f"there is no method {method!r}; the methods are: {listed}")
        return self.values[method]

    def each(self, method: str, figure: str) -> NDArray[np.float64]:
        """Return a figure of a method for each text."""
        return self._of(method)[:, self._at(figure)]

    def mean(self, method: str, figure: str) -> float:
        """Return the mean over the texts for which the figure is defined; NaN if there is none."""
        return _mean(self.each(method, figure))

    def interval(self, method: str, figure: str) -> tuple[float, float]:
        """Return the bootstrap interval of the mean."""
        return self._interval(self.each(method, figure)[:, None])[0]

    def difference(self, method: str, minus: str, figure: str) -> tuple[float, float, float]:
        """Return the mean of the paired differences of two methods, and its interval."""
        paired = self.each(method, figure) - self.each(minus, figure)
        return (_mean(paired), *self._interval(paired[:, None])[0])

    def _interval(self, values: NDArray[np.float64]) -> list[tuple[float, float]]:
        how: dict[str, Any] = {"resamples": self.resamples, "seed": self.seed}
        ends = intervals(values, confidence=self.confidence, **how)
        return [(float(low), float(high)) for low, high in ends.T]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each method and figure: mean, ends of the interval, number of texts."""
        together = np.concatenate([self.values[name] for name in self.methods], axis=1)
        ends = iter(self._interval(together))
        rows = []
        for name in self.methods:
            for at, figure in enumerate(self.figures):
                column, (low, high) = self.values[name][:, at], next(ends)
                entries = (name, figure.name, _mean(column), low, high)
                count = int(np.isfinite(column).sum())
                row = (*entries, count, figure.higher_is_better)
                rows.append(dict(zip(COLUMNS, row, strict=True)))
        return rows

    def differences(self, minus: str) -> list[dict[str, Any]]:
        """Return a row for each other method and figure: its paired difference from one method.

        The verdict is "better" or "worse" if the interval leaves out 0, and "equal" otherwise.
        """
        self._of(minus)
        rows = []
        for name in self.methods:
            if name == minus:
                continue
            paired = self.values[name] - self.values[minus]
            for at, (low, high) in enumerate(self._interval(paired)):
                figure, column = self.figures[at], paired[:, at]
                apart = low > 0 or high < 0
                better = (low > 0) == figure.higher_is_better
                verdict = ("better" if better else "worse") if apart else "equal"
                count = int(np.isfinite(column).sum())
                entries = (name, minus, figure.name, _mean(column), low, high, count, verdict)
                rows.append(dict(zip(DIFFERENCES, entries, strict=True)))
        return rows

    # ---- merging

    def merge(self, other: MethodFigures) -> MethodFigures:
        """Return the figures of both parts of a set of texts, which must not overlap.

        Texts whose names are numbers are put in the order of these.

        Raises:
            InputError: the parts were measured in different ways, or have a text in common.
        """
        mine = (self.figures, set(self.methods), self.settings, self.signature)
        theirs = (other.figures, set(other.methods), other.settings, other.signature)
        facts = ("figures", "methods", "settings", "signature")
        other_ways = [n for n, a, b in zip(facts, mine, theirs, strict=True) if a != b]
        if other_ways:
            raise InputError(f"the parts cannot be merged; not the same: {', '.join(other_ways)}")
        if shared := sorted(set(self.texts) & set(other.texts)):
            raise InputError(f"both parts have the text {shared[0]!r}, so they cannot be merged")
        names = [*self.texts, *other.texts]
        order = list(range(len(names)))
        if all(name.isdecimal() for name in names):
            order.sort(key=lambda at: int(names[at]))
        values = {
            name: np.concatenate([self.values[name], other.values[name]])[order]
            for name in self.methods
        }
        return MethodFigures(
            self.figures,
            values,
            texts=[names[at] for at in order],
            settings=self.settings,
            signature=self.signature,
            problems=(*self.problems, *other.problems),
            sampling=(self.resamples, self.confidence, self.seed),
        )

    # ---- showing

    def table(self, digits: int = 3) -> str:
        """Return a table in Markdown: methods down, figures across, with intervals."""
        head = ["", *(f"{f.name} {'↑' if f.higher_is_better else '↓'}" for f in self.figures)]
        lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        by_method: dict[str, list[str]] = {name: [] for name in self.methods}
        for row in self.rows():
            by_method[row["method"]].append(_cell(row, digits))
        lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in by_method.items()]
        return "\n".join(lines) + "\n"

    def conventions(self) -> str:
        """Return what the numbers mean and how they were computed, one line each."""
        lines = [
            f"{f.name}: {f.title} ({'higher' if f.higher_is_better else 'lower'} is better)"
            for f in self.figures
        ]
        lines += [f"{name}: {value}" for name, value in self.settings.items()]
        percent = f"{100 * self.confidence:g}%"
        lines.append(
            f"texts: {len(self)}, left out: {len(self.problems)}; intervals: {percent}, "
            f"{self.resamples} bootstrap resamples of the texts, seed {self.seed}"
        )
        return "\n".join(map(printable, lines)) + "\n"

    def show(self) -> None:
        """Print the table and the conventions."""
        print(self.table() + "\n" + self.conventions(), end="")

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        heads = [f"{f.name} {'↑' if f.higher_is_better else '↓'}" for f in self.figures]
        head = "".join(f"<th>{escape(name)}</th>" for name in ["", *heads])
        by_method: dict[str, str] = dict.fromkeys(self.methods, "")
        for row in self.rows():
            by_method[row["method"]] += f"<td>{escape(_cell(row, 3))}</td>"
        body = "".join(
            f"<tr><th>{escape(name)}</th>{cells}</tr>" for name, cells in by_method.items()
        )
        notes = escape(self.conventions())
        return f"<table><tr>{head}</tr>{body}</table><pre>{notes}</pre>"

    # ---- converting

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame. Needs the extra `tables`."""
        return import_tables("pandas").DataFrame(self.rows(), columns=list(COLUMNS))

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain JSON types, with None for NaN; `from_dict` reads it."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "signature": self.signature,
            "settings": self.settings,
            "figures": [vars(figure) for figure in self.figures],
            "texts": list(self.texts),
            "values": {name: _plain(self.values[name].tolist()) for name in self.methods},
            "problems": list(self.problems),
            "resamples": self.resamples,
            "confidence": self.confidence,
            "seed": self.seed,
            "rows": [{name: _number(value) for name, value in row.items()} for row in self.rows()],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MethodFigures:
        """Return the figures that `to_dict` described."""
        try:
            if data["format"] != FORMAT or data["version"] != VERSION:
                raise KeyError("format")
            return cls(
                [Figure(**entry) for entry in data["figures"]],
                {name: np.array(rows, dtype=np.float64) for name, rows in data["values"].items()},
                texts=data["texts"],
                settings=data["settings"],
                signature=data["signature"],
                problems=data["problems"],
                sampling=(data["resamples"], data["confidence"], data["seed"]),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as problem:
            raise InputError(f"this is no result of faithfulness ({problem!r:.100})") from problem

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON; `MethodFigures.load` reads it."""
        check_file(path, (".json",))
        write_file(path, json_line(self.to_dict(), indent=1))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a row for each method, figure and text, with all digits of the numbers."""
        check_file(path, (".csv",))
        lines: list[tuple[Any, ...]] = [("method", "figure", "text", "value")]
        for name in self.methods:
            for at, figure in enumerate(self.figures):
                for text, value in zip(self.texts, self.values[name][:, at].tolist(), strict=True):
                    lines.append((name, figure.name, text, "" if np.isnan(value) else value))
        write_file(path, "".join(csv_lines(lines)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a .json file, or the numbers to a .csv file."""
        kinds = {".json": self.to_json, ".csv": self.to_csv}
        write = kinds.get(Path(path).suffix.lower())
        if write is None:
            raise InputError(f"cannot write to {str(path)!r}: give a name in {', '.join(kinds)}")
        write(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MethodFigures:
        """Read a file that `to_json` wrote."""
        return cls.from_dict(read_json(path))


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the object in a JSON file; raise InputError if there is none."""
    try:
        data = json.loads(Path(path).read_bytes())
    except OSError as problem:
        raise InputError(f"cannot read {str(path)!r}: {problem.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{str(path)!r} is not JSON") from None
    if not isinstance(data, dict):
        raise InputError(f"{str(path)!r} has no result in it")
    return data


def _mean(values: NDArray[np.float64]) -> float:
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def _cell(row: Mapping[str, Any], digits: int) -> str:
    if np.isnan(row["mean"]):
        return "–"
    mean = f"{row['mean']:.{digits}f}"
    if np.isnan(row["low"]):
        return mean
    return f"{mean} [{row['low']:.{digits}f}, {row['high']:.{digits}f}]"


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value


def _plain(rows: list[list[float]]) -> list[list[float | None]]:
    return [[_number(value) for value in row] for row in rows]
