"""whole_file(): a file takes its name when it is complete; what is no file is written to."""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from normscope.errors import InputError
from normscope.foundation.files import PARTIAL, check_file, whole_file

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes")


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    assert check_file(pipe, (".json",)) == pipe
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    with whole_file(pipe) as file:
        file.write(b"all of it")
    reader.join(10)
    assert read == [b"all of it"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_who_may_read_a_file_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_bytes(b"old")
    path.chmod(0o600)
    with whole_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_is_not_completed_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            (partial,) = tmp_path.glob(PARTIAL)
            assert partial != path
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.png", r"cannot tell from the name .*; it must end in one of: \.json, \.csv, or be -"),
        ("folder.json", "is a folder; give the name of a file in it"),
        ("nowhere/a.json", "there is no folder"),
    ],
)
def test_files_that_cannot_be_written(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(InputError, match=message):
        check_file(tmp_path / name, (".json", ".csv"), also=", or be -")
    assert check_file(tmp_path / "a.JSON", (".json",)) == tmp_path / "a.JSON"
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder.json"]
