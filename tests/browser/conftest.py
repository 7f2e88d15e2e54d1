"""A real Chromium, and pages whose every message, request and dialog is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from normscope.show.page import write
from tests.helpers import browsers

ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--headless=new", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)
Open = Callable[..., Page]
SLOW = 60_000  # milliseconds; a busy machine may need long


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    found = browsers.chromium()
    assert found is not None  # without one these tests are not collected
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield browser
        browser.close()


def watch(page: Page, allowed: Callable[[str], bool]) -> list[str]:
    """Everything that a well-behaved page does not do."""
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(f"console: {said.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))

    def requested(request: Any) -> None:
        if not allowed(request.url):
            wrong.append(f"request: {request.url[:200]}")

    page.on("request", requested)

    def refuse(dialog: Any) -> None:
        wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("dialog", refuse)
    return wrong


@pytest.fixture
def open_page(chromium: Browser, tmp_path: Path) -> Iterator[Open]:
    """Write a page for results, open it from disk, offline; afterwards nothing was wrong."""
    opened: list[tuple[Any, list[str]]] = []

    def open_it(
        results: Any, fragment: str = "", width: int = 1280, height: int = 900, **options: Any
    ) -> Page:
        file = tmp_path / f"page{len(opened)}.html"
        write(results, file)
        context = chromium.new_context(
            viewport={"width": width, "height": height}, accept_downloads=True, **options
        )
        context.set_offline(True)
        context.set_default_timeout(10_000)
        page = context.new_page()
        own = file.as_uri()
        local = ("blob:", "data:")
        wrong = watch(page, lambda url: url.split("#")[0] == own or url.startswith(local))
        opened.append((context, wrong))
        page.goto(own + fragment)
        page.wait_for_selector(".normscope[data-ready]")
        return page

    yield open_it
    for context, wrong in opened:
        context.close()
        assert wrong == []


@pytest.fixture
def watched(chromium: Browser) -> Iterator[Page]:
    """A page whose console must stay empty and whose requests must all go to this machine."""
    context = chromium.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    messages: list[str] = []
    hosts: set[str] = set()
    page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("dialog", lambda dialog: messages.append(dialog.message))
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    page.set_default_timeout(SLOW)
    yield page
    expected = getattr(page, "expected", [])
    assert [line for line in messages if not any(part in line for part in expected)] == []
    assert {host.partition(":")[0] for host in hosts} == {"127.0.0.1"}
    context.close()
