"""The cost of statistics."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normscope.measures.statistics import Measurer, Row, StatisticSettings, choose
from normscope.models import load
from normscope.reproduce import cost
from normscope.reproduce.cost import measure_cost, read_cost, write_cost
from tests.helpers.reproductions import Inputs


def test_measured_from_the_clock(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = load(inputs.model)
    settings = StatisticSettings(masking=0.0)
    measurer = Measurer(model, tokenizer, choose(["mixing"], settings), settings)
    # Three forward passes of 2, 1 and 3 seconds, then the statistics: 10 seconds.
    times = iter([0.0, 2.0, 2.0, 3.0, 3.0, 6.0, 6.0, 16.0])
    clock: Any = SimpleNamespace(process_time=lambda: next(times))
    monkeypatch.setattr(cost, "time", clock)
    rows = [Row(key, (2, 5, 6, 3), (0, 0, 0, 0), (True, False, False, True)) for key in range(2)]
    measured = measure_cost(measurer, rows, 0.12345)
    assert measured == cost.Cost(2, 0.5, 5.0, 10.0, 0.123)
    write_cost(measured, tmp_path / "cost.json")
    assert read_cost(tmp_path / "cost.json") == measured
