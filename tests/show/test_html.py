"""The HTML writer: everything that is not Markup is text, and a document fetches nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib.resources import files
from typing import Any

import pytest
from jinja2 import UndefinedError

from normscope.show import html
from normscope.show.html import Markup
from normscope.show.palette import INKS, css_variables

HOSTILE = """</script><b onclick="x()">&'"""


def test_text_is_escaped_and_markup_is_not() -> None:
    piece = html.render('<p title="{{ text }}">{{ text }}{{ piece }}</p>', text="<'\">&", piece="")
    assert piece == '<p title="&lt;&#39;&#34;&gt;&amp;">&lt;&#39;&#34;&gt;&amp;</p>'
    assert html.render("<i>{{ piece }}</i>", piece=html.render("<b>1</b>")) == "<i><b>1</b></i>"
    assert isinstance(piece, Markup)


def test_a_value_that_a_template_lacks_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        html.render("{{ missing }}")


def test_json_in_a_script_cannot_end_the_script() -> None:
    piece = html.render("<script>{{ data | tojson }}</script>", data=[HOSTILE, "é"])
    content = piece.removeprefix("<script>").removesuffix("</script>")
    assert not set("<>&") & set(content)
    assert content.isascii()
    assert json.loads(content) == [HOSTILE, "é"]
    with pytest.raises(ValueError, match="Out of range float values"):
        html.render("{{ data | tojson }}", data=float("nan"))


def test_a_document_escapes_its_title_and_a_body_that_is_no_markup() -> None:
    page = html.document(HOSTILE, Markup("<h1>Body</h1>"))
    assert "<title>&lt;/script&gt;" in page
    assert "<h1>Body</h1>" in page
    assert "<script" not in page
    assert "<b onclick" not in html.document("title", HOSTILE)
    assert type(page) is str  # Markup would escape the strings that it is joined with


def test_the_policy_allows_this_style_and_this_script_alone() -> None:
    style, script = "body { color: red }", 'if (1 < 2 && "a") {}'
    page = html.document("title", Markup(""), style=style, script=script)
    assert f"<style>{style}</style>" in page
    assert f"<script>{script}</script>" in page
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    rules = policy[1].replace("&#39;", "'")
    for text in (style, script):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in rules
    assert "default-src 'none'" in rules
    assert "unsafe" not in rules


def test_reports_share_one_stylesheet() -> None:
    page = html.document("title", Markup(""))
    assert html.report_style() in page
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"https?://|@import|url\(", page)


def test_a_table_aligns_numbers_and_marks_booleans() -> None:
    columns: dict[str, list[Any]] = {
        "n": [1, None, 2.0000004],
        "<t>": ["<b>", None, 3],
        "ok": [True, False, None],
    }
    piece = html.table(columns, classes="verdicts")
    assert piece.startswith('<div class="scroll verdicts"><table>')
    assert re.findall(r'<th class="(.*?)">(.*?)</th>', piece) == [
        ("number", "n"),
        ("text", "&lt;t&gt;"),
        ("text", "ok"),
    ]
    assert re.findall(r'<td class="(.*?)">(.*?)</td>', piece) == [
        *[("number", "1"), ("text", "&lt;b&gt;"), ("yes", "yes")],
        *[("number", "–"), ("text", "–"), ("no", "no")],
        *[("number", "2"), ("text", "3"), ("text", "–")],
    ]


def test_a_table_shows_the_first_rows_with_the_texts_asked_for() -> None:
    piece = html.table({"n": list(range(10))}, rows=2, text=lambda value: f"<{value}>")
    assert re.findall(r"<td.*?>(.*?)</td>", piece) == ["&lt;0&gt;", "&lt;1&gt;"]
    assert "<td" not in html.table({"n": []})
    with pytest.raises(ValueError, match="zip"):
        html.table({"a": [1], "b": [1, 2]})


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (float("nan"), "–"), (True, "yes"), (7, "7"), (1 / 3, "0.33333"), ("x", "x")],
)
def test_the_text_of_a_cell(value: object, text: str) -> None:
    assert html.cell_text(value) == text


def test_a_figure_holds_its_bytes() -> None:
    piece = html.figure(b"\x89PNG", 'a "b"', "<caption>")
    assert piece == (
        '<figure><img alt="a &#34;b&#34;" src="data:image/png;base64,iVBORw==">'
        "<figcaption>&lt;caption&gt;</figcaption></figure>"
    )
    assert "figcaption" not in html.figure(b"", "alt")
    assert html.render("{{ figure(png, 'alt') }}", png=b"") == html.figure(b"", "alt")


@pytest.mark.parametrize("theme", INKS)
def test_reports_have_the_colours_of_the_palette(theme: str) -> None:
    style = html.report_style()
    assert f":root {{ {css_variables(theme)} }}" in style
    used = set(re.findall(r"var\(--(\w+)\)", style))
    assert used
    assert used <= INKS[theme].keys()
    own = (files("normscope.show") / "report.css").read_text(encoding="utf-8")
    assert not re.search(r"#[0-9a-f]{3}", own)
