"""Convert screenshots to WebP and write docs/screens.md, which shows them before and after.

    python docs/make_screens.py BEFORE AFTER      # two folders with PNG files of the same names
    python docs/make_screens.py                   # the page alone, from the pictures that are there

A name is looked for in the folders and below them. Pictures go to docs/images/screens/ as
before-NAME.webp and after-NAME.webp, at most 900 pixels wide. Needs Pillow, which comes with
matplotlib.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parent
IMAGES = DOCS / "images" / "screens"
PAGE = DOCS / "screens.md"
WIDTH, HEIGHT, QUALITY = 900, 1400, 70  # pixels, pixels, of 100
LIMIT = 2_000_000  # bytes of all pictures together


@dataclass(frozen=True)
class Screen:
    """A picture, by the name of its file, and what it shows."""

    name: str
    shows: str


SECTIONS = {
    "The page": (
        Screen("t5-1280", "5 tokens, desktop"),
        Screen("t5-800", "5 tokens, 800 pixels"),
        Screen("t5-390", "5 tokens, phone"),
        Screen("t60-1280", "60 tokens, desktop"),
        Screen("t60-1280-dark", "60 tokens, desktop, dark"),
        Screen("t60-800", "60 tokens, 800 pixels"),
        Screen("t60-390", "60 tokens, phone"),
        Screen("t60-matrix-1280", "60 tokens, matrix"),
        Screen("t300-1280", "300 tokens, desktop"),
        Screen("t300-matrix-1280", "300 tokens, matrix"),
        Screen("each-1280", "every head"),
        Screen("shares-1280", "an attribution, desktop"),
        Screen("shares-800", "an attribution, 800 pixels"),
        Screen("shares-390", "an attribution, phone"),
        Screen("alignment-1280", "an alignment, desktop"),
        Screen("alignment-1280-dark", "an alignment, dark"),
        Screen("alignment-390", "an alignment, phone"),
    ),
    "The web app": (
        Screen("serve-first-1280-light", "as it opens, desktop"),
        Screen("serve-first-1280-dark", "as it opens, dark"),
        Screen("serve-first-390-light", "as it opens, phone"),
        Screen("serve-maps-1280-light", "with a result"),
        Screen("serve-next-1280-light", "with an attribution"),
    ),
    "README and documentation": (
        Screen("readme", "the top of README"),
        Screen("docs-1280", "the first page of the documentation, desktop"),
        Screen("docs-390", "the first page of the documentation, phone"),
    ),
}

HEAD = """# Screens

The page, the web app, README and this documentation, before and after their redesign.
Click a picture to enlarge it.
"""


def main(*folders: str) -> None:
    """Convert the pictures of two folders, if given, and write the page."""
    if len(folders) not in (0, 2):
        sys.exit("usage: python docs/make_screens.py [BEFORE AFTER]")
    for kind, folder in zip(("before", "after"), folders, strict=False):
        for screen in (screen for screens in SECTIONS.values() for screen in screens):
            found = sorted(Path(folder).rglob(f"{screen.name}.png"))
            if found:
                convert(found[0], IMAGES / f"{kind}-{screen.name}.webp")
            else:
                print(f"{kind}: {folder} has no {screen.name}.png")
    PAGE.write_text(page(), encoding="utf-8")
    total = sum(path.stat().st_size for path in IMAGES.glob("*.webp"))
    print(f"{len(list(IMAGES.glob('*.webp')))} pictures, {total:,} bytes")
    if total > LIMIT:
        sys.exit(f"That is more than {LIMIT:,} bytes: lower QUALITY or WIDTH, or show fewer.")


def convert(source: Path, target: Path) -> None:
    """Write a picture as WebP, no larger than the documentation shows it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.open(source).convert("RGB")
    picture.thumbnail((WIDTH, 10 * HEIGHT))
    picture = picture.crop((0, 0, picture.width, min(picture.height, HEIGHT)))
    picture.save(target, "WEBP", quality=QUALITY, method=6)


def page() -> str:
    """Return the page: a table for each section, with a row for each screen that has a picture."""
    parts = [HEAD]
    for title, screens in SECTIONS.items():
        rows = [row for screen in screens if (row := _row(screen))]
        if rows:
            table = ["| | before | after |", "|---|---|---|", *rows]
            parts.append(f"## {title}\n\n" + "\n".join(table) + "\n")
    return "\n".join(parts)


def _row(screen: Screen) -> str:
    cells = [_cell(kind, screen) for kind in ("before", "after")]
    return f"| {screen.shows} | {' | '.join(cells)} |" if set(cells) != {"—"} else ""


def _cell(kind: str, screen: Screen) -> str:
    path = f"images/screens/{kind}-{screen.name}.webp"
    if not (DOCS / path).exists():
        return "—"
    return f"[![{screen.shows}, {kind}]({path}){{ loading=lazy }}]({path})"


if __name__ == "__main__":
    main(*sys.argv[1:])
