"""The statistics by name."""

from __future__ import annotations

from normscope.statistics.alpha_vs_norm import AlphaVersusNorm
from normscope.statistics.base import Settings, Statistic
from normscope.statistics.categories import Categories
from normscope.statistics.dispersion import Dispersion
from normscope.statistics.feedforward import Amplification, Change
from normscope.statistics.frequency import Frequency
from normscope.statistics.mixing import Mixing, PreserveMix


def make(name: str, settings: Settings) -> Statistic:
    """A statistic with these settings."""
    known: list[type[Statistic]] = [
        *(Dispersion, Categories, AlphaVersusNorm, Frequency),
        *(Mixing, PreserveMix, Change, Amplification),
    ]
    return next(one(settings) for one in known if one.name == name)  # type: ignore[call-arg]
