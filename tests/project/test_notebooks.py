"""The notebooks of the docs run, and keep the output of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    book = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in cells(path):
        exec(compile("".join(cell["source"]), path.name, "exec"), names)
    assert {path.suffix for path in tmp_path.iterdir()} & {".html", ".png"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_it_shows_what_it_put_out(path: Path) -> None:
    shown = [bool(cell["outputs"]) for cell in cells(path)]
    assert sum(shown) >= 4
    assert all(cell["execution_count"] for cell in cells(path))
    assert path.stat().st_size < 250_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_it_has_pictures(path: Path) -> None:
    kinds = [kind for cell in cells(path) for o in cell["outputs"] for kind in o.get("data", {})]
    assert {"image/png", "text/html"} & set(kinds)


def test_there_are_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} >= {"first_look", "alignment", "decoder"}
