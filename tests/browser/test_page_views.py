"""Heads in colour, lines of long texts, zoom of the matrix, previews, and layers as a story."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from normscope.show.palette import CATEGORIES
from tests.browser.conftest import Open
from tests.browser.test_page import SVG, fragment, saved
from tests.helpers import pages

MANY = [f"word{at}" for at in range(60)]


def colours_of(path: Path) -> list[str]:
    root = ElementTree.fromstring(path.read_text())
    return [line.attrib["stroke"] for line in root.iter(f"{SVG}path")]


def test_lines_of_several_heads_have_their_colours(open_page: Open, tmp_path: Path) -> None:
    made = pages.results()
    page = open_page(made, "#map=attn_w&layer=1&query=4")
    heads = page.get_by_role("group", name="Heads in colour")
    expect(heads.get_by_role("checkbox")).to_have_count(4)
    for head in (3, 1):
        heads.get_by_role("checkbox", name=f"head {head} in colour").check()
    assert fragment(page)["heads"] == "3%2C1"
    expect(page.locator(".ns-colours")).to_have_text("head 3head 1")
    swatches: list[str] = page.eval_on_selector_all(
        ".ns-swatch", "all => all.map(one => one.style.backgroundColor)"
    )
    wanted = [
        "rgb({}, {}, {})".format(*(int(colour[at : at + 2], 16) for at in (1, 3, 5)))
        for colour in CATEGORIES[:2]
    ]
    assert swatches == wanted
    drawn = saved(page, "SVG", tmp_path)
    lines = colours_of(drawn)
    weights = made[0]["attn_w"].values[1, [3, 1], 4]
    visible = (weights > 0.02 * weights.max()).sum(axis=1)
    assert [lines.count(colour) for colour in CATEGORIES[:2]] == visible.tolist()
    assert set(lines) == set(CATEGORIES[:2])
    texts = [text.text for text in ElementTree.fromstring(drawn.read_text()).iter(f"{SVG}text")]
    assert {"head 3", "head 1"} <= set(texts)
    heads.get_by_role("checkbox", name="head 3 in colour").uncheck()
    expect(page.locator(".ns-colours")).to_have_text("head 1")
    heads.get_by_role("checkbox", name="head 1 in colour").uncheck()
    expect(page.locator(".ns-colours")).to_be_hidden()


def test_up_to_seven_heads_have_a_colour(open_page: Open) -> None:
    page = open_page(pages.results(heads=12), "#heads=0,1,2,3,4,5,6,7,99,x")
    boxes = page.get_by_role("group", name="Heads in colour").get_by_role("checkbox")
    checked = [at for at in range(12) if boxes.nth(at).is_checked()]
    assert checked == list(range(7))
    assert all(boxes.nth(at).is_disabled() for at in range(7, 12))
    boxes.nth(2).uncheck()
    expect(boxes.nth(9)).to_be_enabled()
    page.keyboard.press("m")  # to norms, which have heads, too
    expect(page.locator(".ns-colours").first).to_contain_text("head 0")


def test_a_long_text_shows_the_strongest_lines_and_counts_the_others(
    open_page: Open, tmp_path: Path
) -> None:
    made = pages.results(pages.tokens_of(MANY), layers=2)
    page = open_page(made, "#map=attn_n&layer=1")
    says = page.locator(".ns-says")
    expect(says).to_have_text("Mean over all tokens. Lines: the 12 strongest of 60, 48 left out.")
    assert len(colours_of(saved(page, "SVG", tmp_path))) == 12
    page.locator(".ns-queries .ns-token").nth(5).click()
    expect(says).to_contain_text("word5\u2069. Lines: the 12 strongest of 60, 48 left out.")
    page.get_by_label("Lines").select_option("up to 24")
    expect(says).to_contain_text("the 24 strongest of 60, 36 left out.")
    assert len(colours_of(saved(page, "SVG", tmp_path))) == 24
    assert fragment(page)["lines"] == "24"
    page.get_by_label("Lines").select_option("all")
    expect(says).to_have_text("From each token to \u2068word5\u2069.")
    assert len(colours_of(saved(page, "SVG", tmp_path))) == 60
    # A short text has no lines left out.
    page = open_page(pages.results(), "#map=attn_n&layer=1")
    expect(page.locator(".ns-says")).to_have_text(
        "Mean over all tokens. Lines: each token’s largest contributor."
    )


def test_the_rows_of_a_very_long_text_scroll_with_their_lines(open_page: Open) -> None:
    words = [f"word{at}" for at in range(300)]
    page = open_page(pages.results(pages.tokens_of(words), layers=2), "#map=attn_n&layer=1")
    expect(page.locator(".ns-says")).to_contain_text("the 12 strongest of 300, 288 left out")
    inked = """() => {
        const canvas = document.querySelector(".ns-lines");
        const copy = document.createElement("canvas");
        [copy.width, copy.height] = [canvas.width, canvas.height];
        const context = copy.getContext("2d", {willReadFrequently: true});
        context.drawImage(canvas, 0, 0);
        const {data} = context.getImageData(0, 0, copy.width, copy.height);
        let sum = 0;
        for (let at = 3; at < data.length; at += 4) sum += data[at] * (1 + (at % 9973));
        return sum;
    }"""
    before = page.evaluate(inked)
    assert before > 0
    page.locator(".ns-keys").evaluate("row => (row.scrollTop = 300)")
    page.wait_for_function(f"before => ({inked})() !== before", arg=before)


def test_the_matrix_zooms_with_buttons_keys_and_the_wheel(open_page: Open) -> None:
    made = pages.results(pages.tokens_of(MANY), layers=2)
    page = open_page(made, "#view=matrix&map=attn_w&vs=attn_n&layer=1")
    maps = page.locator(".ns-minimap")
    zoom = page.get_by_role("group", name="Zoom")
    expect(maps.first).to_be_hidden()
    expect(zoom.get_by_role("button", name="zoom out")).to_be_disabled()
    zoom.get_by_role("button", name="zoom in").click()
    expect(zoom).to_contain_text("1.6×")
    for at in range(3):  # all panels show the same part
        expect(maps.nth(at)).to_be_visible()
    page.keyboard.press("+")
    expect(zoom).to_contain_text("2.6×")
    page.keyboard.press("-")
    expect(zoom).to_contain_text("1.6×")
    page.keyboard.press("0")
    expect(zoom).to_contain_text("Ctrl + wheel")
    canvas = page.locator(".ns-matrix").first
    canvas.hover()
    page.mouse.wheel(0, -300)  # scrolls the page
    expect(zoom).to_contain_text("Ctrl + wheel")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    expect(zoom).to_contain_text(re.compile(r"[\d.]+×"))
    zoom.get_by_role("button", name="show the whole matrix").click()
    expect(maps.first).to_be_hidden()
    for _ in range(12):
        page.keyboard.press("+")
    expect(zoom.get_by_role("button", name="zoom in")).to_be_disabled()
    page.keyboard.press("w")  # other tokens: the whole again
    page.keyboard.press("x")


def pointed(page: Page) -> tuple[str, str]:
    """The key and the query under the pointer."""
    tip = page.get_by_role("tooltip").locator("div").first.inner_text()
    names = tip.replace("\u2068", "").replace("\u2069", "").removeprefix("from ").split(" to ")
    return names[0], names[1]


def test_labels_become_readable_and_cells_are_hit_when_zoomed(open_page: Open) -> None:
    words = [f"word{at}" for at in range(300)]
    made = pages.results(pages.tokens_of(words), layers=1)
    page = open_page(made, "#view=matrix&map=attn_n&layer=0&query=150&key=150")
    page.evaluate(
        """() => {
            window.written = [];
            const write = CanvasRenderingContext2D.prototype.fillText;
            CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
                if (this.canvas.matches(".ns-matrix"))
                    window.written.push([text, parseFloat(this.font)]);
                return write.call(this, text, ...at);
            };
        }"""
    )
    for _ in range(12):
        page.keyboard.press("+")
    page.evaluate("window.written = []")
    page.keyboard.press("t")  # paint once more
    written: list[list[Any]] = page.evaluate("window.written")
    names = [text for text, _ in written if text.startswith("word")]
    assert min(size for text, size in written if text.startswith("word")) >= 11
    numbers = sorted({int(name.removeprefix("word")) for name in names})
    assert numbers == list(range(numbers[0], numbers[-1] + 1))  # every token that is shown
    assert numbers[0] <= 150 <= numbers[-1]  # the chosen cell stayed in sight
    canvas = page.locator(".ns-matrix")
    box = canvas.bounding_box()
    assert box is not None
    across, down = box["x"] + 0.6 * box["width"], box["y"] + 0.6 * box["height"]
    page.mouse.move(across, down)
    key, query = pointed(page)
    assert {key, query} <= {f"word{at}" for at in numbers}
    page.mouse.down()
    page.mouse.move(across - 80, down - 40, steps=4)
    page.mouse.up()
    assert fragment(page)["key"] == "150"  # a drag is not a click
    page.mouse.move(across - 79, down - 39)
    assert pointed(page) == (key, query)  # the cells moved with the pointer
    page.mouse.move(across, down)
    assert pointed(page) != (key, query)
    before = pointed(page)
    page.keyboard.press("Shift+ArrowLeft")
    page.mouse.move(across + 1, down)
    assert int(pointed(page)[0][4:]) < int(before[0][4:])
    canvas.focus()
    page.keyboard.press("End")  # the last key comes into sight
    page.evaluate("window.written = []")
    page.keyboard.press("t")
    assert "word299" in [text for text, _ in page.evaluate("window.written")]


def test_the_minimap_moves_the_part_that_is_shown(open_page: Open) -> None:
    words = [f"word{at}" for at in range(100)]
    page = open_page(pages.results(pages.tokens_of(words), layers=1), "#view=matrix&map=attn_n")
    for _ in range(4):
        page.keyboard.press("+")
    box = page.locator(".ns-minimap").bounding_box()
    area = page.locator(".ns-matrix").bounding_box()
    assert box is not None
    assert area is not None
    middle = (area["x"] + 0.5 * area["width"], area["y"] + 0.4 * area["height"])
    page.mouse.click(box["x"] + 2, box["y"] + 2)
    page.mouse.move(*middle)
    first = int(pointed(page)[0][4:])
    page.mouse.click(box["x"] + box["width"] - 2, box["y"] + 2)
    page.mouse.move(middle[0] + 1, middle[1])
    assert int(pointed(page)[0][4:]) > first + 30
    assert "key" not in fragment(page)


def test_two_fingers_zoom(open_page: Open) -> None:
    made = pages.results(pages.tokens_of(MANY), layers=1)
    page = open_page(made, "#view=matrix&map=attn_n", width=390, height=844, has_touch=True)
    canvas = page.locator(".ns-matrix")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + min(box["height"], 300) / 2
    session = page.context.new_cdp_session(page)
    for kind, apart in (("touchStart", 20), ("touchMove", 50), ("touchMove", 90), ("touchEnd", 0)):
        fingers = [] if kind == "touchEnd" else [(x - apart, y), (x + apart, y)]
        session.send(
            "Input.dispatchTouchEvent",
            {
                "type": kind,
                "touchPoints": [{"x": a, "y": b, "id": at} for at, (a, b) in enumerate(fingers)],
            },
        )
    expect(page.locator(".ns-minimap")).to_be_visible()


def test_a_picture_of_a_zoomed_matrix_shows_that_part(open_page: Open, tmp_path: Path) -> None:
    page = open_page(
        pages.results(pages.tokens_of(MANY), layers=1), "#view=matrix&map=attn_n&query=0&key=0"
    )
    for _ in range(12):
        page.keyboard.press("+")
    root = ElementTree.fromstring(saved(page, "SVG", tmp_path).read_text())
    names = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert "word0" in names
    assert "word59" not in names
    rows = list(csv.DictReader(io.StringIO(saved(page, "CSV", tmp_path).read_text())))
    assert len(rows) == 60 * 60  # a table is whole


def test_a_thumbnail_is_enlarged_by_pointer_and_by_keyboard(open_page: Open) -> None:
    made = pages.results()
    page = open_page(made, "#view=overview&map=attn_n")
    expect(page.locator(".ns-overview")).to_have_attribute("data-drawn", "21")
    large = page.locator(".ns-preview")
    expect(large).to_be_hidden()
    page.get_by_role("button", name="layer 2, norms of head 3").hover()
    expect(large).to_be_visible()
    expect(large).to_contain_text("layer 2, norms of head 3")
    share = pages.shares(made[0]["attn_n"].values)[2, 3]
    query, key = np.unravel_index(share.argmax(), share.shape)
    text = large.inner_text().replace("\u2068", "").replace("\u2069", "")
    wanted = f"from {pages.TEXTS[key]} to {pages.TEXTS[query]}, {100 * share.max():.1f}%"
    assert wanted in text
    box = large.locator("canvas").bounding_box()
    assert box is not None
    assert box["width"] >= 250
    page.mouse.move(5, 5)
    expect(large).to_be_hidden()
    page.get_by_role("button", name="layer 0, Attention norms").focus()
    page.keyboard.press("Tab")
    expect(large).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator(".normscope")).to_have_attribute("data-view", "tokens")
    expect(large).to_have_count(0)


def test_the_overview_keeps_the_comparison(open_page: Open) -> None:
    page = open_page(pages.results(), "#view=overview&map=attn_w&vs=attn_n&layer=0")
    page.get_by_role("button", name="layer 2, weights of head 1").click()
    found = fragment(page)
    assert [found[name] for name in ("map", "vs", "layer", "head")] == [
        *("attn_w", "attn_n", "2", "1")
    ]
    expect(page.locator(".ns-panel")).to_have_count(3)


def test_layers_as_a_story(open_page: Open) -> None:
    made = pages.results()
    page = open_page(made, "#map=attn_w&vs=attn_n&layer=1")
    story = page.get_by_role("region", name="Layer by layer")
    expect(story.get_by_role("heading")).to_have_text("Layer by layer, on average")
    expect(story.locator("canvas:not(.ns-bar)")).to_have_count(3 * 2)
    shares = {name: pages.shares(made[1][name].values) for name in ("attn_w", "attn_n")}

    def most(values: Any) -> float:
        return float(max(values[layer].max() for layer in range(3)))

    means = [shares[name].mean(axis=1) for name in ("attn_w", "attn_n")]
    largest = max(map(most, means))
    expect(story.locator(".ns-scale")).to_contain_text(f"{100 * largest:.1f}%")
    best = int(means[1][2].argmax())
    button = story.get_by_role("button", name="show layer 2:")
    expect(button).to_have_accessible_name(
        re.compile(f"norms most {pages.TEXTS[best]} {100 * means[1][2].max():.1f}%")
    )
    button.click()
    assert fragment(page)["layer"] == "2"
    expect(story.locator("[aria-current=true]")).to_have_text("2")
    expect(story.get_by_role("button", name="show layer 2:")).to_be_focused()
    page.locator(".ns-panel").first.locator(".ns-queries .ns-token").nth(4).click()
    expect(story.get_by_role("heading")).to_have_text("Layer by layer: to sat")
    rows = [shares[name][:, 4] for name in ("attn_w", "attn_n")]
    expect(story.locator(".ns-scale")).to_contain_text(f"{100 * max(map(most, rows)):.1f}%")
    strip = story.locator("canvas:not(.ns-bar)").nth(0)
    strip.click()
    assert fragment(page)["layer"] == "0"
    strip = story.locator("canvas:not(.ns-bar)").nth(3)  # layer 1, norms
    box = strip.bounding_box()
    assert box is not None
    strip.hover(position={"x": 0.25 * box["width"], "y": 5})
    expect(page.get_by_role("tooltip")).to_contain_text("cat")
    expect(page.get_by_role("tooltip")).to_contain_text("layer 1, norms")


def test_a_phone_keeps_its_settings_behind_a_button(open_page: Open) -> None:
    page = open_page(pages.results(), width=390, height=844, has_touch=True)
    expect(page.get_by_role("slider", name="Layer")).to_be_visible()
    expect(page.get_by_label("Compare with")).to_be_hidden()
    settings = page.get_by_role("button", name="Settings")
    settings.tap()
    expect(settings).to_have_attribute("aria-expanded", "true")
    page.get_by_label("Compare with").select_option("block")
    expect(page.get_by_role("group", name="Heads in colour")).to_be_visible()
    settings.tap()
    expect(page.get_by_label("Compare with")).to_be_hidden()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_layer_is_named_with_its_range(open_page: Open, width: int) -> None:
    page = open_page(pages.results(layers=6), "#layer=4", width=width)
    expect(page.locator(".ns-slider span")).to_have_text("4 (0–5)")
    expect(page.get_by_role("slider", name="Layer")).to_have_attribute(
        "aria-valuetext", "layer 4 (0–5)"
    )


def test_negative_cells_are_shown_with_their_sign(open_page: Open, tmp_path: Path) -> None:
    made = pages.signed_result()
    page = open_page(made, "#view=matrix&layer=1&scale=absolute")
    expect(page.locator(".ns-panel-head").first).to_contain_text("−")
    rows = list(csv.DictReader(io.StringIO(saved(page, "CSV", tmp_path).read_text())))
    found = np.array([float(row["effective"]) for row in rows])
    values = made["effective"].values[1].ravel()
    assert np.abs(found - values).max() < np.abs(values).max() / 1000
    assert (found < 0).sum() > 20
