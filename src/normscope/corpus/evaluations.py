"""Faithfulness and agreement of methods over the rows of a file, in a run that can be continued.

What is measured of a row is one line of the partial file (`FinishedRows`). Parts of a file can be
measured by several processes or machines, and their results merged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from normscope.attribution.options import Question
from normscope.corpus.attributions import DataRow, digest
from normscope.corpus.finished import CHUNK, FinishedRows, partial_of
from normscope.corpus.snapshot import summarise
from normscope.errors import InputError, NormscopeError
from normscope.results.signature import Signature


@runtime_checkable
class WithDict(Protocol):
    """What is measured of a text."""

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain JSON types."""


@runtime_checkable
class Meter(Protocol):
    """What measures texts: of faithfulness, or of agreement."""

    signature: Signature

    def settings(self) -> dict[str, str]:
        """Return everything that the numbers depend on, beside the model and the texts."""

    def records(self, texts: Sequence[Any], questions: Sequence[Question]) -> Sequence[WithDict]:
        """Return what is measured of each text."""


@dataclass(frozen=True)
class Measured:
    """The records of the rows that could be used, their names, and why others were left out."""

    records: list[dict[str, Any]]
    names: list[str]
    problems: list[str]


@dataclass(frozen=True)
class EvaluationRun:
    """Measure the rows of a file.

    Attributes:
        meter: what measures them.
        output: the file that the result goes to; None keeps finished rows in memory alone.
        skip: leave out rows that cannot be used, and list them, instead of stopping.
    """

    meter: Meter
    output: Path | None
    skip: bool = False

    def run(
        self, rows: Sequence[tuple[int, DataRow]], data: Path | None, *, restart: bool = False
    ) -> Measured:
        """Measure all rows that are not finished yet.

        The finished rows stay on disk until `remove`, which is called when the output is written.

        Args:
            rows: the rows with their numbers in the file.
            data: the file, if there is one.
            restart: discard the rows of an interrupted run.
        """
        work = partial(self._measure, [row for _, row in rows])
        if self.output is None:
            numbers = list(range(len(rows)))
            chunks = [numbers[at : at + CHUNK] for at in range(0, len(rows), CHUNK)]
            done = {at: record for chunk in chunks for at, record in work(chunk, lambda _: None)}
        else:
            finished = FinishedRows(partial_of(self.output), self._header(rows, data))
            done = finished.complete(len(rows), work, description="measure", restart=restart)
        ordered = [(*rows[at], done[at]) for at in sorted(done)]
        used = [entry for entry in ordered if "problem" not in entry[2]]
        names = [str(number) if row.name is None else row.name for number, row, _ in used]
        problems = [record["problem"] for _, _, record in ordered if "problem" in record]
        return Measured([record for *_, record in used], names, problems)

    def remove(self) -> None:
        """Remove the finished rows."""
        if self.output is not None:
            partial_of(self.output).unlink(missing_ok=True)

    def _header(self, rows: Sequence[tuple[int, DataRow]], data: Path | None) -> dict[str, Any]:
        """Return what the run is: a run with another header is another run."""
        settings = self.meter.settings()
        return {
            "signature": self.meter.signature.with_settings(settings).text(),
            "data": None if data is None else summarise(data).sha256,
            "rows": [number for number, _ in rows],
            "questions": digest([row for _, row in rows]),
            "skip": self.skip,
        }

    def _measure(
        self, rows: Sequence[DataRow], chunk: list[int], count: Callable[[int], Any]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the records of some rows; one at a time if they cannot be measured together."""
        texts, questions = [rows[at].text for at in chunk], [rows[at].question for at in chunk]
        try:
            records = self.meter.records(texts, questions)
        except NormscopeError as error:
            if len(chunk) > 1:
                for at in chunk:
                    yield from self._measure(rows, [at], count)
                return
            problem = f"{rows[chunk[0]].where}: {error}"
            if not self.skip:
                raise type(error)(problem) from error
            yield chunk[0], {"problem": problem}
            return
        count(len(chunk))
        for at, record in zip(chunk, records, strict=True):
            yield at, record.to_dict()


def part_of(rows: Sequence[DataRow], part: str | None) -> list[tuple[int, DataRow]]:
    """Return the rows of a part with their numbers: of "2/3" the 2nd, 5th, 8th, …; None: all."""
    numbered = list(enumerate(rows))
    if part is None:
        return numbered
    match = re.fullmatch(r"(\d+)/(\d+)", part)
    number, parts = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= parts:
        raise InputError(f"a part is written 1/4, 2/4, 3/4, 4/4, not {part!r}")
    if parts > len(rows):
        raise InputError(f"there are {len(rows)} rows, too few for {parts} parts")
    return numbered[number - 1 :: parts]
