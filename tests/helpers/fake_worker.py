"""A worker process for tests of the queue, without models. The text of a job says what it does.

sleep N      takes N seconds        crash        ends without an answer
mistake      answers with an error  size N       gives a result of N bytes

It implements the messages itself, so that a change of their format makes tests fail.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def receive() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    send(begun=True)
    return dict(json.loads(line))


def send(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    names = receive()["models"]
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
        send(error="no such model")
    models = [
        {"name": name, "target": name == "translator", "max_length": 10}
        | description
        | {"mask": "[MASK]" if name == "masked" else None}
        for name in names
    ]
    send(models=models)
    while True:
        question = receive()
        folder = Path(question["folder"])
        saved = folder / "normscope.safetensors"
        if question["task"] == "convert":
            (folder / f"normscope.{question['to']}").write_bytes(b"converted " + saved.read_bytes())
            send()
            continue
        action, _, number = question["text"].partition(" ")
        if action == "crash":
            os._exit(7)
        if action == "sleep":
            time.sleep(float(number))
        if action == "mistake":
            send(error="a mistake")
            continue
        folder.mkdir()
        (folder / "normscope.html").write_bytes(b"<p>page")
        saved.write_bytes(b"" if action == "size" else question["text"].encode())
        if action == "size":
            os.truncate(saved, int(number))
        send(reconstruction_error=0.0)


if __name__ == "__main__":
    main()
