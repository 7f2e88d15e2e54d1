"""`normscope attribute`: the printed text, files of every kind, and one clear line for errors."""

from __future__ import annotations

import csv
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscope
from normscope import Attribution
from normscope.attribution.api import Explainer
from normscope.cli.attribute import OPTIONS, QUESTION, AttributeArguments
from normscope.show.wording import short_signature
from tests.helpers.commands import fail, run, spawn, succeed
from tests.helpers.heads import classifier, language_model
from tests.helpers.tiny import tokenizer

PROMPT = "the cat sat on the"


def saved(model: Any, folder: Path) -> str:
    model.save_pretrained(folder)
    tokenizer(pair=False).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def lm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny language model."""
    return saved(language_model(), tmp_path_factory.mktemp("models") / "tiny-lm")


@pytest.fixture(scope="session")
def clf(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny classifier."""
    return saved(classifier(), tmp_path_factory.mktemp("models") / "tiny-clf")


def expected(folder: str, **keywords: Any) -> Attribution:
    return normscope.attribute(folder, text=PROMPT, **keywords)


def test_the_text_and_its_proof_are_printed(lm: str) -> None:
    asked = ("--answer", " mat", "--foil", " house")
    printed = succeed("attribute", "--model", lm, "--text", PROMPT, *asked).stdout
    result = expected(lm, answer=" mat", foil=" house")
    assert "What made the model say 'mat' rather than 'house'" in printed
    for token in result.tokens.texts:
        assert token in printed
    assert f"{result.value:.4g}"[:5] in printed
    assert printed.rstrip().endswith("(--signature)")
    printed = succeed("attribute", PROMPT, "--model", lm, *asked, "--signature").stdout
    assert printed.rstrip().endswith(f"signature  {result.signature}")


def test_every_option_of_python_is_an_option(lm: str) -> None:
    declared = set(AttributeArguments.__dataclass_fields__)
    assert set(QUESTION) <= declared
    assert set(OPTIONS) - declared == {"recompute"}


@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        (["--continuation", " mat and"], {"continuation": " mat and"}),
        (["--generate", "3"], {"generate": 3}),
        (["--answer", " mat", "--position", "-2"], {"answer": " mat", "position": -2}),
        (["--answer", " mat", "--units", "logprob"], {"answer": " mat", "units": "logprob"}),
        (["--baseline", "<unk>", "--baseline", "mean"], {"baseline": ["<unk>", "mean"]}),
        (["--method", "input_x_gradient"], {"method": "input_x_gradient"}),
        (["--trace"], {"trace": True}),
    ],
)
def test_json_on_standard_output(lm: str, options: list[str], keywords: dict[str, Any]) -> None:
    done = succeed("attribute", "--model", lm, "--text", PROMPT, *options, "--output", "-")
    printed = json.loads(done.stdout)
    result = expected(lm, **keywords).to_dict()
    assert printed.keys() == result.keys()
    for name in ("scores", "value", "bias"):
        np.testing.assert_allclose(printed[name], result[name], atol=1e-12)
    assert printed["tokens"] == result["tokens"]


def test_labels_and_pairs(clf: str) -> None:
    asked = ("--answer", "positive", "--foil", "0", "--text-pair", "it was red")
    done = succeed("attribute", "--model", clf, "--text", PROMPT, *asked, "-o", "-")
    result = expected(clf, answer="positive", foil=0, text_pair="it was red")
    np.testing.assert_allclose(json.loads(done.stdout)["scores"], result.scores.values)


def test_similarity_uses_the_default_encoder() -> None:
    asked = ("--text", "A man plays a guitar.", "--similar-to", "Someone makes music.")
    printed = succeed("attribute", *asked).stdout
    assert "similar to 'Someone makes music.'" in printed
    assert "guitar" in printed


def test_files_of_every_kind(lm: str, tmp_path: Path) -> None:
    result = expected(lm, answer=" mat")
    for kind in ("json", "csv", "safetensors", "html", "png", "svg"):
        file = tmp_path / f"mat.{kind}"
        asked = ("--text", PROMPT, "--answer", " mat", "--output", str(file))
        done = succeed("attribute", "--model", lm, *asked)
        assert done.stdout == ""
        short = short_signature(result.signature, "--signature", 69)
        assert done.stderr == f"wrote {file}\nsignature  {short}\n"
        assert file.stat().st_size > 100
    loaded = normscope.load(tmp_path / "mat.safetensors")
    assert isinstance(loaded, Attribution)
    np.testing.assert_array_equal(loaded.scores.values, result.scores.values)
    assert loaded.answer == "mat"
    lines = (tmp_path / "mat.csv").read_text(encoding="utf-8").splitlines()
    shares = [float(row["share"]) for row in csv.DictReader(lines)]
    assert sum(shares) == pytest.approx(result.value)
    assert json.loads((tmp_path / "mat.json").read_text())["answer"] == "mat"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no text was given"),
        (["a", "--text", "b"], "the text was given twice"),
        (["--text", "a", "--data", "b.jsonl"], "give one text, or a file of texts"),
        (["a", "--data", "b.jsonl"], "give one text, or a file of texts"),
        (["--data", "b.jsonl", "--words"], "--words is for one text"),
        (["--data", "b.jsonl", "--open"], "--open is for one text"),
        (["", "--answer", "a"], "text is empty"),
        (["a", "--answer", ""], "answer is empty"),
        (["a", "--text-pair", " "], "text_pair is only whitespace"),
        (["a", "--open", "--output", "a.png"], "--open shows a page"),
        (["a"], "cannot load the model 'not/there': it is neither a folder"),
        (["--text", "a", "--foil", "b"], "without an answer"),
        (["--text", "a", "--answer", "b", "--generate", "2"], "answer and generate each specify"),
        (["--text", "a", "--method", "secant"], "give baseline="),
        (["--text", "a", "--method", "frozen", "--baseline", "b"], "leave out one"),
        (["--text", "a", "--units", "bits"], "units must be one of"),
        (["--text", "a", "--restart"], "--restart is only for --data"),
        (["--text", "a", "--output", "a.txt"], "it must end in one of"),
        (["--text", "a", "--generate", "0"], "generate"),
        (["--data", "a.jsonl"], "give --output shares.parquet"),
        (["--data", "a.jsonl", "--output", "a.html"], "must end in one of: .parquet, .jsonl"),
        (["--data", "none.jsonl", "--output", "a.jsonl"], "cannot read 'none.jsonl'"),
        (["--data", "a.doc", "--output", "a.jsonl"], "cannot tell the format of 'a.doc'"),
    ],
)
def test_errors_come_before_the_model_is_loaded(
    options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in fail("attribute", "--model", "not/there", *options)


def test_errors_of_the_model(lm: str, clf: str) -> None:
    unknown = fail("attribute", "--model", clf, "--text", PROMPT, "--answer", "good")
    assert "its labels are: 0 'negative', 1 'positive'" in unknown
    sizes = fail("attribute", "--model", lm, "--text", PROMPT, "--baseline", "a dog")
    assert "6 tokens and the baseline 3" in sizes


def test_help_imports_no_numeric_library() -> None:
    done = spawn("attribute", "--help")
    assert done.returncode == 0
    assert b"--similar-to" in done.stdout
    code = (
        "import sys, normscope.cli.attribute; "
        "sys.exit(bool({'torch', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- files of texts


def write_rows(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


ROWS: list[dict[str, Any]] = [
    {"text": PROMPT, "answer": " mat", "foil": " house", "id": "first"},
    {"text": "a dog", "continuation": " ran and sat"},
    {"text": "she looked at the red house", "baseline": "<unk>"},
    {"text": "the sun"},
]


def test_a_file_of_texts(lm: str, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    data, output = write_rows(tmp_path / "rows.jsonl", ROWS), tmp_path / "shares.parquet"
    done = succeed("attribute", "--model", lm, "--data", data, "--output", str(output))
    assert f"wrote {output}: 4 of 4 rows" in done.stderr
    table = pq.read_table(output).to_pylist()
    assert [(row["row"], row["step"]) for row in table] == [
        (0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (3, 0),
    ]  # fmt: skip
    for row in table:
        asked = {k: v for k, v in ROWS[row["row"]].items() if k not in ("text", "id")}
        result = normscope.attribute(lm, text=ROWS[row["row"]]["text"], **asked)
        shares = np.atleast_2d(result.scores.values)[row["step"]]
        np.testing.assert_allclose(row["shares"], shares, atol=1e-12)
        assert sum(row["shares"]) + row["bias"] == pytest.approx(row["value"])
        assert row["tokens"] == list(result.tokens.strings)
        assert row["signature"] == result.signature
    assert [row["id"] for row in table[:2]] == ["first", None]
    assert table[3]["answer"] == "sat"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rows.jsonl", "shares.parquet"]


def test_options_are_defaults_for_the_rows(lm: str, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"text": PROMPT},
        {"text": PROMPT, "answer": " house"},
        {"text": "a", "generate": 1},
    ]
    data, output = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "shares.jsonl"
    asked = ("--answer", " mat", "--trace", "--output", str(output))
    succeed("attribute", "--model", lm, "--data", data, *asked)
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [line["answer"] for line in lines[:2]] == ["mat", "house"]
    assert len(lines[2]["steps"]) == 1
    assert np.shape(lines[0]["trace"]["layers"]) == (4, 6)


def test_other_formats_of_data(lm: str, tmp_path: Path) -> None:
    expected_scores = expected(lm, answer=" mat", position=2).scores.values
    (tmp_path / "a.csv").write_text(
        f"text,answer,position,note\n{PROMPT}, mat,2,x\na dog,,,\n", encoding="utf-8"
    )
    pyarrow = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"text": [PROMPT, "a"], "answer": [" mat", None], "position": [2, None]})
    pq.write_table(table, tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        output = tmp_path / "a.jsonl"
        succeed("attribute", "--model", lm, "--data", str(tmp_path / name), "-o", str(output))
        first, second = map(json.loads, output.read_text(encoding="utf-8").splitlines())
        np.testing.assert_allclose(first["scores"], expected_scores, atol=1e-12)
        assert second["steps"] is None
    (tmp_path / "a.txt").write_text("the cat\n\na dog\n", encoding="utf-8")
    output = tmp_path / "b.jsonl"
    succeed("attribute", "--model", lm, "--data", str(tmp_path / "a.txt"), "-o", str(output))
    assert len(output.read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "rows.jsonl, line 2: broken JSON"),
        ('"the cat"', 'line 2: a row is an object with a field "text"'),
        ('{"prompt": "the cat"}', "line 2: no field 'text'; there is: 'prompt'"),
        ('{"text": "a", "foil": "b"}', "line 2: a foil ('b') was given without an answer"),
        ('{"text": "a", "generate": "x"}', "line 2: generate is a number"),
        ('{"text": "a", "baseline": "the cat"}', "line 2: the text has"),
        ('{"text": ""}', "line 2: text is empty"),
    ],
)
def test_bad_rows_are_named(lm: str, tmp_path: Path, line: str, message: str) -> None:
    data, output = tmp_path / "rows.jsonl", tmp_path / "shares.jsonl"
    data.write_text(json.dumps({"text": PROMPT}) + "\n" + line + "\n", encoding="utf-8")
    asked = ("--data", str(data), "--output", str(output))
    done = fail("attribute", "--model", lm, *asked)
    assert message in done
    assert not output.exists()


def test_bad_rows_can_be_left_out(lm: str, tmp_path: Path) -> None:
    rows = [{"text": PROMPT}, {"text": "a", "baseline": "the cat"}, {"text": "a dog"}]
    data, output = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "shares.jsonl"
    asked = ("--data", data, "--output", str(output), "--skip-bad")
    done = succeed("attribute", "--model", lm, *asked)
    assert "left out: rows.jsonl, line 2: the text has 2 tokens" in done.stderr
    assert "2 of 3 rows" in done.stderr
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [line["row"] for line in lines] == [0, 2]


def test_an_interrupted_run_is_continued(
    lm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("normscope.corpus.finished")
    rows = [
        {"text": f"{PROMPT} {word}"}
        for word in ["cat", "dog", "sun", "rain", "moon", "night", "day"]
    ]
    data, output = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "shares.jsonl"
    partial = tmp_path / "shares.jsonl.partial"
    asked = ("attribute", "--model", lm, "--data", data, "--output", str(output))
    monkeypatch.setattr(module, "CHUNK", 2)
    succeed(*asked)
    whole = output.read_bytes()
    output.unlink()
    explain, seen = Explainer.explain, []

    def interrupted(self: Any, questions: Any) -> Any:
        seen.append([text for text, _ in questions])
        if len(seen) == 3:
            raise KeyboardInterrupt
        return explain(self, questions)

    monkeypatch.setattr(Explainer, "explain", interrupted)
    done = run(*asked)
    assert done.exit_code == 130
    assert f"finished rows are in {partial}; the same command resumes there" in done.stderr
    assert not output.exists()
    assert partial.read_bytes().count(b"\n") == 1 + 4
    with partial.open("ab") as file:
        file.write(b'{"row": 4, "id": nu')  # a line that was not finished

    changed = ("--units", "logprob")
    message = fail(*asked, *changed)
    assert "has the rows of another run (not the same: signature)" in message
    assert partial.read_bytes().count(b"\n") == 1 + 4

    succeed(*asked)
    assert output.read_bytes() == whole
    assert not partial.exists()
    assert [text for texts in seen[3:] for text in texts] == [row["text"] for row in rows[4:]]


def test_a_run_with_other_data_is_started_again_on_request(lm: str, tmp_path: Path) -> None:
    data, output = tmp_path / "rows.jsonl", tmp_path / "shares.jsonl"
    partial = tmp_path / "shares.jsonl.partial"
    write_rows(data, [{"text": PROMPT}])
    asked = ("attribute", "--model", lm, "--data", str(data), "--output", str(output))
    partial.write_text('{"signature": "another"}\n', encoding="utf-8")
    assert "start again with --restart" in fail(*asked)
    succeed(*asked, "--restart")
    assert output.is_file()
    assert not partial.exists()
