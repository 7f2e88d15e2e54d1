"""The result of a comparison: rank correlations of methods, and what each costs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.faithfulness.intervals import intervals
from normscope.faithfulness.result import read_json
from normscope.foundation.files import check_file, write_file
from normscope.foundation.texts import json_line, printable
from normscope.results.arrays import import_tables
from normscope.text.tokens import Tokens

FORMAT, VERSION = "normscope.agreement", 1
EXAMPLES = 8  # texts whose scores are shown on the page
PAIR_COLUMNS = ("method", "other", "mean", "sd", "low", "high", "texts")
COST_COLUMNS = ("method", "seconds", "peak_mb", "error")


@dataclass(frozen=True)
class ScoredText:
    """A text's tokens with the scores of each method."""

    tokens: Tokens
    scores: Mapping[str, NDArray[np.float64]]

    def to_dict(self) -> dict[str, Any]:
        """Return the scores in plain JSON types."""
        scores = {name: values.tolist() for name, values in self.scores.items()}
        return {"tokens": self.tokens.to_dict(), "scores": scores}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ScoredText:
        """Return the scores that `to_dict` described."""
        scores = {n: np.array(v, dtype=np.float64) for n, v in data["scores"].items()}
        return cls(Tokens.from_dict(data["tokens"]), scores)


@dataclass(frozen=True)
class MethodRecord:
    """What was compared of one text.

    Attributes:
        correlations: Spearman's ρ of each pair of methods, (method, method); NaN where the scores
            of a method are all equal, or fewer than two tokens are compared.
        seconds: the time of each method for one text, in a batch.
        peak_mb: its peak memory for the batch; None where the system hides it.
        errors: its completeness error; None where a method has none.
        example: the scores themselves.
    """

    correlations: NDArray[np.float64]
    seconds: Mapping[str, float]
    peak_mb: Mapping[str, float | None]
    errors: Mapping[str, float | None]
    example: ScoredText | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the record in plain JSON types, with None for NaN."""
        table = [[_number(value) for value in row] for row in self.correlations.tolist()]
        return {
            **{name: dict(getattr(self, name)) for name in ("seconds", "peak_mb", "errors")},
            "correlations": table,
            "example": None if self.example is None else self.example.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MethodRecord:
        """Return the record that `to_dict` described."""
        example = None if data["example"] is None else ScoredText.from_dict(data["example"])
        table = np.array(data["correlations"], dtype=np.float64)
        return cls(table, data["seconds"], data["peak_mb"], data["errors"], example)


class Agreement:
    """How much methods agree, and what each costs.

    Args:
        methods: the names of the methods.
        records: what was compared of each text.
        settings: what was compared, and the methods.
        signature: how the numbers were computed, in one line.
        problems: why texts were left out, one line for each.
        resamples: bootstrap resamples of the texts for the intervals; 0 for no intervals.
        seed: the seed of the resampling.
    """

    def __init__(
        self,
        methods: Sequence[str],
        records: Sequence[MethodRecord],
        *,
        settings: Mapping[str, str] | None = None,
        signature: str = "",
        problems: Sequence[str] = (),
        resamples: int = 9999,
        seed: int = 0,
    ) -> None:
        self.methods, self.records = tuple(methods), tuple(records)
        if not self.records:
            first = f"; the first: {problems[0]}" if problems else ""
            raise InputError(f"there is nothing to compare: no text could be used{first}")
        self.settings, self.signature = dict(settings or {}), signature
        self.problems, self.resamples, self.seed = tuple(problems), resamples, seed

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"Agreement({len(self)} texts; {', '.join(self.methods)})"

    @property
    def correlations(self) -> NDArray[np.float64]:
        """Spearman's ρ of each text and pair of methods, (text, method, method)."""
        return np.stack([record.correlations for record in self.records])

    @property
    def means(self) -> NDArray[np.float64]:
        """The mean of ρ over the texts for which it is defined, (method, method)."""
        values = self.correlations
        defined = np.isfinite(values)
        counts = defined.sum(axis=0)
        sums = np.where(defined, values, 0.0).sum(axis=0)
        return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)

    def examples(self) -> list[ScoredText]:
        """Return the scores of the first texts."""
        kept = [record.example for record in self.records if record.example is not None]
        return kept[:EXAMPLES]

    def pairs(self) -> list[dict[str, Any]]:
        """Return a row for each pair of methods: mean, standard deviation and interval of ρ."""
        rows = []
        table = self.correlations
        for a, name in enumerate(self.methods):
            for b in range(a + 1, len(self.methods)):
                column = table[:, a, b]
                defined = column[np.isfinite(column)]
                low, high = intervals(
                    column[:, None], resamples=self.resamples, seed=self.seed, confidence=0.95
                )[:, 0].tolist()
                some = len(defined) > 0
                mean = float(defined.mean()) if some else float("nan")
                sd = float(defined.std()) if some else float("nan")
                entries = (name, self.methods[b], mean, sd, low, high, len(defined))
                rows.append(dict(zip(PAIR_COLUMNS, entries, strict=True)))
        return rows

    def costs(self) -> list[dict[str, Any]]:
        """Return a row for each method: seconds for a text, peak memory, completeness error.

        Seconds are means over the texts, which are explained in batches; peak memory and error are
        the largest.
        """
        rows = []
        for name in self.methods:
            seconds = float(np.mean([record.seconds[name] for record in self.records]))
            peaks = [v for r in self.records if (v := r.peak_mb[name]) is not None]
            errors = [v for r in self.records if (v := r.errors[name]) is not None]
            largest = (max(peaks, default=None), max(errors, default=None))
            rows.append(dict(zip(COST_COLUMNS, (name, seconds, *largest), strict=True)))
        return rows

    def merge(self, other: Agreement) -> Agreement:
        """Return the comparison over the texts of both parts."""
        if self.methods != other.methods or self.settings != other.settings:
            raise InputError("the parts cannot be merged: other methods or settings")
        if self.signature != other.signature:
            raise InputError("the parts cannot be merged: not the same: signature")
        return Agreement(
            self.methods,
            (*self.records, *other.records),
            settings=self.settings,
            signature=self.signature,
            problems=(*self.problems, *other.problems),
            resamples=self.resamples,
            seed=self.seed,
        )

    # ---- showing

    def table(self) -> str:
        """Return two tables in Markdown: correlations of methods, and what each costs."""
        names = [printable(name) for name in self.methods]
        lines = [f"| ρ | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        for name, row in zip(names, self.means.tolist(), strict=True):
            lines.append(f"| {name} | {' | '.join(map(_rho, row))} |")
        lines += [
            "",
            "| | seconds a text | peak memory, MB | completeness error |",
            "|---" * 4 + "|",
        ]
        for row in self.costs():
            cells = [f"{row['seconds']:.3g}", _or_dash(row["peak_mb"], ".0f")]
            lines.append(
                f"| {printable(row['method'])} | {' | '.join(cells)} "
                f"| {_or_dash(row['error'], '.1e')} |"
            )
        return "\n".join(lines) + "\n"

    def conventions(self) -> str:
        """Return how the numbers were computed, one line each."""
        lines = [f"{name}: {value}" for name, value in self.settings.items()]
        lines.append(f"texts: {len(self)}, left out: {len(self.problems)}; mean of ρ over texts")
        return "\n".join(map(printable, lines)) + "\n"

    def show(self) -> None:
        """Print the tables and the conventions."""
        print(self.table() + "\n" + self.conventions(), end="")

    def _repr_html_(self) -> str:
        """Return the tables for a notebook."""
        return f"<pre>{escape(self.table())}\n{escape(self.conventions())}</pre>"

    # ---- converting

    def to_pandas(self) -> Any:
        """Return the pairs as a pandas DataFrame. Needs the extra `tables`."""
        return import_tables("pandas").DataFrame(self.pairs(), columns=list(PAIR_COLUMNS))

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain JSON types, with None for NaN; `from_dict` reads it."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "signature": self.signature,
            "settings": self.settings,
            "methods": list(self.methods),
            "pairs": [{n: _number(v) for n, v in row.items()} for row in self.pairs()],
            "costs": self.costs(),
            "records": [record.to_dict() for record in self.records],
            "problems": list(self.problems),
            "resamples": self.resamples,
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Agreement:
        """Return the comparison that `to_dict` described."""
        try:
            if data["format"] != FORMAT or data["version"] != VERSION:
                raise KeyError("format")
            return cls(
                data["methods"],
                [MethodRecord.from_dict(record) for record in data["records"]],
                settings=data["settings"],
                signature=data["signature"],
                problems=data["problems"],
                resamples=data["resamples"],
                seed=data["seed"],
            )
        except (LookupError, TypeError, ValueError, AttributeError) as problem:
            raise InputError(f"this is no result of compare ({problem!r:.100})") from problem

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON; `from_dict` reads it."""
        check_file(path, (".json",))
        write_file(path, json_line(self.to_dict(), indent=1))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Agreement:
        """Read a file that `to_json` wrote."""
        return cls.from_dict(read_json(path))

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page: the tables, and the first texts with each method's scores below each other.

        The page needs no network.
        """
        from normscope.show.methods import page

        check_file(path, (".html", ".htm"))
        write_file(path, page(self))


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value


def _rho(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}"


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
