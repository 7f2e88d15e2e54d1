"""The signals that end a command: Ctrl-C, SIGTERM and SIGHUP."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# SIGTERM comes from `kill`, a scheduler or a service manager, SIGHUP from a terminal that closes.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")


class EndingSignals:
    """What the handlers of these signals have received.

    Attributes:
        received: the first signal, None as long as there is none.
    """

    received: signal.Signals | None = None

    @property
    def status(self) -> int:
        """The exit status of the command, as shells count it."""
        return 128 + (self.received or signal.SIGINT)

    @property
    def message(self) -> str:
        """How the command ended."""
        name = signal.SIGINT if self.received is None else self.received
        return "interrupted" if name == signal.SIGINT else f"ended by {name.name}"

    def handle(self, number: int, frame: Any) -> None:
        """Raise KeyboardInterrupt, so that all signals end a command alike; a second one kills."""
        if self.received is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.received = signal.Signals(number)
        raise KeyboardInterrupt


@contextmanager
def ending_signals() -> Iterator[EndingSignals]:
    """Let the signals that end a process end the block like Ctrl-C, with time to keep its results.

    A signal that is ignored (by `nohup`, or in a background job of a shell) stays ignored.
    """
    ending = EndingSignals()
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
            handler = signal.getsignal(number)
            if handler in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, ending.handle)
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
