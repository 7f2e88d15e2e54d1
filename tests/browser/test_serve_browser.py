"""The web app in a browser: from the form to downloads, and requests of foreign pages."""

from __future__ import annotations

import csv
import functools
import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

import normscope
from normscope.models.architectures import tiny_model
from tests.browser.conftest import SLOW
from tests.helpers.serving import Server, body, server
from tests.helpers.tiny import tokenizer

DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
TOKEN = "correct-horse-battery"
HOSTILE = "</script><img src=x onerror=\"document.title='run'\"> <b>bold</b> \x00 \u202eabc ' \" `"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny-bart"
    tiny_model("bart").save_pretrained(path)
    tokenizer(pair=False).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[Server]:
    with server("--model", DEFAULT, "--model", str(folder)) as program:
        yield program


def opened(page: Page, url: str) -> Page:
    page.goto(url)
    expect(page.get_by_role("button", name="Analyse")).to_be_enabled(timeout=SLOW)
    return page


def analysed(page: Page) -> Any:
    """Wait for the result and return its frame."""
    expect(page.get_by_role("status").last).to_contain_text("Done in", timeout=SLOW)
    return page.frame_locator("#view")


def test_from_form_to_download(running: Server, watched: Page, tmp_path: Path) -> None:
    page = opened(watched, running.url)
    page.get_by_label("Text", exact=True).fill("The cat sat on the mat.")
    page.get_by_text("Advanced", exact=True).click()
    page.get_by_label("Second text").fill("It slept.")
    page.get_by_label("Norms with the residual").check()
    page.get_by_role("button", name="Analyse").click()
    frame = analysed(page)
    expect(frame.get_by_text("mat", exact=True).first).to_be_visible(timeout=SLOW)
    files: dict[str, Path] = {}
    for name, kind in {
        "HTML page": "html", "safetensors": "safetensors", "JSON": "json", "CSV": "csv",
    }.items():  # fmt: skip
        with page.expect_download() as coming:
            page.get_by_role("link", name=name).click()
        assert coming.value.suggested_filename == f"normscope.{kind}"
        coming.value.save_as(files.setdefault(kind, tmp_path / f"result.{kind}"))
    result = normscope.load(files["safetensors"])
    assert list(result) == ["attn_w", "attn_n", "attn_res_n", "attn_res_ln_n", "atb_ff_res_ln"]
    assert result.tokens.strings[1:7] == ("the", "cat", "sat", "on", "the", "mat")
    assert "slept" in result.tokens.strings
    rows = list(csv.DictReader(files["csv"].read_text().splitlines()))
    assert len(rows) == sum(result[name].values.size for name in result)
    with page.context.expect_page() as tab:
        page.get_by_role("link", name="Open in a new tab").click()
    expect(tab.value.get_by_text("mat", exact=True).first).to_be_visible(timeout=SLOW)
    # There, too, the result has its own origin.
    assert tab.value.evaluate("origin") == "null"


def test_hostile_text_is_only_shown(running: Server, watched: Page) -> None:
    page = opened(watched, running.url)
    page.get_by_label("Text", exact=True).fill(HOSTILE)
    page.get_by_role("button", name="Analyse").click()
    frame = analysed(page)
    expect(frame.get_by_text("bold", exact=True).first).to_be_visible(timeout=SLOW)
    inner = page.frames[1]
    assert inner.evaluate("document.querySelectorAll('img').length") == 0
    assert "run" not in inner.title()
    assert inner.evaluate("origin") == "null"


@pytest.mark.slow
def test_cancelling_while_another_page_waits(running: Server, watched: Page) -> None:
    page = opened(watched, running.url)
    worker = running.worker
    worker.suspend()
    page.get_by_label("Text", exact=True).press("Control+Enter")
    status = page.locator("#status")
    expect(status).to_contain_text("Running for 1 of at most 60 seconds", timeout=SLOW)
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.get_by_role("button", name="Analyse")).to_be_disabled()
    second = opened(page.context.new_page(), running.url)
    second.get_by_role("button", name="Analyse").click()
    expect(second.locator("#status")).to_contain_text("Waiting for 1 analysis", timeout=SLOW)
    page.keyboard.press("Escape")
    expect(status).to_have_text("Cancelled.", timeout=SLOW)
    expect(page.get_by_role("button", name="Analyse")).to_be_enabled()
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    analysed(second)  # by the new worker
    assert not worker.is_running()


@pytest.mark.slow
def test_many_tabs_do_not_wait_for_one_another(running: Server, watched: Page) -> None:
    tabs = [watched, *(watched.context.new_page() for _ in range(8))]
    for tab in tabs:
        opened(tab, running.url)
    worker = running.worker
    worker.suspend()
    try:
        for tab in tabs:
            tab.get_by_role("button", name="Analyse").click()
        for tab in tabs:
            expect(tab.locator("#status")).to_contain_text("ing for", timeout=SLOW)
        # All tabs of a browser share six connections to the server.
        started = time.monotonic()
        opened(watched.context.new_page(), running.url)
        assert time.monotonic() - started < 12
    finally:
        worker.resume()
    for tab in tabs:
        analysed(tab)


def test_errors_are_shown(running: Server, watched: Page) -> None:
    page = opened(watched, running.url)
    page.get_by_label("Text", exact=True).fill("cat " * 300)
    page.get_by_role("button", name="Analyse").click()
    expect(page.locator("#status")).to_contain_text("302 tokens", timeout=SLOW)
    page.get_by_text("Advanced", exact=True).click()
    for box in page.locator("#maps input").all():
        box.uncheck()
    page.get_by_text("Advanced", exact=True).click()
    page.get_by_role("button", name="Analyse").click()
    expect(page.locator("#status")).to_contain_text("Select at least one thing")
    expect(page.locator("#advanced")).to_have_attribute("open", "")  # where it is


def test_an_old_result_does_not_stay_below_an_error(running: Server, watched: Page) -> None:
    page = opened(watched, running.url)
    page.get_by_role("button", name="Analyse").click()
    analysed(page)
    expect(page.locator("#result")).to_be_visible()
    page.get_by_label("Text", exact=True).fill("cat " * 300)
    page.get_by_role("button", name="Analyse").click()
    expect(page.locator("#status")).to_contain_text("302 tokens", timeout=SLOW)
    expect(page.locator("#result")).to_be_hidden()


def test_an_empty_text_hides_the_old_result(running: Server, watched: Page) -> None:
    page = opened(watched, running.url)
    text = page.get_by_label("Text", exact=True)
    page.get_by_role("button", name="Analyse").click()
    analysed(page)
    text.fill("  ")
    expect(page.locator("#stale")).to_be_visible()  # the result is that of an earlier text
    page.get_by_role("button", name="Analyse").click()
    expect(page.locator("#status")).to_have_text("Text is empty: write at least one word.")
    expect(page.locator("#result")).to_be_hidden()
    expect(text).to_be_focused()
    expect(text).to_have_attribute("aria-invalid", "true")
    text.fill("The cat sat.")
    expect(text).not_to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Analyse").click()
    analysed(page)
    expect(page.locator("#result")).to_be_visible()
    expect(page.locator("#stale")).to_be_hidden()


def test_the_first_view_asks_for_a_question_and_a_text(running: Server, watched: Page) -> None:
    page = opened(watched, running.url)
    expect(page.get_by_role("group", name="What do you want to know?")).to_be_visible()
    expect(page.get_by_role("radio", name="What does each word get")).to_be_checked()
    expect(page.get_by_label("Text", exact=True)).not_to_be_empty()
    expect(page.locator("#advanced")).not_to_have_attribute("open", "")
    for hidden in ("#maps", "#heads-field", "#pair"):
        expect(page.locator(hidden)).to_be_hidden()
    assert page.locator("textarea:visible").count() == 1
    assert page.get_by_role("checkbox").count() == 0  # none that can be seen


def test_a_reload_keeps_text_and_options(running: Server, watched: Page) -> None:
    page = opened(watched, running.url)
    page.get_by_label("Text", exact=True).fill("My own text.")
    page.get_by_text("Advanced", exact=True).click()
    page.get_by_label("Second text").fill("And a second one.")
    page.get_by_label("Norms with the residual").check()
    page.get_by_role("checkbox", name="Attention weights").uncheck()
    page.get_by_label("one by one").check()
    page.reload()
    expect(page.get_by_role("button", name="Analyse")).to_be_enabled(timeout=SLOW)
    expect(page.get_by_label("Text", exact=True)).to_have_value("My own text.")
    expect(page.get_by_label("Second text")).to_have_value("And a second one.")
    expect(page.get_by_label("Norms with the residual")).to_be_checked()
    expect(page.get_by_role("checkbox", name="Attention weights")).not_to_be_checked()
    expect(page.get_by_label("one by one")).to_be_checked()
    page.get_by_role("radio", name="How similar are two texts?").check()
    page.get_by_label("The other text").fill("Another text.")
    page.reload()
    expect(page.get_by_role("button", name="Analyse")).to_be_enabled(timeout=SLOW)
    expect(page.get_by_role("radio", name="How similar are two texts?")).to_be_checked()
    expect(page.get_by_label("The other text")).to_have_value("Another text.")
    expect(page.get_by_label("Text", exact=True)).to_have_value("My own text.")
    assert "text" not in page.url.lower()  # it is in no address, and so in no log


def test_source_and_target_by_keyboard_on_a_phone_in_the_dark(
    running: Server, watched: Page
) -> None:
    watched.set_viewport_size({"width": 360, "height": 740})
    watched.emulate_media(color_scheme="dark")
    page = opened(watched, running.url)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(17, 20, 27)"  # that of the palette, as on the page of a result
    page.get_by_label("Model", exact=True).focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_label("Second text")).to_be_hidden()
    page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("the cat sat on the mat")
    page.keyboard.press("Tab")
    page.keyboard.type("the dog ran")
    page.locator("#advanced summary").focus()
    page.keyboard.press("Enter")
    page.get_by_label("one by one").focus()
    page.keyboard.press("Space")
    expect(page.get_by_label("The attention block (ATB)")).to_be_disabled()
    page.keyboard.press("Control+Enter")
    frame = analysed(page)
    expect(frame.get_by_text("mat", exact=True).first).to_be_visible(timeout=SLOW)
    assert page.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.slow
def test_login_and_too_many_requests(folder: Path, watched: Page) -> None:
    watched.expected = ["401"]  # type: ignore[attr-defined]
    arguments = ("--model", str(folder), "--allow-remote", "--queue", "4")
    with server(*arguments, NORMSCOPE_TOKEN=TOKEN) as program:
        page = watched
        page.goto(program.url.partition("#")[0])
        page.get_by_label("Token", exact=True).fill("wrong, but long enough")
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("#login-status")).to_have_text("the token is wrong", timeout=SLOW)
        page.get_by_label("Token", exact=True).fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("button", name="Analyse")).to_be_enabled(timeout=SLOW)
        page.context.clear_cookies()
        page.goto("about:blank")
        opened(page, program.url)
        assert page.url == program.url.partition("#")[0]
        watched.expected = ["401", "429"]  # type: ignore[attr-defined]
        page.get_by_label("Source").fill("the cat sat")
        page.get_by_label("Target").fill("the dog ran")
        page.get_by_role("button", name="Analyse").click()
        page.locator("#status:has-text('Done in')").wait_for(timeout=SLOW)
        frame = page.frame_locator("#view")  # fetched with the cookie
        expect(frame.get_by_text("cat", exact=True).first).to_be_visible(timeout=SLOW)
        program.worker.suspend()
        program.http.headers["Authorization"] = f"Bearer {TOKEN}"
        posted = body(text="the cat sat", target="the dog ran")
        program.until(program.http.post("/api/jobs", **posted).json()["id"], "running")
        assert program.http.post("/api/jobs", **posted).status_code == 202
        page.get_by_role("button", name="Analyse").click()
        reached = "the limit of waiting analyses from one address (1) is reached; try again in 2"
        expect(page.locator("#status")).to_contain_text(reached, timeout=SLOW)
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#status")).to_have_text("Cancelled.", timeout=SLOW)


FOREIGN = """<!doctype html><title>foreign</title>
<form id="f" method="post" enctype="text/plain" action="%(url)sapi/jobs" target="x">
<input name='{"text":"a","x":"' value='"}'></form>
<iframe name="x"></iframe><iframe id="app" src="%(url)s"></iframe>"""
ATTEMPTS = """async (url) => {
  const outcomes = [];
  for (const [mode, type] of [["cors", "application/json"], ["no-cors", "text/plain"]]) {
    try {
      const answer = await fetch(url + "api/jobs",
        {method: "POST", mode, headers: {"Content-Type": type}, body: '{"text": "a"}'});
      outcomes.push(answer.type + " " + answer.status);
    } catch (error) { outcomes.push(error.name); }
  }
  try { outcomes.push((await fetch(url + "api/models")).status); }
  catch (error) { outcomes.push(error.name); }
  document.getElementById("f").submit();
  return outcomes;
}"""


def test_a_foreign_page_gets_nothing(running: Server, watched: Page, tmp_path: Path) -> None:
    page: Any = watched
    page.expected = ["CORS", "ERR_", "frame-ancestors", "403", "Framing", "Refused", "404"]
    (tmp_path / "index.html").write_text(FOREIGN % {"url": running.url})

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as foreign:
        threading.Thread(target=foreign.serve_forever, daemon=True).start()
        answers: list[tuple[str, int]] = []
        page.on("response", lambda r: answers.append((r.request.method, r.status)))
        page.goto(f"http://127.0.0.1:{foreign.server_port}/")
        assert page.evaluate(ATTEMPTS, running.url) == ["TypeError"] * 3
        page.wait_for_function("frames.length == 2")
        until = time.monotonic() + 10
        while ("POST", 403) not in answers and time.monotonic() < until:
            page.wait_for_timeout(100)
        page.wait_for_timeout(500)  # for responses that should not come
        assert page.locator("#app").is_visible()
        shown = [frame for frame in page.frames if frame.url == running.url]
        assert not any(frame.query_selector("form") for frame in shown)
        assert ("POST", 403) in answers
        assert not [status for method, status in answers if method == "POST" and status < 400]
        foreign.shutdown()
