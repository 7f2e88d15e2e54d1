"""A result in the browser, and in a notebook."""

from __future__ import annotations

import sys
import types
from html.parser import HTMLParser
from pathlib import Path

import pytest

from normscope.show.page import page, show
from tests.helpers import pages
from tests.helpers.pages import HOSTILE


def test_show_opens_the_browser(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(show, "in_notebook", lambda: False)
    result = pages.results()[1]
    result.show()
    (path,) = tmp_path.rglob("*.html")
    assert opened == [path.as_uri()]
    assert capsys.readouterr().out.strip() == str(path)
    assert path.read_text(encoding="utf-8") == page(result)


def test_show_in_a_notebook_is_a_frame_with_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    display = types.ModuleType("IPython.display")
    display.HTML = str  # type: ignore[attr-defined]
    display.display = shown.append  # type: ignore[attr-defined]
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    result = pages.results(pages.tokens_of(HOSTILE))[1]
    result.show()
    (html,) = shown
    inside: list[tuple[str, dict[str, str | None]]] = []

    class Frame(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            inside.append((tag, dict(attrs)))

    Frame().feed(html)
    ((tag, about),) = inside
    assert (tag, about["sandbox"]) == ("iframe", "allow-scripts allow-downloads")
    assert about["srcdoc"] == page(result)
