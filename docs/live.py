"""Live pages: the hook that puts normscope's own interactive pages into the documentation.

A line `<!-- live: weights-and-norms -->` of a page becomes a frame with the page of that name in
`PAGES`. The pages are made when the site is built, from the default models, and kept in
.cache/docs until the source of normscope changes. mkdocs calls the functions that begin with `on_`.
"""

from __future__ import annotations

import hashlib
import html
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache" / "docs"
MARKER = re.compile(r"^<!-- live: (?P<name>[\w-]+) -->$", re.MULTILINE)
LOG = logging.getLogger("mkdocs.hooks.live")

TEXT = "Anna baked a cake, and Tom ate most of it."
PAIR = "She was not angry, because he had washed every dish."


@dataclass(frozen=True)
class LivePage:
    """A page of a result, its height in the documentation, and the state in which it opens."""

    caption: str
    write: Callable[[Path], None]
    height: int = 760
    state: str = ""


def _maps(path: Path) -> None:
    import normscope

    maps = ["attn_w", "attn_n", "attn_res_ln_n"]
    normscope.analyze(None, text=TEXT, text_pair=PAIR, maps=maps).to_html(path)


def _shares(path: Path) -> None:
    import normscope

    question = {"text": "The keys to the cabinet", "answer": " are", "foil": " is"}
    normscope.attribute(None, **question, trace=True).to_html(path)


def _alignment(path: Path) -> None:
    import normscope

    german = "wenn es regnet , bleiben die Kinder zu Hause ."
    english = "the children stay at home when it rains ."
    normscope.align(german, english, soft=True).to_html(path)


PAGES = {
    "weights-and-norms": LivePage(
        "Weights and norms of two sentences, in every layer of all-MiniLM-L6-v2.", _maps, 820
    ),
    "are-or-is": LivePage(
        "The share of every token in SmolLM2’s preference for “are” over “is”.", _shares, 760
    ),
    "alignment": LivePage(
        "A German sentence and its translation, aligned by the packaged model.", _alignment, 680
    ),
}


def on_files(files: Any, config: Any) -> Any:
    """Add the live pages that the documentation shows to the files of the site."""
    asked = {
        match["name"]
        for file in files.documentation_pages()
        for match in MARKER.finditer(file.content_string)
    }
    for name in sorted(asked & set(PAGES)):
        if path := made(name):
            files.append(File.generated(config, f"live/{name}.html", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Replace the markers of a page with frames."""
    return MARKER.sub(lambda match: _frame(match["name"], page, files), markdown)


def made(name: str) -> Path | None:
    """Return the file of a live page; None, with a warning, if it cannot be made here."""
    folder = CACHE / _fingerprint()
    path = folder / f"{name}.html"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    for old in CACHE.iterdir():  # of sources that have changed since
        if old != folder:
            _remove(old)
    LOG.info("Making the live page %s", name)
    try:
        PAGES[name].write(path)
    except Exception as error:
        # In a strict build, this warning is an error.
        LOG.warning("The live page %s was not made: %s (`make docs` installs all)", name, error)
        return None
    return path


def _frame(name: str, page: Any, files: Any) -> str:
    if name not in PAGES:
        LOG.warning("%s: there is no live page %r", page.file.src_uri, name)
        return ""
    live, file = PAGES[name], files.get_file_from_path(f"live/{name}.html")
    caption = html.escape(live.caption)
    if file is None:
        return f"*{caption} (This build of the documentation has no live pages.)*"
    url = file.url_relative_to(page.file) + (f"#{live.state}" if live.state else "")
    return (
        f'<figure class="live"><iframe src="{url}" title="{caption}" loading="lazy" '
        f'sandbox="allow-scripts allow-downloads" height="{live.height}">'
        f'<a href="{url}">{caption}</a></iframe><figcaption>{caption} '
        f'<a href="{url}" target="_blank" rel="noopener">Open in a new tab</a>'
        "</figcaption></figure>"
    )


def _fingerprint() -> str:
    """Return a hash of this file and of normscope's source, on which the pages depend."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix in (".py", ".js", ".css"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink(missing_ok=True)
    folder.rmdir()
