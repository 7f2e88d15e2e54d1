"""Messages between the server and the worker process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from normscope.serve.frames import Frame, read_frame, receive_frame
from tests.helpers.serving import run


def test_any_text_and_any_bytes(tmp_path: Path) -> None:
    frame = Frame({"text": "a\ud800\x00</script>", "n": 1}, {"a": bytes(range(256)), "b": b""})

    async def receive() -> None:
        stream = asyncio.StreamReader()
        stream.feed_data(frame.pack() + frame.pack())
        stream.feed_eof()
        for _ in range(2):
            assert await receive_frame(stream) == frame
        with pytest.raises(asyncio.IncompleteReadError):
            await receive_frame(stream)

    run(receive())
    path = tmp_path / "frames"
    path.write_bytes(frame.pack() + frame.pack())
    with path.open("rb") as file:
        assert [read_frame(file) for _ in range(3)] == [frame, frame, None]
    assert json.loads(Frame({"a": 1}).pack()[4:]) == {"a": 1, "blobs": []}
