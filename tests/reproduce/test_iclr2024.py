"""The BERT part of the 2024 paper."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from tests.helpers.reproductions import Reports, rows_of


def test_change_across_the_layer(reports: Reports) -> None:
    rows = rows_of(reports["iclr2024"][0], "Contextualisation change")
    assert [row["layer"] for row in rows][-1] == "mean"
    names = [name for name in rows[0] if name != "layer"]
    assert names == [
        "attention block → feed-forward",
        "feed-forward → feed-forward, residual",
        "feed-forward, residual → whole layer",
        "attention block → feed-forward, residual",
        "attention block → whole layer",
    ]
    for name in names:
        values = [row[name] for row in rows]
        assert 0 < values[0] < 2
        assert_allclose(values[-1], np.mean(values[:-1]))


def test_findings_follow_from_the_table(reports: Reports) -> None:
    report, _ = reports["iclr2024"]
    rows = rows_of(report, "Contextualisation change")
    changes = [row["attention block → feed-forward"] for row in rows[:-1]]
    assert report.findings[0].agrees == all(change > 0.01 for change in changes)
    remaining = rows[-1]["attention block → whole layer"]
    assert report.findings[1].agrees == (remaining < rows[-1]["attention block → feed-forward"])


def test_pairs_are_sorted(reports: Reports) -> None:
    rows = rows_of(reports["iclr2024"][0], "Top amplified pairs")
    assert [row["layer"] for row in rows] == sorted(row["layer"] for row in rows)
    assert max(sum(row["layer"] == layer for row in rows) for layer in (1, 2, 3)) == 8
