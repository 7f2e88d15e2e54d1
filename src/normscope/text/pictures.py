"""Images and recordings of which positions are patches: their grids, and small copies of them."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 224  # pixels of the longer side of a copy
SIGNATURE = b"\x89PNG\r\n\x1a\n"

PatchPlace = tuple[int, int, int]  # the number of a picture, a row and a column of its grid


@dataclass(frozen=True)
class Picture:
    """An image or a recording whose patches or frames are positions.

    Attributes:
        name: which one it is, such as "image 0".
        rows: how many patches it has from top to bottom; 1 for the frames of a recording.
        columns: how many it has from left to right.
        png: a small copy of what the model reads, without what belongs to no patch; None if it is
            not known.
        seconds: how long a recording is; None for an image, or if it is not known.
        recording: whether it is a recording.
    """

    name: str
    rows: int
    columns: int
    png: bytes | None = None
    seconds: float | None = None
    recording: bool = False

    @property
    def address(self) -> str | None:
        """The copy as a data URI, for a page."""
        if self.png is None:
            return None
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"

    def pixels(self) -> NDArray[np.uint8] | None:
        """Return the copy as (row, column, channel)."""
        return None if self.png is None else read_png(self.png)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in plain JSON types; `from_dict` is the inverse."""
        png = None if self.png is None else base64.b64encode(self.png).decode()
        return {**vars(self), "png": png}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Picture:
        """Return the picture that `to_dict` described.

        Raises:
            ValueError: the copy is not one that `write_png` wrote.
        """
        png = data["png"]
        picture = cls(**{**data, "png": None if png is None else base64.b64decode(png)})
        picture.pixels()
        return picture


def small_copy(values: NDArray[np.floating[Any]]) -> bytes:
    """Return an image (row, column, channel), from 0 to 1, as a small PNG."""
    step = max(1, -(-max(values.shape[:2]) // SIDE))
    return _copy(values, step, step)


def wide_copy(values: NDArray[np.floating[Any]]) -> bytes:
    """Return a picture of a recording (row, step), from 0 to 1, as a small PNG in grey."""
    steps = (max(1, -(-size // SIDE)) for size in values.shape)
    return _copy(values[..., None], *steps)


def _copy(values: NDArray[np.floating[Any]], down: int, across: int) -> bytes:
    """Return the means of blocks of an image as a PNG."""
    rows, columns = values.shape[:2]
    spare = ((0, -rows % down), (0, -columns % across), (0, 0))
    padded = np.pad(values, spare, mode="edge")
    high, wide = padded.shape[0] // down, padded.shape[1] // across
    blocks = padded.reshape(high, down, wide, across, -1).mean(axis=(1, 3))
    return write_png(np.round(255 * np.clip(blocks, 0, 1)).astype(np.uint8))


def write_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return an image (row, column, channel) as a PNG; it has one channel or three."""
    high, wide, channels = pixels.shape
    kind = {1: 0, 3: 2}[channels]
    lines = np.zeros((high, 1 + wide * channels), dtype=np.uint8)  # each begins with its filter
    lines[:, 1:] = pixels.reshape(high, -1)

    def chunk(name: bytes, data: bytes) -> bytes:
        check = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", wide, high, 8, kind, 0, 0, 0)
    data = zlib.compress(lines.tobytes(), 9)
    return SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def read_png(png: bytes) -> NDArray[np.uint8]:
    """Return the pixels (row, column, channel) of an image that `write_png` wrote.

    Raises:
        ValueError: it is another file, or it is damaged.
    """
    start = len(SIGNATURE)
    if png[:start] != SIGNATURE or png[start + 4 : start + 8] != b"IHDR" or len(png) < 57:
        raise ValueError("it is not a PNG")
    wide, high, depth, kind, *rest = struct.unpack(">IIBBBBB", png[start + 8 : start + 21])
    channels = {0: 1, 2: 3}.get(kind, 0)
    if depth != 8 or not channels or any(rest) or not (0 < wide <= SIDE and 0 < high <= SIDE):
        raise ValueError("it is not a small PNG of bytes")
    (length,) = struct.unpack(">I", png[start + 25 : start + 29])
    data = png[start + 33 : start + 33 + length]
    size = high * (1 + wide * channels)
    try:
        lines = zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(f"its data is damaged ({error})") from None
    if len(lines) != size:
        raise ValueError(f"it has {len(lines)} bytes instead of {size}")
    table = np.frombuffer(lines, dtype=np.uint8).reshape(high, -1)
    if table[:, 0].any():
        raise ValueError("its lines are filtered")
    return np.ascontiguousarray(table[:, 1:]).reshape(high, wide, channels)
