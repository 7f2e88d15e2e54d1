"""Every snippet and command in the README and docs runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _blocks(language: str) -> list[Any]:
    found = []
    for page in PAGES:
        for number, match in enumerate(BLOCK.finditer(page.read_text())):
            if match[1] == language:
                found.append(pytest.param(match[2], id=f"{page.name}-{number}"))
    return found


@pytest.mark.parametrize("code", _blocks("python"))
def test_python(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from normscope.default_model import default_model_path

    monkeypatch.chdir(tmp_path)
    # A model folder stands where a reader puts the name of theirs.
    exec(compile(code.replace("your/model", str(default_model_path())), "snippet", "exec"), {})


COMMANDS = [
    pytest.param(line, id=line)
    for block in _blocks("console")
    for line in block.values[0].splitlines()
    if line.strip() and not line.startswith("#")
]


@pytest.mark.parametrize("line", COMMANDS)
def test_command(line: str, tmp_path: Path) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        # Running it would run this test again; that the target exists and expands is checked.
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
    elif words[0] == "normscope":
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    else:
        pytest.fail(f"this test does not know how to run: {line}")
    assert done.returncode == 0, done.stderr


def test_there_are_snippets_to_run() -> None:
    assert len(_blocks("python")) >= 2
    assert len(COMMANDS) >= 8
