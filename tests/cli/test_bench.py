"""`normscope bench`: what it prints and writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import normscope
from normscope.cli import bench_texts
from tests.helpers.benchmarks import shrink
from tests.helpers.commands import fail, run, succeed

ROOT = Path(__file__).parents[2]
WORKS = ["forward", "eager", "2020", "four", "2021", "matmul", "2024", "reduce"]
WORKS += ["attribute", "input × gradient", "pairs", "secant"]
WORKS += ["dense float64", "dense float32"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


@pytest.mark.slow
def test_the_file_has_every_work(bert: str, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    arguments = ("--lengths", "8,6", "--batch", "2", "--repeats", "3", "--json", str(file))
    done = succeed("bench", "--model", bert, *arguments)
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert [file.name] == [path.name for path in tmp_path.iterdir()]
    assert figures["machine"]["torch"] == torch.__version__
    assert figures["machine"]["normscope"] == normscope.__version__
    sizes = {"layers": 3, "heads": 4, "hidden": 32}
    assert figures["model"] == {"name": "tiny-bert", **sizes, "dtype": "float32"}
    assert [(row["tokens"], row["work"]) for row in figures["rows"]] == [
        (tokens, work) for tokens in (8, 6) for work in WORKS
    ]
    forward = {row["tokens"]: row["ms"] for row in figures["rows"] if row["work"] == "forward"}
    for row in figures["rows"]:
        assert row["batch"] == 2
        assert len(row["all_ms"]) == 3
        assert row["ms"] == sorted(row["all_ms"])[1] > 0
        assert row["ratio"] == row["ms"] / forward[row["tokens"]]
        measured = row["tokens"] == 8 and row["work"] in ("eager", "2020")
        assert row["peak_mb"] == (1.5 if measured else None)
        maps = row["work"] in ("2020", "four", "2021", "2024", "reduce")
        assert row["in_hand"] == maps  # on a CPU, there are no others
        if row["work"] in ("2020", "four", "2021"):
            assert 0 < row["accuracy"] < 2e-6
        else:
            assert row["accuracy"] is None
    assert "tiny-bert, 2 × 8 tokens, float32" in done.stdout
    assert f"torch {torch.__version__}" in done.stdout
    assert done.stderr == ""
    picture = tmp_path / "picture.png"
    command = [sys.executable, str(ROOT / "benchmarks" / "plot.py"), str(file), str(file)]
    subprocess.run([*command, "-o", str(picture)], check=True, capture_output=True)
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")


def test_mistakes_are_refused_before_the_work(bert: str, tmp_path: Path) -> None:
    def message(*arguments: str) -> str:
        return fail("bench", "--model", bert, *arguments)

    assert "'2022'; valid here: 2020, four, 2021, 2024" in message("--maps", "2020,2022")
    assert "'int8'; valid here: float64, float32" in message("--dtype", "int8")
    assert "'tpu'; valid here: cpu" in message("--device", "tpu")
    assert "'8,x'; valid: whole numbers" in message("--lengths", "8,x")
    assert "unknown length: 1; valid for this model: 2 to " in message("--lengths", "8,1")
    assert "unknown length: 9999; valid for this model: 2 to " in message("--lengths", "9999")
    assert "there is no folder" in message("--json", str(tmp_path / "none" / "out.json"))
    assert "must end in one of: .json" in message("--json", str(tmp_path / "out.txt"))
    assert "must end in one of: .txt" in message("--profile", str(tmp_path / "out.json"))
    assert "--repeats" in message("--repeats", "0")
    assert run("bench", "--model", "./nowhere").exit_code == 2


def test_texts_and_a_profile(bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_texts, "COUNT", 5)
    monkeypatch.setattr(bench_texts, "LONGEST", 14)
    file, profile = tmp_path / "figures.json", tmp_path / "profile.txt"
    outputs = ("--json", str(file), "--profile", str(profile))
    done = succeed("bench", "--model", bert, "--repeats", "1", "--maps", "texts", *outputs)
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert figures["rows"] == []
    forward, texts = figures["texts"]
    assert (forward["work"], texts["work"]) == ("forward", "texts")
    assert (texts["texts"], texts["shortest"], texts["longest"]) == (5, 10, 14)
    assert texts["ratio"] == texts["ms"] / forward["ms"]
    assert texts["in_hand"]
    assert "tiny-bert, 5 texts of 10 to 14 tokens, float32" in done.stdout
    assert "tokenising included" in done.stdout
    assert profile.read_text(encoding="utf-8").startswith("texts, 5 texts\n")
    assert "aten::addmm" in profile.read_text(encoding="utf-8")
