"""Every figure that the tables of a corpus allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.show.plots.lines import categories, change, mixing_by_category, preserved_and_mixed
from normscope.show.plots.style import columns_of
from normscope.show.plots.tables import alpha_and_norm, amplified, frequency, heads

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def statistics_figures(tables: Mapping[str, Any]) -> dict[str, Figure]:
    """Figures by name, for tables under the names that a corpus run gives them.

    A figure is called like the table it is drawn from, or begins with its name and an underscore.
    Tables that no figure is known for are left out, and so are empty ones.
    """
    drawn: dict[str, Figure] = {}
    for name, make in _FIGURES.items():
        source = next(
            (one for one in sorted(tables, key=len, reverse=True) if _belongs(name, one)), None
        )
        if source is None or not _filled(tables[source]):
            continue
        axes = make(tables[source], tables)
        drawn[name] = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()[0].figure
    return drawn


def _belongs(figure: str, table: str) -> bool:
    return figure == table or figure.startswith(f"{table}_")


def _filled(table: Any) -> bool:
    return any(len(column) for column in columns_of(table).values())


def _several(table: Any, *names: str) -> list[str]:
    """Those of these columns that the table has."""
    return [name for name in names if name in columns_of(table)]


def _scatter(table: Any, tables: Mapping[str, Any]) -> Any:
    return alpha_and_norm(table, correlations=tables.get("alpha_vs_norm_spearman"))


def _heads(measure: str) -> Callable[[Any, Mapping[str, Any]], Any]:
    return lambda table, tables: heads(table, measure)


# Name of a figure -> what draws it, from its table and all the others.
_FIGURES: dict[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "dispersion_transformed_norm": lambda table, tables: heads(
        table, _several(table, "cv", "mean")
    ),
    "categories_layers": lambda table, tables: categories(
        table, _several(table, "alpha", "weighted_norm", "transformed_norm")
    ),
    "categories_heads_alpha": _heads("alpha"),
    "categories_heads_transformed_norm": _heads("transformed_norm"),
    "categories_heads_weighted_norm": _heads("weighted_norm"),
    "alpha_vs_norm_scatter": _scatter,
    "frequency": lambda table, tables: frequency(table),
    "mixing_layers": lambda table, tables: mixing_by_category(table),
    "preserve_mix": lambda table, tables: preserved_and_mixed(table),
    "change": lambda table, tables: change(table),
    "amplification_pairs": lambda table, tables: amplified(table),
}
