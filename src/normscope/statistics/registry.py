"""The statistics by name."""

from __future__ import annotations

from collections.abc import Callable

from normscope.statistics.alpha_vs_norm import AlphaVersusNorm
from normscope.statistics.base import Settings, Statistic
from normscope.statistics.categories import Categories
from normscope.statistics.dispersion import Dispersion
from normscope.statistics.feedforward import Amplification, Change
from normscope.statistics.frequency import Frequency
from normscope.statistics.mixing import Mixing, PreserveMix

STATISTICS: dict[str, Callable[[Settings], Statistic]] = {
    "dispersion": Dispersion,
    "categories": Categories,
    "alpha_vs_norm": AlphaVersusNorm,
    "frequency": Frequency,
    "mixing": Mixing,
    "preserve_mix": PreserveMix,
    "change": Change,
    "amplification": Amplification,
}
