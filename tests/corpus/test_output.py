"""The files of a finished run: equal for equal runs, and all say the same."""

from __future__ import annotations

import csv
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.helpers.corpora import (
    assert_same,
    columns,
    contents,
    full_run,
    lasting,
    quick_run,
)
from tests.helpers.tiny import tokenizer


@pytest.mark.usefixtures("quick")
def test_two_equal_runs_give_equal_files(folder: Path, tmp_path: Path) -> None:
    quick_run(folder, tmp_path / "one")
    quick_run(folder, tmp_path / "two")
    assert lasting(tmp_path / "one") == lasting(tmp_path / "two")
    names = set(contents(tmp_path / "one"))
    assert {"statistics.json", "run.json", "report.html"} < names
    assert {"tables/sums.csv", "tables/sums.parquet"} < names
    assert "checkpoint.npz" not in names


@pytest.mark.usefixtures("quick")
def test_what_the_account_says(folder: Path, tmp_path: Path) -> None:
    result = quick_run(folder, tmp_path / "out", max_length=8)
    assert result.counts["rows"] == 62
    assert result.counts["bad"] == {"empty": 1, "json": 1, "type": 1}
    assert [one.where for one in result.problems] == [
        *("b.jsonl, line 4", "b.jsonl, line 5", "b.jsonl, line 22")
    ]
    reader = tokenizer()
    texts = (folder / "a.txt").read_text().splitlines()
    long = [text for text in texts if len(reader(text)["input_ids"]) > 8]
    pairs = [json.loads(x) for x in (folder / "b.jsonl").read_text().splitlines() if "_pair" in x]
    long += [p for p in pairs if len(reader(p["text"], p["text_pair"])["input_ids"]) > 8]
    assert result.counts["cut"] == len(long) > 10
    told = json.loads((tmp_path / "out" / "statistics.json").read_text())
    assert told["counts"] == result.counts
    assert told["signature"] == result.signature
    assert told["identity"]["options"]["max_length"] == 8
    times = json.loads((tmp_path / "out" / "run.json").read_text())
    assert times["tokens_per_second"] > 0
    assert "seconds" not in (tmp_path / "out" / "statistics.json").read_text()


@pytest.mark.usefixtures("quick")
def test_a_finished_folder_is_read_and_not_touched(folder: Path, tmp_path: Path) -> None:
    first = quick_run(folder, tmp_path / "out", dump=True, limit=9)
    before = contents(tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    again = quick_run(folder, tmp_path / "out", dump=True, limit=9)
    assert contents(tmp_path / "out") == before
    changed = {path for path, at in times.items() if path.stat().st_mtime_ns != at}
    assert changed <= {tmp_path / "out"}
    assert (again.counts, again.problems) == (first.counts, first.problems)
    assert again.signature == first.signature
    for name, table in columns(first).items():
        for column, values in table.items():
            assert_same(columns(again)[name][column], values)


@pytest.mark.usefixtures("quick")
def test_figures_are_written_and_embedded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    from normscope.show import plots

    def figures(tables: Any) -> dict[str, Figure]:
        figure = Figure(figsize=(1, 1))
        figure.subplots().plot(tables["sums"].lists()["sum"])
        return {"sums": figure}

    monkeypatch.setattr(plots, "statistics_figures", figures, raising=False)
    quick_run(folder, tmp_path / "one")
    quick_run(folder, tmp_path / "two")
    assert (tmp_path / "one" / "figures" / "sums.png").read_bytes()[:4] == b"\x89PNG"
    page = (tmp_path / "one" / "report.html").read_text()
    assert page.count('src="data:image/png;base64,') == 1
    assert lasting(tmp_path / "one") == lasting(tmp_path / "two")


def test_tables_in_all_files_say_the_same(folder: Path, tmp_path: Path) -> None:
    pd: Any = importlib.import_module("pandas")
    pl: Any = importlib.import_module("polars")

    result = full_run(folder, tmp_path / "out")
    told = json.loads((tmp_path / "out" / "statistics.json").read_text())
    for name, table in result.tables.items():
        path = tmp_path / "out" / "tables" / f"{name}.parquet"
        frame, other = pd.read_parquet(path), pl.read_parquet(path)
        lines = csv.reader(path.with_suffix(".csv").read_text().splitlines())
        written = dict(zip(next(lines), zip(*lines, strict=True), strict=True))
        for column, values in table.lists().items():
            assert_same(list(other[column]), values)
            if values and isinstance(values[0], float):
                assert_allclose(frame[column], values, rtol=0, equal_nan=True)
                assert_allclose([float(v) for v in written[column]], values, rtol=0)
                again = [
                    np.nan if v is None else v for v in told["tables"][name]["columns"][column]
                ]
                assert_allclose(again, values, rtol=0, equal_nan=True)
