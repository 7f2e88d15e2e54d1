"""The pictures of docs/viewer.md and docs/alignment.md, from real results of the default models.

    python docs/make_screenshots.py                          # all of them
    python docs/make_screenshots.py viewer-attribution       # those named

Needs the extras `dev` and a Chromium. Every picture is a part of the page as it opens from disk.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import normscope
from normscope.alignment.links import parse
from normscope.alignment.result import Alignment, Alignments
from normscope.show.page import gather, write

IMAGES = Path(__file__).parent / "images"
TEXT = "Anna baked a cake, and Tom ate most of it."
PAIR = "She was not angry, because he had washed every dish."
LIMIT = 200_000  # bytes of a picture


@dataclass(frozen=True)
class Shot:
    """One picture: what is shown, on which screen, in which colours, of maps or of shares."""

    name: str
    fragment: str
    width: int = 1280
    height: int = 900
    scheme: str = "light"
    shares: bool = False


SHOTS = (
    Shot("viewer-compare", "map=attn_w&vs=attn_n&layer=2&query=11", height=1010),
    Shot("viewer-matrix-dark", "view=matrix&map=attn_w&vs=attn_n&layer=2&special=hide",
         height=860, scheme="dark"),
    Shot("viewer-overview", "view=overview&map=attn_n&layer=2", height=1320),
    Shot("viewer-phone", "map=attn_n&layer=2&query=11", 390, 1100),
    Shot("viewer-phone-dark", "view=matrix&map=attn_n&layer=2&query=11&key=8&own=hide", 390, 1100,
         "dark"),
    Shot("viewer-attribution", "answers=3-4", height=900, shares=True),
)  # fmt: skip

# Pages of alignments; `shares` does not apply.
LINK_SHOTS = (
    Shot("alignment", "pair=5&word=target-3", height=900),
    Shot("alignment-phone", "", 390, 1130, "dark"),
)


def main() -> None:
    """Write every picture, and say how large it is."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = os.environ.get("NORMSCOPE_CHROMIUM") or next(
        filter(None, map(shutil.which, names)), None
    )
    if program is None:
        sys.exit("There is no Chromium: apt-get install chromium")
    wanted = [shot.name in sys.argv[1:] or len(sys.argv) == 1 for shot in (*SHOTS, *LINK_SHOTS)]
    shots = [shot for shot, draw in zip((*SHOTS, *LINK_SHOTS), wanted, strict=True) if draw]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        for shot in LINK_SHOTS:
            _links(shot.name == "alignment-phone").to_html(Path(folder) / f"{shot.name}.html")
        for shares in {shot.shares for shot in shots if shot not in LINK_SHOTS}:
            write(_shares() if shares else _maps(), Path(folder) / f"{shares}.html")
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        for shot in shots:
            page = browser.new_page(
                viewport={"width": shot.width, "height": shot.height},
                color_scheme="dark" if shot.scheme == "dark" else "light",
            )
            file = Path(folder) / f"{shot.name if shot in LINK_SHOTS else shot.shares}.html"
            page.goto(f"{file.as_uri()}#{shot.fragment}")
            page.wait_for_selector(".normscope[data-ready]")
            page.wait_for_timeout(600)  # the overview draws its pictures one after the other
            taken = page.screenshot()
            page.close()
            path = IMAGES / f"{shot.name}.png"
            path.write_bytes(taken)
            if len(taken) >= LIMIT:  # 256 colours are nearly enough for flat surfaces and a ramp
                few = Image.open(io.BytesIO(taken)).convert("RGB")
                method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
                few.quantize(256, method=method, dither=dither).save(path, optimize=True)
            size = path.stat().st_size
            print(f"{path.name} {size:,} bytes")
            assert size < LIMIT, f"{path.name} is larger than {LIMIT:,} bytes"
        browser.close()


def _maps() -> list[normscope.Contributions]:
    """Analyse the sentences: up to the attention block, then on to the end of the layer."""
    further = ("atb_ff", "atb_ff_res_ln")
    more = normscope.analyze(None, text=TEXT, text_pair=PAIR, maps=further)
    return [*gather(None, text=TEXT, text_pair=PAIR), more]


def _shares() -> normscope.Attribution:
    """Explain a continuation."""
    return normscope.attribute(
        None, text="The keys to the cabinet", continuation=" are on the table", trace=True
    )


def _links(single: bool) -> Alignment | Alignments:
    """Align the twelve sentences that were aligned by hand, or only one of them."""
    data = Path(__file__).parents[1] / "tests" / "helpers" / "data" / "twelve.tsv"
    rows = [line.split("\t") for line in data.read_text(encoding="utf-8").splitlines()]
    gold = [parse(row[2], "talp") for row in rows]
    sources, targets = ([row[side] for row in rows] for side in (0, 1))
    alignments = normscope.align(sources, targets, gold=gold, soft=True)
    return replace(alignments[5], gold=None) if single else alignments


if __name__ == "__main__":
    main()
