"""What `normscope bench --methods` measures."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from normscope.attribution.methods.table import TABLE
from normscope.cli import bench_methods
from normscope.cli.bench_methods import method_passes
from normscope.models.architectures import tiny_model
from tests.helpers.benchmarks import measure, shrink
from tests.helpers.commands import fail, succeed


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def test_every_method_is_measured(bert: str) -> None:
    rows = measure(bert, groups=["methods"], dense=False)
    names = [name.partition(":")[0] for name in rows]
    maps = [f"map {name}" for name in bench_methods.MAPS]
    assert names == ["forward", "eager", "input × gradient", *TABLE, *maps]
    unit = rows["input × gradient"]["ms"]
    for name, row in rows.items():
        if row["ms"] is None:
            assert "Error: " in row["note"], name
        elif name.partition(":")[0] in TABLE:
            assert row["to_gradient"] == row["ms"] / unit
            assert row["note"].endswith("× input × gradient")
    measured = {name.partition(":")[0] for name, row in rows.items() if row["ms"] is not None}
    assert {"frozen", "secant", "attn_lrp", "chefer", "decompx", "erasure", "random"} <= measured
    assert set(maps) <= measured


def test_methods_explain_one_number_of_each_row() -> None:
    model: Any = tiny_model("bert")
    ids = torch.arange(10, 26).reshape(2, 8)
    with torch.no_grad():
        expected = model(ids)[0][:, -1, :1].numpy()
        before = model(ids.flip(-1))[0][:, -1, :1].numpy()
    passes = {name: call for name, call, _ in method_passes(model, {"input_ids": ids})}
    for name, value in (("frozen", expected), ("secant", expected - before)):
        shares = passes[name]()
        assert shares.value == pytest.approx(value, rel=1e-5, abs=1e-7)
        assert shares.error.max() < 1e-5


def test_on_the_command_line(bert: str) -> None:
    done = succeed("bench", "--model", bert, "--lengths", "6", "--repeats", "1", "--methods")
    for name in ("frozen", "integrated_gradients:steps=10", "map alti_l2"):
        assert name in done.stdout
    assert "dense" not in done.stdout
    assert "leave out --maps" in fail("bench", "--model", bert, "--methods", "--maps", "2020")
