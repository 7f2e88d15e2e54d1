"""Contexts that signals do not cut: entering and leaving are whole, the block is not protected."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import normscope
from normscope.foundation.interrupts import shielded

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt, which background jobs of a shell ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@shielded
def noting(seen: list[str], *, at: str = "", name: str = "") -> Iterator[str]:
    """Note each step, and press Ctrl-C between the two steps of entering or leaving."""
    seen.append(f"{name}begin")
    if at == "enter":
        press()
    seen.append(f"{name}begun")
    try:
        yield "value"
    finally:
        seen.append(f"{name}end")
        if at == "leave":
            press()
        seen.append(f"{name}ended")


WHOLE = ["begin", "begun", "end", "ended"]


def test_it_is_a_context_manager_as_any_other() -> None:
    seen: list[str] = []
    with noting(seen) as value:
        assert value == "value"
        seen.append("block")
    assert seen == ["begin", "begun", "block", "end", "ended"]
    with pytest.raises(ValueError, match="of the block"), noting(seen):
        raise ValueError("of the block")
    assert seen[5:] == WHOLE
    assert noting.__doc__


@pytest.mark.parametrize("at", ["enter", "leave"])
def test_an_interrupt_waits_until_a_context_is_whole(at: str) -> None:
    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt), noting(seen, at=at):
        seen.append("block")
    assert seen == (WHOLE if at == "enter" else [*WHOLE[:2], "block", *WHOLE[2:]])


@pytest.mark.parametrize("at", ["enter", "leave"])
def test_an_interrupt_waits_for_the_outermost_context(at: str) -> None:
    seen: list[str] = []

    @shielded
    def outer() -> Iterator[None]:
        with noting(seen, at=at, name="inner "):
            seen.append("between")
            yield
        seen.append("after inner")

    with pytest.raises(KeyboardInterrupt), outer():
        seen.append("block")
    entered = ["inner begin", "inner begun", "between"]
    left = ["inner end", "inner ended"]
    # Entered as a whole, and then left with the exception.
    assert seen == [*entered, *(["block"] if at == "leave" else []), *left] + (
        ["after inner"] if at == "leave" else []
    )


def test_the_block_itself_is_interrupted_at_once() -> None:
    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt), noting(seen):
        seen.append(str(press()))  # type: ignore[func-returns-value]
    assert seen == WHOLE


def test_an_interrupt_follows_the_error_of_a_block() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, noting([], at="leave"):
        raise ValueError("of the block")
    assert isinstance(caught.value.__context__, ValueError)


def test_handlers_of_other_kinds_are_called_later_too() -> None:
    seen: list[str] = []
    signal.signal(signal.SIGINT, lambda *_: seen.append("handled"))
    with noting(seen, at="enter"):
        seen.append("block")
    assert seen == ["begin", "begun", "handled", "block", "end", "ended"]
    for plain in (signal.SIG_IGN, signal.SIG_DFL):
        signal.signal(signal.SIGINT, plain)
        with noting(seen):
            assert signal.getsignal(signal.SIGINT) == plain
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_handler_that_the_block_sets_stays() -> None:
    seen: list[str] = []

    def own(*_: Any) -> None:
        seen.append("own")

    with noting([]):
        signal.signal(signal.SIGINT, own)
    assert signal.getsignal(signal.SIGINT) is own
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_contexts_may_end_in_any_order() -> None:
    first, second = noting([]), noting([])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with pytest.raises(KeyboardInterrupt):
        press()
    second.__exit__(None, None, None)


def test_in_other_threads_nothing_is_wrapped() -> None:
    seen: list[Any] = []

    def work() -> None:
        with noting([]):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_an_interrupt_while_another_thread_is_in_a_context() -> None:
    """The main thread waits for nobody, and the other thread's context goes on."""
    inside, done = threading.Event(), threading.Event()

    def work() -> None:
        with noting([]):
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(10)
    with pytest.raises(KeyboardInterrupt), noting([]):
        press()
    done.set()
    thread.join()


def test_asyncio_in_a_block() -> None:
    async def answer() -> int:
        return 42

    outer = asyncio._get_running_loop()  # a browser's, if one was driven in this process
    asyncio._set_running_loop(None)
    try:
        with noting([]):
            assert asyncio.run(answer()) == 42
    finally:
        asyncio._set_running_loop(outer)


@pytest.mark.slow
def test_no_interrupt_leaves_a_model_changed() -> None:
    """A slice of `make test-deep`, in a process whose modules are those that users have."""
    source = str(Path(normscope.__file__).parents[1])
    program = (sys.executable, "-m", "tests.deep.interrupt", "--count", "300")
    done = subprocess.run(
        [*program, "--seed", "0", "--only", "analyze", "eager", "frozen"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    interrupted = int(done.stdout.splitlines()[-1].split()[2])
    assert interrupted > 200
