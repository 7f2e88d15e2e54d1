"""The small HTML of results and arrays in notebooks."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import numpy as np
import pytest

from normscope import Contributions, LabelledArray
from tests.helpers import pages
from tests.helpers.attributions import attribution, tokens_of, words
from tests.helpers.pages import HOSTILE


def test_short_html_of_a_result() -> None:
    shown = pages.results(pages.tokens_of([*HOSTILE, *["word"] * 60]))[1]._repr_html_()
    assert "&lt;/script&gt;" in shown
    assert "<script" not in shown
    assert "<img" not in shown
    assert "a\\x00\\u202eb" in shown
    assert not {"\0", "\u202e"} & set(shown)
    assert "(64)" in shown
    assert len(shown) < 40_000
    assert "3 layer × 10 query × 10 key" in pages.results()[1]._repr_html_()
    assert "4.0e-08" in pages.results()[1]._repr_html_()
    assert "<b>cross</b>" in pages.translation()[0]._repr_html_()


def test_html_of_a_result_says_and_shows_what_weights_hide() -> None:
    """The headline, and two bars for each token in the layer that it names, on one scale."""
    from normscope.show.headline import headline, most_different

    for result in (*pages.results(), pages.translation()[0]):
        place = most_different(result)
        part = result.parts[place.part] if place.part else result
        shown = result._repr_html_()
        assert html.unescape(shown).count(headline(result)) == 1
        shares = np.array(
            [
                re.findall(r"([\d.]+)%", title)
                for title in re.findall(r'<span title="([^"]+)"', shown)
            ],
            dtype=np.float64,
        )
        heights = np.array(re.findall(r"width:9px;height:([\d.]+)px", shown), dtype=np.float64)
        expected = []
        for name in ("attn_w", "attn_n"):
            layer = part[name].sel(layer=place.layer)
            values = (layer if place.head is None else layer.sel(head=place.head)).values
            expected.append((values / values.sum(axis=-1, keepdims=True)).mean(axis=0))
        np.testing.assert_allclose(shares.T, 100 * np.array(expected), atol=0.051)
        by_token = np.array(expected).T.ravel()  # one scale for both bars
        np.testing.assert_allclose(heights, 44 * by_token / by_token.max(), atol=0.051)


def test_html_of_a_result_with_one_map_or_none() -> None:
    result = pages.results()[1]
    few = Contributions(
        {"attn_n": result["attn_n"]}, None, result.tokens, result.tokens, {"attn_n": 0.0}, ""
    )
    shown = few._repr_html_()
    assert "share of what is added" in shown
    assert "attention weight" not in shown
    assert "largest error 0<" in shown  # not 0.0e+00
    ratios = {"mixing_ratio": {"attn_n": result.mixing_ratio["attn_n"]}}
    none = Contributions({}, None, result.tokens, result.tokens, {}, "", None, ratios)
    assert "<span" not in none._repr_html_()


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
    written = array._repr_html_()
    assert "<script" not in written
    assert "<img" not in written
    shown = np.asarray(array.values, dtype=np.float64)
    while shown.ndim > 2:
        shown = shown[0]
    cells = re.findall(r"<td[^>]*>([^<]+)</td>", written)
    cells = cells or re.findall(r"<div>([\d.e-]+)</div>", written)
    np.testing.assert_allclose([float(cell) for cell in cells], shown.ravel(), rtol=6e-3)


def test_short_html_of_a_large_array_says_what_it_leaves_out() -> None:
    made = pages.results(pages.tokens_of([f"w{at}" for at in range(200)]), heads=2)
    shown = made[0]["attn_w"]._repr_html_()
    assert shown.count("<td") == 24 * 24
    assert "layer 0 (0–2), head 0 (0–1), the first 24 × 24 cells" in shown


def test_short_html_of_an_attribution_colours_its_tokens() -> None:
    result = attribution(trace=True)
    shown = result._repr_html_()
    assert "What made the model say &#39; are&#39; rather than &#39; is&#39;" in shown
    assert shown.count("<span") == 6
    largest = max(range(6), key=lambda at: abs(result.scores[at]))
    cell = f'background:rgba(42,102,207,0.60)">{result.tokens.texts[largest]}</span>'
    assert cell in shown  # the largest share is positive
    assert "rgba(201,102,15," in shown  # others are negative
    assert "= 7.17, the model&#39;s own value" in shown
    hostile = attribution(tokens_of(list(HOSTILE)))._repr_html_()
    assert "<script" not in hostile
    assert "<img" not in hostile
    assert not {"\0", "\u202e"} & set(hostile)
    assert " … (900)" in attribution(words(900))._repr_html_()
