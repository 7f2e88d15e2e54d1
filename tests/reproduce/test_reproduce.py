"""The papers' experiments end to end, on a tiny model and a few lines of text."""

from __future__ import annotations

import csv
import importlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from rich.console import Console
from scipy.stats import spearmanr
from typer.testing import CliRunner

from normscope.cli.app import app
from normscope.corpus import work
from normscope.errors import InputError, ModelNotFoundError
from normscope.measures.analysis import analyze
from normscope.measures.statistics import Table
from normscope.reproduce import EXPERIMENTS, Report, Request, iclr2024, reproduce
from normscope.reproduce.data import paragraphs, sequences
from normscope.reproduce.exhibits import Exhibit, Finding, published, shown
from normscope.reproduce.report import markdown, page, show, write
from tests.helpers.corpora import contents, save_model, sentences

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


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model's folder, and a text with headings, short lines and 13 paragraphs."""
    folder = tmp_path_factory.mktemp("reproduce")
    lines = [one + " the cat sat ." for one in sentences(13, seed=3)]
    text = " = The cat = \n\n" + "\n".join(lines[:6]) + "\n = = Its house = = \nred , mat\n"
    (folder / "cats.raw").write_text(text + "\n".join(lines[6:]) + "\n")
    return save_model(folder / "model"), folder / "cats.raw"


@pytest.fixture(scope="module")
def reports(
    inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Report, Path]]:
    made = {}
    model, text = inputs
    for name in EXPERIMENTS:
        output = tmp_path_factory.mktemp("out") / name
        made[name] = reproduce(name, Request(str(model), (text,), output)), output
    return made


def exhibit(report: Report, name: str) -> list[dict[str, Any]]:
    (found,) = [one.table for one in report.exhibits if one.name == name]
    assert found is not None
    return found.rows()


# ----------------------------------------------------------------------------------------- whole


@pytest.mark.parametrize("name", NAMES)
def test_everything_of_the_paper_is_there(
    name: str, reports: dict[str, tuple[Report, Path]]
) -> None:
    report, folder = reports[name]
    assert [one.name for one in report.exhibits] == NAMES[name]
    text = (folder / "report.md").read_text()
    whole = (folder / "report.html").read_text()
    for one in report.exhibits:
        assert f"## {one.name}: " in text
        assert f'<section id="{one.file}">' in whole
        assert one.convention
        if one.draw is not None:
            picture = (folder / "figures" / f"{one.file}.png").read_bytes()
            assert picture.startswith(b"\x89PNG")
            assert f"(figures/{one.file}.png)" in text
        if one.table is not None:
            rows = list(csv.reader(io.StringIO((folder / f"tables/{one.file}.csv").read_text())))
            assert len(rows) == 1 + len(one.table)
    for told in (text, whole):
        assert "not the paper" in told
        assert report.signature in told.replace("&amp;", "&")
    assert str(folder.parent) not in text + whole
    assert "src=" not in whole.replace('src="data:image/png;base64,', "")
    assert (folder / "measured" / "statistics.json").is_file()


@pytest.mark.parametrize("name", NAMES)
def test_findings_are_computed(name: str, reports: dict[str, tuple[Report, Path]]) -> None:
    report, folder = reports[name]
    assert len(report.findings) >= 3
    assert {type(one.agrees) for one in report.findings} == {bool}
    text = (folder / "report.md").read_text()
    agree = sum(one.agrees for one in report.findings)
    assert f"{agree} of {len(report.findings)} findings agree" in text
    assert text.count("| yes |") == agree
    assert text.count("| no |") == len(report.findings) - agree


def test_again_it_is_told_again_and_nothing_is_written(
    reports: dict[str, tuple[Report, Path]], inputs: tuple[Path, Path]
) -> None:
    for name in ("emnlp2021", "iclr2024"):
        before, folder = reports[name]
        files, times = contents(folder), {p: p.stat().st_mtime_ns for p in folder.rglob("*.*")}
        model, text = inputs
        command = ["reproduce", name, "--model", str(model), "--data", str(text)]
        done = RUNNER.invoke(app, [*command, "--output", str(folder)])
        assert done.exit_code == 0, done.output
        assert "published" in done.output
        assert "agrees" in done.output
        assert before.signature in done.stderr
        assert contents(folder) == files
        changed = {p for p, t in times.items() if p.stat().st_mtime_ns != t}
        assert {p.name for p in changed} <= {".normscope.lock"}


def test_an_interrupted_run_goes_on(
    inputs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = importlib.import_module("normscope.corpus.run")
    local_steps = run.local_steps

    def stopped(*arguments: Any) -> Iterator[Any]:
        for number, step in enumerate(local_steps(*arguments)):
            if number == 1:
                raise KeyboardInterrupt
            yield step

    model, text = inputs
    folders = tmp_path / "out", tmp_path / "whole"
    requests = [Request(str(model), (text,), folder, sample=4) for folder in folders]
    experiment = replace(iclr2024.EXPERIMENT, block_rows=2)
    with monkeypatch.context() as patch:
        patch.setattr(run, "local_steps", stopped)
        with pytest.raises(KeyboardInterrupt):
            experiment(requests[0])
    assert (tmp_path / "out/measured/checkpoint.npz").is_file()
    made, wanted = (experiment(request) for request in requests)
    assert exhibit(made, "Contextualisation change") == exhibit(wanted, "Contextualisation change")
    told = json.loads((tmp_path / "out/measured/run.json").read_text())
    assert told["starts"] == 2


# --------------------------------------------------------------------------------------- numbers


def test_published_numbers_stand_beside_measured(reports: dict[str, tuple[Report, Path]]) -> None:
    bert = reports["emnlp2020-bert"][0]
    rows = {row["category"]: row for row in exhibit(bert, "Table 2")}
    assert rows["[SEP]"]["ρ published"] == -0.69
    assert rows["others"]["pairs published"] == 1944928224
    assert -1 <= rows["[SEP]"]["ρ measured"] <= 1
    table1 = {(row[""], row["number"]): row for row in exhibit(bert, "Table 1")}
    assert table1["largest CV", "of"]["published"] == "layer 2, head 4"
    assert re.fullmatch(r"layer [12], head [1-4]", table1["largest CV", "of"]["measured"])
    assert table1["average", "cv"]["published"] == 0.22
    assert [row["published"] for row in exhibit(bert, "Figure 6")] == [-0.08, 0.75]
    mixing = {row["analysis"]: row for row in exhibit(reports["emnlp2021"][0], "Table 1")}
    assert mixing["AttnResLn-N"]["mean published"] == 18.75
    assert_allclose(mixing["AttnRes-W"]["mean measured"], mixing["Attn-W"]["mean measured"] / 2)
    rates = exhibit(reports["emnlp2021"][0], "Expansion rate")
    assert [row["published (released)"] for row in rates][-1] == 1.051
    assert len(rates) == 12


def test_findings_follow_from_the_tables(reports: dict[str, tuple[Report, Path]]) -> None:
    report = reports["emnlp2021"][0]
    means = {row["analysis"]: row["mean measured"] for row in exhibit(report, "Table 1")}
    order = [means[name] for name in ("Attn-W", "Attn-N", "AttnRes-N", "AttnResLn-N")]
    assert report.findings[0].agrees == (order == sorted(order, reverse=True))
    found = {one.statement: one.agrees for one in report.findings}
    depth = {row["analysis"]: row["measured"] for row in exhibit(report, "Depth")}
    (falls,) = [agrees for told, agrees in found.items() if "later layers" in told]
    assert falls == (depth["AttnResLn-N"] < 0)
    rates = [row["measured (without)"] for row in exhibit(report, "Expansion rate")]
    known = [rate for rate in rates if rate is not None]
    (shrinks,) = [agrees for told, agrees in found.items() if "shrinks vectors" in told]
    assert shrinks == (sum(rate < 1 for rate in known) > len(known) / 2)
    report = reports["emnlp2020-bert"][0]
    found = {one.statement: one.agrees for one in report.findings}
    rho = {row["category"]: row["ρ measured"] for row in exhibit(report, "Table 2")}
    assert found["ρ of α and ‖f(x)‖ is strongly negative for [SEP]"] == (rho["[SEP]"] <= -0.5)
    assert found["ρ of α and ‖f(x)‖ is negative for [CLS]"] == (rho["[CLS]"] <= -0.2)
    assert found["ρ of α and ‖f(x)‖ is near zero for others"] == (abs(rho["others"]) < 0.2)
    assert found["α and ‖f(x)‖ are most opposed for [SEP]"] == (rho["[SEP]"] == min(rho.values()))


def test_measured_numbers_are_the_statistics(reports: dict[str, tuple[Report, Path]]) -> None:
    report, folder = reports["emnlp2020-bert"]
    told = json.loads((folder / "measured/statistics.json").read_text())["tables"]
    heads = told["dispersion_transformed_norm"]["columns"]
    largest = int(np.argmax(heads["cv"]))
    row = next(
        r for r in exhibit(report, "Table 1") if (r[""], r["number"]) == ("largest CV", "cv")
    )
    place = next(r for r in exhibit(report, "Table 1") if r["number"] == "of")["measured"]
    assert row["measured"] == heads["cv"][largest]
    assert place == f"layer {heads['layer'][largest] + 1}, head {heads['head'][largest] + 1}"
    shares = exhibit(report, "Figure 3")
    assert_allclose(sum(r["share of α, %"] for r in shares), 100)
    assert_allclose(sum(r["α"] for r in shares), 1, rtol=1e-5)


def test_depth_of_the_paper_s_own_figure(reports: dict[str, tuple[Report, Path]]) -> None:
    for row in exhibit(reports["emnlp2021"][0], "Depth"):
        name = {"Attn-W": "attn_w", "AttnResLn-N": "attn_res_ln_n"}.get(row["analysis"])
        if name:
            layers = published()["emnlp2021"]["figure3"]["layers"][name]
            wanted = spearmanr(range(12), [one[-1] for one in layers]).statistic
            assert_allclose(row["published, from Figure 3"], wanted)


def test_points_of_the_frequency_figure(reports: dict[str, tuple[Report, Path]]) -> None:
    """Their means, weighted by counts, are those of all tokens."""
    report = reports["emnlp2020-bert"][0]
    (one,) = [e for e in report.exhibits if e.name == "Figure 6"]
    assert one.data is not None
    points = one.data.rows()
    assert len({(p["rank"], p["special"]) for p in points}) == len(points)
    (told,) = [r for r in exhibit(report, "Figure 3") if r["category"] == "<s>"]
    special = next(p for p in points if p["special"] and p["count"] == 6 and p["rank"] < 5)
    assert special["alpha"] > 0
    assert told["tokens"] == 6


def test_change_across_the_layer(reports: dict[str, tuple[Report, Path]]) -> None:
    rows = exhibit(reports["iclr2024"][0], "Contextualisation change")
    assert [row["layer"] for row in rows][-1] == "mean"
    names = [name for name in rows[0] if name != "layer"]
    assert names == [
        "attention block → feed-forward",
        "feed-forward → feed-forward, residual",
        "feed-forward, residual → whole layer",
        "attention block → feed-forward, residual",
        "attention block → whole layer",
    ]
    for name in names:
        values = [row[name] for row in rows]
        assert 0 < values[0] < 2
        assert_allclose(values[-1], np.mean(values[:-1]))


def test_change_is_that_of_the_maps(inputs: tuple[Path, Path]) -> None:
    model, text = inputs
    (pair,) = sequences([text], 1).rows
    maps = ("atb", "atb_ff", "atb_ff_res", "atb_ff_res_ln")
    one = analyze(str(model), None, pair[0], pair[1], maps=maps)
    rows = exhibit(
        reproduce("iclr2024", Request(str(model), (text,), sequences=1)), "Contextualisation change"
    )
    for layer, row in enumerate(rows[:-1]):
        flat = [one[name].to_numpy()[layer].ravel() for name in maps]
        for name, (a, b) in {
            "attention block → feed-forward": (0, 1),
            "feed-forward, residual → whole layer": (2, 3),
            "attention block → whole layer": (0, 3),
        }.items():
            assert_allclose(row[name], 1 - spearmanr(flat[a], flat[b]).statistic, atol=1e-6)


def test_ranks_of_a_file_stand_beside_ids(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    model, text = inputs
    ranks = tmp_path / "ranks.txt"
    ranks.write_text("".join(f"{58 - i} {i} {i}\n" for i in range(57)))
    request = Request(str(model), (text,), ranks=str(ranks), sequences=4)
    rows = exhibit(reproduce("emnlp2021", request), "Frequency")
    names = [name for name in rows[0] if name.startswith("measured")]
    assert names == ["measured, the file ranks.txt", "measured, tokenizer ids"]
    plain = exhibit(reproduce("emnlp2021", Request(str(model), (text,), sequences=4)), "Frequency")
    assert [r["measured, tokenizer ids"] for r in rows] == [
        r["measured, tokenizer ids"] for r in plain
    ]
    assert rows[0][names[0]] != rows[0][names[1]]


# ------------------------------------------------------------------------------------------ data


def test_pairs_of_paragraphs(inputs: tuple[Path, Path]) -> None:
    text = inputs[1]
    found = paragraphs(text)
    assert len(found) == 13
    assert not any("=" in one or one == "red , mat" for one in found)
    rows = sequences([text]).rows
    assert rows == [(found[i], found[i + 1]) for i in range(0, 12, 2)]
    assert sequences([text], 2).rows == rows[:2]
    assert sequences([text, text]).rows == rows * 2


def test_clark_s_file_is_taken_as_it_is(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    import pickle

    rows = [{"tokens": ["<s>", "the", "cat", "</s>", "sat", "on", "</s>"]}] * 3
    file = tmp_path / "unlabeled_attn.pkl"
    file.write_bytes(pickle.dumps(rows, protocol=2))
    report = reproduce("emnlp2021", Request(str(inputs[0]), (file,), sequences=2))
    assert report.facts["sequences"].startswith("2, of 14 tokens")
    assert any("not the paper's text" in one for one in report.warnings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": ()}, "WikiText-2"),
        ({"data": (Path("nowhere.txt"),)}, "there is no file 'nowhere.txt'"),
        ({"sequences": 0}, "from 1 on"),
        ({"model": "./nowhere"}, "there is no folder"),
        ({"ranks": "nowhere.txt"}, "nowhere.txt"),
    ],
)
def test_mistakes(inputs: tuple[Path, Path], change: dict[str, Any], words: str) -> None:
    given = {"model": str(inputs[0]), "data": (inputs[1],)} | change
    with pytest.raises((InputError, ModelNotFoundError), match=re.escape(words)):
        reproduce("emnlp2021", Request(**given))


def test_a_text_without_paragraphs_and_one_that_is_none(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    empty, noise = tmp_path / "a.txt", tmp_path / "b.txt"
    empty.write_text("= only a heading of four words =\nshort\n")
    noise.write_bytes(b"\xff\xfe four words of noise\n")
    with pytest.raises(InputError, match=r"no pair of paragraphs in a\.txt"):
        sequences([empty])
    with pytest.raises(InputError, match="UTF-8"):
        sequences([noise])
    with pytest.raises(InputError, match="alone"):
        sequences([tmp_path / "b.txt", _touch(tmp_path / "c.pkl")])


def _touch(path: Path) -> Path:
    path.touch()
    return path


def test_folders_of_others_are_left_alone(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        reproduce("emnlp2021", Request(str(inputs[0]), (inputs[1],), tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_another_experiment_in_the_same_folder_is_refused(
    inputs: tuple[Path, Path], reports: dict[str, tuple[Report, Path]]
) -> None:
    folder = reports["emnlp2021"][1]
    before = contents(folder)
    with pytest.raises(InputError, match="other settings"):
        reproduce("emnlp2020-bert", Request(str(inputs[0]), (inputs[1],), folder))
    assert contents(folder) == before


def test_the_papers_model_cannot_be_had(
    inputs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    done = RUNNER.invoke(app, ["reproduce", "emnlp2021", "--data", str(inputs[1])])
    assert done.exit_code == 2
    assert "bert-base-uncased" in done.stderr
    assert "--model FOLDER" in done.stderr


def test_ctrl_c_says_how_to_go_on(
    inputs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(work.CorpusWorker, "run", pressed)
    model, text = map(str, inputs)
    output = tmp_path / "r"
    command = ["reproduce", "emnlp2021", "--model", model, "--data", text, "-o", str(output)]
    done = RUNNER.invoke(app, command)
    assert done.exit_code == 130
    kept = f"progress is saved in {output / 'measured'}; the same command continues"
    assert kept in done.stderr


def test_unknown_experiment() -> None:
    done = RUNNER.invoke(app, ["reproduce", "emnlp2019"])
    assert done.exit_code == 2
    assert "there are: emnlp2020-bert, emnlp2021, iclr2024" in done.stderr


# ---------------------------------------------------------------------------------------- report


def test_tokens_are_escaped(tmp_path: Path) -> None:
    table = Table({"token": ["<script>|*", "\x1b[31m"], "published": [0.34, None]})
    report = Report(
        "x",
        "A paper",
        (),
        {"data": "a|b <i>"},
        [Finding("f", "1", "2", False)],
        [Exhibit("Table 1", "T <b>", "C", table)],
        "s",
    )
    made, whole = markdown(report), page(report, {})
    assert r"&lt;script&gt;\|\*" in made
    assert "<script" not in made
    assert "<script" not in whole
    assert "&lt;script&gt;" in whole
    assert "\x1b" not in made + whole
    write(report, tmp_path)
    assert (tmp_path / "report.md").read_text() == made


def test_cells_have_the_digits_of_the_papers() -> None:
    given = [0.34, 96.41, -0.4997724, 12.3456, 1944928224, None, float("nan"), True, 123.456789]
    wanted = ["0.34", "96.41", "-0.500", "12.35", "1,944,928,224", "–", "–", "yes", "123.5"]
    assert [shown(one) for one in given] == wanted


def test_no_number_is_cut_on_a_narrow_terminal() -> None:
    columns: dict[str, Any] = {"analysis": ["AttnRes-N", "AttnResLn-N"]}
    columns |= {f"number {i}": [1234.56789 + i, 0.000123456 + i] for i in range(9)}
    exhibit = Exhibit("Table 1", "Many numbers", "", Table(columns, "many"))
    report = Report("emnlp2021", "A paper", (), {}, [], [exhibit], "")
    wide, narrow = io.StringIO(), io.StringIO()
    for width, file in ((300, wide), (40, narrow)):
        show(report, Console(file=file, width=width))
    numbers = re.findall(r"\d+\.\d+", wide.getvalue())
    assert len(numbers) == 18
    assert re.findall(r"\d+\.\d+", narrow.getvalue()) == numbers
    assert "AttnResLn-N" in narrow.getvalue()
