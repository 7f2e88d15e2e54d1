"""`normscope families --all`: types in processes of their own, verdicts, and what shows them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from normscope.cli import sweep, sweep_page
from normscope.cli.sweep import TypeReport, Verdict, check_type, judged
from normscope.errors import ExactnessError, InputError, UnsupportedModelError
from tests.deep import families
from tests.helpers.commands import run, succeed

EXACT = Verdict("exact", 1e-15)
REFUSED = Verdict("refused", reason="layer 0: something acts in between (a gate, a norm). More.")
WRONG = Verdict("wrong", reason="they differ")


def report(name: str, **verdicts: Verdict) -> TypeReport:
    checks = dict.fromkeys(sweep_page.CHECKS, EXACT) | verdicts
    return TypeReport(name, f"{name.title()}Model", "text", verdicts=checks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "modality"),
    [
        ("llama", "text"),
        ("mixtral", "text"),
        ("t5", "text"),
        ("vit", "image"),
        ("llava", "image + text"),
        ("detr", "image"),
        ("whisper", "sound + text"),
        ("wav2vec2", "sound"),
    ],
)
def test_a_sample_of_types(name: str, modality: str) -> None:
    found = check_type(name)
    assert found.missing == ""
    assert found.modality == modality
    assert set(found.verdicts) == set(sweep_page.CHECKS)
    attention = found.verdicts["attention"]
    assert attention.status == "exact", attention.reason
    assert attention.error is not None
    assert 0 < attention.error < 1e-10
    assert sweep_page.failures_of([found]) == []


def test_types_that_cannot_be_checked_say_why() -> None:
    part = check_type("blt_patcher")
    assert part.missing == "a part of other types, without a model of its own"
    unknown = check_type("no such type")
    assert unknown.missing == "a part of other types, without a model of its own"
    assert unknown.verdicts == {}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ExactnessError("a  b"), "wrong"),
        (InputError("a\nb"), "refused"),
        (UnsupportedModelError("a b"), "refused"),
        (KeyError("a b"), "raised"),
    ],
)
def test_verdicts(error: Exception, status: str) -> None:
    def check(model: Any, inputs: Any) -> float:
        model.append(1)  # of a copy
        raise error

    model: list[int] = []
    verdict = judged(check, model, {})
    assert verdict.status == status
    assert verdict.error is None
    assert verdict.reason.endswith("a b" if status != "raised" else "KeyError: 'a b'")
    assert model == []
    assert judged(lambda model, inputs: 1e-12, model, {}) == Verdict("exact", 1e-12)


@pytest.mark.slow
def test_types_that_hang_or_die_stop_no_other() -> None:
    late = list(sweep.sweep(["bert", "llama"], processes=2, seconds=0.0))
    assert {found.name: found.missing for found in late} == dict.fromkeys(
        ("bert", "llama"), "it took longer than 0 s"
    )
    worker = sweep._Worker()
    try:
        os.kill(worker._process.pid or 0, signal.SIGKILL)
        worker._process.join()
        worker.give("bert")
        died = worker.report(60.0)
        assert died == TypeReport("bert", missing="its process ended with status -9")
        worker.give("blt_patcher")  # to the next process
        while (found := worker.report(60.0)) is None:
            worker.connection.poll(1.0)
        assert "part of other types" in found.missing
    finally:
        worker.stop()


def test_counts_and_failures() -> None:
    reports = [report("a"), report("b", layer=REFUSED), report("c", attribute=WRONG)]
    reports.append(TypeReport("d", missing="cannot be built: ImportError: no timm"))
    assert sweep_page.counts_of(reports) == {
        "attention": {"exact": 3, "refused": 0, "wrong": 0, "raised": 0},
        "layer": {"exact": 2, "refused": 1, "wrong": 0, "raised": 0},
        "attribute": {"exact": 2, "refused": 0, "wrong": 1, "raised": 0},
    }
    assert sweep_page.failures_of(reports) == [("c", "attribute", WRONG)]
    lines = sweep_page.summary(reports)
    assert lines[0].startswith("3 of 4 model types of transformers ")
    assert lines[2] == "whole layer: 2 exact, 1 refused"
    shown = sweep_page.to_dict(reports)
    assert shown["checked"] == 3
    assert shown["types"][1]["verdicts"]["layer"]["reason"] == REFUSED.reason
    json.dumps(shown)


def test_too_few_exact_types_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "TYPES", 4)
    monkeypatch.setattr(
        families, "MINIMA", {"all": {"checked": 3, "attention": 2}, "text": {"layer": 3}}
    )
    reports = [report("a"), report("b"), report("c"), TypeReport("d", missing="no timm")]
    assert families.problems(reports) == []
    reports[1] = report("b", layer=REFUSED)
    assert families.problems(reports) == ["text types, layer: 2, at least 3 are expected"]
    reports[2] = report("c", attention=WRONG)
    assert families.problems(reports)[0] == "c: attention: wrong: they differ"
    assert families.problems(reports[:2]) == [  # of half as many types, half as many
        "text types, layer: 1, at least 2 are expected"
    ]
    assert families.problems(reports[2:]) == [
        "c: attention: wrong: they differ",
        "all types, checked: 1, at least 2 are expected",
        "all types, attention: 0, at least 1 are expected",
        "text types, layer: 1, at least 2 are expected",
    ]


def test_the_page() -> None:
    reports = [report("a|b"), report("b", layer=REFUSED)]
    reports.append(TypeReport("c", missing="cannot be built: ImportError: no <timm>"))
    page = sweep_page.to_markdown(reports)
    lines = page.splitlines()
    assert lines[0] == "# Every model type"
    assert "| whole layer | 1 | 1 | 0 | 0 |" in lines
    assert "| text | 2 | 2 | 1 | 2 |" in lines
    assert "| b | BModel | text | 1e-15 | refused | 1e-15 |" in lines
    assert (
        "| b | whole layer | refused: layer 0: something acts in between (a gate, a norm) |"
        in lines
    )
    assert r"| c | cannot be built: ImportError: no \<timm\> |" in lines


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    done = succeed("families", "--all", "--only", "bert,blt_patcher", "--markdown", str(page))
    lines = done.stdout.splitlines()
    assert any(line.split()[:2] == ["bert", "text"] for line in lines)
    assert lines[-3:] == ["attention maps: 1 exact", "whole layer: 1 exact", "attribute: 1 exact"]
    assert "| bert | BertModel | text |" in page.read_text()
    assert done.stderr == ""


def test_a_failure_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [report("bert", attribute=WRONG)]
    monkeypatch.setattr(sweep, "sweep", lambda names, processes: iter(found))
    done = run("families", "--all", "--only", "bert", "--json")
    assert done.exit_code == 1
    assert done.stderr == "normscope: error: bert: attribute: wrong: they differ\n"
    assert json.loads(done.stdout)["counts"]["attribute"]["wrong"] == 1


def test_options() -> None:
    done = run("families", "--all", "--only", "bort")
    assert done.exit_code == 2
    assert "no model type 'bort'" in done.stderr
    assert "--only and --markdown need --all" in run("families", "--only", "bert").stderr
