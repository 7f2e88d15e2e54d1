"""Report progress: what is being done now, and bars that move.

The library names the stages of its work with `stage`; nothing happens unless a program, such as the
command line, shows them (`showing`). Bars are shown on a terminal only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from normscope.foundation.interrupts import shielded

if TYPE_CHECKING:
    from tqdm import tqdm

REFRESH_SECONDS = 0.5  # time between two refreshes of a bar, whether or not it has moved


@runtime_checkable
class StageDisplay(Protocol):
    """What shows the stages of the work, such as a spinner."""

    def show(self, message: str) -> None:
        """Show what is being done now."""

    def paused(self) -> AbstractContextManager[None]:
        """Leave the terminal to something else for as long as the block runs."""


_display: StageDisplay | None = None


@shielded
def showing(display: StageDisplay) -> Iterator[None]:
    """Show the stages of the work in the block on a display."""
    global _display
    before = _display
    try:
        _display = display
        yield
    finally:
        _display = before


def stage(message: str) -> None:
    """Say what is being done now, as in "loading all-MiniLM-L6-v2"."""
    if _display is not None:
        _display.show(message)


def is_shown() -> bool:
    """Return whether a display shows the stages."""
    return _display is not None


def display_paused() -> AbstractContextManager[None]:
    """Hide the display of stages while the block runs, because it writes to the terminal itself."""
    return nullcontext() if _display is None else _display.paused()


@shielded
def progress_bar(
    total: int | None,
    *,
    unit: str,
    description: str | None = None,
    done: int = 0,
    shown: bool | None = None,
) -> Iterator[tqdm[Any]]:
    """Show a progress bar on standard error; its clock runs even while one step takes long.

    Args:
        total: The number of units; None if it is not known.
        unit: What is counted, such as "row".
        description: What is written before the bar.
        done: The number of units that were finished before.
        shown: Whether to show it; None shows it on a terminal.
    """
    from tqdm import tqdm

    finished = threading.Event()
    hidden = None if shown is None else not shown
    with (
        display_paused(),
        tqdm(total=total, initial=done, unit=unit, desc=description, disable=hidden) as bar,
    ):

        def refresh() -> None:
            while not finished.wait(REFRESH_SECONDS):
                bar.refresh()

        clock = threading.Thread(target=refresh, name="normscope-progress", daemon=True)
        if not bar.disable:
            clock.start()
        try:
            yield bar
        finally:
            finished.set()
            if clock.is_alive():
                clock.join()
