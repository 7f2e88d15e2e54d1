"""Correlations with frequency ranks, which come from one or two sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.measures.statistics import Table
from normscope.reproduce.exhibits import ANALYSES, table_of, titled
from normscope.reproduce.measurements import Measurements
from normscope.show import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("spearman", "spearman_without_special")
NAMES = {"alpha": "α", "transformed_norm": "‖f(x)‖", **ANALYSES}


def frequency_table(
    measurements: Measurements,
    published: Mapping[str, Sequence[float]],
    populations: Sequence[str] = ("all tokens",),
) -> Table:
    """Return published ρ next to measured ρ, with a column for each source of ranks.

    Args:
        measurements: The numbers of a run.
        published: For each quantity its published ρ, one for each population.
        populations: What the ρ are taken over: all tokens, or also all but special ones.
    """
    rows = []
    for name, values in published.items():
        for population, column, value in zip(populations, COLUMNS, values, strict=False):
            row: dict[str, Any] = {"ρ of the rank with": NAMES[name], "over": population}
            row["published"] = value
            for table, source in measurements.ranks.items():
                measured = {entry["of"]: entry[column] for entry in measurements[table].rows()}
                row[f"measured, {source}"] = measured.get(name)
            rows.append(row)
    return table_of(rows)


def frequency_figure(measurements: Measurements, names: Sequence[str]) -> Figure:
    """Draw quantities against the frequency rank, with a point for each rank."""
    table = measurements["frequency_points"]
    present = [name for name in names if name in table.columns]
    axes = plots.frequency(table, present)
    for ax, name in zip(np.ravel(axes), present, strict=True):
        if name in ANALYSES:
            ax.set_ylabel(f"mixing ratio ({ANALYSES[name]})")
    what = "mixing ratio" if set(present) & set(ANALYSES) else "weight and length of f(x)"
    return titled(axes, f"Frequent and rare tokens: {what} by frequency rank")
