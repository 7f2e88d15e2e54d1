"""Write files, all of them here, and check beforehand that a file can be written.

A file appears complete or not at all, keeps the permissions of the one that it replaces, and never
can be read by more people than that one while it is written. Symbolic links are followed. A pipe or
a device is written to and stays what it is.
"""

from __future__ import annotations

import os
import stat
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from normscope.errors import InputError, NormscopeError
from normscope.foundation.interrupts import shielded
from normscope.foundation.texts import quoted, utf8

PARTIAL = ".normscope-*.tmp"  # the names of files that `whole_file` has not completed
# What a name that no system takes raises: a NUL in it is a ValueError, and a circle of symbolic
# links a RuntimeError before Python 3.13.
UNUSABLE = (OSError, ValueError, RuntimeError)


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
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        raise InputError(
            f"cannot tell from the name {quoted(path)} what to write; it must end in one of: "
            f"{', '.join(suffixes)}{also}"
        )
    try:
        status = _status(path)
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise InputError(f"{quoted(path)} is a folder; give the name of a file in it")
        if _is_stream(status):
            return path
        target = path.resolve()
        if not target.parent.is_dir():
            raise InputError(
                f"cannot write {quoted(path)}: there is no folder {quoted(target.parent)}"
            )
        probe = _beside(target)
        # Permission bits are not enough: the file system may be read-only, or full.
        probe.touch(exist_ok=False)
    except InputError:
        raise
    except UNUSABLE as problem:
        raise cannot("write", path, problem) from problem
    probe.unlink()
    return path


@shielded
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces the one at `path` only when it is complete.

    If the block raises, the file at `path` stays as it was, and nothing else is left.
    """
    try:
        status = _status(path)
        target = Path(path).resolve()
    except UNUSABLE as problem:
        raise cannot("write", path, problem) from problem
    try:
        if _is_stream(status):
            with Path(path).open("wb") as file:
                yield file
            return
        mode = 0o666 if status is None else status.st_mode & 0o777
        partial = _beside(target)
        try:
            with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                if status is not None:
                    partial.chmod(status.st_mode & 0o7777)  # whatever new files have by default
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        finally:
            with suppress(OSError):  # if it cannot be removed, it could not be created either
                partial.unlink(missing_ok=True)
    except NormscopeError:  # some are an OSError too
        raise
    except OSError as problem:
        raise cannot("write", path, problem) from problem


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a whole file, text in UTF-8."""
    with whole_file(path) as file:
        file.write(utf8(content) if isinstance(content, str) else content)


@shielded
def appended_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for adding to its end: a list of what is finished, of which the rest is kept."""
    try:
        _status(path)
    except UNUSABLE as problem:
        raise cannot("write", path, problem) from problem
    try:
        with Path(path).open("ab") as file:
            yield file
    except NormscopeError:  # some are an OSError too
        raise
    except OSError as problem:
        raise cannot("write", path, problem) from problem


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Create a folder, and those that it is in, if they do not exist; return its path."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as problem:
        raise InputError(
            f"cannot write to the folder {quoted(folder)}: there is a file of that name; move it, "
            "or choose a folder elsewhere"
        ) from problem
    except UNUSABLE as problem:
        raise cannot("write to", folder, problem) from problem
    return folder


def check_name(path: str | os.PathLike[str]) -> Path:
    """Return the path of something to read; raise InputError if nothing can have such a name."""
    try:
        _status(path)
    except (PermissionError, NotADirectoryError):
        pass  # said when it is read
    except UNUSABLE as problem:
        raise cannot("read", path, problem) from problem
    return Path(path)


def sync_folder(folder: Path) -> None:
    """Make a renaming survive a power cut, on systems that support it."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cannot(do: str, path: object, problem: Exception) -> InputError:
    """Return the error for a file that cannot be read or written, with the system's reason."""
    why = getattr(problem, "strerror", None) or str(problem)
    if isinstance(problem, ValueError):
        why = f"no file has such a name ({why})"
    after = "; nothing was changed there; choose a writable folder with free space"
    return InputError(f"cannot {do} {quoted(path)}: {why}{after if do.startswith('write') else ''}")


def _status(path: str | os.PathLike[str]) -> os.stat_result | None:
    """Return the status of what a path names; None if there is nothing."""
    try:
        return Path(path).stat()
    except FileNotFoundError:
        return None


def _is_stream(status: os.stat_result | None) -> bool:
    """Tell whether it is a pipe or a device, which cannot be replaced by a file."""
    return status is not None and not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))


def _beside(target: Path) -> Path:
    """A new name in the same folder, from which a file can be renamed to the target in one step."""
    return target.with_name(PARTIAL.replace("*", uuid.uuid4().hex))
