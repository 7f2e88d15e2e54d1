"""All figures that can be drawn from the tables of a corpus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from normscope.show.plots.lines import categories, change, mixing_by_category, preserved_and_mixed
from normscope.show.plots.style import as_array, columns_of
from normscope.show.plots.tables import alpha_and_norm, amplified, frequency, heads

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def statistics_figures(tables: Mapping[str, Any]) -> dict[str, Figure]:
    """Return figures by name, for tables under the names that a corpus run gives them.

    The name of a figure is that of its table, or begins with it and an underscore. Tables without a
    figure and empty tables are skipped.
    """
    figures: dict[str, Figure] = {}
    for name, draw in _FIGURES.items():
        sources = [source for source in tables if name == source or name.startswith(f"{source}_")]
        if not sources:
            continue
        table = tables[max(sources, key=len)]
        if any(len(column) for column in columns_of(table).values()):
            figures[name] = as_array(draw(table, tables))[0].figure
    return figures


def _present(table: Any, *names: str) -> list[str]:
    """List those of these columns that the table has."""
    return [name for name in names if name in columns_of(table)]


# Name of a figure -> a function that draws it from its table and all tables.
_FIGURES: dict[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "dispersion_transformed_norm": lambda table, _: heads(table, _present(table, "cv", "mean")),
    "categories_layers": lambda table, _: categories(
        table, _present(table, "alpha", "weighted_norm", "transformed_norm")
    ),
    "categories_heads_alpha": lambda table, _: heads(table, "alpha"),
    "categories_heads_transformed_norm": lambda table, _: heads(table, "transformed_norm"),
    "categories_heads_weighted_norm": lambda table, _: heads(table, "weighted_norm"),
    "alpha_vs_norm_scatter": lambda table, tables: alpha_and_norm(
        table, correlations=tables.get("alpha_vs_norm_spearman")
    ),
    "frequency": lambda table, _: frequency(table),
    "mixing_layers": lambda table, _: mixing_by_category(table),
    "preserve_mix": lambda table, _: preserved_and_mixed(table),
    "change": lambda table, _: change(table),
    "amplification_pairs": lambda table, _: amplified(table),
}
