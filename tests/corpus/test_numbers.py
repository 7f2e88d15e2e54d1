"""The numbers of a corpus run, with the real statistics: tables, files, maps, the command."""

from __future__ import annotations

import csv
import importlib
import json
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from typer.testing import CliRunner

import normscope
from normscope.cli import app as cli
from normscope.corpus import work
from normscope.measures.statistics import Measurer, Row, Settings, Table, choose, merge
from normscope.models import load
from normscope.models.architectures import tiny_model
from normscope.text.tokens import encode
from tests.helpers.corpora import (
    SETTINGS,
    STATISTICS,
    assert_same,
    columns,
    contents,
    mixed_corpus,
)
from tests.helpers.tiny import tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_corpus(tmp_path_factory.mktemp("corpus"))


def run(folder: Path, output: Path | None = None, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "model": folder / "model",
        "data": [folder / "a.txt", folder / "b.jsonl"],
        "statistics": STATISTICS,
        "settings": SETTINGS,
        "block_rows": 31,
        "batch_tokens": 10_000,
    }
    return normscope.corpus(**{**arguments, "output": output, **changes})


def test_the_tables_are_those_of_one_batch_after_the_other(folder: Path) -> None:
    result = run(folder)
    model, reader = load(folder / "model")
    assert reader is not None
    texts: list[Sequence[str]] = [(t,) for t in (folder / "a.txt").read_text().splitlines()]
    for line in (folder / "b.jsonl").read_text().splitlines():
        if '"text_pair"' in line:
            told = json.loads(line)
            texts.append((told["text"], told["text_pair"]))
    keys = [*range(43), *range(45, 61)]  # rows 43, 44 and 61 are bad
    chosen = choose(STATISTICS, SETTINGS)
    measurer = Measurer(model, reader, chosen, SETTINGS)
    rows = []
    for key, text in zip(keys, texts, strict=True):
        one = encode(reader, *text, max_length=None, truncate=False)
        types = tuple(one.extra["token_type_ids"])
        rows.append(Row(key, tuple(one.ids), types, one.tokens.special))
    states: dict[str, Any] = {}
    for start in range(0, len(rows), 12):
        states = merge(chosen, states, measurer.measure(rows[start : start + 12]))
    for statistic in chosen:
        for name, table in statistic.result(states[statistic.name]).items():
            full = name if name.startswith(statistic.name) else f"{statistic.name}_{name}"
            for column, values in table.lists().items():
                assert_same(result[full].lists()[column], values, 1e-5)
    assert result.counts["sequences"] == len(texts) == 59


@pytest.mark.parametrize("changes", [{"block_rows": 1000}, {"batch_tokens": 300}])
def test_batches_and_blocks_do_not_matter(folder: Path, changes: dict[str, Any]) -> None:
    one, other = columns(run(folder)), columns(run(folder, **changes))
    assert one.keys() == other.keys()
    for name, table in one.items():
        for column, values in table.items():
            assert_same(other[name][column], values, 1e-5)


def test_tables_in_all_files_say_the_same(folder: Path, tmp_path: Path) -> None:
    pd: Any = importlib.import_module("pandas")
    pl: Any = importlib.import_module("polars")

    result = run(folder, tmp_path / "out")
    told = json.loads((tmp_path / "out" / "statistics.json").read_text())
    for name, table in result.tables.items():
        path = tmp_path / "out" / "tables" / f"{name}.parquet"
        frame, other = pd.read_parquet(path), pl.read_parquet(path)
        lines = csv.reader(path.with_suffix(".csv").read_text().splitlines())
        written = dict(zip(next(lines), zip(*lines, strict=True), strict=True))
        for column, values in table.lists().items():
            assert_same(list(other[column]), values)
            if values and isinstance(values[0], float):
                assert_allclose(frame[column], values, rtol=0, equal_nan=True)
                assert_allclose([float(v) for v in written[column]], values, rtol=0)
                again = [
                    np.nan if v is None else v for v in told["tables"][name]["columns"][column]
                ]
                assert_allclose(again, values, rtol=0, equal_nan=True)


class Lengths:
    """A user's own statistic: how long sequences are."""

    name = "lengths"
    conditions = ("plain",)

    def observe(self, layer: Any) -> dict[str, Any]:
        return {}

    def measure(self, batch: Any) -> dict[str, Any]:
        return {"counts": np.bincount([len(row.ids) for row in batch.rows], minlength=65)}

    def merge(self, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        return {"counts": one["counts"] + other["counts"]}

    def result(self, state: dict[str, Any]) -> dict[str, Table]:
        used = np.flatnonzero(state["counts"])
        return {"lengths": Table({"tokens": used, "sequences": state["counts"][used]})}


def test_a_statistic_of_your_own(folder: Path) -> None:
    result = run(folder, statistics=["mixing", Lengths()])
    table = result["lengths"].lists()
    assert sum(table["sequences"]) == 59
    assert np.dot(table["tokens"], table["sequences"]) == result.counts["tokens"]
    assert "lengths (test_corpus_numbers.Lengths/" in result.signature  # and its code's hash


def test_ready_tokens(folder: Path, tmp_path: Path) -> None:
    rows = [
        {"tokens": ["<s>", "the", "cat", "</s>", "a", "dog", "</s>"], "attns": np.zeros(3)},
        {"tokens": ["<s>", "unheard", "</s>"]},
        {"tokens": ["<s>", "</s>"]},
        {"tokens": ["<s>", *["cat"] * 90, "</s>"]},
    ]
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(rows))
    result = run(folder, data=tmp_path / "a.pkl", statistics=["mixing"])
    assert (result.counts["sequences"], result.counts["cut"]) == (2, 1)
    assert result.counts["tokens"] == 7 + 64
    messages = [one.message for one in result.problems]
    assert "'unheard' is not in the tokenizer's vocabulary" in messages[0]
    assert "only special tokens" in messages[1]
    texts = run(folder, data=[("the cat", "a dog"), " ".join(["cat"] * 62)], statistics=["mixing"])
    for name, table in columns(texts).items():
        for column, values in table.items():
            assert_same(columns(result)[name][column], values, 1e-5)


def test_dumped_maps_are_those_of_analyze_and_everybody_reads_them(
    folder: Path, tmp_path: Path
) -> None:
    datasets: Any = importlib.import_module("datasets")
    pd: Any = importlib.import_module("pandas")
    pl: Any = importlib.import_module("polars")

    run(folder, tmp_path / "out", dump=True, data=folder / "a.txt")
    maps = tmp_path / "out" / "maps"
    frame = pd.read_parquet(maps)
    assert list(frame.columns) == ["key", "layer", "tokens", "ids", "attn_w", "attn_n"]
    texts = (folder / "a.txt").read_text().splitlines()
    model, reader = tiny_model("bert", dtype=torch.float32), tokenizer()
    layers = len(frame) // len(texts)
    for key in (0, 7, 39):
        result = normscope.analyze(model, reader, texts[key])
        mine = frame[frame.key == key].sort_values("layer")
        assert list(mine.layer) == list(range(layers))
        assert list(mine.tokens.iloc[0]) == list(result.tokens.strings)
        for name in ("attn_w", "attn_n"):
            values = np.stack([np.stack(list(one)) for one in mine[name]])
            assert_allclose(values, result[name].values, rtol=1e-5, atol=1e-7)
    assert pl.read_parquet(maps / "*.parquet").height == len(frame)
    data = datasets.Dataset.from_parquet(
        [str(one) for one in sorted(maps.glob("*.parquet"))], cache_dir=str(tmp_path / "cache")
    )
    assert data.num_rows == len(frame)
    assert np.shape(data[0]["attn_n"]) == np.stack(list(frame.attn_n[0])).shape


def command(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["corpus", *arguments], prog_name="normscope")


def test_the_command(folder: Path, tmp_path: Path) -> None:
    common = ["--model", str(folder / "model"), "--data", str(folder / "a.txt"), "--masking", "0"]
    both = [*common, "--data", str(folder / "b.jsonl"), "--output", str(tmp_path / "out")]
    assert command("--model", str(folder / "model")).exit_code == 2  # no data
    done = command(*both, "--statistics", "mixing,categories", "--sample", "0.8", "--seed", "1")
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert "bad row: b.jsonl, line 4: broken JSON" in done.output
    assert f"wrote {tmp_path / 'out'}" in done.output
    before = contents(tmp_path / "out")
    again = command(*both, "--statistics", "mixing,categories", "--sample", "0.8", "--seed", "1")
    assert again.exit_code == 0
    assert contents(tmp_path / "out") == before
    refused = command(*both, "--statistics", "mixing", "--sample", "0.8", "--seed", "1")
    assert refused.exit_code == 2
    assert "holds a run with other settings: statistics was" in " ".join(refused.output.split())
    shown = command(*common, "--statistics", "mixing", "--limit", "10")
    assert shown.exit_code == 0
    assert "attn_res_ln_n" in shown.output
    assert "10 sequences" in shown.output
    # As a shell writes --data *: more files follow the first.
    several = command("--data", str(folder / "a.txt"), str(folder / "b.jsonl"), *common[:2],
                      "--statistics", "dispersion,preserve_mix")  # fmt: skip
    assert several.exit_code == 0, several.output
    assert "bad row: b.jsonl, line 4: broken JSON" in several.output
    assert "…" not in several.output  # no number is cut off, and each column has its name
    for name in ("dispersion_transformed_norm", "intervals are in the files", "preserved"):
        assert name in several.output
    assert command(*common, "--sample", "some").exit_code == 2
    assert command(*common, "--bad-rows", "drop").exit_code == 2


def test_categories_on_the_command_line_are_those_of_python(folder: Path, tmp_path: Path) -> None:
    given = ["--category", 'marks=.,","', "--category", "c=/c.*/", "--category", "the=the"]
    common = ["--model", str(folder / "model"), "--data", str(folder / "a.txt")]
    done = command(
        *common, "--statistics", "categories,mixing", "--masking", "0", "--replicates", "0",
        *given, "--output", str(tmp_path / "out"),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    own: dict[str, Any] = {"marks": [".", ","], "c": re.compile("c.*"), "the": ["the"]}
    settings = Settings(categories=own, masking=0.0, replicates=0)
    wanted = normscope.corpus(
        folder / "model", [folder / "a.txt"], ["categories", "mixing"], settings=settings
    )
    for name, table in wanted.tables.items():
        assert (tmp_path / "out" / "tables" / f"{name}.csv").read_text() == table.to_csv()
    assert wanted["categories"].lists()["category"] == ["marks", "c", "the", "others"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["stop"], "NAME=TOKEN,TOKEN or NAME=/REGEX/"),
        (["=the"], "NAME=TOKEN,TOKEN or NAME=/REGEX/"),
        (["stop="], "NAME=TOKEN,TOKEN or NAME=/REGEX/"),
        (["stop=the,,a"], "separate them by single commas"),
        (['stop=the,"'], "separate them by single commas"),
        (["c=/(/"], "is not a valid regular expression"),
        (["c=/zebra[0-9]/"], "no token of the tokenizer's vocabulary"),
        (["stop=zebra"], "is not in the tokenizer's vocabulary"),
        (["stop=the", "stop=a"], "was given twice"),
        (["all=the"], "may not be called 'all'"),
    ],
)
def test_categories_that_cannot_be(folder: Path, given: list[str], message: str) -> None:
    options = [word for one in given for word in ("--category", one)]
    done = command("--model", str(folder / "model"), "--data", str(folder / "a.txt"), *options)
    assert done.exit_code == 2, done.output
    assert message in done.output


def test_ctrl_c_says_how_to_go_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: Any) -> None:
        raise KeyboardInterrupt

    common = ["--model", str(folder / "model"), "--data", str(folder / "a.txt"), "--replicates=0"]
    common += ["--masking=0", "--statistics=mixing"]
    kept = [*common, "--output", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr(work.Worker, "run", pressed)
        done, lost = command(*kept), command(*common)
        anew = command(*kept, "--restart")
    assert (done.exit_code, lost.exit_code) == (130, 130)
    where = f"normscope: progress is saved in {tmp_path / 'out'}; the same command continues"
    assert where in done.output
    assert done.output.endswith("normscope: error: interrupted\n")
    assert "nothing was saved; a run with --output DIR can be continued" in lost.output
    assert "; the same command without --restart continues" in anew.output
    again = command(*kept)
    assert again.exit_code == 0, again.output
