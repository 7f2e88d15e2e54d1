"""whole_file(): a file takes its name when it is complete; what is no file is written to."""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from normscope.errors import InputError
from normscope.foundation.files import (
    PARTIAL,
    appended_file,
    check_file,
    make_folder,
    whole_file,
    write_file,
)

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


def test_nobody_else_may_read_a_file_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_bytes(b"old")
    path.chmod(0o600)
    umask = os.umask(0)
    try:
        with whole_file(path):
            (partial,) = tmp_path.glob(PARTIAL)
            assert stat.S_IMODE(partial.stat().st_mode) == 0o600
        write_file(tmp_path / "new", "text")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666


def test_devices_are_written_to() -> None:
    before = Path("/dev/null").stat()
    write_file("/dev/null", "gone")
    after = Path("/dev/null").stat()
    assert (before.st_mode, before.st_rdev) == (after.st_mode, after.st_rdev)


def test_text_is_utf8_with_half_surrogates_escaped(tmp_path: Path) -> None:
    write_file(tmp_path / "text", "α\ud800")
    assert (tmp_path / "text").read_bytes() == "α\\ud800".encode()


def unusable(tmp_path: Path) -> list[str]:
    """Names that no file can have, and a link that leads to itself."""
    (tmp_path / "circle.json").symlink_to("circle.json")
    return [str(tmp_path / name) for name in ("a\0b.json", "x" * 5000 + ".json", "circle.json")]


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    for name in unusable(tmp_path):
        for use in (lambda name: check_file(name, (".json",)), lambda name: write_file(name, "x")):
            with pytest.raises(InputError, match="cannot write '/") as caught:
                use(name)
            assert len(str(caught.value)) < 450
        with pytest.raises(InputError, match="cannot write"):
            make_folder(name)
        with pytest.raises(InputError, match="cannot write"), appended_file(f"{name}/x"):
            pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["circle.json"]


def test_a_file_where_a_folder_is_needed(tmp_path: Path) -> None:
    (tmp_path / "tables").touch()
    with pytest.raises(InputError, match=r"there is a file of that name; move it"):
        make_folder(tmp_path / "tables")
    assert make_folder(tmp_path / "a" / "b").is_dir()


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
