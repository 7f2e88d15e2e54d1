"""What commands print and write: transformers silenced, hints after Ctrl-C, pictures."""

from __future__ import annotations

from logging import INFO
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from transformers.utils import logging

from normscope.cli.output import hint_on_interrupt, is_picture, plain_console, quiet, save_figure
from tests.helpers.commands import CAT, fail, succeed


def test_transformers_logs_as_before_after_a_command(
    bert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = logging.get_verbosity()
    try:
        logging.set_verbosity_info()
        logging.enable_progress_bar()
        done = succeed("analyze", "--model", bert, "--text", CAT)
        assert done.stderr == ""
        assert logging.get_verbosity() == INFO
        assert logging.is_progress_bar_enabled()
        monkeypatch.setattr("normscope.analyze", None)
        fail("analyze", "--text", CAT, status=1)
        assert logging.get_verbosity() == INFO
        assert logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        fail("analyze", "--text", CAT, status=1)
        assert not logging.is_progress_bar_enabled()
    finally:
        logging.enable_progress_bar()
        logging.set_verbosity(level)


def test_downloads_keep_their_progress_bar() -> None:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled

    assert not are_progress_bars_disabled()
    with quiet():
        assert not logging.is_progress_bar_enabled()
        assert not are_progress_bars_disabled()


def test_hint_after_ctrl_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def hint(output: Path | None, restart: bool = False) -> str:
        with pytest.raises(KeyboardInterrupt), hint_on_interrupt(output, restart):
            raise KeyboardInterrupt
        return capsys.readouterr().err

    assert hint(None) == "normscope: nothing was saved; a run with --output DIR can be resumed\n"
    assert "the same command starts from the beginning" in hint(tmp_path)
    (tmp_path / "checkpoint.npz").touch()
    saved = f"normscope: progress is saved in {tmp_path}; the same command"
    assert hint(tmp_path) == f"{saved} resumes from there\n"
    assert hint(tmp_path, restart=True) == f"{saved} without --restart resumes from there\n"


def test_markup_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    plain_console().print("[bold]a[/bold] :smile:")
    assert capsys.readouterr().out == "[bold]a[/bold] :smile:\n"


def test_the_name_says_the_format_of_a_picture(tmp_path: Path) -> None:
    assert [is_picture(name) for name in ("a.PNG", "a.svg", "a.json", "-", None)] == [
        *(True, True, False, False, False)
    ]
    save_figure(Figure(), tmp_path / "a.PNG", dpi=50)
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")
    save_figure(Figure(), str(tmp_path / "a.svg"), dpi=50)
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")


def test_one_line_names_the_characters_that_no_font_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = Figure()
    figure.suptitle("a \U000f0000\U000f0001")
    save_figure(figure, tmp_path / "a.png", dpi=50)
    error = capsys.readouterr().err
    assert error.startswith(r"normscope: no known font has \U000f0000\U000f0001: the picture shows")
    assert error.count("\n") == 1
