"""Completion by the TAB key, for the shells that typer knows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from normscope.cli.app import app

SHELLS = ("bash", "zsh", "fish")


def complete(shell: str, words: str) -> str:
    """What is offered for the words so far, handed over as each shell's script does."""
    environment = {
        "_NORMSCOPE_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = CliRunner().invoke(app, [], env=environment, prog_name="normscope")
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_a_command_is_completed(shell: str) -> None:
    assert "analyze" in complete(shell, "normscope ana")
    assert "version" not in complete(shell, "normscope ana")


@pytest.mark.parametrize("shell", SHELLS)
def test_an_option_is_completed(shell: str) -> None:
    told = complete(shell, "normscope analyze --trunc")
    assert "--truncate" in told
    assert "--text" not in told


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_printed(shell: str) -> None:
    environment = {"_NORMSCOPE_COMPLETE": f"source_{shell}"}
    done = CliRunner().invoke(app, [], env=environment, prog_name="normscope")
    assert done.exit_code == 0
    assert f"_NORMSCOPE_COMPLETE=complete_{shell}" in done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_itself_completes(tmp_path: Path) -> None:
    """The real script, in a real shell, with a `normscope` on the path."""
    command = tmp_path / "normscope"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m normscope "$@"\n')
    command.chmod(0o755)
    asked = (
        'eval "$(_NORMSCOPE_COMPLETE=source_bash normscope)"; COMP_WORDS=(normscope fam); '
        'COMP_CWORD=1; _normscope_completion normscope; echo "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", asked], env={**os.environ, "PATH": path},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.strip() == "families", done.stderr
