"""Every snippet and command in the README and docs runs; those of a page one after another."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from normscope.cli.app import app
from normscope.models.architectures import FAMILIES
from normscope.models.layouts import LAYOUTS

ROOT = Path(__file__).parents[2]
TOP = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _blocks(page: Path, language: str) -> list[str]:
    return [match[2] for match in BLOCK.finditer(page.read_text()) if match[1] == language]


def _marked(parameter: Any, *, slow: bool) -> Any:
    return pytest.param(parameter, marks=pytest.mark.slow) if slow else parameter


WITH_PYTHON = [page for page in PAGES if _blocks(page, "python")]


@pytest.fixture
def registered() -> Iterator[None]:
    """What a page registers for its process is gone after it: other tests share this one."""
    tables: list[dict[str, Any]] = [FAMILIES, LAYOUTS]
    before = [dict(table) for table in tables]
    yield
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    "page",
    [_marked(page, slow=page.name == "plots.md") for page in WITH_PYTHON],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_python(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from normscope.models.default import default_model_path

    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {
        "__name__": "__main__"
    }  # a block goes on with what the ones above made
    for number, code in enumerate(_blocks(page, "python"), 1):
        # A model folder stands where a reader puts the name of theirs.
        code = code.replace("your/model", str(default_model_path()))
        place = f"{page.name}, block {number}"
        exec(compile(code, place, "exec", dont_inherit=True), names)


ELSEWHERE = {"normscope families"}  # takes a minute, and test_cli.py reads what it prints
PROMPT = "$ "


def _commands() -> dict[str, list[str]]:
    """Every command once, on however many pages it stands, and the output that a page shows.

    In a block with a prompt, what follows a command is its output; an ellipsis stands for lines
    that are left out.
    """
    commands: dict[str, list[str]] = {}
    for block in (block for page in PAGES for block in _blocks(page, "console")):
        shown: list[str] = []
        with_output = any(line.startswith(PROMPT) for line in block.splitlines())
        for line in block.splitlines():
            if with_output and not line.startswith(PROMPT):
                shown += [line.rstrip()] if line.strip() not in ("", "…") else []
            elif line.strip() and not line.startswith("#"):
                command = line.removeprefix(PROMPT)
                if command.partition("  #")[0] not in ELSEWHERE:
                    shown = commands.setdefault(command, [])
    return commands


COMMANDS = _commands()


@pytest.mark.parametrize(
    "line", [_marked(line, slow=line.startswith("normscope bench")) for line in COMMANDS]
)
def test_command(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        # Running it would run this test again; that the target exists and expands is checked.
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    elif words[0] == "normscope":
        # In this process: a new one would take most of its time to import torch.
        monkeypatch.chdir(tmp_path)
        ran = CliRunner().invoke(app, words[1:], prog_name="normscope")
        assert (ran.exit_code, ran.exception) == (0, None), ran.output
        printed = [printed.rstrip() for printed in ran.output.splitlines()]
        assert [shown for shown in COMMANDS[line] if shown not in printed] == [], ran.output
    else:
        pytest.fail(f"this test does not know how to run: {line}")


def test_there_are_snippets_to_run() -> None:
    assert len(WITH_PYTHON) >= 12
    assert len(COMMANDS) >= 11
