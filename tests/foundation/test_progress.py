"""Stages reach a display; bars move, by themselves if need be, and stay off files."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from normscope.foundation import progress
from normscope.foundation.progress import display_paused, is_shown, progress_bar, showing, stage


class Terminal(io.StringIO):
    """A text stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Recorder:
    """A display that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def show(self, message: str) -> None:
        self.told.append(message)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.told.append("pause")
        yield
        self.told.append("go on")


def test_stages_reach_the_display_while_it_is_shown() -> None:
    display = Recorder()
    stage("before")
    with showing(display):
        assert is_shown()
        stage("loading")
        with display_paused():
            stage("running")
    stage("after")
    assert not is_shown()
    assert display.told == ["loading", "pause", "running", "go on"]


def test_a_bar_moves_by_itself_and_pauses_the_display(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, display = Terminal(), Recorder()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.02)
    with showing(display), progress_bar(10, unit="row", description="corpus", done=2) as bar:
        drawn = len(terminal.getvalue())
        until = time.monotonic() + 10
        while len(terminal.getvalue()) == drawn and time.monotonic() < until:
            time.sleep(0.01)
        assert len(terminal.getvalue()) > drawn  # without an update
        bar.update(3)
    assert "5/10" in terminal.getvalue()
    assert display.told == ["pause", "go on"]


def test_a_file_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with progress_bar(10, unit="row") as bar:
        bar.update(3)
    assert file.getvalue() == ""
    with progress_bar(10, unit="row", shown=True) as bar:
        bar.update(3)
    assert "3/10" in file.getvalue()
