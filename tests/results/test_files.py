"""whole_file(): a file takes its name when it is complete; what is no file is written to."""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from normscope.results.files import check_file, whole_file

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
