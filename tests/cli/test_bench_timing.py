"""How `normscope bench` measures time and memory, whatever they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.cli import bench_timing, bench_works
from normscope.cli.bench_works import BenchSettings
from tests.helpers.benchmarks import measure, shrink


def test_the_dense_form_is_compared_with_the_maps_alone_and_with_the_pass() -> None:
    rows: dict[str, Any] = {
        "forward": {"ms": 20.0, "note": ""},
        "2020": {"ms": 50.0, "note": ""},
        "dense float64": {"ms": 1180.0, "note": ""},
        "dense float32": {"ms": None, "note": "a tensor of 9 GB for each layer"},
    }
    bench_timing._compare_with_dense(rows)
    assert rows["dense float64"]["to_2020"] == 24
    assert rows["dense float64"]["to_2020_maps"] == pytest.approx(39.3, abs=0.1)
    assert rows["dense float64"]["note"] == "39× the 2020 maps, 24× with the pass"
    assert rows["dense float32"]["note"] == "a tensor of 9 GB for each layer"


def test_what_breaks_hides_no_other(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("no room. More")

    monkeypatch.setattr(bench_works, "dense", full)
    rows = measure(bert, groups=["2020"])
    assert rows["dense float64"]["ms"] is None
    assert rows["dense float64"]["note"] == "OutOfMemoryError: no room"
    assert rows["2020"]["ms"] > 0


@pytest.mark.slow
def test_the_memory_of_a_fresh_process(bert: str) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak is read from Linux's /proc")
    peak = bench_timing._peak_of_child(BenchSettings(bert), "2020", 32)
    assert peak is not None
    assert 0 <= peak < 1000
