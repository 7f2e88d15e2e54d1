"""Measure blocks of rows, on this machine or another, and merge the outcomes.

An `Outcome` is plain data and depends on the rows of its blocks alone. Measuring a block again
therefore gives the same outcome, so that a lost outcome can be replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from normscope.corpus.options import CorpusOptions
from normscope.corpus.records import Problem, Record
from normscope.corpus.sequences import Encoder, batches
from normscope.corpus.stream import RowBlock
from normscope.engine.batches import halves
from normscope.errors import ExactnessError, InputError
from normscope.measures.statistics.base import Row, Statistic, StatisticState, merge
from normscope.measures.statistics.measurer import Measurer

LISTED = 20  # bad rows that are listed; all are counted
GROUP = 16  # blocks that are merged with each other before they are merged with the rest


@dataclass(frozen=True)
class Outcome:
    """What was measured of some blocks: the states of the statistics, and counts of the rows.

    Attributes:
        states: The state of each statistic.
        rows: The number of selected rows, bad ones included.
        sequences: The number of rows that were measured.
        tokens: The number of tokens in these sequences, special tokens included.
        cut: The number of sequences that were too long.
        bad: The number of bad rows of each kind.
        problems: The first bad rows.
    """

    states: Mapping[str, StatisticState] = field(default_factory=dict)
    rows: int = 0
    sequences: int = 0
    tokens: int = 0
    cut: int = 0
    bad: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def counts(self) -> dict[str, Any]:
        """Return the counts of the rows as plain data."""
        names = ("rows", "sequences", "tokens", "cut")
        bad = dict(sorted(self.bad.items()))
        return {**{name: getattr(self, name) for name in names}, "bad": bad}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        problems = [[item.where, item.kind, item.message] for item in self.problems]
        return {"states": dict(self.states), **self.counts(), "problems": problems}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Outcome:
        """Return the outcome from what `to_dict` returned."""
        problems = tuple(Problem(*values) for values in data["problems"])
        return cls(**{**data, "problems": problems})


def join(statistics: Sequence[Statistic], first: Outcome, second: Outcome) -> Outcome:
    """Merge two outcomes; the rows of the first come before those of the second."""
    kinds = {**first.bad, **second.bad}
    return Outcome(
        merge(statistics, first.states, second.states),
        first.rows + second.rows,
        first.sequences + second.sequences,
        first.tokens + second.tokens,
        first.cut + second.cut,
        {kind: first.bad.get(kind, 0) + second.bad.get(kind, 0) for kind in kinds},
        (first.problems + second.problems)[:LISTED],
    )


@dataclass(frozen=True)
class Progress:
    """What was measured so far: whole groups of blocks, and the blocks of the current group.

    Merging on two fixed levels keeps long sums accurate, and makes every engine and every
    continued run add the same numbers in the same order.
    """

    total: Outcome = Outcome()
    group: Outcome = Outcome()
    blocks: int = 0

    def plus(self, statistics: Sequence[Statistic], outcome: Outcome, blocks: int = 1) -> Progress:
        """Return the progress after the next block, or the next whole group of blocks."""
        group = join(statistics, self.group, outcome)
        done = self.blocks + blocks
        if done % GROUP:
            return Progress(self.total, group, done)
        return Progress(join(statistics, self.total, group), Outcome(), done)

    def all(self, statistics: Sequence[Statistic]) -> Outcome:
        """Return the outcome of everything so far."""
        return join(statistics, self.total, self.group)


class CorpusWorker:
    """A model that measures blocks of rows."""

    def __init__(
        self, model: Any, tokenizer: Any, statistics: Sequence[Statistic], options: CorpusOptions
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.statistics, self.options = statistics, options
        self.encoder = Encoder(model, tokenizer, options.max_length)
        self.measurer = Measurer(model, tokenizer, statistics, options.statistic_settings)

    def run(self, block: RowBlock, done: Callable[[int], Any] = int) -> Outcome:
        """Measure a block, and call `done` with the number of rows after each of its batches."""
        rows, cut, problems = self._encode(block)
        done(len(problems))
        places = {item.key: item.where for item in block.items if isinstance(item, Record)}
        states: dict[str, StatisticState] = {}
        measured: list[Row] = []
        for batch in batches(rows, self.options.batch_tokens):
            for part, part_states in self._measure(batch, places, problems):
                states = merge(self.statistics, states, part_states)
                measured += part
            done(len(batch))
        self._dump(block, measured)
        return Outcome(
            states,
            rows=len(block.items),
            sequences=len(measured),
            tokens=sum(len(row.ids) for row in measured),
            cut=cut,
            bad=dict(Counter(problem.kind for problem in problems)),
            problems=tuple(problems[:LISTED]),
        )

    def _encode(self, block: RowBlock) -> tuple[list[Row], int, list[Problem]]:
        """Return the sequences of a block, how many of them were cut, and the bad rows."""
        rows: list[Row] = []
        problems: list[Problem] = []
        cut = 0
        for item in block.items:
            encoded = self.encoder.encode(item) if isinstance(item, Record) else item
            if isinstance(encoded, Problem):
                self._add_problem(encoded, problems)
            else:
                rows.append(encoded[0])
                cut += encoded[1]
        return rows, cut, problems

    def _add_problem(self, problem: Problem, problems: list[Problem]) -> None:
        if self.options.bad_rows == "error":
            raise InputError(
                f"{problem}; correct the row, or have bad rows skipped and counted "
                '(bad_rows="skip", --bad-rows skip)'
            )
        problems.append(problem)

    def _measure(
        self, batch: list[Row], places: Mapping[int, str], problems: list[Problem]
    ) -> Iterator[tuple[list[Row], dict[str, StatisticState]]]:
        """Measure a batch, in parts if necessary, and return the rows and states of each part.

        A batch that cannot be measured is halved until the bad row is alone.
        """
        out_of_memory = False
        try:
            states = self.measurer.measure(batch)
        except (ExactnessError, InputError) as error:
            if len(batch) == 1:
                self._add_problem(Problem(places[batch[0].key], "measure", str(error)), problems)
                return
        except torch.OutOfMemoryError:
            out_of_memory = True
        else:
            yield batch, states
            return
        half = len(batch) // 2
        # A row that does not fit on this GPU is not a bad row: `halves` raises an error for it.
        parts = halves(batch, "these rows") if out_of_memory else (batch[:half], batch[half:])
        for part in parts:
            yield from self._measure(part, places, problems)

    def _dump(self, block: RowBlock, rows: list[Row]) -> None:
        if (folder := self.options.maps_folder) is not None and rows:
            from normscope.corpus.dump import write_part

            ordered = sorted(rows, key=lambda row: row.key)
            write_part(folder, block.index, self.model, self.tokenizer, ordered)
