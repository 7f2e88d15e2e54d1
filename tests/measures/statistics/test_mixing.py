"""Mixing ratios by the user's own categories."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from normscope.measures.statistics import StatisticSettings
from tests.helpers.slow_statistics import COMMA, PERIOD, column, corpus, measured, slow_corpus

ROWS = corpus()


def test_mixing_by_own_categories() -> None:
    settings = StatisticSettings(categories={"marks": [",", "."]})
    made = measured("mixing", ROWS, settings)["mixing"]["layers"]
    assert list(dict.fromkeys(made.columns["category"])) == ["marks", "others", "<unk>", "all"]
    # Of the sequences that have them, each with the mean of its own.
    plain = measured("mixing", ROWS, StatisticSettings(categories={"marks": [",", "."]}, masking=0))
    by_layer = column(plain["mixing"]["layers"], "mean", category="marks", analysis="attn_n")
    expected = []
    for one in slow_corpus(ROWS):
        marks = np.isin(one.ids, (COMMA, PERIOD))
        if marks.any():
            expected.append(100 * one.ratios()["attn_n"][:, marks].mean(axis=1))
    assert_allclose(by_layer, np.mean(expected, axis=0), rtol=1e-9)
