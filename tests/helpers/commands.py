"""The command line, run in this process or in its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from normscope.cli.app import app
from normscope.models.architectures import tiny_model
from tests.helpers.tiny import tokenizer

CAT = "the cat sat on the mat , and looked at it ."


def run(*arguments: str, charset: str = "utf-8", stdin: str | None = None) -> Any:
    """Run the command in this process and return its exit_code, stdout and stderr."""
    make: Any = CliRunner
    try:
        runner = make(charset, mix_stderr=False)  # click before 8.2 mixes them by default
    except TypeError:
        runner = make(charset)
    return runner.invoke(app, list(arguments), prog_name="normscope", input=stdin)


def succeed(*arguments: str, stdin: str | None = None) -> Any:
    """Run a command that must succeed."""
    done = run(*arguments, stdin=stdin)
    assert (done.exit_code, done.exception) == (0, None), done.stderr
    return done


def fail(*arguments: str, status: int = 2, stdin: str | None = None) -> str:
    """Run a command that must fail, and return its error message, which is one line."""
    done = run(*arguments, stdin=stdin)
    assert done.exit_code == status, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("normscope: error: ")
    assert done.stderr.count("\n") == 1
    return str(done.stderr.removeprefix("normscope: error: ").strip())


def spawn(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own, its output piped."""
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
    variables.pop("COLUMNS", None)
    command = [sys.executable, "-m", "normscope", *arguments]
    return subprocess.run(command, env=variables, capture_output=True, check=False)


def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keep the browser closed, and return the list of the addresses that it is asked to open."""
    opened: list[str] = []

    def keep(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", keep)
    return opened


def save_tiny_model(family: str, folder: Path) -> str:
    """Save a tiny model with its tokenizer, and return the folder as an option's value."""
    tiny_model(family).save_pretrained(folder)
    tokenizer(pair=family == "bert").save_pretrained(folder)
    return str(folder)


def rows_of(printed: str, columns: int) -> list[list[str]]:
    """Return the rows of a printed table: lines of that many fields, the first a number."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    return [row for row in rows if len(row) == columns and row[0].isdigit()]
