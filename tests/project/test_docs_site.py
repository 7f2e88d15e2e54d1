"""The documentation site builds strictly, from this checkout alone, and fetches nothing."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import normscope
from normscope.errors import NormscopeError
from tests.helpers.site import ROOT, build

DOCS = ROOT / "docs"
# What a browser fetches by itself, as opposed to a link that a reader may follow.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source|audio|video|embed)\b[^>]*\bsrc=[\"']?(?:https?:)?//"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preconnect|preload|icon))[^>]*\bhref=[\"']?(?:https?:)?//"
    r"|@import|url\([\"']?(?:https?:)?//",
)


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("docs") / "site")


def test_every_page_is_there(site: Path) -> None:
    made = {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")}
    written = {path.relative_to(DOCS) for path in DOCS.rglob("*.md")}
    assert written - made == set()
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert [path for path in written if path.as_posix() not in nav] == []


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.glob("javascripts/*.js")]
    found = [
        (page.name, match[0]) for page in pages for match in FETCHED.finditer(page.read_text())
    ]
    assert found == []
    assert len(pages) > 30


def test_no_source_file_goes_into_the_site(site: Path) -> None:
    assert list(site.rglob("*.py")) == []


def test_live_pages_are_in_frames(site: Path) -> None:
    """The frames are sandboxed, load when they are scrolled to, and name what they show."""
    live = set()
    for page in site.rglob("*.html"):
        for frame in re.findall(r"<iframe\b[^>]*>", page.read_text()):
            attributes = dict(re.findall(r'([\w-]+)="([^"]*)"', frame))
            assert attributes["sandbox"] == "allow-scripts allow-downloads"
            assert attributes["loading"] == "lazy"
            assert len(attributes["title"]) > 20
            file = page.parent / attributes["src"].partition("#")[0]
            assert 50_000 < file.stat().st_size < 400_000
            live.add(file.stem)
    assert live >= {"weights-and-norms", "are-or-is"}


def test_notebooks_are_pages_with_their_output(site: Path) -> None:
    for notebook in (DOCS / "notebooks").glob("*.ipynb"):
        page = (site / "notebooks" / f"{notebook.stem}.html").read_text()
        cells = json.loads(notebook.read_text())["cells"]
        shown = [cell for cell in cells if cell.get("outputs")]
        assert page.count('<div class="notebook-output">') == len(shown) >= 4
        assert "notebook-output-" not in page  # every place was filled
        pictures = [
            o for cell in shown for o in cell["outputs"] if "image/png" in o.get("data", {})
        ]
        assert page.count("data:image/png;base64,") == len(pictures)
        assert (site / "notebooks" / notebook.name).is_file()  # for download


def test_public_names_are_in_the_reference(site: Path) -> None:
    pages = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    anchors = set(re.findall(r'id="(normscope[\w.]*)"', pages))
    for name in normscope.__all__:
        assert any(anchor.endswith(f".{name}") for anchor in anchors), name


def test_every_error_has_its_page() -> None:
    public = (getattr(normscope, name) for name in normscope.__all__)
    errors = {e.__name__ for e in public if isinstance(e, type) and issubclass(e, NormscopeError)}
    titles = {page.read_text().partition("\n")[0] for page in (DOCS / "errors").glob("*.md")}
    assert {f"# {name}" for name in errors} == titles - {"# Errors"}


def test_the_page_of_screens_shows_every_picture() -> None:
    screens = _script("make_screens")
    page = screens.PAGE.read_text(encoding="utf-8")
    assert page == screens.page(), "renew it: python docs/make_screens.py"
    pictures = list(screens.IMAGES.glob("*"))
    assert [path.name for path in pictures if f"screens/{path.name})" not in page] == []
    assert sum(path.stat().st_size for path in pictures) < screens.LIMIT


def test_a_live_page_that_cannot_be_made_is_a_warning_and_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A strict build fails on the warning; another one says what is missing."""
    live = _script("live")

    def fail(path: Path) -> None:
        raise normscope.ModelNotFoundError("the default model is not installed")

    monkeypatch.setattr(live, "CACHE", tmp_path)
    monkeypatch.setitem(live.PAGES, "are-or-is", live.LivePage("Shares.", fail))
    with caplog.at_level("WARNING"):
        assert live.made("are-or-is") is None
    assert "are-or-is was not made: the default model is not installed" in caplog.text
    page, files = SimpleNamespace(file=None), SimpleNamespace(get_file_from_path=lambda uri: None)
    text = live.on_page_markdown("a\n<!-- live: are-or-is -->\nb", page, None, files)
    assert text.startswith("a\n*Shares. (This build")
    assert "<iframe" not in text


def test_live_pages_are_kept_until_the_source_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, written = _script("live"), []

    def write(path: Path) -> None:
        written.append(path)
        path.write_text("page", encoding="utf-8")

    monkeypatch.setattr(live, "CACHE", tmp_path)
    monkeypatch.setitem(live.PAGES, "are-or-is", live.LivePage("Shares.", write))
    first = live.made("are-or-is")
    assert live.made("are-or-is") == first
    monkeypatch.setattr(live, "_fingerprint", lambda: "changed")
    assert live.made("are-or-is") != first
    assert len(written) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["changed"]  # the old one is removed
