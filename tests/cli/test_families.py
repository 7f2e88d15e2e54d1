"""`normscope families`."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from normscope import architectures
from normscope.cli import families
from normscope.decomposition.available import available
from normscope.models.architectures import FAMILIES
from tests.helpers.commands import run, succeed


@pytest.mark.slow
def test_every_family_is_proved() -> None:
    done = succeed("families")
    lines = done.stdout.splitlines()
    for name in FAMILIES:
        paths, maps = r"(interface|watched|probed)[a-z=, -]*", r"\d+"
        pattern = rf"{re.escape(name)} +\d self.* {paths} +{maps} +\d\.\de-\d\d"
        assert any(re.fullmatch(pattern, line.strip()) for line in lines), name
    assert any(re.match(r"bart +.* 5 self, 3 cross +interface", line) for line in lines)
    bases = {family.base for family in FAMILIES.values()}
    last = re.fullmatch(
        rf"{len(bases)} families proved, in {len(FAMILIES)} configurations\. "
        r"Worst error (\S+) \(.+\)\.",
        lines[-1],
    )
    assert last
    assert 0 < float(last[1]) < 1e-14
    assert done.stderr == ""


@pytest.mark.slow
def test_a_family_that_breaks_is_named_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: FAMILIES[name] for name in ("bert", "bart")}
    wrong = replace(FAMILIES["bert"], name="wrong", model="NoSuchModel")
    monkeypatch.setattr(architectures, "FAMILIES", {"wrong": wrong, **few})
    done = run("families")
    assert done.exit_code == 1
    assert re.search(r"^wrong +NOT PROVED", done.stdout, re.M)
    assert "2 families proved" in done.stdout
    assert re.fullmatch(r"normscope: error: not proved: wrong: .*NoSuchModel.*\n", done.stderr)
    plain = run("families", "--json")
    assert plain.exit_code == 1
    figures = json.loads(plain.stdout)
    assert (figures["proved"], figures["bound"]) == (2, 1e-10)
    proofs = {row["family"]: row for row in figures["families"]}
    assert "NoSuchModel" in proofs["wrong"]["failure"]
    assert proofs["bart"]["failure"] is None
    assert proofs["bart"]["paths"] == ["interface"]
    assert sum(proofs["bart"]["attentions"].values()) == 8
    offered = available(architectures.tiny_model("bart"))
    assert set(proofs["bart"]["scopes"]) == {name for names in offered.values() for name in names}
    assert figures["worst"] == max(proofs[name]["worst"] for name in few) < 1e-14


def test_a_family_that_is_not_exact_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architectures, "FAMILIES", {"bert": FAMILIES["bert"]})
    monkeypatch.setattr(families, "BOUND", 1e-30)
    done = run("families")
    assert done.exit_code == 1
    assert "ExactnessError" in done.stderr
