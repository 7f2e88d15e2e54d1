"""The BERT part of the 2020 paper."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.helpers.reproductions import Reports, rows_of

NAME = "emnlp2020-bert"


@pytest.mark.slow
def test_published_next_to_measured(reports: Reports) -> None:
    report, _ = reports[NAME]
    rows = {row["category"]: row for row in rows_of(report, "Table 2")}
    assert rows["[SEP]"]["ρ published"] == -0.69
    assert rows["other tokens"]["pairs published"] == 1944928224
    assert -1 <= rows["[SEP]"]["ρ measured"] <= 1
    table1 = {(row[""], row["number"]): row for row in rows_of(report, "Table 1")}
    assert table1["largest CV", "of"]["published"] == "layer 2, head 4"
    assert re.fullmatch(r"layer [123], head [1-4]", table1["largest CV", "of"]["measured"])
    assert table1["average", "cv"]["published"] == 0.22
    assert [row["published"] for row in rows_of(report, "Figure 6")] == [-0.08, 0.75]


def test_findings_follow_from_the_tables(reports: Reports) -> None:
    report, _ = reports[NAME]
    agrees = {finding.statement: finding.agrees for finding in report.findings}
    rho = {row["category"]: row["ρ measured"] for row in rows_of(report, "Table 2")}
    assert agrees["ρ of α and ‖f(x)‖ is strongly negative for [SEP]"] == (rho["[SEP]"] <= -0.5)
    assert agrees["ρ of α and ‖f(x)‖ is negative for [CLS]"] == (rho["[CLS]"] <= -0.2)
    assert agrees["ρ of α and ‖f(x)‖ is near zero for other tokens"] == (
        abs(rho["other tokens"]) < 0.2
    )
    assert agrees["ρ of α and ‖f(x)‖ is lowest for [SEP]"] == (rho["[SEP]"] == min(rho.values()))


def test_measured_numbers_are_the_statistics(reports: Reports) -> None:
    report, folder = reports[NAME]
    tables = json.loads((folder / "measured/statistics.json").read_text())["tables"]
    heads = tables["dispersion_transformed_norm"]["columns"]
    largest = int(np.argmax(heads["cv"]))
    rows = {(row[""], row["number"]): row["measured"] for row in rows_of(report, "Table 1")}
    assert rows["largest CV", "cv"] == heads["cv"][largest]
    place = f"layer {heads['layer'][largest] + 1}, head {heads['head'][largest] + 1}"
    assert rows["largest CV", "of"] == place
    shares = rows_of(report, "Figure 3")
    assert_allclose(sum(row["share of α, %"] for row in shares), 100)
    assert_allclose(sum(row["α"] for row in shares), 1, rtol=1e-5)


def test_points_of_the_frequency_figure(reports: Reports) -> None:
    report, _ = reports[NAME]
    (data,) = [exhibit.data for exhibit in report.exhibits if exhibit.name == "Figure 6"]
    assert data is not None
    points = data.rows()
    assert len({(point["rank"], point["special"]) for point in points}) == len(points)
    (start,) = [row for row in rows_of(report, "Figure 3") if row["category"] == "<s>"]
    special = next(p for p in points if p["special"] and p["count"] == 6 and p["rank"] < 5)
    assert special["alpha"] > 0
    assert start["tokens"] == 6


def test_ratio_of_singular_values(reports: Reports) -> None:
    report, _ = reports[NAME]
    (data,) = [exhibit.data for exhibit in report.exhibits if exhibit.name == "Figure 9"]
    assert data is not None
    values: dict[tuple[int, int], list[float]] = {}
    for row in data.rows():
        values.setdefault((row["layer"], row["head"]), []).append(row["singular_value"])
    assert set(values) == {(layer, head) for layer in (1, 2, 3) for head in (1, 2, 3, 4)}
    ratios = [head[0] / head[-1] for head in values.values()]
    least, median = (row["measured"] for row in rows_of(report, "Figure 9"))
    assert_allclose([least, median], [min(ratios), np.median(ratios)])
