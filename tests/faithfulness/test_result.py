"""Means, intervals, differences, merging and files of the figures of methods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap

from normscope.errors import InputError
from normscope.faithfulness.conventions import Convention, Figure
from normscope.faithfulness.intervals import bootstrap_means, intervals
from normscope.faithfulness.result import MethodFigures

FIGURES = [Figure("aopc", "loss", True), Figure("sufficiency", "rest", False)]


def figures(count: int = 40, **about: Any) -> MethodFigures:
    random = np.random.default_rng(0)
    values = {"a": random.normal(size=(count, 2)), "b": random.normal(size=(count, 2))}
    values["b"][:, 0] = values["a"][:, 0] - 0.1 + 0.05 * random.normal(size=count)
    facts: dict[str, Any] = {"settings": {"aopc": "bins=10%"}, "signature": "model:x"}
    return MethodFigures(FIGURES, values, **{**facts, "sampling": (2000, 0.95, 3), **about})


def test_intervals_against_scipy() -> None:
    values = np.random.default_rng(1).exponential(size=60)
    result = bootstrap((values,), np.mean, n_resamples=20000, method="percentile", rng=0)
    low, high = intervals(values[:, None], resamples=20000, seed=0, confidence=0.95)[:, 0]
    width = high - low
    assert low == pytest.approx(result.confidence_interval.low, abs=0.03 * width)
    assert high == pytest.approx(result.confidence_interval.high, abs=0.03 * width)


def test_resamples_are_seeded_paired_and_leave_out_what_is_not_defined() -> None:
    values = np.random.default_rng(1).normal(size=(30, 2))
    values[:, 1] = values[:, 0] + 1
    means = bootstrap_means(values, 600, seed=5)
    np.testing.assert_allclose(means[:, 1] - means[:, 0], 1)  # the same texts in every resample
    np.testing.assert_array_equal(means, bootstrap_means(values, 600, seed=5))
    assert (means != bootstrap_means(values, 600, seed=6)).any()
    draw = np.random.default_rng(5)
    for row in means[:3]:  # by a loop
        np.testing.assert_allclose(row, values[draw.integers(30, size=30)].mean(axis=0))
    values[4, 0] = np.nan
    draw = np.random.default_rng(5)
    expected = np.nanmean(values[draw.integers(30, size=30), 0])
    assert bootstrap_means(values, 1, seed=5)[0, 0] == pytest.approx(expected)
    assert np.isnan(intervals(np.full((3, 1), np.nan), resamples=9, seed=0, confidence=0.9)).all()
    assert np.isnan(intervals(values, resamples=0, seed=0, confidence=0.9)).all()


def test_paired_differences_have_a_verdict() -> None:
    result = figures()
    mean, low, high = result.difference("a", "b", "aopc")
    assert mean == pytest.approx((result.each("a", "aopc") - result.each("b", "aopc")).mean())
    assert 0 < low < mean < high
    verdicts = {row["figure"]: row["verdict"] for row in result.differences("b")}
    assert verdicts["aopc"] == "better"
    assert {row["figure"]: row["verdict"] for row in result.differences("a")}["aopc"] == "worse"
    lower = MethodFigures(
        [FIGURES[1]], {"a": np.ones((9, 1)), "b": np.zeros((9, 1)), "c": np.ones((9, 1))}
    )
    assert [row["verdict"] for row in lower.differences("a")] == ["better", "equal"]


def test_parts_are_merged_in_the_order_of_their_numbers() -> None:
    whole = figures()
    parts = [
        MethodFigures(
            FIGURES,
            {name: values[start::3] for name, values in whole.values.items()},
            texts=whole.texts[start::3],
            settings=whole.settings,
            signature=whole.signature,
            problems=[f"line {start}"],
            sampling=(2000, 0.95, 3),
        )
        for start in range(3)
    ]
    merged = parts[2].merge(parts[0]).merge(parts[1])
    assert merged.texts == whole.texts
    assert merged.rows() == whole.rows()
    assert merged.problems == ("line 2", "line 0", "line 1")
    with pytest.raises(InputError, match="both parts have the text '0'"):
        parts[0].merge(parts[0])
    with pytest.raises(InputError, match="not the same: signature"):
        parts[0].merge(figures(2, signature="model:y"))
    with pytest.raises(InputError, match="not the same: settings"):
        parts[0].merge(figures(2, settings={"aopc": "bins=20%"}))


def test_files_and_tables(tmp_path: Path) -> None:
    result = figures()
    result.values["a"][0, 1] = np.nan
    result.to_json(tmp_path / "x.json")
    again = MethodFigures.load(tmp_path / "x.json")
    for name in result.methods:
        np.testing.assert_array_equal(again.values[name], result.values[name])
    assert again.to_dict() == result.to_dict()
    plain = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert plain["values"]["a"][0][1] is None
    result.save(tmp_path / "x.csv")
    lines = (tmp_path / "x.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 2 * 2 * 40
    assert lines[1] == f"a,aopc,0,{float(result.values['a'][0, 0])!r}"
    table = result.to_pandas()
    assert list(table["method"]) == ["a", "a", "b", "b"]
    assert list(table["texts"]) == [40, 39, 40, 40]
    row = result.rows()[0]
    assert f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" in result.table()
    html = result._repr_html_()
    assert "aopc ↑" in html
    assert "sufficiency ↓" in html
    assert "bins=10%" in html
    assert repr(result) == "MethodFigures(40 texts; a, b; aopc, sufficiency)"


def test_wrong_input_is_explained(tmp_path: Path) -> None:
    result = figures()
    with pytest.raises(InputError, match="no figure 'x'; the figures are: aopc, sufficiency"):
        result.mean("a", "x")
    with pytest.raises(InputError, match="no method 'x'; the methods are: a, b"):
        result.differences("x")
    with pytest.raises(InputError, match=r"give a name in \.json, \.csv"):
        result.save(tmp_path / "x.txt")
    with pytest.raises(InputError, match="one row for each text"):
        MethodFigures(FIGURES, {"a": np.zeros((2, 2)), "b": np.zeros((3, 2))})
    with pytest.raises(InputError, match="1 names for 2 texts"):
        MethodFigures(FIGURES, {"a": np.zeros((2, 2))}, texts=["x"])
    for text, message in [("{", "is not JSON"), ("[]", "no result"), ("{}", "no result of")]:
        (tmp_path / "bad.json").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            MethodFigures.load(tmp_path / "bad.json")
    with pytest.raises(InputError, match="cannot read"):
        MethodFigures.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("rounding", "n", "counts"),
    [
        ("floor", 7, [0, 0, 1, 3, 7]),
        ("ceil", 7, [1, 1, 2, 4, 7]),
        ("at_least_one", 7, [1, 1, 1, 3, 7]),
        ("at_least_one", 0, [0, 0, 0, 0, 0]),
        ("ceil", 0, [0, 0, 0, 0, 0]),
        ("ceil", 100, [1, 10, 20, 50, 100]),
    ],
)
def test_counts_of_the_steps(rounding: str, n: int, counts: list[int]) -> None:
    assert Convention(bins=(0.5, 10, 20, 50, 100), rounding=rounding).counts(n) == counts


def test_counts_are_not_rounded_in_binary() -> None:
    """0.07 · 100 is 7.000000000000001 in binary."""
    assert Convention(bins=(7,), rounding="ceil").counts(100) == [7]
    assert Convention(bins=(29,), rounding="floor").counts(100) == [29]
