"""A worker process for tests of the queue, without models. The text of a job says what it does.

sleep N      takes N seconds        crash        ends without an answer
mistake      answers with an error  size N       gives a result of N bytes

It implements the frames itself, so that a change of their format makes tests fail.
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
    description: dict[str, Any] = {
        "maps": maps,
        "titles": {},
        "per_head": maps[:2],
        "suggested": maps[:2],
    }
    how = ["baseline", "trace"]
    questions = {
        "maps": {"fields": ["text_pair", "target", "maps", "heads"], "required": []},
        "next": {"fields": ["answer", "foil", *how], "required": []},
        "write": {"fields": ["generate", *how], "required": ["generate"]},
        "mask": {"fields": ["text_pair", "answer", "foil", "position", *how], "required": []},
    }
    description |= {"questions": questions, "labels": [], "mask": None}
    if "broken" in names:
        send({"error": "no such model"})
    models = [
        {"name": name, "target": name == "translator", "max_length": 10}
        | description
        | {"mask": "[MASK]" if name == "masked" else None}
        for name in names
    ]
    send({"models": models})
    while True:
        question, blobs = receive()
        if question["task"] == "convert":
            send({}, **{question["to"]: b"converted " + blobs["safetensors"]})
            continue
        action, _, number = question["text"].partition(" ")
        if action == "crash":
            os._exit(7)
        if action == "sleep":
            time.sleep(float(number))
        if action == "mistake":
            send({"error": "a mistake"})
            continue
        data = b"x" * int(number) if action == "size" else question["text"].encode()
        send({"reconstruction_error": 0.0}, html=b"<p>page", safetensors=data)


if __name__ == "__main__":
    main()
