"""`normscope reproduce emnlp2020-nmt`: what is asked for, before anything is trained."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from normscope import InputError, MissingExtraError
from normscope.cli.app import app
from normscope.reproduce import nmt


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("a.de", "a.en", "gold.talp")]
    for file in made:
        file.write_text("1-1\n", encoding="utf-8")
    return made


def test_all_files_are_asked_for(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--gold three times"):
        nmt.reproduce_nmt(files[:2], files[:2], files[:2], tmp_path / "out", minutes=1.0)
    with pytest.raises(InputError, match=r"--minutes .* or --steps"):
        nmt.reproduce_nmt(files[:2], files[:2], files, tmp_path / "out")
    with pytest.raises(InputError, match=r"no file .*none\.de"):
        nmt.reproduce_nmt([tmp_path / "none.de"], files[:2], files, tmp_path / "out", steps=1)
    with pytest.raises(InputError, match=r"unknown recipe 'large'; valid: released, paper, small"):
        nmt.reproduce_nmt(files[:2], files[:2], files, tmp_path / "out", steps=1, recipe="large")
    assert not (tmp_path / "out").exists()


def test_the_scripts_are_called(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def run(**settings: Any) -> Path:
        given.update(settings)
        return tmp_path / "tables.md"

    monkeypatch.setattr(nmt.scripts(), "run", run)
    made = nmt.reproduce_nmt(files[:2], files[:2], files, tmp_path / "out", steps=5, recipe="tiny")
    assert made == tmp_path / "tables.md"
    assert given["gold"] == files
    assert (given["steps"], given["recipe"], given["device"]) == (5, "tiny", None)


def test_a_folder_of_another_run_is_refused(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = nmt.scripts()
    begun: list[str] = []
    monkeypatch.setattr(module.prepare, "main", lambda given: begun.append("prepare"))
    monkeypatch.setattr(module.train, "main", lambda given: begun.append("train"))
    monkeypatch.setattr(module.evaluate, "main", lambda given: begun.append("evaluate"))
    monkeypatch.setattr(module.report, "write", lambda folder: None)
    how: Any = {"steps": 2, "recipe": "tiny"}
    for _ in range(2):  # the same goes on
        nmt.reproduce_nmt(files[:2], files[:2], files, tmp_path / "out", **how)
    before = list(begun)
    files[0].write_text("other words")
    for changes in ({}, {"seed": 9}, {"steps": 3}, {"recipe": "small"}):
        with pytest.raises(InputError, match=r"holds a run with other settings: .*--data"):
            nmt.reproduce_nmt(files[:2], files[:2], files, tmp_path / "out", **how | changes)
    assert begun == before


def test_restart_is_refused() -> None:
    done = CliRunner().invoke(app, ["reproduce", "emnlp2020-nmt", "--restart"])
    assert done.exit_code == 2
    assert "removes nothing by itself" in done.output


@pytest.mark.parametrize("package", ["matplotlib", "sacrebleu", "sacremoses"])
def test_what_is_missing_is_told_before_anything_runs(
    package: str, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    with pytest.raises(MissingExtraError, match=rf"{package}.*normscope\[experiments\]"):
        nmt.reproduce_nmt(files[:2], files[:2], files, tmp_path / "out", steps=1)
    assert not (tmp_path / "out").exists()


def test_an_installed_package_says_where_the_scripts_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nmt, "SCRIPTS", "experiments.none")
    with pytest.raises(InputError, match="clone the repository"):
        nmt.scripts()
