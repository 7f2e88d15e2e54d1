"""Read a file as it was when its run began.

A file is hashed as a whole and in pieces before anything is measured. Whatever is read later, by
any worker and from any place on, is compared with the hash of its piece before it is used. So the
hash in a result is that of the bytes that were measured, however the file changes meanwhile.
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normscope.errors import InputError

PIECE = 1 << 20  # bytes


@dataclass(frozen=True)
class FileSummary:
    """The size of a file in bytes, the hashes of its content and pieces, its number of lines."""

    size: int
    sha256: str
    lines: int
    piece: int = field(repr=False)
    pieces: tuple[bytes, ...] = field(repr=False)


def summarise(path: Path) -> FileSummary:
    """Summarise a file, in one pass."""
    digest, lines, size, last, pieces = hashlib.sha256(), 0, 0, b"\n", []
    with path.open("rb") as file:
        while data := file.read(PIECE):
            digest.update(data)
            pieces.append(hashlib.sha256(data).digest())
            lines += data.count(b"\n")
            size += len(data)
            last = data[-1:]
    return FileSummary(size, digest.hexdigest(), lines + (last != b"\n"), PIECE, tuple(pieces))


def open_snapshot(path: Path, summary: FileSummary) -> io.BufferedReader:
    """Open a file for reading the bytes that were summarised.

    Reading raises InputError if they are no longer there. What was appended since is not read.
    """
    return io.BufferedReader(_Snapshot(path, summary))


class _Snapshot(io.RawIOBase):
    """The bytes of a file, each piece compared with its hash."""

    def __init__(self, path: Path, summary: FileSummary) -> None:
        self._path, self._summary, self._at = path, summary, 0
        self._number, self._data = -1, b""  # the piece that was read last
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as problem:
            raise self._changed(problem.strerror or str(problem)) from problem

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = (0, self._at, self._summary.size)[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        number, begin = divmod(self._at, self._summary.piece)
        if self._at >= self._summary.size:
            return 0
        if number != self._number:
            self._number, self._data = number, self._read_piece(number)
        part = self._data[begin : begin + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def close(self) -> None:
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
        super().close()

    def _read_piece(self, number: int) -> bytes:
        start, left = number * self._summary.piece, self._summary.piece
        left = min(left, self._summary.size - start)
        data = b""
        try:
            self._file.seek(start)
            while len(data) < left and (more := self._file.read(left - len(data))):
                data += more
        except OSError as problem:
            raise self._changed(problem.strerror or str(problem)) from problem
        if hashlib.sha256(data).digest() != self._summary.pieces[number]:
            raise self._changed(f"other content from byte {start} on")
        return data

    def _changed(self, how: str) -> InputError:
        return InputError(
            f"the data file {str(self._path)!r} changed after the run began ({how}); nothing of "
            "the changed part was used. Restore the file and continue the run, or start a new run "
            "with --restart (restart=True)"
        )
