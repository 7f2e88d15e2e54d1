"""The interactive page: code, style and data in one HTML file that fetches nothing."""

from __future__ import annotations

import json
import os
import re
from importlib.resources import files
from typing import Any, Protocol, runtime_checkable

from normscope.foundation.files import check_file, write_file
from normscope.foundation.texts import printable
from normscope.show import html, palette
from normscope.show.page.encode import FORMAT as MAPS
from normscope.show.page.encode import Viewable, payload
from normscope.show.page.shares import FORMAT as SHARES

LINKS = "normscope.links"  # pages of alignments, whose data `normscope.alignment.page` makes

# The modules of each kind of page, in the order in which they are joined into one script.
MODULES = {
    MAPS: (
        *("text", "data", "colour", "forms", "svg", "state", "fields", "headline", "scale"),
        *("heads", "tokens", "patches", "looks", "zoom", "matrix", "preview", "overview"),
        *("story", "side", "export"),
        *("controls", "viewer"),
    ),
    SHARES: (
        *("text", "data", "colour", "forms", "svg", "picture", "sums", "passage", "patches"),
        *("strips", "shares"),
    ),
    LINKS: ("text", "forms", "linkdata", "linkpair", "linklist", "links"),
}
STYLES = {LINKS: ("links.css",)}  # beside viewer.css
# Comments that fill a line, or follow a statement.
_COMMENTS = re.compile(
    r"^ *(//[^\n]*|/\*(?:(?!\*/).)*\*/)\n|(?<=[;,{]) // [^\n]*", re.MULTILINE | re.DOTALL
)
TITLE_LENGTH = 60  # characters of the text in the title

_BODY = """\
<main class="normscope" id="normscope"><noscript>
This page needs JavaScript to show its numbers.
</noscript></main>
<script type="application/json" id="normscope-data">{{ data | tojson }}</script>
"""


@runtime_checkable
class WithPage(Protocol):
    """A result that makes the data of its page itself, such as an alignment."""

    def page_payload(self) -> dict[str, Any]:
        """Return the data of the page, in plain JSON types."""


def page(result: Viewable | WithPage) -> str:
    """Return the HTML of the page for a result, or for several of the same text."""
    return page_of(result.page_payload() if isinstance(result, WithPage) else payload(result))


def page_of(data: dict[str, Any]) -> str:
    """Return the HTML of the page for data from `payload`."""
    return html.document(
        title(data),
        html.render(_BODY, data=data),
        style=style(data["format"]),
        script="(() => {\n" + code("page", data["format"]) + "})();\n",
    )


def write(result: Viewable | WithPage, path: str | os.PathLike[str]) -> None:
    """Write the page to a file; if that fails, an existing file stays as it was."""
    check_file(path, (".html", ".htm"))
    write_file(path, page(result))


def code(start: str, kind: str = MAPS) -> str:
    """Return the JavaScript of a kind of page, ending with what starts it: page or widget."""
    modules = "".join(asset(f"js/{name}.js") for name in (*MODULES[kind], start))
    return f'"use strict";\nconst COLOURS = {json.dumps(_colours())};\n{modules}'


def style(kind: str = MAPS) -> str:
    """Return the stylesheet of a kind of page, with the colours of the palette as variables."""
    light, dark = (palette.css_variables(theme) for theme in ("light", "dark"))
    return (
        f".normscope {{ {light} }}\n"
        f'.normscope[data-theme="dark"] {{ {dark} }}\n'
        f"html:has(> body > main.normscope) {{ --page-light: {palette.INKS['light']['ground']}; "
        f"--page-dark: {palette.INKS['dark']['ground']}; }}\n"
    ) + "".join(map(asset, ("viewer.css", *STYLES.get(kind, ()))))


def _colours() -> dict[str, Any]:
    """Return the ramps and categories of both themes."""
    return {
        theme: {
            "up": palette.SEQUENTIAL[theme],
            "difference": palette.DIVERGING[theme],
            "categories": categories,
        }
        for theme, categories in (
            ("light", palette.CATEGORIES),
            ("dark", palette.CATEGORIES_DARK),
        )
    }


def asset(name: str) -> str:
    """Return the text of a file beside this module, without its comments."""
    text = (files("normscope.show.page") / name).read_text(encoding="utf-8")
    return _COMMENTS.sub("", text)


def title(data: dict[str, Any]) -> str:
    """Return the question of an attribution, or the first words of the text, as the title."""
    if data["format"] == SHARES:
        words = printable(data["question"])
    elif data["format"] == LINKS:
        words = printable(data["title"])
    else:
        tokens = data["tokens"][data["parts"][0]["tokens"]]
        words = printable(" ".join(tokens.get("words", tokens["texts"])))
    if len(words) > TITLE_LENGTH:
        words = words[:TITLE_LENGTH] + "…"
    return f"{words} · normscope"
