"""An experiment over sequences: loading, continuing, folders, facts and cost."""

from __future__ import annotations

import importlib
import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import BertModel, PreTrainedModel

from normscope.errors import InputError
from normscope.reproduce import iclr2024, measure, reproduce
from normscope.reproduce.measure import MODEL, is_papers_model
from tests.helpers.corpora import contents
from tests.helpers.reproductions import Inputs, Reports, rows_of


def test_the_model_is_loaded_once(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    from_pretrained: Any = vars(PreTrainedModel)["from_pretrained"].__func__

    def counted(cls: Any, name: str, *arguments: Any, **options: Any) -> Any:
        loaded.append(name)
        return from_pretrained(cls, name, *arguments, **options)

    monkeypatch.setattr(BertModel, "from_pretrained", classmethod(counted))
    reproduce("iclr2024", inputs.options(sequences=1))
    assert loaded == [str(inputs.model)]


@pytest.mark.slow
def test_an_interrupted_run_is_continued(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = importlib.import_module("normscope.corpus.run")
    local_steps = run.local_steps

    def interrupted(*arguments: Any) -> Iterator[Any]:
        for number, step in enumerate(local_steps(*arguments)):
            if number == 1:
                raise KeyboardInterrupt
            yield step

    options = [inputs.options(tmp_path / name, sample=4) for name in ("out", "whole")]
    experiment = replace(iclr2024.EXPERIMENT, block_rows=2)
    with monkeypatch.context() as patch:
        patch.setattr(run, "local_steps", interrupted)
        with pytest.raises(KeyboardInterrupt):
            experiment(options[0])
    assert (tmp_path / "out/measured/checkpoint.npz").is_file()
    continued, whole = (experiment(each) for each in options)
    name = "Contextualisation change"
    assert rows_of(continued, name) == rows_of(whole, name)
    notes = json.loads((tmp_path / "out/measured/run.json").read_text())
    assert notes["starts"] == 2


def test_clarks_file(inputs: Inputs, tmp_path: Path) -> None:
    rows = [{"tokens": ["<s>", "the", "cat", "</s>", "sat", "on", "</s>"]}] * 3
    file = tmp_path / "unlabeled_attn.pkl"
    file.write_bytes(pickle.dumps(rows, protocol=2))
    report = reproduce("emnlp2021", replace(inputs.options(sequences=2), data=(file,)))
    assert report.facts["sequences"].startswith("2 with 14 tokens")
    assert any("not the paper's text" in warning for warning in report.warnings)


def test_a_folder_with_other_files_is_refused(inputs: Inputs, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        reproduce("emnlp2021", inputs.options(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="is a file; give a folder"):
        reproduce("emnlp2021", inputs.options(tmp_path / "thesis.tex"))


def test_a_folder_of_another_experiment_is_refused(inputs: Inputs, reports: Reports) -> None:
    folder = reports["iclr2024"][1]
    before = contents(folder)
    with pytest.raises(InputError, match="other settings"):
        reproduce("emnlp2021", inputs.options(folder))
    assert contents(folder) == before


def test_cost_is_measured_once(inputs: Inputs, reports: Reports) -> None:
    report, folder = reports["iclr2024"]
    cost = json.loads((folder / "cost.json").read_text())
    assert cost["timed_sequences"] == 3
    rows = [row["measured"] for row in rows_of(report, "Cost")]
    assert rows == list(cost.values())[1:]
    again = reproduce("iclr2024", inputs.options(folder))
    assert rows_of(again, "Cost") == rows_of(report, "Cost")


def test_the_papers_model_is_recognised_by_name_and_shape() -> None:
    shape = {**measure.MODEL_SHAPE, "model_type": "bert"}
    for path, changes, expected in (
        (MODEL, {}, True),
        (f"google-bert/{MODEL}", {}, True),
        (f"/models/{MODEL}/", {}, True),
        ("bert-base-cased", {}, False),
        (MODEL, {"hidden_size": 384}, False),
        (MODEL, {"model_type": "roberta"}, False),
    ):
        config = SimpleNamespace(_name_or_path=path, **{**shape, **changes})
        assert is_papers_model(SimpleNamespace(config=config)) == expected
