"""The documentation in a browser, from disk: the pages in it are alive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import SLOW, watch
from tests.helpers.site import build

SHOWN_BY = {
    "weights-and-norms": "tutorial.html",
    "are-or-is": "tutorial.html",
    "alignment": "gallery.html",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("docs") / "site")


@pytest.fixture
def offline(chromium: Browser, site: Path) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page = context.new_page()
    local = (site.as_uri(), "blob:", "data:")
    wrong = watch(page, lambda url: url.startswith(local))
    yield page
    context.close()
    assert wrong == []


@pytest.mark.parametrize("name", SHOWN_BY)
def test_a_live_page_runs_in_its_frame(name: str, offline: Page, site: Path) -> None:
    offline.goto((site / SHOWN_BY[name]).as_uri())
    selector = f'iframe[src*="live/{name}.html"]'
    offline.locator(selector).scroll_into_view_if_needed()
    inside = offline.frame_locator(selector)
    expect(inside.locator(".normscope[data-ready]")).to_be_visible(timeout=SLOW)
    link = offline.locator(f'figcaption a[href*="live/{name}.html"]')
    assert link.get_attribute("target") == "_blank"


@pytest.mark.parametrize("width", [390, 800, 1280])
def test_no_page_is_wider_than_the_window(width: int, offline: Page, site: Path) -> None:
    offline.set_viewport_size({"width": width, "height": 900})
    for path in ("index.html", "tutorial.html", "gallery.html", "notebooks/first_look.html"):
        offline.goto((site / path).as_uri())
        too_wide = offline.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert too_wide <= 0, path


def test_live_pages_follow_the_colours_of_the_site(offline: Page, site: Path) -> None:
    offline.emulate_media(color_scheme="light")
    offline.goto((site / "tutorial.html").as_uri())
    selector = 'iframe[src*="live/weights-and-norms.html"]'
    offline.locator(selector).scroll_into_view_if_needed()
    page = offline.frame_locator(selector).locator(".normscope[data-ready]")
    expect(page).to_have_attribute("data-theme", "light", timeout=SLOW)
    for theme, button in (("dark", "Dark"), ("light", "Light")):
        offline.locator(f'label[title="{button}"]').click()
        expect(page).to_have_attribute("data-theme", theme)
