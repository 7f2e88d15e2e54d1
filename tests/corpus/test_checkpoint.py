"""A run that is killed at any moment continues and ends with the same bytes; its folder."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscope
from normscope.corpus.checkpoint import Folder, locked_folder, pack, unpack
from normscope.errors import InputError
from tests.helpers.corpora import (
    SETTINGS,
    Stop,
    Sums,
    contents,
    interrupt,
    lasting,
    quick_measuring,
    quick_run,
    save_model,
    text_file,
)

ROOT = Path(__file__).parents[2]
SOURCE = Path(normscope.__file__).parents[1]
ROWS = 90
pytestmark = pytest.mark.usefixtures("quick")


# ---- crashes


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("resume")
    save_model(home / "model")
    text_file(home / "a.txt", ROWS)
    return home


@pytest.fixture(scope="module")
def whole(resumed: Path) -> dict[str, bytes]:
    """What a run without trouble leaves."""
    with quick_measuring():
        run(resumed, resumed / "whole")
    return lasting(resumed / "whole")


def run(folder: Path, output: Path) -> Any:
    return normscope.corpus(
        folder / "model",
        folder / "a.txt",
        [Sums()],
        settings=SETTINGS,
        output=output,
        block_rows=4,  # 23 blocks: one whole group of 16, and a part of the next
        checkpoint_seconds=0.0,
    )


class Crash(BaseException):
    """The process is gone."""


def crash_at(patch: pytest.MonkeyPatch, moment: int, *, after: bool) -> list[int]:
    """End the process at the n-th renaming, before or after it; what it left behind stays."""
    seen, rename = [0], Path.replace

    def replacing(self: Path, target: Any) -> Path:
        seen[0] += 1
        if seen[0] - 1 == moment:
            if after:
                rename(self, target)
            raise Crash
        return rename(self, target)

    def left(self: Path, missing_ok: bool = False) -> None:
        """A killed process tidies nothing up."""

    patch.setattr(Path, "replace", replacing)
    patch.setattr(Path, "unlink", left)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_write(
    resumed: Path, whole: dict[str, bytes], tmp_path: Path, after: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        seen = crash_at(patch, -1, after=after)
        run(resumed, tmp_path / "all")
    # The first checkpoint, one for each block, the last; then two tables twice, three files.
    assert seen[0] == 1 + 23 + 1 + 4 + 3
    # Around the first block, the end of a group of blocks, and every write of the end.
    for moment in (0, 1, 2, 9, 15, 16, 17, *range(23, seen[0])):
        output = tmp_path / str(moment)
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, moment, after=after)
            with pytest.raises(Crash):
                run(resumed, output)
        assert run(resumed, output).counts["sequences"] == ROWS
        assert lasting(output) == whole, moment


def fail_from(patch: pytest.MonkeyPatch, moment: int, code: int) -> None:
    """From the n-th file on nothing can be written any more."""
    seen, sync = [0], os.fsync

    def syncing(handle: int) -> None:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            seen[0] += 1
            if seen[0] - 1 >= moment:
                raise OSError(code, os.strerror(code))
        sync(handle)

    patch.setattr(os, "fsync", syncing)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_or_broken_disk_leaves_nothing_half_written(
    resumed: Path, whole: dict[str, bytes], tmp_path: Path, code: int
) -> None:
    for moment in (0, 9, 24, 26, 31):
        output = tmp_path / str(moment)
        with pytest.MonkeyPatch.context() as patch:
            fail_from(patch, moment, code)
            with pytest.raises(InputError, match=r"cannot write .*(space|error)"):
                run(resumed, output)
        names = set(contents(output))
        assert not any(name.endswith(".tmp") for name in names)
        assert "statistics.json" not in names
        if moment:
            assert Folder(output).load() is not None  # the last good checkpoint
        run(resumed, output)
        assert lasting(output) == whole


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")
def test_kill_9_at_random_times() -> None:
    """Three kills of the run that `make test-deep` kills 200 times; it compares all bytes."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.deep.kills", "--kills", "3", "--seed", "7"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["kills"], sum(told["killed at"].values())) == (3, 3)
    assert any(where.startswith("block") for where in told["killed at"])


# ---- the folder


def test_somebody_elses_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"not empty and holds no run .*thesis\.tex"):
        quick_run(folder, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot write to the folder"):
        quick_run(folder, tmp_path / "file")


def test_two_processes_do_not_share_a_folder(folder: Path, tmp_path: Path) -> None:
    with (
        locked_folder(tmp_path / "out"),
        pytest.raises(InputError, match="another process is using"),
    ):
        quick_run(folder, tmp_path / "out")
    quick_run(folder, tmp_path / "out")


def test_a_damaged_checkpoint_is_told(folder: Path, tmp_path: Path) -> None:
    interrupt(folder, tmp_path / "out", after=2)
    file = tmp_path / "out" / "checkpoint.npz"
    data = file.read_bytes()
    for damaged in (data[: len(data) // 2], b"", b"nonsense", data[:-200] + bytes(200)):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match=r"cannot be read .*--restart"):
            quick_run(folder, tmp_path / "out")
    quick_run(folder, tmp_path / "out", restart=True)


def test_a_restart_that_was_killed_half_way_can_be_restarted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = lasting(quick_run(folder, tmp_path / "out").folder)
    left, unlink = [0], Path.unlink

    def killed(self: Path, missing_ok: bool = False) -> None:
        left[0] -= 1
        if not left[0]:
            raise Stop
        unlink(self, missing_ok)

    for moment in range(1, 5):
        left[0] = moment
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", killed)
            with pytest.raises(Stop):
                quick_run(folder, tmp_path / "out", restart=True)
        with pytest.raises(InputError, match="--restart"):  # not taken for a finished one
            quick_run(folder, tmp_path / "out")
        assert lasting(quick_run(folder, tmp_path / "out", restart=True).folder) == wanted


def test_a_file_of_the_same_name_does_not_make_a_folder_ours(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "tables").mkdir(parents=True)
    (tmp_path / "out" / "statistics.json").write_text('{"mine": 1}')
    (tmp_path / "out" / "tables" / "my.csv").write_text("mine")
    for restart in (False, True):
        with pytest.raises(InputError, match="holds no run of normscope corpus"):
            quick_run(folder, tmp_path / "out", restart=restart)
    assert (tmp_path / "out" / "tables" / "my.csv").read_text() == "mine"


# ---- plain data


def test_packed_states_come_back_exactly_and_hold_no_objects() -> None:
    tree = {
        "a": np.arange(6.0).reshape(2, 3),
        "empty": np.zeros((0, 4), dtype=np.int8),
        "text": np.array(["é", "bc"]),
        "scalar": np.float32(0.1),
        "deep": {"n": 1 << 80, "x": 0.1, "none": None, "yes": True, "nan": float("nan")},
        "list": [1, "a", {"b": (2, 3.5)}],
        "": {},
    }
    found = unpack(pack(tree))
    assert repr(found) == repr(tree)
    assert found["scalar"].dtype == np.float32
    assert type(found["list"][2]["b"]) is tuple
    for bad in ({1: 2}, {"a": object()}, {"a": np.array([object()])}, {"a": {1, 2}}):
        with pytest.raises(TypeError, match="state"):
            pack(bad)
