"""The statistics by name."""

from __future__ import annotations

from collections.abc import Callable

from normscope.measures.statistics.alpha_vs_norm import AlphaVersusNorm
from normscope.measures.statistics.base import Statistic
from normscope.measures.statistics.categories import Categories
from normscope.measures.statistics.dispersion import Dispersion
from normscope.measures.statistics.feedforward import AmplifiedPairs, Change
from normscope.measures.statistics.frequency import Frequency
from normscope.measures.statistics.mixing import Mixing, PreserveMix
from normscope.measures.statistics.settings import StatisticSettings

STATISTICS: dict[str, Callable[[StatisticSettings], Statistic]] = {
    "dispersion": Dispersion,
    "categories": Categories,
    "alpha_vs_norm": AlphaVersusNorm,
    "frequency": Frequency,
    "mixing": Mixing,
    "preserve_mix": PreserveMix,
    "change": Change,
    "amplification": AmplifiedPairs,
}
