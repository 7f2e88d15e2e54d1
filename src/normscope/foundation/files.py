"""Write files atomically, and check beforehand that a file can be written."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from normscope.errors import InputError
from normscope.foundation.interrupts import shielded

PARTIAL = ".normscope-*.tmp"  # the names of files that `whole_file` has not completed


def check_file(path: str | os.PathLike[str], suffixes: Sequence[str], also: str = "") -> Path:
    """Return the path if a file with one of these suffixes can be written there.

    Call this before a long computation rather than after it.

    Args:
        path: The file to be written.
        suffixes: The valid suffixes, such as ".json".
        also: What the error message names as valid after the suffixes.

    Raises:
        InputError: The suffix is not valid, or the file cannot be written.
    """
    name, path = os.fspath(path), Path(path)
    if path.suffix.lower() not in suffixes:
        raise InputError(
            f"cannot tell from the name {name!r} what to write; it must end in one of: "
            f"{', '.join(suffixes)}{also}"
        )
    try:
        if path.is_dir():
            raise InputError(f"{name!r} is a folder; give the name of a file in it")
        if _is_stream(path):
            return path
        target = path.resolve()
        if not target.parent.is_dir():
            raise InputError(f"cannot write {name!r}: there is no folder {str(target.parent)!r}")
        probe = _beside(target)
        # Permission bits are not enough: the file system may be read-only, or full.
        probe.touch(exist_ok=False)
    except OSError as problem:
        raise _cannot_write(name, problem) from problem
    probe.unlink()
    return path


@shielded
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces the one at `path` only when it is complete.

    If the block raises, the file at `path` stays as it was. A pipe or a device is written to
    directly.
    """
    if _is_stream(Path(path)):
        try:
            with Path(path).open("wb") as file:
                yield file
        except OSError as problem:
            raise _cannot_write(os.fspath(path), problem) from problem
        return
    target = Path(path).resolve()
    partial = _beside(target)
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            partial.chmod(target.stat().st_mode & 0o7777)  # keep the permissions
        partial.replace(target)
    except OSError as problem:
        raise _cannot_write(os.fspath(path), problem) from problem
    finally:
        with suppress(OSError):  # if it cannot be removed, it could not be created either
            partial.unlink(missing_ok=True)


def _is_stream(path: Path) -> bool:
    """Tell whether the path is a pipe or a device, which cannot be replaced by a file."""
    try:
        mode = path.stat().st_mode
    except OSError:  # missing, or not accessible
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _beside(target: Path) -> Path:
    """A new name in the same folder, from which a file can be renamed to the target in one step."""
    return target.with_name(PARTIAL.replace("*", uuid.uuid4().hex))


def _cannot_write(name: str, problem: OSError) -> InputError:
    return InputError(
        f"cannot write {name!r}: {problem.strerror or problem}; nothing was changed there; choose "
        "a writable folder with free space"
    )
