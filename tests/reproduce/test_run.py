"""The experiments by name, from the command line to the files."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from normscope.cli.app import app
from normscope.corpus import work
from normscope.errors import InputError, ModelNotFoundError
from normscope.reproduce import EXPERIMENTS, reproduce
from normscope.show.wording import short_signature
from tests.helpers.corpora import contents
from tests.helpers.figures import assert_fit_for_print
from tests.helpers.reproductions import Inputs, Reports

RUNNER = CliRunner()
NAMES = {
    "emnlp2020-bert": [
        *("Table 1", "Table 2", "Table 4", "Figure 3", "Figure 4", "Figure 5", "Figure 6"),
        *("Figure 9", "Figures 10–12"),
    ],
    "emnlp2021": [
        *("Table 1", "Figure 1", "Figure 3", "Frequency", "Expansion rate", "Depth"),
        "Preserve and mix",
    ],
    "iclr2024": ["Contextualisation change", "Top amplified pairs", "Cost"],
}


def test_experiments() -> None:
    assert list(EXPERIMENTS) == [*NAMES, "attribution-sst2", "attribution-lm", "alti-plus"]


@pytest.mark.parametrize("name", NAMES)
def test_all_exhibits_are_written(name: str, reports: Reports) -> None:
    report, folder = reports[name]
    assert [exhibit.name for exhibit in report.exhibits] == NAMES[name]
    text = (folder / "report.md").read_text()
    page = (folder / "report.html").read_text()
    for exhibit in report.exhibits:
        assert f"## {exhibit.name}: " in text
        assert f'<section id="{exhibit.file}">' in page
        assert exhibit.convention
        if exhibit.draw is not None:
            picture = (folder / "figures" / f"{exhibit.file}.png").read_bytes()
            assert picture.startswith(b"\x89PNG")
            assert f"(figures/{exhibit.file}.png)" in text
            assert_fit_for_print(exhibit.draw())
        if exhibit.table is not None:
            file = folder / f"tables/{exhibit.file}.csv"
            rows = list(csv.reader(io.StringIO(file.read_text())))
            assert len(rows) == 1 + len(exhibit.table)
    for document in (text, page):
        assert "not the paper" in document
        assert report.signature in document.replace("&amp;", "&")
    assert str(folder.parent) not in text + page
    assert "src=" not in page.replace('src="data:image/png;base64,', "")
    assert (folder / "measured" / "statistics.json").is_file()


@pytest.mark.parametrize("name", NAMES)
def test_findings_are_computed(name: str, reports: Reports) -> None:
    report, folder = reports[name]
    assert len(report.findings) >= 3
    assert {type(finding.agrees) for finding in report.findings} == {bool}
    text = (folder / "report.md").read_text()
    agree = sum(finding.agrees for finding in report.findings)
    assert f"{agree} of {len(report.findings)} findings agree" in text
    assert text.count("| yes |") == agree
    assert text.count("| no |") == len(report.findings) - agree


@pytest.mark.parametrize("name", ["emnlp2021", "iclr2024"])
def test_a_finished_run_is_read_and_nothing_is_written(
    name: str, reports: Reports, inputs: Inputs
) -> None:
    before, folder = reports[name]
    files, times = contents(folder), {p: p.stat().st_mtime_ns for p in folder.rglob("*.*")}
    command = ["reproduce", name, "--model", str(inputs.model), "--data", str(inputs.text)]
    done = RUNNER.invoke(app, [*command, "--output", str(folder)])
    assert done.exit_code == 0, done.output
    assert "published" in done.output
    assert "agrees" in done.output
    assert short_signature(before.signature, "in report.md", 69) in done.stderr
    assert contents(folder) == files
    changed = {p for p, t in times.items() if p.stat().st_mtime_ns != t}
    assert {p.name for p in changed} <= {".normscope.lock"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": ()}, "WikiText-2"),
        ({"data": (Path("nowhere.txt"),)}, "there is no file 'nowhere.txt'"),
        ({"sequences": 0}, "at least 1, not 0"),
        ({"model": "./nowhere"}, "there is no folder"),
        ({"ranks": "nowhere.txt"}, "nowhere.txt"),
    ],
)
def test_wrong_options(inputs: Inputs, change: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, ModelNotFoundError), match=re.escape(message)):
        reproduce("emnlp2021", replace(inputs.options(), **change))


def test_unknown_experiment() -> None:
    done = RUNNER.invoke(app, ["reproduce", "emnlp2019"])
    assert done.exit_code == 2
    assert (
        "valid: emnlp2020-bert, emnlp2020-nmt, emnlp2021, iclr2024, attribution-sst2" in done.stderr
    )


def test_the_papers_model_is_not_available(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    done = RUNNER.invoke(app, ["reproduce", "emnlp2021", "--data", str(inputs.text)])
    assert done.exit_code == 2
    assert "bert-base-uncased" in done.stderr
    assert "--model FOLDER" in done.stderr


def test_ctrl_c_says_how_to_continue(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(work.CorpusWorker, "run", interrupt)
    model, text = map(str, inputs)
    output = tmp_path / "r"
    command = ["reproduce", "emnlp2021", "--model", model, "--data", text, "-o", str(output)]
    done = RUNNER.invoke(app, command)
    assert done.exit_code == 130
    kept = f"progress is saved in {output / 'measured'}; the same command resumes"
    assert kept in done.stderr
