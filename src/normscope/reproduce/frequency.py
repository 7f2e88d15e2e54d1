"""Frequency ranks, published beside measured, whichever ranks were used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.measures.statistics import Table
from normscope.reproduce.exhibits import ANALYSES, table_of
from normscope.reproduce.measure import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("spearman", "spearman_without_special")
NAMES = {"alpha": "α", "transformed_norm": "‖f(x)‖", **ANALYSES}


def frequency_table(
    measured: Measured, told: Mapping[str, Sequence[float]], kinds: Sequence[str]
) -> Table:
    """ρ of each quantity: published, and measured with each kind of ranks."""
    rows = []
    for name, values in told.items():
        for kind, column, value in zip(kinds, COLUMNS, values, strict=False):
            row: dict[str, Any] = {"ρ of the rank with": NAMES[name], "over": kind}
            row["published"] = value
            for table, where in measured.ranks.items():
                found = {one["of"]: one[column] for one in measured[table].rows()}
                row[f"measured, {where}"] = found.get(name)
            rows.append(row)
    return table_of(rows)


def frequency_figure(measured: Measured, names: Sequence[str]) -> Figure:
    """A point for each rank."""
    from normscope.show import plots

    table = measured["frequency_points"]
    there = [name for name in names if name in table.columns]
    axes = plots.frequency(table, there)
    for ax, name in zip(np.ravel(axes), there, strict=True):
        if name in ANALYSES:
            ax.set_ylabel(f"mixing ratio, {ANALYSES[name]}")
    found: Figure = np.ravel(axes)[0].figure
    return found
