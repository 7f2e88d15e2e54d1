"""Notebook pages: the hook that shows docs/notebooks/*.ipynb as pages, with their stored output.

A notebook is Markdown, code and output. mkdocs renders the first two itself; output is inserted
afterwards, because its HTML must not be read as Markdown. nbconvert would bring nine packages for
this and style code in its own way. mkdocs calls the functions that begin with `on_`.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import PurePosixPath
from typing import Any

from mkdocs.structure.files import File

FOLDER = "notebooks"
PLACE = "notebook-output-{}"
TERMINAL_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook. The notebook itself stays in the site, for download."""
    for file in list(files):
        if file.src_uri.startswith(f"{FOLDER}/") and file.src_uri.endswith(".ipynb"):
            uri = str(PurePosixPath(file.src_uri).with_suffix(".md"))
            files.append(File.generated(config, uri, content=_markdown(_cells(file), file.name)))
    return files


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Insert the output of the cells into the page of a notebook."""
    notebook = files.get_file_from_path(str(PurePosixPath(page.file.src_uri).with_suffix(".ipynb")))
    if notebook is None:
        return content
    for number, cell in enumerate(_cells(notebook)):
        place = f'<div id="{PLACE.format(number)}"></div>'
        content = content.replace(place, _output(cell))
    return content


def _cells(file: Any) -> list[dict[str, Any]]:
    return json.loads(file.content_string)["cells"]


def _markdown(cells: list[dict[str, Any]], name: str) -> str:
    """Return the page: text, code, and a place for the output of each cell."""
    parts = []
    for number, cell in enumerate(cells):
        source = _joined(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```py\n{source}\n```")
        if cell["outputs"]:
            parts.append(f'<div id="{PLACE.format(number)}"></div>')
    download = f"[Download this notebook]({name}.ipynb){{ download }}"
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join([title, download, rest.strip(), *parts[1:], ""])


def _output(cell: dict[str, Any]) -> str:
    shown = "".join(_shown(output) for output in cell.get("outputs", []))
    return f'<div class="notebook-output">{shown}</div>'


def _shown(output: dict[str, Any]) -> str:
    """Return one output as HTML, in the richest form that it has."""
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="notebook-html">{_joined(data["text/html"])}</div>'
    if "image/svg+xml" in data:
        return _joined(data["image/svg+xml"])
    for kind in ("image/png", "image/webp"):
        if kind in data:
            image = _joined(data[kind]).replace("\n", "")
            about = html.escape(output.get("metadata", {}).get("alt", "Output of the cell above"))
            return f'<img src="data:{kind};base64,{image}" alt="{about}" loading="lazy">'
    text = _joined(output.get("text") or data.get("text/plain", ""))
    return f"<pre>{html.escape(TERMINAL_COLOURS.sub('', text))}</pre>"


def _joined(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)
