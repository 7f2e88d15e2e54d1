"""The small HTML of results and arrays in notebooks."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from normscope import LabelledArray
from tests.helpers import pages
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
