"""The page on paper, in a notebook, in the colours of the system, and under a hand that drags."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, Literal
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Open, watch
from tests.helpers import pages


def test_below_the_queries_there_is_room_for_numbers(open_page: Open) -> None:
    strings = [f"token{at}" for at in range(24)]  # in several lines
    page = open_page(pages.results(pages.tokens_of(strings)), "#map=attn_n&layer=0&key=3")
    expect(page.locator(".ns-queries .ns-token small:not(:empty)").first).to_be_visible()
    covered = page.evaluate(
        """() => {
            const box = (one) => one.getBoundingClientRect();
            const boxes = (of) => [...document.querySelectorAll(of)].map(box);
            const others = boxes(".ns-queries .ns-token, .ns-side");
            return boxes(".ns-queries small:not(:empty)").filter((one) => others.some(
                (two) => one.left < two.right && two.left < one.right
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
    assert layer is not None
    assert 0 < layer["x"] < 40  # the names of the layers stay
    with page.expect_download() as download:
        page.get_by_role("button", name="SVG", exact=True).click()
    drawn = ElementTree.parse(download.value.path()).getroot()
    images = list(drawn.iter("{http://www.w3.org/2000/svg}image"))
    assert len(images) == 4 * 43 + 2  # and the legends
    ends = [float(one.attrib["x"]) + float(one.attrib["width"]) for one in images]
    assert 590 < max(ends) < float(drawn.attrib["width"])  # all of them, also what was out of sight
    assert min(float(one.attrib["x"]) for one in images) > 0
    last.tap()
    expect(page.locator(".ns-panel h3")).to_have_text("norms · head 39")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_with_the_colours_of_the_system(open_page: Open, scheme: Literal["light", "dark"]) -> None:
    page = open_page(
        pages.results(), "#map=attn_n&layer=0&query=2", forced_colors="active", color_scheme=scheme
    )

    def style(of: str, name: str) -> list[str]:
        found: list[str] = page.eval_on_selector_all(
            of, f"all => all.map(one => getComputedStyle(one).{name})"
        )
        return found

    chosen, *others = style(".ns-tabs button:not([hidden])", "borderBottomColor")
    assert chosen not in others
    assert len(set(style(".ns-keys .ns-token", "backgroundColor"))) > 4  # the shading
    (ring,) = set(style(".ns-queries .ns-chosen", "boxShadow"))
    assert ring != "none"
    assert set(style(".ns-queries .ns-token:not(.ns-chosen)", "boxShadow")) == {"none"}
    (bar,) = set(style(".ns-share", "backgroundColor"))
    assert bar not in style(".ns-card", "backgroundColor")
    on, off = (
        set(style(f".ns-segments input{which} + span", "backgroundColor"))
        for which in (":checked", ":not(:checked)")
    )
    assert not on & off
    page.get_by_role("tab", name="Overview").click()
    rings = style(".ns-thumb", "boxShadow")
    assert len([one for one in rings if one != "none"]) == 1


def test_a_sentence_about_tokens_from_the_right_keeps_its_order(open_page: Open) -> None:
    words = ["قطة!", "جلست", "على", "كلب!"]
    made = pages.results(pages.tokens_of(words))
    page = open_page(made, "#view=matrix&map=attn_n&layer=0")
    page.locator(".ns-matrix").hover()
    tip = page.get_by_role("tooltip").locator("div").first
    said = tip.inner_text().replace("\u2068", "").replace("\u2069", "")
    key, query = said.removeprefix("from ").split(" to ")
    assert {query, key} < set(words)
    places = page.evaluate(
        """(parts) => {
            const text = document.querySelector(".ns-tip div").firstChild;
            let from = 0;
            return parts.map((part) => {
                from = text.data.indexOf(part, from);
                const range = document.createRange();
                range.setStart(text, from);
                range.setEnd(text, from += part.length);
                const { left, right } = range.getBoundingClientRect();
                return [left, right];
            });
        }""",
        ["from", key, "to", query],
    )
    for before, after in pairwise(places):
        assert before[1] <= after[0] + 1


@pytest.mark.parametrize("how", ["mouse", "touch"])
def test_the_layer_is_dragged(open_page: Open, how: str) -> None:
    made = pages.results(layers=12)
    page = open_page(made, "#map=attn_n&layer=0", has_touch=how == "touch")
    slider = page.get_by_role("slider", name="Layer")
    box = slider.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    places = [box["x"] + 8 + step * (box["width"] - 16) / 4 for step in range(5)]
    seen = []
    if how == "mouse":
        page.mouse.move(places[0], middle)
        page.mouse.down()
    session = page.context.new_cdp_session(page)

    def touch(kind: str, *x: float) -> None:
        points = [{"x": one, "y": middle} for one in x]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    if how == "touch":
        touch("touchStart", places[0])
    for place in places[1:]:
        if how == "touch":
            touch("touchMove", place)
        else:
            page.mouse.move(place, middle)
        seen.append(int(slider.input_value()))
    if how == "touch":
        touch("touchEnd")
    else:
        page.mouse.up()
    assert seen == sorted(seen)
    assert len(set(seen)) == 4
    expect(slider).to_have_value("11")
    expect(page.locator(".ns-slider span")).to_have_text("11 (0–11)")


def test_controls_keep_their_elements(open_page: Open) -> None:
    page = open_page(pages.translation(), "#part=cross&map=attn_n&layer=0")
    page.evaluate(
        "document.querySelectorAll('.ns-controls :is(input, select, button)')"
        ".forEach(one => one.kept = true)"
    )
    new = "() => [...document.querySelectorAll('.ns-controls :is(input, select, button)')]"
    new += ".filter(one => !one.kept).length"
    for key in "lhmcnwxdtLHM":
        page.keyboard.press(key)
        assert page.evaluate(new) == 0
    compare = page.get_by_label("Compare with")
    compare.focus()
    compare.select_option("weights")
    expect(compare).to_be_focused()
    page.get_by_role("radio", name="encoder").check()  # its maps and layers may be others
    expect(page.get_by_role("radio", name="encoder")).to_be_focused()
    expect(page.get_by_role("radio", name="encoder")).to_be_checked()
    page.get_by_role("button", name="next layer").click()
    page.get_by_role("button", name="next layer").click()  # the last: the button is off
    expect(page.get_by_role("slider", name="Layer")).to_be_focused()
    page.get_by_role("button", name="previous layer").click()
    expect(page.get_by_role("button", name="previous layer")).to_be_focused()


@pytest.mark.parametrize("width", [420, 640])
def test_in_a_narrow_cell_of_a_notebook(chromium: Browser, width: int) -> None:
    import normscope

    widget: Any = normscope.widget(pages.results())
    page = chromium.new_page(viewport={"width": 1400, "height": 1000})
    wrong = watch(page, lambda url: url.startswith(("about:", "blob:")))
    # A notebook in JupyterLab lies in a panel that is a world of its own for what is placed in it.
    page.evaluate(
        """async ([code, style, data, width]) => {
            const sheet = document.createElement("style");
            sheet.textContent = style;
            document.head.append(sheet);
            const panel = document.createElement("div");
            panel.style = `position: absolute; left: 300px; top: 100px; width: 1000px;
                height: 850px; contain: strict; overflow: auto`;
            const el = document.createElement("div");
            el.style = `width: ${width}px; margin-top: 50px`;
            panel.append(el);
            document.body.append(panel);
            const address = URL.createObjectURL(new Blob([code], {type: "text/javascript"}));
            const module = await import(address);
            module.default.render({model: {get: () => data, on() {}, off() {}}, el});
        }""",
        [widget._esm, widget._css, widget.data, width],
    )
    expect(page.locator(".normscope[data-ready]")).to_have_count(1)
    stage, aside = (page.locator(f".ns-{one}").bounding_box() for one in ("stage", "aside"))
    assert stage is not None
    assert aside is not None
    assert aside["y"] > stage["y"] + stage["height"]  # below it, as on a phone
    controls = page.locator(".ns-controls").evaluate("one => getComputedStyle(one).display")
    assert controls == ("grid" if width == 420 else "flex")
    assert page.locator(".normscope").evaluate("one => one.scrollWidth") <= width
    for at in (1, 9):
        token = page.locator(".ns-keys .ns-token").nth(at)
        token.hover()
        box, tip = token.bounding_box(), page.get_by_role("tooltip").bounding_box()
        assert box is not None
        assert tip is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        assert x - tip["width"] < tip["x"] < x + 20
        assert 0 < tip["y"] - y < 25
        assert tip["x"] + tip["width"] <= 300 + width
    assert wrong == []
    page.close()


CURVES = """() => {
    const canvas = document.querySelector(".ns-lines");
    const area = canvas.getBoundingClientRect();
    const scale = canvas.width / area.width;
    const copy = document.createElement("canvas");
    [copy.width, copy.height] = [canvas.width, canvas.height];
    const context = copy.getContext("2d", { willReadFrequently: true });
    context.drawImage(canvas, 0, 0);
    const inked = (x, y) => context.getImageData(x * scale - 1, y * scale - 1, 3, 3).data
        .some((value, at) => at % 4 === 3 && value > 0);
    const noted = [...document.querySelectorAll(".ns-keys .ns-token")]
        .filter((chip) => chip.querySelector("small").textContent);
    return noted.map((chip) => {
        const box = chip.getBoundingClientRect();
        return inked(box.left + box.width / 2 - area.left, box.bottom + 2 - area.top);
    });
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_paper_it_is_light_named_and_drawn_anew(open_page: Open, theme: str) -> None:
    words = [f"word{at}" * (1 + at % 2) for at in range(24)]
    made = pages.results(pages.tokens_of(words), layers=6)
    page = open_page(made, f"#map=attn_n&layer=2&head=3&query=5&theme={theme}")
    named = page.get_by_text("norms · layer 2, head 3 · shares of the row")
    expect(named).to_be_hidden()
    before = page.screenshot()
    page.emulate_media(media="print")
    expect(named).to_be_visible()
    expect(page.locator(".ns-controls")).to_be_hidden()
    expect(page.locator(".ns-tabs")).to_be_hidden()
    root = page.locator(".normscope")
    expect(root).to_have_css("background-color", "rgb(255, 255, 255)")
    expect(root).to_have_css("color", "rgb(27, 33, 48)")
    expect(page.locator(".ns-token").first).to_have_css("print-color-adjust", "exact")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    reached = page.evaluate(CURVES)
    assert len(reached) > 2
    assert all(reached)
    page.emulate_media(media="screen")
    expect(named).to_be_hidden()
    expect(root).to_have_attribute("data-theme", theme)
    assert page.screenshot() == before
    page.pdf(format="A4")  # as the print command does it: the page is the same afterwards
    expect(named).to_be_hidden()
    assert page.screenshot() == before


def sheets(page: Page) -> list[bool]:
    """For each sheet of paper: is there a picture on it?"""
    page.evaluate(
        """() => matchMedia("print").addEventListener("change", (paper) => {
            if (paper.matches) window.width = document.querySelector(".normscope").offsetWidth;
        })"""
    )
    made = page.pdf(format="A4")
    assert page.evaluate("window.width") < 720  # what the paper has between its margins
    found = re.findall(rb"<</Type /Page\n.*?endobj", made, re.DOTALL)
    return [b"/XObject" in one for one in found]


@pytest.mark.parametrize("count", [14, 115, 300])
def test_the_first_sheet_of_paper_is_not_blank(open_page: Open, count: int) -> None:
    words = ["[CLS]", *("Anna", "baked", "a", "cake", ",", "and"), *("Tom", "ate", "it", ".")]
    tokens = pages.tokens_of((words * 28)[:count])
    page = open_page(pages.results(tokens, layers=6), "#map=attn_n&layer=2&query=12")
    for view in ("Tokens", "Matrix", "Overview"):
        page.get_by_role("tab", name=view).click()
        if (view, count) != ("Tokens", 300):  # which has no curves, only shading
            assert sheets(page)[0]
    page.get_by_role("tab", name="Tokens").click()
    page.emulate_media(media="print")
    expect(page.locator(".normscope")).to_have_class("normscope ns-print")
    bottom = page.evaluate("document.querySelector('.ns-panel').getBoundingClientRect().bottom")
    assert bottom < 1123 or count == 300  # a sheet
    hidden = page.locator(".ns-row").evaluate_all(
        "all => Math.max(...all.map(one => one.scrollHeight - one.clientHeight))"
    )
    assert hidden <= 0  # nothing is scrolled out of sight
