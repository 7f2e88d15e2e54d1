"""Categories that never occur have no mean; the weights of all categories add up to 1."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from tests.helpers.slow_statistics import COMMA, column, corpus, measured

ROWS = corpus()


def test_a_category_that_never_occurs_has_no_mean() -> None:
    rows = [row for row in ROWS if COMMA not in row.ids]
    assert len(rows) > 2
    made = measured(["categories", "alpha_vs_norm"], rows)
    for name in ("categories", "layers", "heads"):
        table = made["categories"][name]
        assert np.isnan(column(table, "alpha", category="comma_period")).all()
        assert np.isfinite(column(table, "alpha", category="others")).all()
    assert column(made["categories"]["categories"], "sequences", category="comma_period") == 0
    assert column(made["alpha_vs_norm"]["spearman"], "pairs", category="comma_period") == 0


def test_weights_of_all_categories_add_up() -> None:
    rows = [row for row in ROWS if COMMA in row.ids]
    made = measured("categories", rows)["categories"]["categories"]
    assert_allclose(made.columns["alpha"].sum(), 1, rtol=1e-12)
