"""What transformers logs while a test runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """The messages that transformers logs, which do not reach the root logger."""
    logged: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record.getMessage())

    logger, listener = logging.getLogger("transformers"), Listener()
    logger.addHandler(listener)
    yield logged
    logger.removeHandler(listener)
