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
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "images"
SHOTS: dict[str, Any] = {
    "serve": {"viewport": {"width": 1280, "height": 1180}, "color_scheme": "light"},
    "serve-phone-dark": {"viewport": {"width": 390, "height": 1100}, "color_scheme": "dark"},
}


def main() -> None:
    """Start a server, use it, take the pictures."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = os.environ.get("NORMSCOPE_CHROMIUM") or next(
        filter(None, map(shutil.which, names)), None
    )
    if program is None:
        sys.exit("There is no Chromium: apt-get install chromium")
    server = subprocess.Popen(
        [sys.executable, "-m", "normscope", "serve", "--port", "0"],
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
                page.goto(found[0])
                page.locator("#go:enabled").click()
                page.frame_locator("#view").locator(".normscope[data-ready]").wait_for()
                page.wait_for_timeout(1500)
                page.evaluate("scrollTo(0, 0)")
                taken = Image.open(io.BytesIO(page.screenshot()))
                taken.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
                    IMAGES / f"{name}.png", optimize=True
                )
                page.close()
            browser.close()
    finally:
        server.terminate()
        server.communicate()


if __name__ == "__main__":
    main()
