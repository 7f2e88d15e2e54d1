"""The documentation site builds strictly, from this checkout alone, and fetches nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import normscope
from normscope.errors import NormscopeError

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# What a browser fetches by itself, as opposed to a link that a reader may follow.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source|audio|video|embed)\b[^>]*\bsrc=[\"']?(?:https?:)?//"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preconnect|preload|icon))[^>]*\bhref=[\"']?(?:https?:)?//"
    r"|@import|url\([\"']?(?:https?:)?//",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    # No proxy would answer there: whatever asks the network fails at once.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


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
