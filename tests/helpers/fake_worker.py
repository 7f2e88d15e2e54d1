"""A worker that pretends, for the tests of the queue. What a text says is what it does.

sleep N      take N seconds        crash        end in the middle
mistake      answer with an error  size N       a result of N bytes

It speaks the protocol with its own few lines, so that it also tells when the format changes.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from typing import Any


def receive() -> tuple[dict[str, Any], dict[str, bytes]]:
    start = sys.stdin.buffer.read(4)
    if len(start) < 4:
        sys.exit(0)
    header = json.loads(sys.stdin.buffer.read(struct.unpack(">I", start)[0]))
    return header, {name: sys.stdin.buffer.read(size) for name, size in header.pop("blobs")}


def send(header: dict[str, Any], **blobs: bytes) -> None:
    header["blobs"] = [[name, len(data)] for name, data in blobs.items()]
    text = json.dumps(header).encode()
    sys.stdout.buffer.write(struct.pack(">I", len(text)) + text + b"".join(blobs.values()))
    sys.stdout.buffer.flush()


def main() -> None:
    names = receive()[0]["models"]
    maps = ["attn_w", "attn_n", "atb"]
    about = {"maps": maps, "titles": {}, "max_length": 10}
    if "broken" in names:
        send({"error": "no such model"})
    models = [{"name": name, "target": name == "translator", **about} for name in names]
    send({"models": models})
    while True:
        asked, blobs = receive()
        if asked["task"] == "convert":
            send({}, **{asked["to"]: b"converted " + blobs["safetensors"]})
            continue
        what, _, number = asked["text"].partition(" ")
        if what == "crash":
            os._exit(7)
        if what == "sleep":
            time.sleep(float(number))
        if what == "mistake":
            send({"error": "a mistake", "mistake": True})
            continue
        data = b"x" * int(number) if what == "size" else asked["text"].encode()
        send({"reconstruction_error": 0.0}, html=b"<p>page", safetensors=data)


if __name__ == "__main__":
    main()
