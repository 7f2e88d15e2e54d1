"""Statistics over a corpus: measured a batch at a time, merged in any order.

Names are imported when they are first used, so that `settings` can be loaded without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscope.measures.statistics.base import (
        NAMES,
        Row,
        Statistic,
        StatisticState,
        Table,
        choose,
        merge,
    )
    from normscope.measures.statistics.base import StatisticState as State
    from normscope.measures.statistics.measurer import Measurer
    from normscope.measures.statistics.settings import Category, StatisticSettings
    from normscope.measures.statistics.settings import StatisticSettings as Settings

__all__ = [
    "NAMES",
    "Category",
    "Measurer",
    "Row",
    "Settings",
    "State",
    "Statistic",
    "StatisticSettings",
    "StatisticState",
    "Table",
    "choose",
    "merge",
]

_HOMES = {
    **dict.fromkeys(("NAMES", "Row", "Statistic", "StatisticState", "Table"), "base"),
    **dict.fromkeys(("choose", "merge"), "base"),
    **dict.fromkeys(("Category", "StatisticSettings"), "settings"),
    "Measurer": "measurer",
}
_SHORT = {"Settings": "StatisticSettings", "State": "StatisticState"}  # other names of the same


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    full = _SHORT.get(name, name)
    if full not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[full]}"), full)
