"""What a statistic is: small states out of batches, merged in any order, tables at the end.

A corpus is measured a batch at a time. Each batch gives every statistic a small state; states are
merged, in any order and in any grouping; the merged state gives the tables. Nothing that a state
holds depends on which sequences shared a batch.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from normscope.errors import InputError
from normscope.results.arrays import import_tables

if TYPE_CHECKING:
    from normscope.measures.statistics.batch import Layer, MeasuredBatch

NAMES = (
    *("dispersion", "categories", "alpha_vs_norm", "frequency"),
    *("mixing", "preserve_mix", "change", "amplification"),
)
CONDITIONS = ("plain", "masked")

# Plain data only, so that it can be written without a pickle and sent between processes:
# str -> numpy array | int | float | str | a dict of the same.
State = dict[str, Any]

# Tokens, token ids, a regular expression that a whole token matches, or a function of the token.
Category = Sequence[str] | Sequence[int] | str | re.Pattern[str] | Callable[[str], bool]


@dataclass(frozen=True, eq=False)
class Row:
    """One sequence, ready for the model."""

    key: int  # its number in the corpus, the same whatever the batches are
    ids: tuple[int, ...]
    types: tuple[int, ...] | None  # token_type_ids
    special: tuple[bool, ...]  # which tokens frame the text: [CLS], [SEP], <s> …

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.special), len(self.types or self.ids)}
        if len(lengths) > 1 or not self.ids:
            raise InputError(
                f"row {self.key} needs one entry a token, and one token at least, in ids "
                f"({len(self.ids)}), special ({len(self.special)}) and types "
                f"({'none' if self.types is None else len(self.types)})"
            )


@dataclass(frozen=True)
class Settings:
    """What the statistics of a run have in common; equal settings give equal numbers."""

    categories: Mapping[str, Category] | None = None  # None: [CLS], [SEP], comma and period
    ranks: str = "ids"  # "ids", "corpus", or the path of a file of `rank count token_id` lines
    masking: float | int = 0.12  # of the tokens that are not special; 0: mixing looks at plain text
    seed: int = 0  # of masking, sampling and resampling
    replicates: int = 200  # of the bootstrap; 0: no intervals
    confidence: float = 0.95
    scatter: int = 5000  # the most pairs of each category that the scatter sample keeps
    top: int = 1000  # amplified cells of each layer that are kept and counted

    def __post_init__(self) -> None:
        if not 0 <= self.masking < 1:
            raise InputError(f"masking is a share from 0 up to 1, but was given {self.masking!r}")
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence is between 0 and 1, but was given {self.confidence!r}")
        for name, least in (("replicates", 0), ("scatter", 1), ("top", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name} is a number from {least} on, but was given {value!r}")


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length, by name."""

    columns: Mapping[str, Any]  # lists or one-dimensional numpy arrays
    title: str = ""
    notes: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"the columns of a table are equally long; given: {lengths}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def lists(self) -> dict[str, list[Any]]:
        """The columns as lists of plain Python values."""
        return {
            name: column.tolist() if isinstance(column, np.ndarray) else list(column)
            for name, column in self.columns.items()
        }

    def rows(self) -> list[dict[str, Any]]:
        """The same, one dict for each row."""
        plain = self.lists()
        return [
            dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True)
        ]

    def to_csv(self) -> str:
        """A header and one line for each row; numbers as Python writes them, so exactly."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(zip(*self.lists().values(), strict=True))
        return text.getvalue()

    def to_pandas(self) -> Any:
        """A pandas DataFrame; needs the extra `tables`."""
        return import_tables("pandas").DataFrame(self.lists())

    def to_arrow(self) -> Any:
        """A pyarrow Table; needs the extra `tables`."""
        return import_tables("pyarrow").table(self.lists())


@runtime_checkable
class Statistic(Protocol):
    """One measurement over a corpus."""

    @property
    def name(self) -> str:
        """What its states and tables are filed under."""

    @property
    def conditions(self) -> tuple[str, ...]:
        """The inputs it looks at: "plain", "masked" or both."""

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        """What is needed of one layer of a batch: small tensors, each with a row axis first."""

    def measure(self, batch: MeasuredBatch) -> State:
        """The state of a batch, from what was observed of all its layers."""

    def merge(self, one: State, other: State) -> State:
        """The state of both; associative and commutative, to rounding."""

    def result(self, state: State) -> dict[str, Table]:
        """Tables by name."""


def choose(names: Sequence[str] | str, settings: Settings | None = None) -> list[Statistic]:
    """The statistics asked for by name, or an error that lists the valid names."""
    from normscope.measures.statistics.registry import STATISTICS

    settings = Settings() if settings is None else settings
    listed = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    chosen = list(dict.fromkeys(listed))
    unknown = [name for name in chosen if name not in NAMES]
    if unknown or not chosen:
        given = ", ".join(map(repr, unknown)) or "none"
        raise InputError(f"unknown statistic: {given}; valid are: {', '.join(NAMES)}")
    return [STATISTICS[name](settings) for name in chosen]


def merge(
    statistics: Sequence[Statistic], one: Mapping[str, State], other: Mapping[str, State]
) -> dict[str, State]:
    """The states of two parts of a corpus as the states of both; either may be empty ({})."""
    made: dict[str, State] = {}
    for statistic in statistics:
        both = [part[statistic.name] for part in (one, other) if statistic.name in part]
        if both:
            made[statistic.name] = both[0] if len(both) == 1 else statistic.merge(*both)
    return made
