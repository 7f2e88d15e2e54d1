"""Pictures that the page saves, measured as a browser draws them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from normscope import Contributions
from tests.browser.conftest import Open
from tests.helpers import pages

LONG = "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen"
SPECIAL = ("\u200d", "<script>alert(1)</script>", "W" * 40, "a" * 300, LONG)
MANY = (*SPECIAL, *(f"token{at}" if at % 7 else f"longertoken{at}" for at in range(145)))

TEXTS = """() => [...document.querySelectorAll("text")].map(one => {
    const box = one.getBoundingClientRect();
    return {text: one.textContent, left: box.left, right: box.right, top: box.top,
        bottom: box.bottom, size: one.getAttribute("font-size")};
})"""
CHIPS = """() => [...document.querySelectorAll("rect[rx]")].map(one => {
    const [box, inside] = [one, one.nextSibling].map(each => each.getBoundingClientRect());
    return {left: box.left, right: box.right, top: box.top, bottom: box.bottom,
        over: Math.max(box.left - inside.left, inside.right - box.right,
            box.top - inside.top, inside.bottom - box.bottom),
        text: one.nextSibling.textContent, size: one.nextSibling.getAttribute("font-size")};
})"""


def picture(page: Page, chromium: Browser, folder: Path) -> dict[str, Any]:
    """The saved SVG, opened: its texts and tokens with their places, and its size."""
    with page.expect_download() as download:
        page.get_by_role("button", name="SVG", exact=True).click()
    path = folder / "picture.svg"
    download.value.save_as(path)
    drawn = chromium.new_page()
    drawn.goto(path.as_uri())
    found = {
        "texts": drawn.evaluate(TEXTS),
        "chips": drawn.evaluate(CHIPS),
        "size": drawn.evaluate(
            "['width', 'height'].map(name => Number(document.documentElement.getAttribute(name)))"
        ),
    }
    drawn.close()
    return found


def words(found: dict[str, Any]) -> list[str]:
    return [one["text"] for one in found["texts"]]


def apart(one: Any, other: Any, slack: float = 1.5) -> bool:
    across = one["right"] <= other["left"] + slack or other["right"] <= one["left"] + slack
    return bool(
        across or one["bottom"] <= other["top"] + slack or other["bottom"] <= one["top"] + slack
    )


def inside(found: dict[str, Any], things: list[Any]) -> bool:
    wide, high = found["size"]
    return all(
        one["left"] >= 0 and one["top"] >= 0 and one["right"] <= wide and one["bottom"] <= high
        for one in things
    )


@pytest.mark.parametrize("count", [40, 150])
def test_tokens_of_a_picture_stay_in_their_places(
    open_page: Open, chromium: Browser, tmp_path: Path, count: int
) -> None:
    made = pages.results(pages.tokens_of(MANY[:count]), layers=1, heads=1)
    page = open_page(made, f"#map=attn_w&vs=attn_n&layer=0&query={count - 5}")
    page.wait_for_timeout(100)  # rows that scroll come to the chosen token
    found = picture(page, chromium, tmp_path)
    chips = found["chips"]
    assert len(chips) == 3 * 2 * count  # those that the screen does not show, too
    assert max(one["over"] for one in chips) < 1.5  # no text leaves its box
    assert {one["size"] for one in chips} == {"12"}
    for start in range(0, len(chips), 2 * count):
        panel = chips[start : start + 2 * count]
        rows: dict[int, list[Any]] = {}
        for one in panel:
            rows.setdefault(round(one["top"]), []).append(one)
        for row in rows.values():
            assert all(apart(*two) for two in itertools.combinations(row, 2))
        for upper, lower in itertools.pairwise(sorted(rows)):
            assert max(one["bottom"] for one in rows[upper]) <= lower + 1.5
    assert inside(found, chips)
    assert inside(found, found["texts"])
    signature = next(one for one in found["texts"] if one["text"].startswith("model:tiny"))
    assert signature["top"] > max(one["bottom"] for one in chips)
    assert [
        words(found).count(f"{side} these tokens ({name})")
        for side, name in (("From", "keys"), ("To", "queries"))
    ] == [3, 3]


@pytest.mark.parametrize("width", [320, 1280])
def test_names_of_an_overview_do_not_run_into_each_other(
    open_page: Open, chromium: Browser, tmp_path: Path, width: int
) -> None:
    made = pages.results(heads=24)
    names = ("attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n", "atb", "atb_ff")
    like = made[1]["attn_n"]
    maps = {name: replace(like, name=name) for name in names}
    made[1] = Contributions(maps, None, like.tokens["query"], like.tokens["key"], {}, "all")
    page = open_page(made, "#view=overview&map=attn_n", width=width)
    found = picture(page, chromium, tmp_path)
    assert "weights" in "".join(words(found))  # which may take two lines
    for one, other in itertools.combinations(found["texts"], 2):
        assert apart(one, other, slack=2.5), (one, other)
    assert inside(found, found["texts"])


@pytest.mark.slow
def test_a_picture_has_the_signature_of_the_result_that_it_shows(
    open_page: Open, chromium: Browser, tmp_path: Path
) -> None:
    each, together = "model:tiny|heads:each", "model:tiny|heads:sum"
    made = pages.results()
    for results, fragment, wanted in (
        (made, "map=attn_n&head=2", [each]),
        (made, "map=attn_n&head=sum", [together]),
        (made, "map=attn_w&vs=attn_n&head=1&view=matrix", [each]),
        (made, "map=attn_w&vs=attn_res_ln_n&head=1&view=matrix", [each, together]),
        (made, "view=overview", [together, each]),
        (made[::-1], "map=attn_n&head=sum", [together]),
        (made[:1], "map=attn_w&head=sum", [each]),  # the mean of the heads
    ):
        page = open_page(results, f"#layer=1&{fragment}")
        shown = words(picture(page, chromium, tmp_path))
        assert [one for one in shown if one.startswith("model:")] == wanted
    parts = pages.translation()
    page = open_page(parts, "#part=cross&map=attn_n&head=1&layer=1")
    assert "model:tiny-translator|0" in words(picture(page, chromium, tmp_path))


def test_a_picture_says_what_it_shows_and_what_it_hides(
    open_page: Open, chromium: Browser, tmp_path: Path
) -> None:
    made = pages.results()
    share = pages.shares(made[1]["attn_n"].values)[1]
    page = open_page(made, "#view=matrix&map=attn_n&layer=1&query=4&key=2")
    shown = words(picture(page, chromium, tmp_path))
    said = f'In layer 1, the contribution to "sat" from "cat": {100 * share[4, 2]:.0f}% of what is'
    assert " ".join(shown).startswith(said)
    assert {"norms · layer 1 · shares of the row", "chosen: query “sat”, key “cat”"} <= set(shown)
    assert f"0 … {100 * share.max():.1f}%" in shown
    assert {"From these tokens (keys)", "To these tokens (queries)", *pages.TEXTS} <= set(shown)
    page.get_by_label("special tokens").check()
    page.get_by_label("the token itself").check()
    page.get_by_role("tab", name="Tokens").click()
    page.locator(".ns-keys .ns-token").nth(1).click()
    shown = words(picture(page, chromium, tmp_path))
    hides = "special tokens are hidden · the token itself is hidden"
    assert f"chosen: key “cat” · {hides}" in shown
    strongest = 100 * max(share[at, 2] for at in range(1, 9) if at != 2)
    digits = 1 if strongest >= 9.995 else 2
    assert f"0 … {strongest:.{digits}f}%" in shown
    assert "[CLS]" not in shown
    page.get_by_label("Compare with").select_option("weights")
    page.get_by_role("tab", name="Overview").click()
    shown = words(picture(page, chromium, tmp_path))
    assert shown[0] == "all layers · by map and by head · shares of the row"
    assert shown[1] == hides
    assert not any("−" in one for one in shown)  # a difference is not among the pictures
    page = open_page(pages.results(pages.tokens_of(["one"])), "#view=matrix&map=attn_w&vs=attn_n")
    found = picture(page, chromium, tmp_path)
    assert inside(found, found["texts"])
    assert all(apart(*two) for two in itertools.combinations(found["texts"], 2))


@pytest.mark.parametrize("count", [10, 36, 150])
def test_a_matrix_names_its_axes_and_its_tokens(open_page: Open, count: int) -> None:
    strings = [f"word{at}" for at in range(count)]
    made = pages.results(pages.tokens_of(strings), layers=2, heads=1)
    page = open_page(made, "#view=matrix&map=attn_w&vs=attn_n&layer=0")
    page.evaluate(
        """() => {
            window.written = [];
            const write = CanvasRenderingContext2D.prototype.fillText;
            CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
                if (this.canvas.matches(".ns-matrix")) window.written.push(text);
                return write.call(this, text, ...at);
            };
        }"""
    )
    page.keyboard.press("l")
    written: list[str] = page.evaluate("window.written")
    for axis in ("From these tokens (keys)", "To these tokens (queries)"):
        assert written.count(axis) == 3
    named = [one for one in written if one.startswith("word")]
    assert len(set(named)) >= 10
    assert set(named) <= set(strings)  # some may be left out, none is cut
    if count == 10:
        assert len(named) == 3 * 2 * count
