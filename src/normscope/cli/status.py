"""The status line of a command: what is being done, with a spinner and the seconds."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from normscope.cli.output import quiet
from normscope.foundation.garbage import collection_paused
from normscope.foundation.interrupts import shielded
from normscope.foundation.progress import showing
from normscope.foundation.texts import printable
from normscope.models.default import DEFAULT_MODEL


class StatusLine:
    """A line on standard error that is removed when the work is done; for terminals only."""

    def __init__(self, message: str) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,  # it may be a pipe, and this line is not for it
        )
        self._task = self._progress.add_task(printable(message), total=None)
        self._pauses = 0  # pauses that have not ended: a bar may be shown inside another pause

    def show(self, message: str) -> None:
        """Show what is being done now."""
        self._progress.update(self._task, description=printable(message))

    @shielded
    def paused(self) -> Iterator[None]:
        """Remove the line while the block writes to the terminal itself."""
        self._pauses += 1
        self._progress.stop()
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._progress.start()

    @shielded
    def shown(self) -> Iterator[None]:
        """Show the line while the block runs, with the stages that the library reports."""
        with self._progress, showing(self):
            yield


@contextmanager
def status(message: str) -> Iterator[None]:
    """Show a status line on a terminal while the block runs; write nothing anywhere else."""
    if not sys.stderr.isatty():
        yield
        return
    with StatusLine(message).shown():
        yield


@contextmanager
def working(model: str | None) -> Iterator[None]:
    """Show the status line of a command that loads a model, and silence transformers.

    Args:
        model: The model that is loaded; None for the default model.
    """
    with status(loading(model)):
        import_transformers()
        with quiet():
            yield


def import_transformers() -> None:
    """Import torch and the base class of transformers' models, without garbage collection.

    The imports make some hundred thousand objects, none of them garbage, and looking for garbage
    among them takes a fifth of the time. `gc.freeze` keeps later collections from looking at them
    again. Nothing happens if the modules are imported already.
    """
    if "transformers.modeling_utils" in sys.modules or not gc.isenabled():
        return
    with collection_paused():
        import transformers.modeling_utils  # noqa: F401

        gc.freeze()


def loading(model: str | None) -> str:
    """Return the first stage of a command: "loading bert-base-uncased"."""
    name = str(model or DEFAULT_MODEL).rstrip("/\\").replace("\\", "/")
    return f"loading {name.rpartition('/')[2]}"
