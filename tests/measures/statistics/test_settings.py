"""Settings that are not valid are refused, and the command line has help for each option."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from normscope import statistics
from normscope.errors import InputError
from normscope.measures.statistics import StatisticSettings


@pytest.mark.parametrize(
    "wrong", [{"masking": 1.0}, {"masking": -0.1}, {"confidence": 1.0}, {"replicates": -1},
              {"scatter": 0}, {"top": 0}]
)  # fmt: skip
def test_bad_settings(wrong: Any) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        StatisticSettings(**wrong)


def test_the_least_valid_settings() -> None:
    settings = StatisticSettings(masking=0.0, replicates=0, scatter=1, top=1)
    assert (settings.replicates, settings.scatter, settings.top) == (0, 1, 1)


def test_the_short_name_is_the_same_class() -> None:
    assert statistics.Settings is StatisticSettings


def test_options_of_the_command_line_have_help() -> None:
    shown = {field.name: field.metadata for field in fields(StatisticSettings) if field.metadata}
    assert set(shown) == {"categories", "ranks", "masking", "replicates"}
    assert all(metadata["help"].endswith(".") for metadata in shown.values())
    assert all(metadata["metavar"] for metadata in shown.values())
