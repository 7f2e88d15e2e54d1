"""Hooks that adapt the pages of the site; mkdocs calls them by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LIST = "<!-- list of reproductions -->"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Insert the list of reproductions where a page contains the marker."""
    markdown = re.sub(r"^```console$", "```bash", markdown, flags=re.MULTILINE)  # highlighted
    if LIST in markdown:
        pages = [f for f in files.documentation_pages() if f.src_uri.endswith("/index.md")]
        rows = [_row(f) for f in pages if f.src_uri.startswith("reproductions/") and f != page.file]
        markdown = markdown.replace(LIST, "\n".join(sorted(rows)) or "None in this checkout.")
    return markdown


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Remove doctest directives and Sphinx roles from docstrings."""
    html = re.sub(r"\s*(<span[^>]*>)?# doctest: \+SKIP(</span>)?", "", html)
    return re.sub(r":(?:class|func|meth|mod):(?=<code>)", "", html)


def _row(file: Any) -> str:
    text = Path(file.abs_src_path).read_text(encoding="utf-8")
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    return f"- [{heading[1] if heading else file.src_uri}]({file.src_uri.partition('/')[2]})"
