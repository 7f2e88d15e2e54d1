"""Every script of examples/ runs, writes what it says, and is on the gallery's page as it is."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

ROOT = Path(__file__).parents[2]
LONGEST = 40  # lines


def _gallery() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "docs" / "make_gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GALLERY = _gallery()
SCRIPTS: list[Path] = GALLERY.scripts()
each = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


@each
def test_it_makes_its_picture_or_table(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = tmp_path / f"made.{GALLERY.suffix_of(script)}"
    GALLERY.run(script, output)
    assert [path.name for path in tmp_path.iterdir()] == [output.name]
    if output.suffix == ".png":
        pixels: Any = imread(output)[..., :3]
        assert min(pixels.shape[:2]) >= 250
        drawn = (pixels < 0.98).any(axis=-1)
        assert 0.01 < drawn.mean() < 0.8  # neither empty nor one block of colour
        assert drawn.any(axis=1).sum() > 0.6 * len(drawn)  # and not in a corner alone
        return
    with output.open(encoding="utf-8", newline="") as lines:
        head, *rows = csv.reader(lines)
    assert len(rows) >= 4
    assert {len(row) for row in rows} == {len(head)}
    assert all(np.isfinite(float(row[-1])) for row in rows)


@each
def test_it_is_short_and_says_what_it_shows(script: Path) -> None:
    code = script.read_text(encoding="utf-8")
    assert len(code.splitlines()) <= LONGEST
    assert code.startswith('"""')
    assert f'"{script.stem}.{GALLERY.suffix_of(script)}"' in code  # where it goes without a name


@each
def test_the_gallery_shows_it_as_it_is(script: Path) -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    folded = page.partition(f'??? example "examples/{script.name}"\n')[2].partition("\n## ")[0]
    lines = [line.removeprefix("    ") for line in folded.strip("\n").splitlines()]
    shown = "\n".join(lines).strip().removeprefix("```py\n").removesuffix("```")
    assert shown == script.read_text(encoding="utf-8"), "renew it: python docs/make_gallery.py"
    if GALLERY.suffix_of(script) == "png":
        picture = GALLERY.IMAGES / f"{script.stem}.png"
        assert f"(images/gallery/{picture.name})" in page
        assert 1_000 < picture.stat().st_size < 150_000


def test_there_are_a_dozen() -> None:
    assert len(SCRIPTS) >= 12
    pictures = {path.stem for path in GALLERY.IMAGES.iterdir()}
    assert pictures <= {script.stem for script in SCRIPTS}, "a picture that no script makes"
