"""What the site's pages get from the checkout they are built from. mkdocs calls these by name."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(([\w./-]+\.md)(?:#[\w-]+)?\)")
LIST = "<!-- list of reproductions -->"


def on_config(config: Any) -> None:
    """Leave out of the navigation what belongs to a part that this checkout does not have."""
    config.nav = [entry for entry in (_there(one, config) for one in config.nav) if entry]


def _there(entry: Any, config: Any) -> Any:
    if isinstance(entry, str):
        return entry if _has(entry, config) else None
    kept = {}
    for title, below in entry.items():
        if isinstance(below, list):
            below = [one for one in (_there(one, config) for one in below) if one]
        elif not _has(below, config):
            continue
        if below:
            kept[title] = below
    return kept


def _has(page: str, config: Any) -> bool:
    needed = config.extra["parts"].get(page)
    return needed is None or (Path(config.config_file_path).parent / needed).exists()


def on_files(files: Any, config: Any) -> None:
    """And out of the site."""
    for file in list(files.documentation_pages()):
        if not _has(file.src_uri, config):
            files.remove(file)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to such pages become plain words; reproductions are listed where that is asked for."""
    folder = posixpath.dirname(page.file.src_uri)

    def linked(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        return link[0] if _has(target, config) else link[1]

    markdown = LINK.sub(linked, markdown)
    markdown = re.sub(r"^```console$", "```bash", markdown, flags=re.MULTILINE)  # for its colours
    if LIST in markdown:
        found = [f for f in files.documentation_pages() if f.src_uri.startswith("reproductions/")]
        rows = [_row(f) for f in found if f.src_uri != page.file.src_uri]
        markdown = markdown.replace(LIST, "\n".join(sorted(rows)) or "None in this checkout.")
    return markdown


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Docstrings as readers want them: without marks for doctest and without Sphinx's roles."""
    html = re.sub(r"\s*(<span[^>]*>)?# doctest: \+SKIP(</span>)?", "", html)
    return re.sub(r":(?:class|func|meth|mod):(?=<code>)", "", html)


def _row(file: Any) -> str:
    text = Path(file.abs_src_path).read_text(encoding="utf-8")
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return f"- [{heading[1] if heading else file.src_uri}]({file.src_uri.partition('/')[2]})"
