"""Statistics over a corpus: measured a batch at a time, merged in any order."""

from normscope.measures.statistics.base import (
    NAMES,
    Category,
    Row,
    Settings,
    State,
    Statistic,
    Table,
    choose,
    merge,
)
from normscope.measures.statistics.measurer import Measurer

__all__ = [
    "NAMES",
    "Category",
    "Measurer",
    "Row",
    "Settings",
    "State",
    "Statistic",
    "Table",
    "choose",
    "merge",
]
