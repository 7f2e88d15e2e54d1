"""The page on paper, in a notebook, in the colours of the system, and under a hand that drags."""

from __future__ import annotations

from xml.etree import ElementTree

import pages
from playwright.sync_api import expect

from browser.conftest import Open


def test_below_the_queries_there_is_room_for_numbers(open_page: Open) -> None:
    strings = [f"token{at}" for at in range(24)]  # in several lines
    page = open_page(pages.results(pages.tokens_of(strings)), "#map=attn_n&layer=0&key=3")
    expect(page.locator(".ns-queries .ns-token small:not(:empty)").first).to_be_visible()
    covered = page.evaluate(
        """() => {
            const box = (one) => one.getBoundingClientRect();
            const others = [...document.querySelectorAll(".ns-queries .ns-token, .ns-side")].map(box);
            return [...document.querySelectorAll(".ns-queries small:not(:empty)")].map(box).filter(
                (one) => others.some((two) => one.left < two.right && two.left < one.right
                    && one.top + 1 < two.bottom && two.top < one.bottom - 1)).length;
        }"""
    )
    assert covered == 0


def test_forty_heads_on_a_phone_can_be_hit(open_page: Open) -> None:
    made = pages.results(layers=4, heads=40)
    fragment = "#view=overview&map=attn_n"
    page = open_page(made, fragment, width=360, height=800, has_touch=True)
    sides: list[int] = page.locator(".ns-thumb").evaluate_all(
        "all => all.map(one => Math.min(one.offsetWidth, one.offsetHeight))"
    )
    assert min(sides) >= 14
    # The card scrolls, not the page.
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    last = page.get_by_role("button", name="layer 3, norms of head 39")
    last.scroll_into_view_if_needed()
    layer = page.locator(".ns-layer").last.bounding_box()
    assert layer is not None and 0 < layer["x"] < 40  # the names of the layers stay
    with page.expect_download() as download:
        page.get_by_role("button", name="SVG", exact=True).click()
    drawn = ElementTree.parse(download.value.path()).getroot()
    images = drawn.findall("{http://www.w3.org/2000/svg}image")
    assert len(images) == 4 * 43
    ends = [float(one.attrib["x"]) + float(one.attrib["width"]) for one in images]
    assert 590 < max(ends) < float(drawn.attrib["width"])  # all of them, also what was out of sight
    assert min(float(one.attrib["x"]) for one in images) > 0
    last.tap()
    expect(page.locator(".ns-panel h3")).to_have_text("norms · head 39")
