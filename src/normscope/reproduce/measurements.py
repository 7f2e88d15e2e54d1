"""The numbers of a run, and how exhibits are made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.measures.properties import affine_maps
from normscope.measures.statistics import Table
from normscope.reproduce.cost import Cost
from normscope.reproduce.exhibits import Exhibit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Measurements:
    """The numbers of a run; layers and heads are counted from 1."""

    tables: Mapping[str, Table]
    model: Any
    tokenizer: Any
    counts: Mapping[str, Any]
    ranks: Mapping[str, str]  # name of a frequency table -> the source of its ranks
    cost: Cost | None = None

    def __getitem__(self, name: str) -> Table:
        return self.tables[name]

    def category(self, name: str) -> str:
        """Return this tokenizer's token for "[CLS]", "[SEP]" or "[MASK]"; other names unchanged."""
        tokenizer = self.tokenizer
        tokens = {
            "[CLS]": tokenizer.cls_token or tokenizer.bos_token,
            "[SEP]": tokenizer.sep_token or tokenizer.eos_token,
            "[MASK]": tokenizer.mask_token,
        }
        return str(tokens.get(name, name))

    @cached_property
    def singular_values(self) -> NDArray[np.float64]:
        """The singular values of f, (layer, head, rank), read from the weights at once."""
        return np.array(
            [
                [layer.singular_values(head) for head in range(len(layer.output))]
                for layer in affine_maps(self.model)
            ]
        )


@dataclass(frozen=True)
class ExhibitPlan:
    """How an exhibit is made from the measurements of a run."""

    name: str
    title: str
    convention: str | Callable[[Measurements], str]
    table: Callable[[Measurements], Table] | None = None
    draw: Callable[[Measurements], Figure] | None = None
    data: str | Callable[[Measurements], Table] | None = None  # a string names a table of the run
    available: Callable[[Measurements], bool] = lambda measurements: True

    def make(self, measurements: Measurements) -> Exhibit:
        """Return the exhibit for these measurements; the figure is drawn only when needed."""
        convention, draw = self.convention, self.draw
        return Exhibit(
            self.name,
            self.title,
            convention if isinstance(convention, str) else convention(measurements),
            None if self.table is None else self.table(measurements),
            None if draw is None else lambda: draw(measurements),
            self._data(measurements),
        )

    def _data(self, measurements: Measurements) -> Table | None:
        if isinstance(self.data, str):
            return measurements[self.data]
        return None if self.data is None else self.data(measurements)
