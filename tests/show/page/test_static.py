"""The small HTML of results and arrays in notebooks."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from normscope import LabelledArray
from tests.helpers import pages
from tests.helpers.attributions import attribution, tokens_of, words
from tests.helpers.pages import HOSTILE


def test_short_html_of_a_result() -> None:
    html = pages.results(pages.tokens_of([*HOSTILE, *["word"] * 60]))[1]._repr_html_()
    assert "&lt;/script&gt;" in html
    assert "<script" not in html
    assert "<img" not in html
    assert "a\\x00\\u202eb" in html
    assert "(64)" in html
    assert len(html) < 6000
    assert "3 layer × 10 query × 10 key" in pages.results()[1]._repr_html_()
    assert "4.0e-08" in pages.results()[1]._repr_html_()
    assert "<b>cross</b>" in pages.translation()[0]._repr_html_()


def test_short_html_is_an_ordinary_string() -> None:
    """Markup would escape the strings that a caller puts around it."""
    result = pages.results()[1]
    for text in (result._repr_html_(), result["attn_n"]._repr_html_()):
        assert type(text) is str


@pytest.mark.parametrize(
    "select",
    [
        lambda array: array,
        lambda array: array.sel(layer=1),
        lambda array: array.sel(layer=1, query=2),
        lambda array: array.sel(layer=1, query=2, key=3),
        lambda array: array.sel(query=2, key=3),
    ],
)
def test_short_html_of_an_array(select: Callable[[LabelledArray], LabelledArray]) -> None:
    array = select(pages.results(pages.tokens_of([*HOSTILE, "word"]))[1]["attn_n"])
    html = array._repr_html_()
    assert "<script" not in html
    assert "<img" not in html
    shown = np.asarray(array.values, dtype=np.float64)
    while shown.ndim > 2:
        shown = shown[0]
    cells = re.findall(r"<td[^>]*>([^<]+)</td>", html) or re.findall(r"<div>([\d.e-]+)</div>", html)
    np.testing.assert_allclose([float(cell) for cell in cells], shown.ravel(), rtol=6e-3)


def test_short_html_of_a_large_array_says_what_it_leaves_out() -> None:
    made = pages.results(pages.tokens_of([f"w{at}" for at in range(200)]), heads=2)
    html = made[0]["attn_w"]._repr_html_()
    assert html.count("<td") == 24 * 24
    assert "layer 0 of 3; head 0 of 2; the first 24 × 24 cells" in html


def test_short_html_of_an_attribution_colours_its_tokens() -> None:
    result = attribution(trace=True)
    shown = result._repr_html_()
    assert "What made the model say &#39; are&#39; rather than &#39; is&#39;" in shown
    assert shown.count("<span") == 6
    largest = max(range(6), key=lambda at: abs(result.scores[at]))
    cell = f'background:rgba(33,87,196,0.60)">{result.tokens.texts[largest]}</span>'
    assert cell in shown  # the largest share is positive
    assert "rgba(216,110,20," in shown  # others are negative
    assert "= 7.17, the model&#39;s own value" in shown
    hostile = attribution(tokens_of(list(HOSTILE)))._repr_html_()
    assert "<script" not in hostile
    assert "<img" not in hostile
    assert not {"\0", "\u202e"} & set(hostile)
    assert " … (900)" in attribution(words(900))._repr_html_()
