"""A corpus run: continued or restarted, on rows of every kind, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import normscope
from normscope.corpus import work
from normscope.corpus.job import ModelOrigin
from normscope.corpus.options import CorpusOptions
from normscope.corpus.run import _load
from normscope.corpus.stream import RowBlock
from normscope.corpus.work import Outcome
from normscope.errors import InputError, ModelNotFoundError
from normscope.measures.statistics import StatisticSettings
from normscope.models.architectures import tiny_model
from tests.helpers.corpora import (
    SETTINGS,
    OtherSums,
    columns,
    contents,
    interrupt,
    lasting,
    sentences,
)
from tests.helpers.corpora import quick_run as run
from tests.helpers.saved_models import rewrite, without
from tests.helpers.tiny import tokenizer

pytestmark = pytest.mark.usefixtures("quick")


def test_an_interrupted_run_is_continued_not_begun_anew(folder: Path, tmp_path: Path) -> None:
    whole = run(folder, tmp_path / "whole", dump=True, limit=28)
    interrupt(folder, tmp_path / "out", after=2, dump=True, limit=28)
    assert not (tmp_path / "out" / "statistics.json").exists()
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        plain = work.CorpusWorker.run

        def noted(worker: work.CorpusWorker, block: RowBlock, *done: Any) -> Outcome:
            seen.append(block.index)
            return plain(worker, block, *done)

        patch.setattr(work.CorpusWorker, "run", noted)
        again = run(folder, tmp_path / "out", dump=True, limit=28)
    assert seen == [2, 3]
    assert lasting(tmp_path / "out") == lasting(tmp_path / "whole")
    assert again.run["starts"] == 2
    assert whole.run["starts"] == 1


def test_a_model_without_its_pooler_is_the_same_model_again(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "model", tmp_path / "model")
    rewrite(tmp_path / "model", without("pooler"))
    name = str(tmp_path / "model")
    interrupt(folder, tmp_path / "out", after=2, model=name, limit=28)
    again = run(folder, tmp_path / "out", model=name, limit=28)
    assert again.run["starts"] == 2
    assert again.signature == run(folder, model=name, limit=28).signature


def test_a_model_that_is_not_whole(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "model", tmp_path / "model")
    rewrite(tmp_path / "model", without("layer.0.output.dense"))
    with pytest.raises(ModelNotFoundError, match="lack 2 parameters of BertModel"):
        run(folder, model=str(tmp_path / "model"))
    whole = run(folder, limit=5).signature
    assert run(folder, model=str(tmp_path / "model"), limit=5, strict=False).signature != whole


def test_restart_begins_anew_and_leaves_other_files_alone(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "out", dump=True, limit=9)
    (tmp_path / "out" / "tables" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "notes.md").write_text("mine")
    run(folder, tmp_path / "out", restart=True, statistics=[OtherSums()])
    names = set(contents(tmp_path / "out"))
    assert {"tables/notes.txt", "notes.md", "tables/other.csv"} < names
    assert not any(name.startswith(("tables/sums", "maps")) for name in names)


def test_settings_may_be_corrected_before_anything_is_measured(
    folder: Path, tmp_path: Path
) -> None:
    interrupt(folder, tmp_path / "out", after=0)
    run(folder, tmp_path / "out", limit=9)
    assert lasting(tmp_path / "out") == lasting(run(folder, tmp_path / "new", limit=9).folder)


def test_a_typing_mistake_does_not_cost_the_old_run(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "out")
    before = contents(tmp_path / "out")
    for wrong in ({"statistics": "mixin"}, {"data": "no.txt"}, {"max_length": 3}):
        with pytest.raises(InputError):
            run(folder, tmp_path / "out", restart=True, **wrong)
    assert contents(tmp_path / "out") == before


def test_a_mistake_is_told_before_a_restart_removes_anything(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "out")
    before = contents(tmp_path / "out")
    for wrong in ({"categories": {"a": ["no such token"]}}, {"ranks": str(tmp_path / "ranks")}):
        (tmp_path / "ranks").write_text("garbage\n")
        with pytest.raises(InputError, match=r"no such token|'garbage' is not `rank count"):
            run(folder, tmp_path / "out", restart=True, settings=replace(SETTINGS, **wrong))
        assert contents(tmp_path / "out") == before


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
    with pytest.raises(
        InputError, match="differ from those that the run in this folder started with"
    ):
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
    # On a cluster it is sent to the workers, which could not load it.
    assert _load(model, reader, CorpusOptions(engine="ray")) == (model, reader, None)
    _, _, origin = _load(folder / "model", None, CorpusOptions(engine="ray", dtype="float64"))
    assert origin == ModelOrigin(str(folder / "model"), None, "float64")
    with pytest.raises(normscope.UnsupportedModelError, match="encoder–decoder"):
        run(folder, model=tiny_model("bart"), tokenizer=reader)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"statistics": "mixing,mixing"}, "name each statistic once; named several times: mixing"),
        ({"statistics": []}, "no statistic was named"),
        ({"sample": True}, "sample must have at least 1 row, but is True"),
        ({"statistics": "speed"}, "unknown statistic: 'speed'; valid are: dispersion"),
        ({"data": None}, "no data was given"),
        ({"engine": "spark"}, "engine must be one of local, ray, but is 'spark'"),
        ({"max_length": 4}, "it must be at least 5"),
        ({"max_length": 65}, "accepts at most 64"),
        ({"settings": StatisticSettings(ranks="no-file")}, "there is no 'no-file'"),
    ],
)
def test_mistakes_are_told(folder: Path, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        run(folder, **wrong)
