"""The page: code, style and data in one HTML file that asks for nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from importlib.resources import files
from typing import Any

from normscope.results.arrays import printable
from normscope.results.files import check_file, whole_file
from normscope.show.page.encode import Results, payload, texts_of

# What JSON may carry as it is, but HTML could read as markup. All else beyond ASCII is escaped
# by json.dumps.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}

CODE = (
    *("text", "data", "colour", "state", "fields", "tokens", "matrix", "overview", "side"),
    *("export", "controls", "viewer"),
)


def page(result: Results) -> str:
    """The whole page for a result, or for several of the same text."""
    return page_of(payload(result))


def page_of(data: dict[str, Any]) -> str:
    """The page for what `payload` made."""
    style, script = asset("viewer.css"), "(() => {\n" + code("page") + "})();\n"
    fills = {
        "TITLE": html.escape(title(data)),
        "POLICY": policy(style, script),
        "STYLE": style,
        "DATA": safe_json(data),
        "SCRIPT": script,
    }
    whole, rest = "", asset("page.html")
    for name in ("POLICY", "TITLE", "STYLE", "DATA", "SCRIPT"):  # in their order in the file
        before, _, rest = rest.partition(f"%{name}%")
        whole += before + fills[name]  # never searched again: it may have such a mark itself
    return whole + rest


def write(result: Results, path: str | os.PathLike[str]) -> None:
    """Write the page to a file, whole or not at all."""
    check_file(path, (".html", ".htm"))
    data = page(result).encode()
    with whole_file(path) as file:
        file.write(data)


def code(last: str) -> str:
    """The viewer's code, ending with how it starts: on a page or in a notebook."""
    return '"use strict";\n' + "".join(asset(f"js/{name}.js") for name in (*CODE, last))


def asset(name: str) -> str:
    """A file that lies beside this module."""
    return (files("normscope.show.page") / name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """A Content-Security-Policy under which this script and this style run, and nothing else."""
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def safe_json(data: Any) -> str:
    """JSON in ASCII that no HTML parser takes for markup."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return text


def title(data: dict[str, Any]) -> str:
    """The first words of the text."""
    words = printable(" ".join(texts_of(data)))
    return (words[:60] + "…" if len(words) > 60 else words) + " · normscope"
