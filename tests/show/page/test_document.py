"""The page as a file: its policy, its code, and tokens that look like code."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from normscope import InputError
from normscope.show.page import page, write
from normscope.show.page.document import asset, code
from tests.helpers import pages
from tests.helpers.pages import HOSTILE


def test_the_code_is_small_and_names_no_address() -> None:
    shared = asset("viewer.css")
    for kind in ("page", "widget"):
        assert len((code(kind) + shared).encode()) < 180_000
    text = code("page") + code("widget") + shared
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) == {"http://www.w3.org/2000/svg"}
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert unsafe not in text


class Reader(HTMLParser):
    """What a browser would see: the elements, and the text of script and style."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        about = dict(attrs)
        if about.get("http-equiv") == "Content-Security-Policy":
            self.policy = about["content"] or ""

    def handle_data(self, data: str) -> None:
        if self.tags:
            self.texts.setdefault(self.tags[-1], []).append(data)


def test_the_policy_names_exactly_the_code_and_the_style_of_the_page() -> None:
    whole = page(pages.results(pages.tokens_of(HOSTILE)))
    reader = Reader()
    reader.feed(whole)
    data, script = reader.texts["script"][0], "".join(reader.texts["script"][1:]).rstrip("\n")
    assert reader.tags.count("script") == 2
    assert "img" not in reader.tags
    first = json.loads(data)["tokens"][0]["pieces"]
    assert tuple(first) == HOSTILE
    assert not set("<>&\u2028\u2029") & set(data)

    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    script = re.search(r"<script>(.*?)</script>\s*</body>", whole, re.DOTALL)[1]  # type: ignore[index]
    style = re.search(r"<style>(.*?)</style>", whole, re.DOTALL)[1]  # type: ignore[index]
    assert f"script-src '{digest(script)}'" in reader.policy
    assert f"style-src '{digest(style)}'" in reader.policy
    assert reader.policy.startswith("default-src 'none'; ")
    assert "unsafe" not in reader.policy


def test_tokens_that_look_like_the_pages_own_marks() -> None:
    marks = ["{{ script }}", "{% raw %}", "{#", "{{ data | tojson }}"]
    whole = page(pages.results(pages.tokens_of(marks)))
    assert whole.count("function mountNormscope") == 1
    assert whole.count('"pieces":["{{ script }}","{% raw %}","{#","{{ data | tojson }}"]') == 1
    assert "<title>{{ script }} {% raw %} {# {{ data | tojson }} · normscope</title>" in whole


def test_the_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = pages.results()[1]
    result.to_html(tmp_path / "x.html")
    before = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert before == page(result)
    with pytest.raises(InputError, match=r"it must end in one of: \.html"):
        result.to_html(tmp_path / "x.txt")
    with pytest.raises(InputError, match="there is no folder"):
        result.to_html(tmp_path / "none" / "x.html")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write(pages.results(seed=5)[1], tmp_path / "x.html")
    assert (tmp_path / "x.html").read_text(encoding="utf-8") == before
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


def test_a_result_of_several_parts_is_one_page(tmp_path: Path) -> None:
    pages.translation()[1].to_html(tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert '"name":"cross"' in text
