"""The interface of a statistic: states from batches, merged in any order, tables at the end.

A corpus is measured one batch at a time. Each batch gives every statistic a small state. States
are merged in any order and grouping, and the merged state gives the tables. Nothing in a state
depends on which sequences shared a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from normscope.errors import InputError
from normscope.foundation.texts import csv_lines
from normscope.measures.statistics.settings import StatisticSettings
from normscope.results.arrays import import_tables

if TYPE_CHECKING:
    from normscope.measures.statistics.batch import Layer, MeasuredBatch

NAMES = (
    *("dispersion", "categories", "alpha_vs_norm", "frequency"),
    *("mixing", "preserve_mix", "change", "amplification"),
)
CONDITIONS = ("plain", "masked")

# Plain data, so that it can be saved without pickle and sent between processes:
# str -> numpy array | int | float | str | a dict of the same.
StatisticState = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Row:
    """One sequence, ready for the model.

    Attributes:
        key: The number of the sequence in the corpus; it does not depend on batches.
        ids: The token ids.
        types: The token type ids, or None.
        special: Which tokens are special: [CLS], [SEP], <s> and so on.
    """

    key: int
    ids: tuple[int, ...]
    types: tuple[int, ...] | None
    special: tuple[bool, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.special), len(self.types or self.ids)}
        if len(lengths) > 1 or not self.ids:
            types = "None" if self.types is None else f"of length {len(self.types)}"
            raise InputError(
                f"row {self.key} needs at least one token, and one entry for each token in ids, "
                f"special and types; ids is of length {len(self.ids)}, special of length "
                f"{len(self.special)}, types {types}"
            )


@dataclass(frozen=True, eq=False)
class Table:
    """A table: columns of equal length by name, with a title and notes.

    Attributes:
        columns: Lists or one-dimensional numpy arrays.
        title: What the table shows.
        notes: How the numbers were computed.
    """

    columns: Mapping[str, Any]
    title: str = ""
    notes: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"the columns of a table must be equally long, but are: {lengths}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def lists(self) -> dict[str, list[Any]]:
        """Return the columns as lists of plain Python values."""
        return {
            name: column.tolist() if isinstance(column, np.ndarray) else list(column)
            for name, column in self.columns.items()
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the table as one dict for each row."""
        plain = self.lists()
        return [
            dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True)
        ]

    def to_csv(self) -> str:
        """Return the table as CSV, with a header, all digits of the numbers, and no formulas."""
        return "".join(csv_lines([tuple(self.columns), *zip(*self.lists().values(), strict=True)]))

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame. Needs the extra `tables`."""
        return import_tables("pandas").DataFrame(self.lists())

    def to_arrow(self) -> Any:
        """Return a pyarrow Table. Needs the extra `tables`."""
        return import_tables("pyarrow").table(self.lists())


@runtime_checkable
class Statistic(Protocol):
    """One measurement over a corpus."""

    @property
    def name(self) -> str:
        """The name of its state, and the beginning of its tables' names."""

    @property
    def conditions(self) -> tuple[str, ...]:
        """The inputs it measures: "plain", "masked" or both."""

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        """Return observations of one layer of a batch: small tensors whose first axis is row."""

    def measure(self, batch: MeasuredBatch) -> StatisticState:
        """Return the state of a batch, from what `observe` returned for its layers."""

    def merge(self, one: StatisticState, other: StatisticState) -> StatisticState:
        """Return the state of both parts; associative and commutative up to rounding."""

    def result(self, state: StatisticState) -> dict[str, Table]:
        """Return the tables by name."""


def choose(
    names: Sequence[str] | str, settings: StatisticSettings | None = None
) -> list[Statistic]:
    """Return the statistics with these names, given as a list or separated by commas.

    Raises:
        InputError: There is no name, or there is no statistic of that name.
    """
    from normscope.measures.statistics.registry import STATISTICS

    settings = StatisticSettings() if settings is None else settings
    listed = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    chosen = list(dict.fromkeys(listed))
    unknown = [name for name in chosen if name not in NAMES]
    if unknown or not chosen:
        wrong = ", ".join(map(repr, unknown)) or "none"
        raise InputError(f"unknown statistic: {wrong}; valid are: {', '.join(NAMES)}")
    return [STATISTICS[name](settings) for name in chosen]


def merge(
    statistics: Sequence[Statistic],
    one: Mapping[str, StatisticState],
    other: Mapping[str, StatisticState],
) -> dict[str, StatisticState]:
    """Merge the states of two parts of a corpus; either part may be empty ({})."""
    merged: dict[str, StatisticState] = {}
    for statistic in statistics:
        parts = [part[statistic.name] for part in (one, other) if statistic.name in part]
        if parts:
            merged[statistic.name] = parts[0] if len(parts) == 1 else statistic.merge(*parts)
    return merged
