"""Comparisons of methods: rank correlations, costs, the page and the picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import normscope
from normscope import plots
from normscope.errors import InputError
from normscope.faithfulness.agreement import Agreement
from normscope.faithfulness.comparison import STATUS, peak_memory
from tests.helpers.heads import classifier, masked_tokenizer
from tests.helpers.toys import toy_classifier, toy_scores

TEXTS = ["the cat sat on the mat", "a dog ran over the fence with friend", "she looked"]
TOK = masked_tokenizer()
METHODS = ("frozen", "secant", "attn_lrp", "random")


@pytest.fixture(scope="module")
def compared() -> Agreement:
    return normscope.compare(classifier(), TOK, TEXTS, methods=METHODS, resamples=200)


def test_correlations_against_scipy(compared: Agreement) -> None:
    values: list[list[Any]] = []
    for method, how in (("frozen", {}), ("secant", {"baseline": "sun"}), ("attn_lrp", {})):
        results = normscope.attribute(classifier(), TOK, TEXTS, method=method, **how)
        values.append([result.scores.values[1:-1] for result in results])
    for a in range(3):
        for b in range(3):
            expected = [
                spearmanr(x, y).statistic for x, y in zip(values[a], values[b], strict=True)
            ]
            np.testing.assert_allclose(compared.correlations[:, a, b], expected, atol=1e-12)
            assert compared.means[a, b] == pytest.approx(np.mean(expected))
    pair = compared.pairs()[0]
    own = compared.correlations[:, 0, 1]
    assert (pair["method"], pair["other"], pair["texts"]) == ("frozen", "secant", 3)
    assert (pair["mean"], pair["sd"]) == pytest.approx((own.mean(), own.std()))
    assert own.min() <= pair["low"] <= pair["mean"] <= pair["high"] <= own.max()
    assert len(compared.pairs()) == 6


def test_the_order_of_methods_and_batches_change_nothing(compared: Agreement) -> None:
    back = normscope.compare(classifier(), TOK, TEXTS, methods=METHODS[::-1], resamples=0)
    np.testing.assert_array_equal(back.correlations[:, ::-1, ::-1], compared.correlations)
    alone = [
        normscope.compare(classifier(), TOK, text, methods=METHODS, resamples=0) for text in TEXTS
    ]
    merged = alone[0].merge(alone[1]).merge(alone[2])
    np.testing.assert_array_equal(merged.correlations, compared.correlations)
    with pytest.raises(InputError, match="other methods or settings"):
        merged.merge(back)


def test_ties_and_texts_too_short() -> None:
    """Average ranks; ρ is not defined for one token, nor for equal scores."""
    methods = {
        "oracle": toy_scores(),
        "reversed": toy_scores(-2.0),
        "flat": lambda m, t, texts: [np.zeros(len(text.split()) + 2) for text in texts],
    }
    texts = ["cat dog mat", "cat"]
    result = normscope.compare(toy_classifier(), TOK, texts, methods=methods, answer=0)
    expected = [[1, -1, np.nan], [-1, 1, np.nan], [np.nan] * 3]
    np.testing.assert_allclose(result.correlations[0], expected)
    assert np.isnan(result.correlations[1]).all()
    np.testing.assert_allclose(result.means, expected)
    assert [pair["texts"] for pair in result.pairs()] == [1, 0, 0]
    assert "–" in result.table()
    absolute = normscope.compare(
        toy_classifier(), TOK, texts, methods=methods, answer=0, absolute=True
    )
    assert absolute.means[0, 1] == pytest.approx(1)


def test_costs(compared: Agreement) -> None:
    costs = {row["method"]: row for row in compared.costs()}
    assert costs["frozen"]["seconds"] > 0
    assert 0 < costs["frozen"]["error"] < 1e-12
    assert costs["random"]["error"] is None
    assert "completeness error" in compared.table()


def test_peak_memory_is_that_of_the_block() -> None:
    with peak_memory(torch.device("cpu")) as peak:
        block = torch.ones(25_000_000)  # 100 MB
        del block
    assert 80 < peak["mb"] < 300 if STATUS.is_file() else not peak


def test_files_page_and_picture(compared: Agreement, tmp_path: Path) -> None:
    compared.to_json(tmp_path / "x.json")
    again = Agreement.load(tmp_path / "x.json")
    assert again.to_dict() == compared.to_dict()
    again.to_html(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text(encoding="utf-8")
    for word in (*METHODS, "cat", "friend", "Conventions"):
        assert word in page
    assert page.count('<section class="scored">') == 3
    assert page.count('class="method"') == 3 * 4
    assert not re.search(r"https?://", page)
    # The token with the largest score of a row has the darkest shade.
    example = compared.examples()[0]
    scores = example.scores["frozen"]
    at = int(np.abs(scores[1:-1]).argmax()) + 1
    shade = "p8" if scores[at] > 0 else "n8"
    assert f'<span class="{shade}" title="{scores[at]:+.4g}">{example.tokens.texts[at]}<' in page
    ax = plots.agreement(compared)
    np.testing.assert_allclose(ax.images[0].get_array(), compared.means)
    assert [label.get_text() for label in ax.get_xticklabels()] == list(METHODS)
    table = compared.to_pandas()
    assert len(table) == 6
    assert "seconds" in compared._repr_html_()


def test_a_picture_of_one_figure() -> None:
    result = normscope.faithfulness(
        toy_classifier(), TOK, ["cat dog mat", "red sat cat"], answer=0, resamples=50,
        methods={"oracle": toy_scores(), "reversed": toy_scores(-1.0)}, metrics="aopc",
    )  # fmt: skip
    ax = plots.faithfulness(result, "aopc_least")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["oracle", "reversed"]
    assert "lower is better" in ax.get_xlabel()
    with pytest.raises(InputError, match="no figure 'x'"):
        plots.faithfulness(result, "x")
