"""The BERT part of the 2021 paper."""

from __future__ import annotations

import pytest
from numpy.testing import assert_allclose
from scipy.stats import spearmanr

from normscope.reproduce.exhibits import published
from tests.helpers.reproductions import Reports, rows_of

NAME = "emnlp2021"


@pytest.mark.slow
def test_published_next_to_measured(reports: Reports) -> None:
    report, _ = reports[NAME]
    mixing = {row["analysis"]: row for row in rows_of(report, "Table 1")}
    assert mixing["AttnResLn-N"]["mean published"] == 18.75
    assert_allclose(mixing["AttnRes-W"]["mean measured"], mixing["Attn-W"]["mean measured"] / 2)
    rates = rows_of(report, "Expansion rate")
    assert [row["published (released)"] for row in rates][-1] == 1.051
    assert len(rates) == 12


def test_findings_follow_from_the_tables(reports: Reports) -> None:
    report, _ = reports[NAME]
    means = {row["analysis"]: row["mean measured"] for row in rows_of(report, "Table 1")}
    order = [means[name] for name in ("Attn-W", "Attn-N", "AttnRes-N", "AttnResLn-N")]
    assert report.findings[0].agrees == (order == sorted(order, reverse=True))
    agrees = {finding.statement: finding.agrees for finding in report.findings}
    depth = {row["analysis"]: row["measured"] for row in rows_of(report, "Depth")}
    (decreases,) = [agrees[statement] for statement in agrees if "later layers" in statement]
    assert decreases == (depth["AttnResLn-N"] < 0)
    rates = [row["measured (without)"] for row in rows_of(report, "Expansion rate")]
    present = [rate for rate in rates if rate is not None]
    (shrinks,) = [agrees[statement] for statement in agrees if "shrinks vectors" in statement]
    assert shrinks == (sum(rate < 1 for rate in present) > len(present) / 2)


def test_depth_in_the_papers_figure(reports: Reports) -> None:
    report, _ = reports[NAME]
    for row in rows_of(report, "Depth"):
        name = {"Attn-W": "attn_w", "AttnResLn-N": "attn_res_ln_n"}.get(row["analysis"])
        if name:
            layers = published()["emnlp2021"]["figure3"]["layers"][name]
            expected = spearmanr(range(12), [values[-1] for values in layers]).statistic
            assert_allclose(row["published, from Figure 3"], expected)
