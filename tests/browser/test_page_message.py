"""What the page says when it opens: a headline, both maps on one scale, at every width."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from normscope import Contributions
from normscope.show.headline import headline, most_different, shares_headline
from normscope.show.palette import SEQUENTIAL
from tests.browser.conftest import Open
from tests.browser.test_page import choose, fragment
from tests.helpers import pages
from tests.helpers.attributions import attribution, tokens_of, words

TEXT = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "warm",
    "mat",
    "because",
    "it",
    "was",
    "tired",
    "and",
    "the",
    "dog",
    "had",
    "left",
    ".",
]
LONG = pages.tokens_of([TEXT[at % len(TEXT)] for at in range(60)])


def said(page: Page) -> str:
    return page.locator(".ns-headline").inner_text()


def ground(page: Page, panel: int, key: int) -> str:
    token = page.locator(".ns-panel").nth(panel).locator(".ns-keys .ns-token").nth(key)
    colour: str = token.evaluate("chip => chip.style.backgroundColor")
    return colour


def only(results: list[Contributions], which: int, *names: str) -> Contributions:
    """One of the results with some of its maps."""
    made = results[which]
    return Contributions({name: made[name] for name in names}, None, made.tokens, made.key_tokens)


def test_the_headline_is_that_of_python_in_every_layer_and_for_every_token(
    open_page: Open,
) -> None:
    made = pages.results()
    page = open_page(made)
    assert said(page) == headline(made)
    for layer in range(3):
        page.get_by_role("slider", name="Layer").fill(str(layer))
        assert said(page) == headline(made, layer)
    for query in range(10):
        page.locator(".ns-panel").first.locator(".ns-queries .ns-token").nth(query).click()
        assert said(page) == headline(made, 2, query=query)
    expect(page.locator(".ns-headline")).to_have_attribute("aria-live", "polite")
    top = page.locator(".ns-headline").bounding_box()
    bar = page.locator(".ns-controls").bounding_box()
    assert top is not None
    assert bar is not None
    assert top["y"] < bar["y"]


@pytest.mark.parametrize("which", ["each", "cross", "norms", "weights"])
def test_every_result_opens_with_its_headline(open_page: Open, which: str) -> None:
    made: Any = {
        "each": pages.results()[0],
        "cross": pages.translation(),
        "norms": only(pages.results(), 1, "attn_n"),
        "weights": only(pages.results(), 1, "attn_w"),
    }[which]
    page = open_page(made)
    assert said(page) == headline(made)
    titles = page.locator(".ns-panel h3").all_inner_texts()
    if which == "each":
        head = most_different(made).head
        assert titles[:2] == [f"weights · head {head}", f"norms · head {head}"]
    elif which == "cross":
        assert titles[:2] == ["weights · mean over heads", "norms · heads together"]
    else:
        assert len(titles) == 1


def test_the_headline_follows_heads_maps_and_the_chosen_cell(open_page: Open) -> None:
    made = pages.results()
    page = open_page(made, "#map=attn_w&vs=attn_n&layer=1&head=2")
    assert said(page) == headline(made[0], 1, head=2)
    page.keyboard.press("n")  # absolute numbers: the sentence still has shares
    assert said(page) == headline(made[0], 1, head=2)
    page.goto(page.url.split("#")[0] + "#map=attn_n&vs=attn_res_ln_n&layer=1")
    expect(page.locator(".ns-headline")).to_contain_text(
        re.compile(r"contributes \d+% of what is added but \d+% of the attention block’s output\.$")
    )
    page.goto(page.url.split("#")[0] + "#map=attn_w&vs=attn_n&layer=1&query=4&key=2")
    weights, norms = (pages.shares(made[1][name].values)[1, 4, 2] for name in ("attn_w", "attn_n"))
    start = f'In layer 1, "sat" gives {100 * weights:.0f}% of its attention weight to "cat", '
    expect(page.locator(".ns-headline")).to_contain_text(start)
    assert f"{100 * norms:.0f}% of what is added to it comes from there." in said(page)
    page.goto(page.url.split("#")[0] + "#map=attn_w&vs=attn_n&layer=1&key=2")
    expect(page.locator(".ns-headline")).to_contain_text('In layer 1, "cat" gets ')


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (800, 900), (390, 844)])
@pytest.mark.parametrize("kind", ["together", "each"])
def test_it_opens_on_the_comparison_at_every_width(
    open_page: Open, width: int, height: int, kind: str
) -> None:
    made = pages.results(LONG, layers=2)
    page = open_page(made if kind == "together" else made[0], width=width, height=height)
    panels = page.locator(".ns-panel")
    expect(panels).to_have_count(3)
    for at in range(2):  # the keys of both maps, which are shaded, within a screen and a half
        box = panels.nth(at).locator(".ns-keys").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 1.5 * height
    if width == 1280:  # and the whole list of contributors
        box = page.locator(".ns-list").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= height
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_equal_shares_have_equal_colours_in_both_maps(open_page: Open) -> None:
    made = pages.results()
    page = open_page(made, "#map=attn_w&vs=attn_n&layer=1")
    shares = [pages.shares(made[1][name].values)[1].mean(axis=0) for name in ("attn_w", "attn_n")]
    largest = max(values.max() for values in shares)
    for panel in (0, 1):
        legend = page.locator(".ns-panel").nth(panel).locator(".ns-scale")
        expect(legend).to_contain_text(f"{100 * largest:.1f}%")
        expect(legend).to_contain_text("same scale in both")
    # The darkest colour is that of the largest share of both, and nowhere else.
    dark = tuple(int(SEQUENTIAL["light"][-1][at : at + 2], 16) for at in (1, 3, 5))
    darkest = [
        (panel, key)
        for panel in (0, 1)
        for key in range(10)
        if ground(page, panel, key) == f"rgb({dark[0]}, {dark[1]}, {dark[2]})"
    ]
    where = int(np.argmax([values.max() for values in shares]))
    assert darkest == [(where, int(shares[where].argmax()))]
    difference = page.locator(".ns-panel").nth(2).locator(".ns-scale")
    gap = np.abs(shares[1] - shares[0]).max()
    digits = 1 if gap >= 0.09995 else 2
    for sign in ("−", "+"):
        expect(difference).to_contain_text(f"{sign}{100 * gap:.{digits}f} pts")


def test_the_matrix_shares_its_scale_too(open_page: Open) -> None:
    made = pages.results()
    page = open_page(made, "#view=matrix&map=attn_w&vs=attn_n&layer=1")
    most = max(pages.shares(made[1][name].values)[1].max() for name in ("attn_w", "attn_n"))
    for panel in (0, 1):
        legend = page.locator(".ns-panel").nth(panel).locator(".ns-scale")
        expect(legend).to_contain_text(f"{100 * most:.1f}%")
    choose(page, "Numbers", "absolute")
    ends = page.locator(".ns-scale").all_inner_texts()[:2]
    assert all("own scale: the units differ" in end for end in ends)
    assert ends[0] != ends[1]
    page.get_by_role("radio", name="norms", exact=True).check()
    page.get_by_label("Compare with").select_option("block")  # both are norms
    expect(page.locator(".ns-panel").first.locator(".ns-scale")).to_contain_text("same scale")
    page.get_by_role("tab", name="Overview").click()
    expect(page.locator(".ns-panel .ns-legend").first).to_contain_text("its own scale")
    choose(page, "Numbers", "share")
    expect(page.locator(".ns-panel .ns-scale").first).to_contain_text("100%")


def test_colours_follow_the_root_on_request_and_in_long_matrices(open_page: Open) -> None:
    page = open_page(pages.results(LONG, layers=2), "#map=attn_w&vs=attn_n&layer=1")
    linear = ground(page, 1, 7)
    page.keyboard.press("r")
    expect(page.locator(".ns-panel .ns-scale").first).to_contain_text("by the square root")
    assert ground(page, 1, 7) != linear
    assert fragment(page)["colours"] == "root"
    choose(page, "Colours", "linear")
    assert ground(page, 1, 7) == linear
    page = open_page(pages.results(LONG, layers=2), "#view=matrix")
    expect(page.get_by_role("radio", name="root")).to_be_checked()
    choose(page, "Colours", "linear")
    expect(page.locator(".ns-panel .ns-scale").first).not_to_contain_text("by the square root")


def test_the_colours_are_those_of_the_palette(open_page: Open) -> None:
    page = open_page(pages.results(), "#map=attn_w&layer=0", color_scheme="dark")
    ends: list[str] = page.eval_on_selector_all(
        ".ns-panel .ns-bar",
        """bars => {
            const {data} = bars[0].getContext("2d").getImageData(0, 0, 64, 1);
            return [0, 63].map(x => "#" + [...data.slice(4 * x, 4 * x + 3)]
                .map(c => c.toString(16).padStart(2, "0")).join(""));
        }""",
    )
    assert ends == [SEQUENTIAL["dark"][0], SEQUENTIAL["dark"][-1]]


def test_an_attribution_says_who_speaks_for_and_against(open_page: Open) -> None:
    result = attribution(words(30), tokens_of(["and", "they", "left", "."]))
    page = open_page(result)
    assert said(page) == shares_headline(result)
    page.get_by_role("listbox", name="Answer").get_by_role("option").nth(2).click()
    assert said(page) == shares_headline(result, 2)
    legend = page.locator(".ns-scale").first
    largest = np.abs(result.scores.values[2]).max()
    expect(legend).to_contain_text(f"against −{largest:.2f}")
    expect(legend).to_contain_text(f"+{largest:.2f} for")
    expect(legend.locator(".ns-zero")).to_have_text("0")


@pytest.mark.parametrize(("count", "width"), [(60, 390), (300, 390), (300, 1280)])
def test_a_long_attribution_is_readable(open_page: Open, count: int, width: int) -> None:
    page = open_page(attribution(words(count)), width=width, height=844)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = page.eval_on_selector_all(
        ".ns-passage .ns-chip",
        "chips => chips.map(chip => parseFloat(getComputedStyle(chip).fontSize))",
    )
    assert min(sizes) >= 12
    box = page.locator(".ns-passage").last.bounding_box()
    assert box is not None
    assert box["y"] < 844  # the text begins on the first screen
