"""The pictures of docs/serve.md: the web app with a real result.

    python docs/make_serve_pictures.py

Needs the extras `dev` and a Chromium.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
SHOTS: dict[str, Any] = {
    "serve": {"viewport": {"width": 1280, "height": 1180}, "color_scheme": "light"},
    "serve-phone-dark": {"viewport": {"width": 390, "height": 1300}, "color_scheme": "dark"},
    "serve-write": {"viewport": {"width": 1280, "height": 1270}, "color_scheme": "light"},
}
# What is asked in each picture.
ASKED = {"serve": "maps", "serve-phone-dark": "similar", "serve-write": "write"}


def _click_a_word(page: Page) -> None:
    """Choose the fourth token of the answer."""
    answer = page.frame_locator("#view").get_by_role("listbox", name="Answer")
    answer.get_by_role("option").nth(3).click()
    page.mouse.move(5, 5)


def main() -> None:
    """Start a server, use it, take the pictures."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = os.environ.get("NORMSCOPE_CHROMIUM") or next(
        filter(None, map(shutil.which, names)), None
    )
    if program is None:
        sys.exit("There is no Chromium: apt-get install chromium")
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "normscope", "serve", "--port", "0"),
            *("--model", "minilm", "--model", "smollm2"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    found = None
    while found is None:
        line = server.stderr.readline()
        if not line:
            sys.exit("the server did not start")
        found = re.search(r"http://\S+", line)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=program, args=["--no-sandbox", "--disable-gpu"]
            )
            for name, options in SHOTS.items():
                page = browser.new_page(**options)
                page.set_default_timeout(90_000)  # the language model may need long
                page.goto(found[0])
                page.locator("#go:enabled").wait_for()
                # A question that the first model cannot answer selects another.
                page.locator(f"#questions input[value={ASKED[name]}]").check()
                page.locator("#go").click()
                page.frame_locator("#view").locator(".normscope[data-ready]").wait_for()
                if ASKED[name] == "write":
                    _click_a_word(page)
                page.wait_for_timeout(1500)
                page.evaluate("scrollTo(0, 0)")
                taken = Image.open(io.BytesIO(page.screenshot()))
                # Maximum coverage keeps colours of small areas, such as a legend's.
                coverage = Image.Quantize.MAXCOVERAGE
                taken.convert("RGB").quantize(256, coverage, dither=Image.Dither.NONE).save(
                    IMAGES / f"{name}.png", optimize=True
                )
                page.close()
            browser.close()
    finally:
        server.terminate()
        server.communicate()


if __name__ == "__main__":
    main()
