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
STORY = "The next morning they went to the market, bought apples and butter, and baked another."
LIMIT = 200_000  # bytes of a picture


@dataclass(frozen=True)
class Shot:
    """One picture: what is shown, on which screen, in which colours, of which result."""

    name: str
    fragment: str
    width: int = 1280
    height: int = 900
    scheme: str = "light"
    of: str = "maps"  # the result, by a name of main()
    hover: str = ""  # what the pointer is over
    keys: str = ""  # keys that are pressed


SHOTS = (
    Shot("viewer-compare", "map=attn_w&vs=attn_n&layer=2&query=11", height=1010),
    Shot("viewer-heads", "map=attn_w&vs=attn_n&layer=2&query=11&heads=7,3,10", height=820),
    Shot("viewer-matrix-dark", "view=matrix&map=attn_w&vs=attn_n&layer=2&special=hide",
         height=860, scheme="dark"),
    Shot("viewer-zoom", "view=matrix&query=150&key=150", height=900, of="long", keys="+++++"),
    Shot("viewer-long", "", height=900, of="long"),
    Shot("viewer-overview", "view=overview&map=attn_w&vs=attn_n&layer=2", height=1060,
         hover=".ns-thumb >> nth=11"),
    Shot("viewer-story", "map=attn_w&vs=attn_n&layer=2&query=11"),
    Shot("viewer-phone", "layer=2", 390, 1100),
    Shot("viewer-phone-dark", "view=matrix&map=attn_n&layer=2&query=11&key=8&own=hide", 390, 1100,
         "dark"),
    Shot("viewer-attribution", "answers=3-4", height=900, of="shares"),
    Shot("alignment", "pair=5&word=target-3", height=900, of="pairs"),
    Shot("alignment-phone", "", 390, 1130, "dark", of="pair"),
)  # fmt: skip


def main() -> None:
    """Write every picture, and say how large it is."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = os.environ.get("NORMSCOPE_CHROMIUM") or next(
        filter(None, map(shutil.which, names)), None
    )
    if program is None:
        sys.exit("There is no Chromium: apt-get install chromium")
    shots = [shot for shot in SHOTS if shot.name in sys.argv[1:] or len(sys.argv) == 1]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        results = {
            "maps": _maps,
            "long": _long,
            "shares": _shares,
            "pairs": lambda: _links(single=False),
            "pair": lambda: _links(single=True),
        }
        for of in {shot.of for shot in shots}:
            write(results[of](), Path(folder) / f"{of}.html")
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        for shot in shots:
            page = browser.new_page(
                viewport={"width": shot.width, "height": shot.height},
                color_scheme="dark" if shot.scheme == "dark" else "light",
            )
            file = Path(folder) / f"{shot.of}.html"
            page.goto(f"{file.as_uri()}#{shot.fragment}")
            page.wait_for_selector(".normscope[data-ready]")
            page.wait_for_timeout(600)  # the overview draws its pictures one after the other
            for key in shot.keys:
                page.keyboard.press(key)
            if shot.name == "viewer-story":
                taken = page.locator(".ns-story-card").screenshot()
            else:
                if shot.hover:
                    page.locator(shot.hover).hover()
                taken = page.screenshot()
            page.close()
            path = IMAGES / f"{shot.name}.png"
            path.write_bytes(taken)
            if len(taken) >= LIMIT:  # 256 colours are nearly enough for flat surfaces and a ramp
                few = Image.open(io.BytesIO(taken)).convert("RGB")
                method, dither = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
                few.quantize(256, method=method, kmeans=2, dither=dither).save(path, optimize=True)
            size = path.stat().st_size
            print(f"{path.name} {size:,} bytes")
            assert size < LIMIT, f"{path.name} is larger than {LIMIT:,} bytes"
        browser.close()


def _maps() -> list[normscope.Contributions]:
    """Analyse the sentences: up to the attention block, then on to the end of the layer."""
    further = ("atb_ff", "atb_ff_res_ln")
    more = normscope.analyze(None, text=TEXT, text_pair=PAIR, maps=further)
    return [*gather(None, text=TEXT, text_pair=PAIR), more]


def _long() -> list[normscope.Contributions]:
    """Analyse about 250 tokens."""
    return gather(None, text=" ".join([TEXT, PAIR, STORY] * 5))


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
