"""A corpus run: the numbers, its folder, what is refused, bad rows, the report and the command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import normscope
from normscope.corpus import work
from normscope.corpus.checkpoint import held, pack, unpack
from normscope.corpus.records import Problem
from normscope.errors import ExactnessError, InputError
from normscope.measures.statistics import Row, Settings, Table
from normscope.models.architectures import tiny_model
from tests.helpers.corpora import (
    SETTINGS,
    QuickMeasurer,
    Sums,
    assert_same,
    columns,
    contents,
    lasting,
    mixed_corpus,
    quick_measuring,
    save_model,
    sentences,
)
from tests.helpers.tiny import tokenizer


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    with quick_measuring():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_corpus(tmp_path_factory.mktemp("corpus"))


def run(folder: Path, output: Path | None = None, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "model": folder / "model",
        "data": [folder / "a.txt", folder / "b.jsonl"],
        "statistics": [Sums()],
        "settings": SETTINGS,
        "block_rows": 8,
        "batch_tokens": 64,
    }
    return normscope.corpus(**{**arguments, "output": output, **changes})


# ----------------------------------------------------------------------------- the account


def test_two_equal_runs_give_equal_files(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "one")
    run(folder, tmp_path / "two")
    assert lasting(tmp_path / "one") == lasting(tmp_path / "two")
    names = set(contents(tmp_path / "one"))
    assert {"statistics.json", "run.json", "report.html"} < names
    assert {"tables/sums.csv", "tables/sums.parquet"} < names
    assert "checkpoint.npz" not in names


def test_what_the_account_says(folder: Path, tmp_path: Path) -> None:
    result = run(folder, tmp_path / "out", max_length=8)
    assert result.counts["rows"] == 62
    assert result.counts["bad"] == {"empty": 1, "json": 1, "type": 1}
    assert [one.where for one in result.problems] == [
        *("b.jsonl, line 4", "b.jsonl, line 5", "b.jsonl, line 22")
    ]
    reader = tokenizer()
    texts = (folder / "a.txt").read_text().splitlines()
    long = [text for text in texts if len(reader(text)["input_ids"]) > 8]
    pairs = [json.loads(x) for x in (folder / "b.jsonl").read_text().splitlines() if "_pair" in x]
    long += [p for p in pairs if len(reader(p["text"], p["text_pair"])["input_ids"]) > 8]
    assert result.counts["cut"] == len(long) > 10
    told = json.loads((tmp_path / "out" / "statistics.json").read_text())
    assert told["counts"] == result.counts
    assert told["signature"] == result.signature
    assert told["identity"]["options"]["max_length"] == 8
    times = json.loads((tmp_path / "out" / "run.json").read_text())
    assert times["tokens_per_second"] > 0
    assert "seconds" not in (tmp_path / "out" / "statistics.json").read_text()


# ------------------------------------------------------------------------------ the folder


def test_a_finished_folder_is_read_and_not_touched(folder: Path, tmp_path: Path) -> None:
    first = run(folder, tmp_path / "out", dump=True, limit=9)
    before = contents(tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    again = run(folder, tmp_path / "out", dump=True, limit=9)
    assert contents(tmp_path / "out") == before
    changed = {path for path, at in times.items() if path.stat().st_mtime_ns != at}
    assert changed <= {tmp_path / "out"}
    assert (again.counts, again.problems) == (first.counts, first.problems)
    assert again.signature == first.signature
    for name, table in columns(first).items():
        for column, values in table.items():
            assert_same(columns(again)[name][column], values)


def changed_weights(folder: Path, tmp_path: Path) -> dict[str, Any]:
    return {"model": save_model(tmp_path / "model", seed=1)}


def changed_config(folder: Path, tmp_path: Path) -> dict[str, Any]:
    made = save_model(tmp_path / "model")
    config = json.loads((made / "config.json").read_text())
    config["layer_norm_eps"] = 1e-3
    (made / "config.json").write_text(json.dumps(config))
    return {"model": made}


def changed_data(folder: Path, tmp_path: Path) -> dict[str, Any]:
    text = (folder / "a.txt").read_text()
    (tmp_path / "a.txt").write_text(text.replace("cat", "dog", 1))
    return {"data": [tmp_path / "a.txt", folder / "b.jsonl"]}


def fewer_data(folder: Path, tmp_path: Path) -> dict[str, Any]:
    return {"data": [folder / "a.txt"]}


def other(**changes: Any) -> Any:
    return lambda folder, tmp_path: changes


CHANGES = [
    (changed_weights, r"model\.weights was"),
    (changed_config, r"model\.config was"),
    (changed_data, r"data\[0\]\.sha256 was"),
    (fewer_data, r"data\[1\]\.name was \"b.jsonl\" and is not there"),
    (other(max_length=16), r"options\.max_length was 64 and is 16"),
    (other(batch_tokens=32), r"options\.batch_tokens was 64 and is 32"),
    (other(text_field="body"), r"options\.text_field was not there and is \"body\""),
    (other(pair_field="next"), r"options\.pair_field was not there and is \"next\""),
    (other(limit=30), r"options\.limit was not there and is 30"),
    (other(sample=0.5), r"options\.sample was not there and is 0\.5"),
    (other(seed=3), r"settings\.seed was 0 and is 3"),
    (other(bad_rows="error"), r"options\.bad_rows was \"skip\" and is \"error\""),
    (other(settings=replace(SETTINGS, categories={"the": ["the"]})), r"settings\.categories"),
    (other(statistics=("mixing",)), r"statistics was .*Sums.* and is \[\"mixing\"\]"),
    (other(dtype="float64"), r"model\.dtype was \"float32\" and is \"float64\""),
]


@pytest.fixture(scope="module")
def standing(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run, and one that was interrupted."""
    home = tmp_path_factory.mktemp("standing")
    run(folder, home / "finished")
    interrupt(folder, home / "begun", after=3)
    return {"finished": home / "finished", "begun": home / "begun"}


class Stop(BaseException):
    """The process ends here."""


def interrupt(folder: Path, output: Path, after: int, **changes: Any) -> None:
    """A run that stops dead after some blocks."""
    with pytest.MonkeyPatch.context() as patch:
        done, whole = [0], work.Worker.run

        def stopping(self: Any, block: Any) -> Any:
            if done[0] == after:
                raise Stop
            done[0] += 1
            return whole(self, block)

        patch.setattr(work.Worker, "run", stopping)
        with pytest.raises(Stop):
            run(folder, output, checkpoint_seconds=0.0, **changes)


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_a_changed_model_data_or_setting_is_refused_by_name(
    folder: Path, standing: dict[str, Path], tmp_path: Path, change: Any, words: str
) -> None:
    changes = change(folder, tmp_path)
    for output in standing.values():
        before = contents(output)
        with pytest.raises(InputError, match=words) as caught:
            run(folder, output, **changes)
        assert "--restart" in str(caught.value)
        assert contents(output) == before


def test_another_version_is_refused(
    folder: Path, standing: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(normscope, "__version__", "9.9.9")
    with pytest.raises(InputError, match=r'versions.normscope was "0.1.0" and is "9.9.9"'):
        run(folder, standing["begun"])


def test_an_interrupted_run_is_continued_not_begun_anew(folder: Path, tmp_path: Path) -> None:
    whole = run(folder, tmp_path / "whole", dump=True, limit=28)
    interrupt(folder, tmp_path / "out", after=2, dump=True, limit=28)
    assert not (tmp_path / "out" / "statistics.json").exists()
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        plain = work.Worker.run
        patch.setattr(work.Worker, "run", lambda s, b: seen.append(b.index) or plain(s, b))  # type: ignore[func-returns-value]
        again = run(folder, tmp_path / "out", dump=True, limit=28)
    assert seen == [2, 3]
    assert lasting(tmp_path / "out") == lasting(tmp_path / "whole")
    assert again.run["starts"] == 2
    assert whole.run["starts"] == 1


class Other(Sums):
    name = "other"

    def result(self, state: dict[str, Any]) -> dict[str, Table]:
        return {"other": Table({"rows": [state["rows"]]})}


def test_restart_begins_anew_and_leaves_other_files_alone(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "out", dump=True, limit=9)
    (tmp_path / "out" / "tables" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "notes.md").write_text("mine")
    run(folder, tmp_path / "out", restart=True, statistics=[Other()])
    names = set(contents(tmp_path / "out"))
    assert {"tables/notes.txt", "notes.md", "tables/other.csv"} < names
    assert not any(name.startswith(("tables/sums", "maps")) for name in names)


def test_settings_may_be_corrected_before_anything_is_measured(
    folder: Path, tmp_path: Path
) -> None:
    interrupt(folder, tmp_path / "out", after=0)
    run(folder, tmp_path / "out", limit=9)
    assert lasting(tmp_path / "out") == lasting(run(folder, tmp_path / "new", limit=9).folder)


def test_a_restart_that_was_killed_half_way_can_be_restarted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = lasting(run(folder, tmp_path / "out").folder)
    left, unlink = [0], Path.unlink

    def killed(self: Path, missing_ok: bool = False) -> None:
        left[0] -= 1
        if not left[0]:
            raise Stop
        unlink(self, missing_ok)

    for moment in range(1, 5):
        left[0] = moment
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", killed)
            with pytest.raises(Stop):
                run(folder, tmp_path / "out", restart=True)
        with pytest.raises(InputError, match="--restart"):  # not taken for a finished one
            run(folder, tmp_path / "out")
        assert lasting(run(folder, tmp_path / "out", restart=True).folder) == wanted


def test_a_statistic_that_was_changed_is_another_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder, tmp_path / "out", statistics=[Other()])
    changed = Other()
    changed.least = 3  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="statistics was"):
        run(folder, tmp_path / "out", statistics=[changed])
    run(folder, tmp_path / "out", statistics=[Other()])
    monkeypatch.setattr("inspect.getsource", lambda made: "class Other: ...")
    with pytest.raises(InputError, match="statistics was"):
        run(folder, tmp_path / "out", statistics=[Other()])


def test_a_typing_mistake_does_not_cost_the_old_run(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "out")
    before = contents(tmp_path / "out")
    for wrong in ({"statistics": "mixin"}, {"data": "no.txt"}, {"max_length": 3}):
        with pytest.raises(InputError):
            run(folder, tmp_path / "out", restart=True, **wrong)
    assert contents(tmp_path / "out") == before


def test_somebody_elses_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"not empty and holds no run .*thesis\.tex"):
        run(folder, tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot write to the folder"):
        run(folder, tmp_path / "file")


def test_two_processes_do_not_share_a_folder(folder: Path, tmp_path: Path) -> None:
    with held(tmp_path / "out"), pytest.raises(InputError, match="another process is at work"):
        run(folder, tmp_path / "out")
    run(folder, tmp_path / "out")


def test_a_damaged_checkpoint_is_told(folder: Path, tmp_path: Path) -> None:
    interrupt(folder, tmp_path / "out", after=2)
    file = tmp_path / "out" / "checkpoint.npz"
    data = file.read_bytes()
    for damaged in (data[: len(data) // 2], b"", b"nonsense", data[:-200] + bytes(200)):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match=r"cannot be read .*--restart"):
            run(folder, tmp_path / "out")
    run(folder, tmp_path / "out", restart=True)


def test_packed_states_come_back_exactly_and_hold_no_objects() -> None:
    tree = {
        "a": np.arange(6.0).reshape(2, 3),
        "empty": np.zeros((0, 4), dtype=np.int8),
        "text": np.array(["é", "bc"]),
        "scalar": np.float32(0.1),
        "deep": {"n": 1 << 80, "x": 0.1, "none": None, "yes": True, "nan": float("nan")},
        "list": [1, "a", {"b": (2, 3.5)}],
        "": {},
    }
    found = unpack(pack(tree))
    assert repr(found) == repr(tree)
    assert found["scalar"].dtype == np.float32
    assert type(found["list"][2]["b"]) is tuple
    for bad in ({1: 2}, {"a": object()}, {"a": np.array([object()])}, {"a": {1, 2}}):
        with pytest.raises(TypeError, match="state"):
            pack(bad)


# ------------------------------------------------------------------------------------ rows


def test_bad_rows_can_be_fatal(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"b\.jsonl, line 4: broken JSON.*bad_rows=\"skip\""):
        run(folder, tmp_path / "out", bad_rows="error")
    assert not (tmp_path / "out" / "statistics.json").exists()


def test_a_row_the_model_cannot_take_costs_that_row_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = QuickMeasurer.measure

    def failing(self: Any, rows: Sequence[Row]) -> Any:
        if any(row.key in (5, 17) for row in rows):
            raise ExactnessError("row 5: NaN")
        return whole(self, rows)

    monkeypatch.setattr(QuickMeasurer, "measure", failing)
    result = run(folder, data=folder / "a.txt")
    assert result.counts["bad"] == {"measure": 2}
    assert result.counts["sequences"] == sum(result["sums_lengths"].lists()["sequences"]) == 38
    assert {one.where for one in result.problems} == {"a.txt, line 6", "a.txt, line 18"}
    with pytest.raises(InputError, match="row 5: NaN"):
        run(folder, data=folder / "a.txt", bad_rows="error")


def test_many_bad_rows_are_counted_and_the_first_listed(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("\n" * 50 + "the cat sat\n" + "\n" * 50)
    result = run(folder, data=file)
    assert result.counts["bad"] == {"empty": 100}
    assert [one.where for one in result.problems] == [f"a.txt, line {n + 1}" for n in range(20)]
    file.write_text("\n" * 50)
    with pytest.raises(
        InputError, match=r"of 50 rows none could be used; the first: a.txt, line 1"
    ):
        run(folder, data=file)


def test_a_sample_is_the_same_rows_whatever_the_blocks(folder: Path) -> None:
    one = run(folder, sample=0.4, seed=5)
    two = run(folder, sample=0.4, seed=5, block_rows=3)
    assert one.counts == two.counts
    assert 10 < one.counts["rows"] < 40
    assert run(folder, sample=12).counts["rows"] == 12
    assert run(folder, limit=7).counts["rows"] == 7
    assert run(folder, limit=30, sample=10).counts["rows"] == 10


def test_rows_from_python(folder: Path, tmp_path: Path) -> None:
    texts = sentences(30)
    wanted = columns(run(folder, data=texts))
    assert columns(run(folder, data=iter(texts))) == wanted
    assert columns(run(folder, data=({"text": one} for one in texts))) == wanted
    interrupt(folder, tmp_path / "out", after=2, data=iter(texts))
    with pytest.raises(InputError, match="not those that the run in this folder began with"):
        run(folder, tmp_path / "out", data=iter(["other", *texts[1:]]))
    assert columns(run(folder, tmp_path / "out", data=iter(texts))) == wanted
    before = contents(tmp_path / "out")
    assert columns(run(folder, tmp_path / "out", data=iter(texts))).keys() == wanted.keys()
    with pytest.raises(InputError, match=r"data\[0\]\.sha256 was"):
        run(folder, tmp_path / "out", data=iter(texts[:-1]))
    assert contents(tmp_path / "out") == before


def test_a_model_as_an_object(folder: Path) -> None:
    model, reader = tiny_model("bert", dtype=torch.float32), tokenizer()
    assert columns(run(folder, model=model, tokenizer=reader)) == columns(run(folder))
    with pytest.raises(InputError, match="no tokenizer was given"):
        run(folder, model=model)
    with pytest.raises(InputError, match="leave device out"):
        run(folder, model=model, tokenizer=reader, device="cpu")
    with pytest.raises(normscope.UnsupportedModelError, match="encoder–decoder"):
        run(folder, model=tiny_model("bart"), tokenizer=reader)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"statistics": "mixing,mixing"}, "each statistic once"),
        ({"statistics": []}, "no statistic was named"),
        ({"sample": True}, "a sample has at least 1 row, but was given True"),
        ({"statistics": "speed"}, "unknown statistic: 'speed'; valid are: dispersion"),
        ({"data": None}, "no data was given"),
        ({"engine": "spark"}, "engine is one of local, ray"),
        ({"workers": 2}, "go with engine"),
        ({"engine": "ray", "workers": 0}, "workers is a number from 1 on"),
        ({"bad_rows": "drop"}, 'bad_rows is "skip" or "error"'),
        ({"batch_tokens": 0}, "batch_tokens is a number from 1 on"),
        ({"max_length": 4}, "it must be at least 5"),
        ({"max_length": 65}, "takes at most 64"),
        ({"dump": True}, "a dump needs a folder"),
        ({"settings": Settings(ranks="no-file")}, "there is no 'no-file'"),
    ],
)
def test_mistakes_are_told(folder: Path, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        run(folder, **wrong)


# ---------------------------------------------------------------------------- dump and report


def test_the_report_holds_all_and_escapes_everything(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "<b>.txt"
    file.write_bytes(b"the cat sat\n\xff\n")

    class Rude(Sums):
        def result(self, state: dict[str, Any]) -> dict[str, Table]:
            rude = "</td><script>alert('x')</script>&"
            table = Table({rude: [rude, "a"], "x": [0.5, float("nan")]}, rude, notes=rude)
            return {"sums": table, "sums_long": Table({"n": list(range(1500))})}

    run(folder, tmp_path / "out", data=file, statistics=[Other(), Rude()])
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(&#x27;x&#x27;)") >= 4
    assert "&lt;b&gt;.txt, line 2" in page
    assert "byte 0xff" in page
    assert "the first 1,000 of 1,500 rows" in page
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"https?://", re.sub(r"data:image/png[^\"]*", "", page))
    told = json.loads((tmp_path / "out" / "statistics.json").read_text())
    for name in told["tables"]:
        assert f'id="{name}"' in page
    assert told["tables"]["sums"]["columns"]["x"] == [0.5, None]
    assert (tmp_path / "out" / "tables" / "sums_long.csv").read_text().count("\n") == 1501


def test_figures_are_written_and_embedded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    from normscope.show import plots

    def figures(tables: Any) -> dict[str, Figure]:
        figure = Figure(figsize=(1, 1))
        figure.subplots().plot(tables["sums"].lists()["sum"])
        return {"sums": figure}

    monkeypatch.setattr(plots, "statistics_figures", figures, raising=False)
    run(folder, tmp_path / "one")
    run(folder, tmp_path / "two")
    assert (tmp_path / "one" / "figures" / "sums.png").read_bytes()[:4] == b"\x89PNG"
    page = (tmp_path / "one" / "report.html").read_text()
    assert page.count('src="data:image/png;base64,') == 1
    assert lasting(tmp_path / "one") == lasting(tmp_path / "two")


def test_problems_are_plain_words() -> None:
    assert str(Problem("a.txt, line 3", "empty", "the text is empty")) == (
        "a.txt, line 3: the text is empty"
    )


def test_the_order_of_categories_is_part_of_a_run(folder: Path, tmp_path: Path) -> None:
    """A token belongs to the first category that names it."""
    one = {"a": ["the"], "b": ["the", "cat"]}
    settings = replace(SETTINGS, categories=one)
    run(folder, tmp_path / "out", settings=settings)
    run(folder, tmp_path / "out", settings=settings)
    turned = replace(SETTINGS, categories=dict(reversed(one.items())))
    with pytest.raises(InputError, match=r"settings\.categories was"):
        run(folder, tmp_path / "out", settings=turned)


def test_one_row_is_not_all_of_them(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "out", sample=1)
    with pytest.raises(InputError, match=r"options\.sample was 1 and is 1\.0"):
        run(folder, tmp_path / "out", sample=1.0)


def test_a_mistake_is_told_before_a_restart_removes_anything(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "out")
    before = contents(tmp_path / "out")
    for wrong in ({"categories": {"a": ["no such token"]}}, {"ranks": str(tmp_path / "ranks")}):
        (tmp_path / "ranks").write_text("garbage\n")
        with pytest.raises(InputError, match=r"no such token|'garbage' is not `rank count"):
            run(folder, tmp_path / "out", restart=True, settings=replace(SETTINGS, **wrong))
        assert contents(tmp_path / "out") == before


def test_a_file_of_the_same_name_does_not_make_a_folder_ours(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "tables").mkdir(parents=True)
    (tmp_path / "out" / "statistics.json").write_text('{"mine": 1}')
    (tmp_path / "out" / "tables" / "my.csv").write_text("mine")
    for restart in (False, True):
        with pytest.raises(InputError, match="holds no run of normscope corpus"):
            run(folder, tmp_path / "out", restart=restart)
    assert (tmp_path / "out" / "tables" / "my.csv").read_text() == "mine"
