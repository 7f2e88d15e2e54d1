"""The status line: shown on a terminal, removed at the end, absent elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from normscope.cli.status import loading, status, working
from normscope.foundation.progress import display_paused, is_shown, stage
from tests.foundation.test_progress import Terminal


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "loading all-MiniLM-L6-v2"),
        ("owner/name", "loading name"),
        ("./folder/tiny/", "loading tiny"),
        (r"C:\models\tiny", "loading tiny"),
    ],
)
def test_the_first_stage_names_the_model(model: str | None, message: str) -> None:
    assert loading(model) == message


def test_a_terminal_shows_each_stage_and_is_clean_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    with status("loading a [CLS] model"):
        stage("running 1 text")
        with display_paused(), display_paused():
            print("another bar", file=sys.stderr)
        stage("drawing")
    assert not is_shown()
    shown = terminal.getvalue()
    for message in ("loading a [CLS] model", "running 1 text", "drawing", "another bar\n"):
        assert message in shown
    assert shown.endswith("\x1b[2K")  # the line is erased
    assert sys.stderr is terminal


def test_a_file_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with working(None):
        stage("running 1 text")
    assert file.getvalue() == ""
