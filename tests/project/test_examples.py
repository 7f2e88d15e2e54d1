"""Every script of examples/ draws its picture, its finding holds, and the gallery states it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from matplotlib.image import imread

ROOT = Path(__file__).parents[2]
LONGEST = 50  # lines


def _gallery() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "docs" / "make_gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GALLERY = _gallery()
SCRIPTS: list[Path] = GALLERY.scripts()
FINDINGS = [script for script in SCRIPTS if script.stem in GALLERY.FINDINGS]
each = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)

ENGLISH = ["the", "man", "i", "saw", "yesterday", "is", "my", "teach", "er"]
GERMAN = ["der", "mann", "ich", "gesehen", "gestern", "ist", "mein", "lehrer", "lehrer"]


def _mixing(names: dict[str, Any]) -> bool:
    by_step = list(names["mixed"].values())
    return by_step == sorted(by_step, reverse=True) and by_step[1] > 0.5 and by_step[3] < 0.3


def _short(names: dict[str, Any]) -> bool:
    norms, common = names["norms"], names["common"]
    return bool(1.5 * norms[common].mean() < norms[~common].mean())


def _fact(names: dict[str, Any]) -> bool:
    value, before, after = names["result"].value, names["before"], names["after"]
    return bool(before[3] > 0.9 * value and after[4] > 0.9 * value and abs(after[3]) < 0.1 * value)


def _neighbours(names: dict[str, Any]) -> bool:
    phrases = {"white house", "on tuesday", "air traffic"}
    return {" ".join(_in_order(pair)) for pair in names["pairs"][:3]} == phrases


def _in_order(pair: Any) -> list[str]:
    ends = sorted([(pair.query, pair.query_token), (pair.key, pair.key_token)])
    return [token for _, token in ends]


# What the title of each finding claims, of the variables of its script.
CLAIMS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "weights_and_norms": lambda n: n["weight"] > 0.5 and n["norm"] < 0.1,
    "special_tokens": lambda n: bool((n["weight"] > 2 * n["norm"]).all()) and max(n["norm"]) < 0.15,
    "attention_sink": lambda n: n["weight"].mean() > 1.5 * n["norm"].mean(),
    "short_vectors": _short,
    "heads_cancel": lambda n: n["part"].mean() < 0.5,
    "mixing_ratios": _mixing,
    "layer_norm": lambda n: bool((n["lower"] > 0).all()),
    "feed_forward_pairs": _neighbours,
    "agreement": lambda n: n["keys"] > 1 and n["cabinet"] < 0,
    "repeated_name": lambda n: n["first"] < 0 < n["second"] < n["mary"],
    "fact": _fact,
    "negation": lambda n: n["result"].value > 0.8 and -0.1 < n["shares"]["no"] < 0,
    "translation": lambda n: n["english"] == ENGLISH and n["largest"] == GERMAN,
    "few_bits": lambda n: n["mean"][8] < 0.01 and n["mean"][3] > 0.3,
}
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@each
def test_it_draws_its_picture_and_its_finding_holds(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = tmp_path / "drawn.png"
    printed, variables = GALLERY.run(script, output)
    assert [path.name for path in tmp_path.iterdir()] == [output.name]
    pixels: Any = imread(output)[..., :3]
    assert min(pixels.shape[:2]) >= 250
    drawn = (pixels < 0.98).any(axis=-1)
    assert 0.01 < drawn.mean() < 0.8  # neither empty nor one block of colour
    assert drawn.any(axis=1).sum() > 0.6 * len(drawn)  # and not in a corner alone
    if script in FINDINGS:
        assert CLAIMS[script.stem](variables)
        stated = GALLERY.finding_on_page(script)
        renew = f"renew it: python docs/make_gallery.py {script.stem}"
        assert NUMBER.sub("", printed) == NUMBER.sub("", stated), renew
        for here, there in zip(NUMBER.findall(printed), NUMBER.findall(stated), strict=True):
            last_digit = 10.0 ** -len(here.partition(".")[2])  # machines round differently
            assert float(here) == pytest.approx(float(there), abs=1.01 * last_digit), renew


@each
def test_it_is_short_and_says_what_it_shows(script: Path) -> None:
    code = script.read_text(encoding="utf-8")
    assert len(code.splitlines()) <= LONGEST
    assert code.startswith('"""')
    assert f'"{script.stem}.png"' in code  # where it goes without a name
    if script in FINDINGS:
        assert len(GALLERY.measurement(code).splitlines()) <= 20


@each
def test_the_gallery_shows_it_as_it_is(script: Path) -> None:
    page = GALLERY.PAGE.read_text(encoding="utf-8")
    section = GALLERY.section(script, GALLERY.finding_on_page(script))
    assert section in page, f"renew it: python docs/make_gallery.py {script.stem}"
    picture = GALLERY.IMAGES / f"{script.stem}.png"
    assert f"(images/gallery/{picture.name})" in page
    assert 1_000 < picture.stat().st_size < 150_000


def test_there_are_a_dozen_findings() -> None:
    assert len(FINDINGS) == len(CLAIMS) >= 12
    pictures = {path.stem for path in GALLERY.IMAGES.iterdir()}
    assert pictures == {script.stem for script in SCRIPTS}
