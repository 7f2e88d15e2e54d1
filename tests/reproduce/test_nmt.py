"""`normscope reproduce emnlp2020-nmt`: its options, checked before anything is trained."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from normscope import InputError, MissingExtraError
from normscope.cli.app import app
from normscope.reproduce import ReproduceOptions, nmt


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, ...]:
    paths = tuple(tmp_path / name for name in ("a.de", "a.en", "gold.talp"))
    for path in paths:
        path.write_text("1-1\n", encoding="utf-8")
    return paths


def options(files: tuple[Path, ...], output: Path, **changes: Any) -> ReproduceOptions:
    texts = files[:2]
    given = {"data": texts, "valid": texts, "gold": files, "output": output, "seed": 1}
    return ReproduceOptions(**{**given, **changes})


def test_all_files_are_required(files: tuple[Path, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"--gold three times"):
        nmt.reproduce_nmt(options(files, out, gold=files[:2], minutes=1.0))
    with pytest.raises(InputError, match=r"--minutes .* or --steps"):
        nmt.reproduce_nmt(options(files, out))
    with pytest.raises(InputError, match=r"no file .*none\.de"):
        nmt.reproduce_nmt(options(files, out, data=(tmp_path / "none.de",), steps=1))
    with pytest.raises(InputError, match=r"unknown recipe 'large'; valid: released, paper, small"):
        nmt.reproduce_nmt(options(files, out, steps=1, recipe="large"))
    assert not out.exists()


def test_the_scripts_are_called(
    files: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def run(**settings: Any) -> Path:
        given.update(settings)
        return tmp_path / "tables.md"

    monkeypatch.setattr(nmt.load_scripts(), "run", run)
    tables = nmt.reproduce_nmt(options(files, tmp_path / "out", steps=5, recipe="tiny"))
    assert tables == tmp_path / "tables.md"
    assert given["gold"] == list(files)
    assert (given["steps"], given["recipe"], given["device"]) == (5, "tiny", None)


def test_a_folder_of_another_run_is_refused(
    files: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts: Any = nmt.load_scripts()
    begun: list[str] = []
    monkeypatch.setattr(scripts.prepare, "main", lambda given: begun.append("prepare"))
    monkeypatch.setattr(scripts.train, "main", lambda given: begun.append("train"))
    monkeypatch.setattr(scripts.evaluate, "main", lambda given: begun.append("evaluate"))
    monkeypatch.setattr(scripts.report, "write", lambda folder: None)
    settings: Any = {"steps": 2, "recipe": "tiny"}
    for _ in range(2):  # the same run is continued
        nmt.reproduce_nmt(options(files, tmp_path / "out", **settings))
    before = list(begun)
    files[0].write_text("other words")
    for changes in ({}, {"seed": 9}, {"steps": 3}, {"recipe": "small"}):
        with pytest.raises(InputError, match=r"holds a run with other settings: .*--data"):
            nmt.reproduce_nmt(options(files, tmp_path / "out", **settings | changes))
    assert begun == before


def test_restart_is_refused() -> None:
    done = CliRunner().invoke(app, ["reproduce", "emnlp2020-nmt", "--restart"])
    assert done.exit_code == 2
    assert "has no --restart" in done.output


@pytest.mark.parametrize("package", ["matplotlib", "sacrebleu", "sacremoses"])
def test_a_missing_package_is_reported_at_once(
    package: str, files: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    with pytest.raises(MissingExtraError, match=rf"{package}.*normscope\[experiments\]"):
        nmt.reproduce_nmt(options(files, tmp_path / "out", steps=1))
    assert not (tmp_path / "out").exists()


def test_an_installed_package_says_where_the_scripts_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nmt, "SCRIPTS", "experiments.none")
    with pytest.raises(InputError, match="clone the repository"):
        nmt.load_scripts()
