"""Messages between the server and the worker process.

A frame is the length of its header (4 bytes, big-endian), the header in JSON, and the bytes that
the header lists under "blobs". Nothing is unpickled, so neither process can run code in the other.

Connections of `multiprocessing` are not used because they block: each read in the server would need
a thread that cannot be cancelled, whereas asyncio's streams can wait for an answer and for
cancellation at once.
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
    """A message: a header of JSON values, and bytes by name."""

    header: Mapping[str, Any]
    blobs: Mapping[str, bytes] = field(default_factory=dict)

    def pack(self) -> bytes:
        """Return the frame as bytes, for `read_frame` and `receive_frame`."""
        sizes = [[name, len(data)] for name, data in self.blobs.items()]
        # ASCII, because UTF-8 cannot encode an unpaired surrogate in a user's text.
        header = json.dumps({**self.header, "blobs": sizes}).encode("ascii")
        return b"".join([LENGTH.pack(len(header)), header, *self.blobs.values()])


def read_frame(file: BinaryIO) -> Frame | None:
    """Read the next frame from a blocking file; return None at its end."""
    start = file.read(LENGTH.size)
    if len(start) < LENGTH.size:
        return None
    header = json.loads(file.read(LENGTH.unpack(start)[0]))
    return Frame(header, {name: file.read(size) for name, size in header.pop("blobs")})


async def receive_frame(stream: StreamReader) -> Frame:
    """Read the next frame from a stream.

    Raises:
        asyncio.IncompleteReadError: the stream has ended.
    """
    length = LENGTH.unpack(await stream.readexactly(LENGTH.size))[0]
    header = json.loads(await stream.readexactly(length))
    blobs = {name: await stream.readexactly(size) for name, size in header.pop("blobs")}
    return Frame(header, blobs)
