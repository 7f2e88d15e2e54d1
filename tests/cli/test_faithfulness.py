"""`normscope faithfulness` and `normscope compare`."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscope
from normscope.faithfulness.agreement import Agreement
from normscope.faithfulness.evaluation import FaithfulnessMeter
from normscope.faithfulness.result import MethodFigures
from tests.helpers.commands import fail, run, succeed
from tests.helpers.heads import classifier, masked_tokenizer

TEXTS = [
    *("the cat sat on the mat", "a dog ran over the fence with friend", "she looked"),
    *("the red house", "moon and sun", "he was asleep", "rain in the garden"),
]
FAITHFULNESS = ("faithfulness", "--metrics", "aopc,blank_out", "--resamples", "100")
METHODS = ("--method", "frozen", "--method", "secant@sun", "--method", "random")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("classifier")
    classifier().save_pretrained(path)
    masked_tokenizer().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "dev.tsv"
    path.write_text("".join(f"{text}\t{at % 2}\n" for at, text in enumerate(TEXTS)), "utf-8")
    return str(path)


def test_figures_are_those_of_python(folder: str, data: str, tmp_path: Path) -> None:
    output = tmp_path / "dev.json"
    asked = ("--model", folder, "--data", data, *METHODS, "--minus", "random")
    done = succeed(*FAITHFULNESS, *asked, "--output", str(output))
    result = MethodFigures.load(output)
    expected = normscope.faithfulness(
        classifier(), masked_tokenizer(), TEXTS, methods=("frozen", "secant@sun", "random"),
        metrics=("aopc", "blank_out"), resamples=100,
    )  # fmt: skip
    for name in expected.methods:
        np.testing.assert_allclose(result.values[name], expected.values[name], atol=1e-12)
    assert expected.table() in done.stdout
    assert "replacement=mask;bins=10,20,30,40,50,60,70,80,90%" in done.stdout
    row = expected.differences("random")[0]
    assert f"frozen, aopc: {row['mean']:+.4f} [{row['low']:+.4f}" in done.stdout
    assert "7 of 7 texts" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["dev.json"]


def test_an_interrupted_run_is_continued(
    folder: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("normscope.corpus.finished"), "CHUNK", 2)
    output = tmp_path / "dev.json"
    asked = (*FAITHFULNESS, "--model", folder, "--data", data, *METHODS, "--output", str(output))
    succeed(*asked)
    whole = output.read_bytes()
    output.unlink()
    records, seen = FaithfulnessMeter.records, []

    def interrupted(self: Any, texts: Any, questions: Any) -> Any:
        seen.append(list(texts))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return records(self, texts, questions)

    monkeypatch.setattr(FaithfulnessMeter, "records", interrupted)
    done = run(*asked)
    assert done.exit_code == 130
    assert "the same command resumes there" in done.stderr
    assert seen == [TEXTS[:2], TEXTS[2:4], TEXTS[4:6]]
    assert "another run (not the same: signature)" in fail(*asked, "--replacement", "delete")
    succeed(*asked)
    assert seen[3:] == [TEXTS[4:6], TEXTS[6:]]
    assert output.read_bytes() == whole


def test_parts_are_merged(folder: str, data: str, tmp_path: Path) -> None:
    asked = (*FAITHFULNESS, "--model", folder, "--data", data, *METHODS)
    names = [str(tmp_path / name) for name in ("a.json", "b.json", "all.json", "whole.json")]
    for part, name in enumerate(names[:2], start=1):
        succeed(*asked, "--part", f"{part}/2", "--output", name)
    succeed("faithfulness", "--merge", names[0], "--merge", names[1], "--output", names[2])
    succeed(*asked, "--output", names[3])
    merged, whole = (MethodFigures.load(name) for name in names[2:])
    assert merged.texts == whole.texts == tuple(map(str, range(7)))
    for name in whole.methods:
        np.testing.assert_allclose(merged.values[name], whole.values[name], atol=1e-12)
    for mine, own in zip(merged.rows(), whole.rows(), strict=True):
        assert mine["low"] == pytest.approx(own["low"])


def test_bad_rows_can_be_left_out(folder: str, tmp_path: Path) -> None:
    rows = [{"text": "the cat", "id": "x"}, {"text": "the dog", "answer": "angry"}, {"text": "a"}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    asked = (*FAITHFULNESS, "--model", folder, "--data", str(path), "--method", "frozen")
    assert "rows.jsonl, line 2: the model has no label 'angry'" in fail(*asked)
    output = tmp_path / "rows.json"
    done = succeed(*asked, "--skip-bad", "--output", str(output))
    assert "left out: rows.jsonl, line 2" in done.stderr
    result = MethodFigures.load(output)
    assert result.texts == ("x", "2")
    assert len(result.problems) == 1


def test_compare(folder: str, data: str, tmp_path: Path) -> None:
    output = tmp_path / "methods.json"
    asked = ("compare", "--model", folder, "--data", data, *METHODS, "--limit", "3")
    done = succeed(*asked, "--output", str(output))
    result = Agreement.load(output)
    expected = normscope.compare(
        classifier(), masked_tokenizer(), TEXTS[:3], methods=("frozen", "secant@sun", "random")
    )
    np.testing.assert_allclose(result.correlations, expected.correlations, atol=1e-12)
    assert "| frozen | 1.00 |" in done.stdout
    for name in ("methods.html", "methods.png"):
        succeed("compare", "--merge", str(output), "--output", str(tmp_path / name))
    assert "<table" in (tmp_path / "methods.html").read_text(encoding="utf-8")
    assert (tmp_path / "methods.png").read_bytes().startswith(b"\x89PNG")
    text = ("--text", TEXTS[0], "--text", TEXTS[1])
    assert "texts: 2, left out: 0" in succeed("compare", "--model", folder, *text).stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give the texts"),
        (("--text", "a", "--data", "x.txt"), "one of the two"),
        (("--text", "a", "--merge", "x.json"), "leave out --data and --text"),
        (("--text", "a", "--output", "x.png"), "x.png"),
        (("--text", "a", "--metrics", "x"), "unknown metric: 'x'"),
        (("--text", "a", "--conventions", "x"), "no preset 'x'"),
        (("--merge", "none.json"), "cannot read 'none.json'"),
    ],
)
def test_wrong_options_are_explained(options: tuple[str, ...], message: str) -> None:
    assert message in fail("faithfulness", *options)


def test_parts_are_checked(folder: str, data: str) -> None:
    asked = ("compare", "--model", folder, "--data", data)
    for part, message in [("0/2", "a part is written"), ("8", "a part"), ("1/9", "too few")]:
        assert message in fail(*asked, "--part", part)
