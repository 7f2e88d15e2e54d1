"""Patches on the page: over the image, beside it, under a pointer and from the keyboard."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.helpers.patched import frames, mapped, patches, shared

# What each visible canvas of patches was drawn over, and how wide and high it is.
DRAWN = """() => [...document.querySelectorAll("canvas.ns-patches")]
    .filter(one => one.offsetParent)
    .map(one => ({over: one.dataset.drawn, wide: one.offsetWidth, high: one.offsetHeight,
        role: one.getAttribute("aria-roledescription")}))"""


def drawn(page: Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.evaluate(DRAWN)
    return found


def wait_for_images(page: Page, count: int) -> None:
    expect(page.locator("canvas.ns-patches[data-drawn=image]")).to_have_count(count)


def test_every_panel_has_the_image_and_the_difference_too(open_page: Open) -> None:
    page = open_page(mapped(patches()))
    expect(page.get_by_role("tab", name="Picture")).to_have_attribute("aria-selected", "true")
    wait_for_images(page, 3)  # weights, norms, and what they differ by
    assert {one["role"] for one in drawn(page)} == {"image"}
    page.get_by_role("radio", name="hidden").check()
    expect(page.locator("canvas.ns-patches[data-drawn=cells]")).to_have_count(3)
    page.keyboard.press("t")  # another theme is another image
    page.get_by_role("radio", name="shown").check()
    wait_for_images(page, 3)


def test_shares_stand_over_the_image(open_page: Open) -> None:
    tokens = patches()
    page = open_page(shared(tokens, [0.1, 1, -2, 3, 0, 0.5, 0, 0.2, 1]))
    wait_for_images(page, 1)
    expect(page.locator("figcaption")).to_have_text("image 0, 2 × 3 patches")
    expect(page.get_by_text("cat", exact=True).first).to_be_visible()


def test_a_patch_is_chosen_by_a_click_and_by_arrows(open_page: Open) -> None:
    page = open_page(mapped(patches(2, 3)), "#layer=0")
    wait_for_images(page, 3)
    first = page.locator("canvas.ns-patches").first
    box = first.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 6, box["y"] + box["height"] / 4)
    expect(page.locator(".ns-headline")).to_contain_text("patch 0,0")
    first.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".ns-headline")).to_contain_text("patch 1,0")


@pytest.mark.parametrize(("seconds", "says"), [(0.5, ", 0.50 s"), (None, "")])
def test_a_recording_is_wide_and_low(open_page: Open, seconds: float | None, says: str) -> None:
    page = open_page(mapped(frames(8, seconds)))
    wait_for_images(page, 3)
    assert {(one["high"], one["role"]) for one in drawn(page)} == {(96, "recording")}
    expect(page.locator("figcaption").first).to_have_text(f"recording{says}, 8 frames")


def test_an_image_with_one_row_of_patches_keeps_its_shape(open_page: Open) -> None:
    page = open_page(mapped(patches(1, 1, words=())))
    wait_for_images(page, 3)
    assert all(one["high"] / one["wide"] == pytest.approx(4 / 6, abs=0.02) for one in drawn(page))
    assert {one["role"] for one in drawn(page)} == {"image"}


def test_on_a_phone_nothing_is_cut(open_page: Open) -> None:
    page = open_page(mapped(patches(4, 4)), width=390, height=844)
    wait_for_images(page, 3)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert all(200 < one["wide"] <= 390 for one in drawn(page))
