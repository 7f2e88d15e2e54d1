"""One block through the model: the work that an engine hands out, on this machine or another.

An `Outcome` is plain data and depends on nothing but the rows of its blocks. Doing a block twice
therefore gives the same outcome, and an outcome that got lost can be made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from normscope.corpus.records import Problem, Record
from normscope.corpus.sequences import Encoder, batches
from normscope.corpus.stream import Block
from normscope.engine.batches import halves
from normscope.errors import ExactnessError, InputError
from normscope.measures.statistics import Measurer, Row, Settings, State, Statistic, merge

LISTED = 20  # bad rows that are named one by one; all are counted
GROUP = 16  # blocks that are merged among themselves before they join the rest


@dataclass(frozen=True)
class Outcome:
    """What some blocks gave: the states, and the account of their rows."""

    states: Mapping[str, State] = field(default_factory=dict)
    rows: int = 0  # wanted rows, bad ones included
    sequences: int = 0  # of these measured
    tokens: int = 0  # in the sequences, special tokens included
    cut: int = 0  # sequences that were too long
    bad: Mapping[str, int] = field(default_factory=dict)  # by kind
    problems: tuple[Problem, ...] = ()  # the first of them

    def counts(self) -> dict[str, Any]:
        """The account as plain data."""
        names = ("rows", "sequences", "tokens", "cut")
        bad = dict(sorted(self.bad.items()))
        return {**{name: getattr(self, name) for name in names}, "bad": bad}

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data; `from_dict` is its inverse."""
        problems = [[one.where, one.kind, one.message] for one in self.problems]
        return {"states": dict(self.states), **self.counts(), "problems": problems}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Outcome:
        """The outcome that `to_dict` gave."""
        problems = tuple(Problem(*one) for one in data["problems"])
        return cls(**{**data, "problems": problems})


def join(statistics: Sequence[Statistic], one: Outcome, other: Outcome) -> Outcome:
    """Two outcomes, the first one's rows before the other's, as one."""
    kinds = {**one.bad, **other.bad}
    return Outcome(
        merge(statistics, one.states, other.states),
        one.rows + other.rows,
        one.sequences + other.sequences,
        one.tokens + other.tokens,
        one.cut + other.cut,
        {kind: one.bad.get(kind, 0) + other.bad.get(kind, 0) for kind in kinds},
        (one.problems + other.problems)[:LISTED],
    )


@dataclass(frozen=True)
class Progress:
    """How far a run is: whole groups of blocks merged, the blocks of the group under way merged.

    Two levels, always the same ones, so that a long sum stays accurate and every engine, and every
    continued run, adds up the same numbers in the same order.
    """

    total: Outcome = Outcome()
    group: Outcome = Outcome()
    blocks: int = 0

    def plus(self, statistics: Sequence[Statistic], outcome: Outcome, blocks: int = 1) -> Progress:
        """With the next block, or with the next whole group."""
        group = join(statistics, self.group, outcome)
        done = self.blocks + blocks
        if done % GROUP:
            return Progress(self.total, group, done)
        return Progress(join(statistics, self.total, group), Outcome(), done)

    def all(self, statistics: Sequence[Statistic]) -> Outcome:
        """Everything so far."""
        return join(statistics, self.total, self.group)


@dataclass(frozen=True)
class Options:
    """How rows become numbers. Equal options, model and rows give equal numbers."""

    max_length: int | None = None
    batch_tokens: int = 4096
    skip_bad: bool = True


class Worker:
    """A model that turns blocks into outcomes."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        statistics: Sequence[Statistic],
        settings: Settings,
        options: Options,
        dump: Path | None = None,
    ) -> None:
        self.model, self.tokenizer, self.statistics = model, tokenizer, statistics
        self.options, self.dump = options, dump
        self.encoder = Encoder(model, tokenizer, options.max_length)
        self.measurer = Measurer(model, tokenizer, statistics, settings)

    def run(self, block: Block) -> Outcome:
        """Measure a block."""
        places: dict[int, str] = {}
        rows: list[Row] = []
        problems: list[Problem] = []
        cut = 0
        for item in block.items:
            made = self.encoder.encode(item) if isinstance(item, Record) else item
            if isinstance(made, Problem):
                self._bad(made, problems)
            else:
                assert isinstance(item, Record)
                rows.append(made[0])
                places[item.key] = item.where
                cut += made[1]
        outcome, kept = Outcome(cut=cut), list[Row]()
        for batch in batches(rows, self.options.batch_tokens):
            for good, states in self._measure(batch, places, problems):
                outcome = replace(outcome, states=merge(self.statistics, outcome.states, states))
                kept += good
        if self.dump is not None and kept:
            from normscope.corpus.dump import write_part

            kept.sort(key=lambda row: row.key)
            write_part(self.dump, block.index, self.model, self.tokenizer, kept)
        bad: dict[str, int] = {}
        for one in problems:
            bad[one.kind] = bad.get(one.kind, 0) + 1
        return replace(
            outcome,
            rows=len(block.items),
            sequences=len(kept),
            tokens=sum(len(row.ids) for row in kept),
            bad=bad,
            problems=tuple(problems[:LISTED]),
        )

    def _bad(self, problem: Problem, problems: list[Problem]) -> None:
        if not self.options.skip_bad:
            raise InputError(
                f"{problem}; correct the row, or have bad rows skipped and counted "
                '(bad_rows="skip", --bad-rows skip)'
            )
        problems.append(problem)

    def _measure(
        self, batch: list[Row], places: Mapping[int, str], problems: list[Problem]
    ) -> Iterator[tuple[list[Row], dict[str, State]]]:
        """The states of a batch; of one that fails, those of its halves, down to the bad row."""
        full = False
        try:
            states = self.measurer.measure(batch)
        except (ExactnessError, InputError) as error:
            if len(batch) == 1:
                self._bad(Problem(places[batch[0].key], "measure", str(error)), problems)
                return
        except torch.OutOfMemoryError:
            full = True
        else:
            yield batch, states
            return
        half = len(batch) // 2
        # A row too long for this GPU is no bad row: another one would measure it.
        parts = halves(batch, "these rows") if full else (batch[:half], batch[half:])
        for part in parts:
            yield from self._measure(part, places, problems)
