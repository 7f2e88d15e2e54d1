"""The command line as a whole: help, errors, exit statuses, completion, speed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import normscope
from normscope.cli.app import app
from tests.helpers.commands import CAT, fail, rows_of, run, spawn, succeed

HEAVY = ("torch", "transformers", "numpy", "pandas", "matplotlib")
SHELLS = ("bash", "zsh", "fish")


# ---- errors


def test_mistakes_outside_a_command() -> None:
    expected = r"No such command 'analyse'.*(\? See|; see) normscope --help"
    assert re.fullmatch(expected, fail("analyse"))
    assert re.fullmatch(r"No such option: --frobnicate; see normscope --help", fail("--frobnicate"))
    assert re.fullmatch(r"Missing command; see normscope --help", fail("--debug"))


def test_debug_shows_the_traceback(bert: str) -> None:
    arguments = ["analyze", "--model", bert, "--text", ""]
    for with_debug in ([*arguments, "--debug"], ["--debug", *arguments]):
        done = run(*with_debug)
        assert done.exit_code == 2
        assert done.stderr.startswith("Traceback (most recent call last):")
        assert "InputError" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("normscope: error: text is empty")
    fail(*arguments)  # the next command does not remember --debug


def test_an_unexpected_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("normscope.analyze", broken)
    line = fail("analyze", "--text", CAT, status=1)
    assert line.startswith("unexpected RuntimeError: two lines; ")
    assert "--debug" in line
    assert "in broken" in run("analyze", "--text", CAT, "--debug").stderr


def test_error_messages_are_one_line_without_control_characters(tmp_path: Path) -> None:
    name = str(tmp_path / "a\x1b[31m\nb")
    assert r"a\x1b[31m" in fail("analyze", "--text", CAT, "--model", name)
    assert r"x\x1b[0m" in fail("x\x1b[0m")
    assert r"x\x1b[0m\n" in fail("analyze", "--text", CAT, "--output", "x\x1b[0m\n.txt")


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "circle"])
def test_names_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    for suffix in ("", ".json", ".jsonl"):
        (tmp_path / f"circle{suffix}").symlink_to(f"circle{suffix}")
    there = str(tmp_path / name)
    for command in (
        ("view", there),
        ("analyze", "--text", CAT, "--model", there),
        ("analyze", "--text", CAT, "--output", f"{there}.json"),
        ("attribute", "--data", f"{there}.jsonl", "--output", str(tmp_path / "x.jsonl")),
        ("corpus", "--data", there, "--format", "text"),
        ("corpus", "--data", __file__, "--format", "text", "--output", there),
        ("aer", "--gold", there, "--hypothesis", there),
        ("align", "--source", there, "--target", there),
        ("align", "--text", "a", "--target-text", "b", "--output", f"{there}.json"),
    ):
        line = fail(*command)
        assert "unexpected" not in line
        assert len(line) < 1100


@pytest.mark.skipif(sys.platform != "linux", reason="a full device")
@pytest.mark.parametrize(
    ("redirection", "status", "message"),
    [
        ("> /dev/full", 2, "cannot write to standard output: No space left on device"),
        (">&-", 2, "cannot write to standard output: it is closed"),
        ("2>&-", 0, ""),
        ("> /dev/full 2> /dev/full", 2, ""),
        (">&- 2>&-", 2, ""),
        ("<&-", 0, ""),
        ("| head -c 0; exit ${PIPESTATUS[0]}", 1, ""),
    ],
)
def test_standard_streams_that_are_closed_or_full(
    redirection: str, status: int, message: str
) -> None:
    """An error is one line, and Python adds nothing to it when it ends."""
    command = f"{sys.executable} -m normscope --version {redirection}"
    if redirection.startswith("|"):  # head is gone before anything is written
        command = f"(sleep 0.3; exec {command.partition(' |')[0]}) {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        status,
        f"normscope: error: {message}\n" if message else "",
    )
    assert done.stdout == ("" if status else f"normscope {normscope.__version__}\n") or "2>&-" in (
        redirection
    )


def test_interrupting_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("normscope.analyze", interrupted)
    assert fail("analyze", "--text", CAT, status=130) == "interrupted"


def test_a_terminal_without_greek_letters_shows_escapes(bert: str) -> None:
    done = run("analyze", "--model", bert, "--text", CAT, charset="ascii")
    assert done.exit_code == 0
    assert r"\u03b1" in done.stdout
    assert len(re.findall(r"^ +\d \|\d+ .* \| +\d+\.\d% ", done.stdout, re.M)) == 3


# ---- help and version


def test_every_option_has_a_name_of_its_own() -> None:
    """Typer 0.27 names an option after its metavar where that is the parameter in capitals."""
    group: Any = typer.main.get_command(app)
    names = {
        f"{name} {parameter.name}": parameter.opts
        for name, command in group.commands.items()
        for parameter in command.params
        if parameter.param_type_name == "option"
    }
    assert len(names) > 100
    assert names["align map"] == ["--map"]
    assert names["corpus checkpoint_seconds"] == ["--checkpoint-seconds"]
    renamed = {"as_json": "--json", "output": "--json", "help": "--help", "models": "--model"}
    renamed |= {"open_page": "--open", "whole_signature": "--signature", "every": "--all"}
    for place, options in names.items():
        parameter = place.split()[1]
        expected = f"--{parameter.replace('_', '-')}"
        assert expected in options or renamed[parameter] in options, place


def test_help_explains_every_option() -> None:
    bare, asked = succeed(), succeed("--help")
    assert bare.stdout == asked.stdout
    for name in ("analyze", "demo", "families", "version", "--version", "Examples:"):
        assert name in asked.stdout
    text = succeed("analyze", "--help").stdout
    for name in (
        *("--model", "--text", "--text-pair", "--target", "--maps", "--heads", "--layer"),
        *("--device", "--dtype", "--revision", "--truncate", "--output", "--debug"),
        *("Examples:", "Exit status:", ".safetensors"),
    ):
        assert name in text
    assert max(map(len, text.splitlines())) <= 80


def test_help_lists_every_command_whole() -> None:
    commands = succeed("--help").stdout.partition("Commands:")[2]
    assert "..." not in commands
    assert all(line.endswith(".") for line in commands.strip().splitlines())


def test_version() -> None:
    assert succeed("--version").stdout == f"normscope {normscope.__version__}\n"
    lines = dict(line.split(" ", 1) for line in succeed("version").stdout.splitlines())
    assert list(lines) == ["normscope", "torch", "transformers", "python"]
    assert lines["torch"] == torch.__version__


# ---- speed


COMPLETION = {
    "_NORMSCOPE_COMPLETE": "complete_bash",
    "COMP_WORDS": "normscope analyze --trunc",
    "COMP_CWORD": "2",
}


@pytest.mark.parametrize(
    ("arguments", "environment", "status"),
    [
        (["--help"], {}, 0),
        (["--version"], {}, 0),
        (["analyse"], {}, 2),
        (["analyze", "--txt", "a"], {}, 2),
        (["bench", "--repeats", "0"], {}, 2),
        ([], COMPLETION, 0),
    ],
)
def test_nothing_heavy_is_imported(
    arguments: list[str], environment: dict[str, str], status: int
) -> None:
    code = (
        "import sys\n"
        "from normscope.cli import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        f"    print('heavy:', *sorted({set(HEAVY)} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stderr
    assert done.stderr.splitlines()[-1] == "heavy:"
    assert done.stdout or status == 2


def test_the_help_of_every_command_imports_nothing_heavy() -> None:
    code = (
        "import sys, typer\n"
        "from normscope.cli.app import app\n"
        "for name in [*typer.main.get_command(app).commands]:\n"
        "    try:\n"
        "        app([name, '--help'])\n"
        "    except SystemExit as left:\n"
        "        assert left.code == 0, name\n"
        f"    assert not {set(HEAVY)} & set(sys.modules), name\n"
        "assert name == 'view'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_version_does_not_import_transformers() -> None:
    code = (
        "import sys\n"
        "from normscope.cli.app import app\n"
        "try:\n"
        "    app(['version'])\n"
        "except SystemExit as left:\n"
        "    assert left.code == 0\n"
        "assert not {'transformers', 'matplotlib', 'pandas'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# ---- as a process


@pytest.mark.slow
def test_as_a_process_with_its_output_piped() -> None:
    text = "the cat sat on the mat , " * 18  # 128 tokens with [CLS] and [SEP]
    done = spawn("analyze", "--text", text)
    assert (done.returncode, done.stderr) == (0, b"")
    printed = done.stdout.decode()
    assert "\n128 tokens:  0 [CLS]" in printed
    assert "127 [SEP]" in printed
    assert len(rows_of(printed, 9)) == 6
    assert "\x1b" not in printed
    *lines, error, signature = printed.splitlines()
    assert max(map(len, lines)) <= 80
    assert error.startswith("error ")
    assert signature.startswith("signature  all-MiniLM-L6-v2, weights d784cbc5, normscope ")
    assert len(signature) <= 80


def test_as_a_process_a_mistake() -> None:
    done = spawn("analyze", "--text", CAT, "--maps", "attn_x")
    assert (done.returncode, done.stdout) == (2, b"")
    assert re.fullmatch(rb"normscope: error: unknown map: 'attn_x'.*\n", done.stderr)


def test_nothing_but_json_reaches_standard_output(bert: str, capfd: Any) -> None:
    with pytest.raises(SystemExit) as left:
        app(["analyze", "--model", bert, "--text", CAT, "--output", "-"])
    printed, errors = capfd.readouterr()
    assert (left.value.code, errors) == (0, "")
    assert json.loads(printed)["tokens"][:3] == ["<s>", "the", "cat"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_no_error_message(unbuffered: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "normscope", "version"],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},  # it breaks at the end, or before
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


def test_a_pipe_closed_during_the_table_is_no_error_message(
    bert: str, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as closed, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", closed)
        with pytest.raises(SystemExit) as left:
            app(["analyze", "--model", bert, "--text", CAT])
        assert left.value.code == 1
        with Path(os.devnull).open("w") as nowhere:  # or the rest of the buffer fails to close
            os.dup2(nowhere.fileno(), writing)
    assert capfd.readouterr() == ("", "")


# ---- completion by the TAB key


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
    offered = complete(shell, "normscope analyze --trunc")
    assert "--truncate" in offered
    assert "--text" not in offered


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
