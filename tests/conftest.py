"""Set up before anything imports normscope: shapes checked, no network, one thread a process."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read once, when huggingface_hub is imported

import jaxtyping
import pytest
import torch
from jaxtyping import install_import_hook
from transformers.utils import logging

from tests.helpers import browsers

torch.set_num_threads(1)
# Those for a GPU (`make test-gpu`), and those that test_triton.py runs in its interpreter.
collect_ignore = [
    *([] if torch.cuda.is_available() else ["gpu"]),
    *([] if os.environ.get("TRITON_INTERPRET") == "1" else ["kernels/interpreted"]),
    *([] if browsers.chromium() else ["browser"]),
]
if importlib.util.find_spec("beartype"):  # GPU servers have little beside torch
    install_import_hook("normscope", "beartype.beartype")


@pytest.fixture(autouse=True)
def settings_of_the_process() -> Iterator[None]:
    """As before after every test: the docs' snippets, for one, may ask transformers for silence."""
    level, bars, dtype = (
        logging.get_verbosity(),
        logging.is_progress_bar_enabled(),
        torch.get_default_dtype(),
    )
    yield
    logging.set_verbosity(level)
    (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
    torch.set_default_dtype(dtype)


@pytest.fixture
def unchecked_types() -> Iterator[None]:
    """Leave types to other tests: a linearised model calls thousands of small functions."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if browsers.chromium() is None:
        missing = browsers.tests()
        terminalreporter.section(f"{len(missing)} browser tests were not run: there is no Chromium")
        for name in missing:
            terminalreporter.write_line(f"not run: {name}")
        terminalreporter.write_line("to run them: apt-get install chromium, then make test-browser")
