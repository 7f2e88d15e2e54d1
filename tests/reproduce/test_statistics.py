"""Statistics that only the reproductions need."""

from __future__ import annotations

from numpy.testing import assert_allclose
from scipy.stats import spearmanr

from normscope.measures.analysis import analyze
from normscope.reproduce import reproduce
from normscope.reproduce.data import read_sequences
from tests.helpers.reproductions import Inputs, rows_of


def test_change_is_that_of_the_maps(inputs: Inputs) -> None:
    (pair,) = read_sequences([inputs.text], 1).rows
    maps = ("atb", "atb_ff", "atb_ff_res", "atb_ff_res_ln")
    result = analyze(str(inputs.model), None, pair[0], pair[1], maps=maps)
    report = reproduce("iclr2024", inputs.options(sequences=1))
    for layer, row in enumerate(rows_of(report, "Contextualisation change")[:-1]):
        flat = [result[name].to_numpy()[layer].ravel() for name in maps]
        for name, (before, after) in {
            "attention block → feed-forward": (0, 1),
            "feed-forward, residual → whole layer": (2, 3),
            "attention block → whole layer": (0, 3),
        }.items():
            rho = spearmanr(flat[before], flat[after]).statistic
            assert_allclose(row[name], 1 - rho, atol=1e-6)
