"""What server and worker say to each other: a JSON header, then named runs of bytes.

A frame is the header's length (4 bytes, big-endian), the header, and the bytes it announces under
"blobs". Nothing is pickled, so neither side can make the other run code.
"""

from __future__ import annotations

import json
import struct
from asyncio import StreamReader
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

LENGTH = struct.Struct(">I")


@dataclass(frozen=True)
class Frame:
    """One message."""

    header: Mapping[str, Any]
    blobs: Mapping[str, bytes] = field(default_factory=dict)

    def pack(self) -> bytes:
        """The bytes that `read_frame` and `receive_frame` take apart."""
        sizes = [[name, len(data)] for name, data in self.blobs.items()]
        # ASCII, so that half a surrogate pair in somebody's text gets across and is refused there.
        header = json.dumps({**self.header, "blobs": sizes}).encode("ascii")
        return b"".join([LENGTH.pack(len(header)), header, *self.blobs.values()])


def read_frame(file: BinaryIO) -> Frame | None:
    """The next frame of a blocking file; None where it ends."""
    start = file.read(LENGTH.size)
    if len(start) < LENGTH.size:
        return None
    header = json.loads(file.read(LENGTH.unpack(start)[0]))
    return Frame(header, {name: file.read(size) for name, size in header.pop("blobs")})


async def receive_frame(stream: StreamReader) -> Frame:
    """The next frame; asyncio.IncompleteReadError where the other side has ended."""
    size = LENGTH.unpack(await stream.readexactly(LENGTH.size))[0]
    header = json.loads(await stream.readexactly(size))
    return Frame(header, {name: await stream.readexactly(n) for name, n in header.pop("blobs")})
