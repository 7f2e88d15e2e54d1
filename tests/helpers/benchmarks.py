"""A benchmark that is small enough for tests."""

from __future__ import annotations

from typing import Any

import pytest

from normscope.cli import bench_timing, bench_works
from normscope.cli.bench_works import BenchSettings


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply small matrices, and start no process to measure memory."""
    monkeypatch.setattr(bench_works, "SQUARE", {"cpu": 16})
    monkeypatch.setattr(bench_timing, "_peak_of_child", lambda *_: 1.5)


def measure(model: str | None, **settings: Any) -> dict[str, dict[str, Any]]:
    """Measure one short length, and return the rows by work."""
    figures = bench_timing.run(BenchSettings(model, lengths=[8], repeats=1, **settings))
    assert {row["tokens"] for row in figures["rows"]} == {8}
    return {row["work"]: row for row in figures["rows"]}
