"""Signals that end a command: what is kept, what is said, and the exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import normscope
from normscope.cli.signals import ending_signals
from normscope.corpus.checkpoint import Folder
from normscope.results import files
from tests.helpers.commands import CAT, fail, save_tiny_model
from tests.helpers.corpora import save_model, text_file

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
SAYS = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "ended by SIGTERM",
    signal.SIGHUP: "ended by SIGHUP",
}


@pytest.fixture(autouse=True)
def plain_signals() -> Iterator[None]:
    """Have no signal ignored: background jobs of a shell ignore Ctrl-C, and tests inherit that."""
    before = {number: signal.getsignal(number) for number in STATUS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STATUS)
def test_a_signal_is_one_line_and_a_status(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> None:
        signal.raise_signal(number)

    before = signal.getsignal(number)
    monkeypatch.setattr("normscope.analyze", interrupted)
    assert fail("analyze", "--text", CAT, status=STATUS[number]) == SAYS[number]
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", STATUS)
def test_no_half_written_file_is_left(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(result: Any, opened: Any) -> None:
        opened.write(b"half a")
        signal.raise_signal(number)

    model = save_tiny_model("bert", tmp_path / "model")
    file = tmp_path / "out" / "maps.csv"
    file.parent.mkdir()
    monkeypatch.setattr(files, "write_csv", interrupted)
    arguments = ("analyze", "--model", model, "--text", CAT, "--output", str(file))
    assert fail(*arguments, status=STATUS[number]) == SAYS[number]
    assert not any(file.parent.iterdir())


def test_ignored_signals_stay_ignored() -> None:
    """As `nohup` asks for, and shells for their background jobs."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_signals() as ending:
            signal.raise_signal(signal.SIGHUP)
        assert ending.received is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


SECOND = """
import signal
from normscope.cli.signals import ending_signals

with ending_signals():
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:
        signal.raise_signal(signal.{name})
        print("still here")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(number: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SECOND.format(name=number.name)], env=_environment(),
        capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (-number, b"")


# --------------------------------------------------------------------------------- whole commands


def _environment() -> dict[str, str]:
    source = str(Path(normscope.__file__).parents[1])
    quiet = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    own = {"PYTHONPATH": source, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **quiet}
    return {**os.environ, **own}


def _ended_by(
    number: signal.Signals, begun: Callable[[psutil.Process], Any], *arguments: str
) -> str:
    """Start a command, send it a signal when it has begun, and return what it has said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "normscope", *arguments],
        env=_environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while process.poll() is None and not begun(psutil.Process(process.pid)):
            time.sleep(0.02)
        assert process.poll() is None, process.communicate()[1]
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        said = process.communicate(timeout=120)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == STATUS[number], said
    assert not psutil.wait_procs(children, timeout=30)[1]
    return str(said)


def _measured(folder: Path) -> bool:
    """Whether a run has measured something: its first checkpoint has no rows."""
    if not (folder / "checkpoint.npz").is_file():
        return False
    saved = Folder(folder).load()
    return saved is not None and saved.progress.blocks > 0


def _corpus(home: Path, *more: str) -> tuple[str, ...]:
    save_model(home / "model")
    text_file(home / "a.txt", 20_000)
    return (
        *("corpus", "--model", str(home / "model"), "--data", str(home / "a.txt")),
        *("--statistics", "mixing", "--masking", "0", "--replicates", "0"),
        *("--checkpoint-seconds", "0.1", "--output", str(home / "out"), *more),
    )


@pytest.mark.slow
def test_a_corpus_run_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    said = _ended_by(signal.SIGTERM, lambda _: _measured(folder), *_corpus(tmp_path))
    assert f"progress is saved in {folder}; the same command resumes from there" in said
    assert said.endswith("normscope: error: ended by SIGTERM\n")
    assert {file.name for file in folder.iterdir()} <= {"checkpoint.npz", ".normscope.lock"}
    assert _measured(folder)


@pytest.mark.slow
def test_the_workers_of_ray_are_ended(tmp_path: Path) -> None:
    """Ray has a handler of SIGTERM of its own, which would exit with status 1 at once."""
    pytest.importorskip("ray")

    def begun(process: psutil.Process) -> bool:
        children = process.children(recursive=True)
        return any("_Actor" in " ".join(child.cmdline()) for child in children)

    more = ("--engine", "ray", "--workers", "1")
    said = _ended_by(signal.SIGTERM, begun, *_corpus(tmp_path, *more))
    assert f"progress is saved in {tmp_path / 'out'}; the same command resumes" in said
    assert said.endswith("normscope: error: ended by SIGTERM\n")


@pytest.mark.slow
def test_finished_rows_of_attributions_are_kept(tmp_path: Path) -> None:
    model = save_tiny_model("llama", tmp_path / "model")
    data, output = text_file(tmp_path / "rows.txt", 20_000), tmp_path / "shares.jsonl"
    partial = tmp_path / "shares.jsonl.partial"

    def begun(_: psutil.Process) -> bool:
        return partial.is_file() and partial.read_bytes().count(b"\n") > 1

    where = ("--model", model, "--data", str(data), "--output", str(output))
    said = _ended_by(signal.SIGHUP, begun, "attribute", *where)
    assert f"finished rows are in {partial}; the same command resumes there" in said
    assert said.endswith("normscope: error: ended by SIGHUP\n")
    left = {"model", "rows.txt", "shares.jsonl.partial"}
    assert {file.name for file in tmp_path.iterdir()} == left
