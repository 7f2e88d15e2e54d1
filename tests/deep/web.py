"""Damaged requests to the web app, in this process: each is answered in JSON, or with a page.

A request is told by the seed and its number. The app has a worker without models, and is called as
a server calls it (ASGI), so that what it does not catch is raised here.
"""

from __future__ import annotations

import asyncio
import json
import random
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tests.deep.damage import PIECES, damaged
from tests.helpers.serving import app, run

KNOWN = {200, 202, 400, 401, 403, 404, 405, 413, 415, 421, 429, 503}
SAFE = (b"x-content-type-options", b"nosniff")
ROUND = 5000  # requests to one app
METHODS = ("GET", "POST", "POST", "POST", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "X")
PATHS = (
    *("/", "/health", "/api/models", "/api/session", "/static/app.js", "/static/app.css"),
    *("/api/jobs", "/api/jobs", "/api/jobs", "/api/jobs/x", "/api/jobs/x/page"),
    *("/api/jobs/x/result.json", "/api/jobs/x/result.csv", "/static/../app.py"),
)
BODIES = [
    json.dumps(body).encode()
    for body in (
        {"text": "a cat", "model": "fake", "maps": ["attn_n"], "heads": "each"},
        {"text": "a cat", "text_pair": "b", "model": "fake"},
        {"text": "a", "target": "b", "model": "translator", "heads": "sum"},
        {"text": "a", "model": "fake", "question": "next", "answer": " b", "foil": " c"},
        {"text": "a", "model": "fake", "question": "write", "generate": 3, "trace": True},
        {"text": "a [MASK]", "model": "masked", "question": "mask", "position": 1},
        {"token": "a token"},
    )
]
HEADERS = (
    *(b"host", b"origin", b"referer", b"cookie", b"authorization", b"content-length", b"range"),
    *(b"accept", b"accept-encoding", b"x-forwarded-for", b"sec-fetch-site", b"if-none-match"),
)
VALUES = [
    *(b"127.0.0.1:8765", b"localhost:8765", b"http://127.0.0.1:8765", b"evil.example", b"null"),
    *(b"Bearer x", b"session=x", b"0", b"-1", b"9" * 30, b"bytes=0-10", b"same-origin", b"*/*"),
]
KINDS = [b"application/json"] * 5 + [b"application/json; charset=utf-8", b"text/plain", b""]


def request(seed: int, number: int) -> tuple[dict[str, Any], bytes]:
    """Return the scope and the body of the request of this number."""
    draw = random.Random(f"{seed} request {number}")
    asks = draw.random() < 0.6  # for an analysis, and only its body is damaged
    path = "/api/jobs" if asks else draw.choice(PATHS)
    if not asks and draw.random() < 0.2:
        path = damaged(draw, [path.encode()], "").decode(errors="replace")
    query = b""  # a server passes on what is printable ASCII, and refuses other requests itself
    if draw.random() < 0.3:
        query = damaged(draw, [b"wait=0&state=queued&position=0", b"x=1", b"wait=1"], "")
        query = bytes(byte for byte in query if 0x21 <= byte <= 0x7E)
    body = draw.choice(BODIES)
    if draw.random() < 0.9:
        body = damaged(draw, BODIES, "all")
    kind = KINDS[0] if asks else draw.choice(KINDS)
    headers = [(b"host", b"127.0.0.1:8765"), (b"content-type", kind)]
    if draw.random() < 0.5:
        headers.append((b"content-length", str(len(body)).encode()))
    for _ in range(0 if asks else draw.choice((0, 0, 1, 2))):
        value = draw.choice(VALUES)
        if draw.random() < 0.3:
            value += draw.choice(PIECES)[:100]
        headers.append((draw.choice(HEADERS), value))
    if not asks and draw.random() < 0.1:
        headers.pop(0)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST" if asks else draw.choice(METHODS),
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", draw.randrange(1024, 65536)),
        "server": ("127.0.0.1", 8765),
    }
    return scope, body


async def answer(asked: Any, scope: dict[str, Any], body: bytes) -> tuple[int, Any, bytes]:
    """Call the app with a request; return status, headers and body of its answer."""
    events = [
        {"type": "http.request", "body": body[:50], "more_body": True},
        {"type": "http.request", "body": body[50:], "more_body": False},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return events.pop(0) if len(events) > 1 else events[0]

    async def send(event: Any) -> None:
        sent.append(event)

    await asked(scope, receive, send)
    return sent[0]["status"], sent[0]["headers"], b"".join(e.get("body", b"") for e in sent[1:])


def problem_of(scope: dict[str, Any], status: int, headers: Any, content: bytes) -> str | None:
    """Return what is wrong with an answer, or None."""
    if status not in KNOWN:
        return f"status {status}: {content[:200]!r}"
    if SAFE not in [(name.lower(), value) for name, value in headers]:
        return f"status {status} without {SAFE[0].decode()}"
    if status >= 400 and scope["method"] != "HEAD":
        found = json.loads(content)
        if list(found) != ["error"] and status != 503:
            return f"status {status} with {content[:200]!r}"
        if len(content) > 2000:
            return f"status {status} with {len(content)} bytes"
    return None


def requests(seed: int, count: int) -> tuple[Counter[str], int]:
    """Send so many damaged requests; print every kind of failure once, and return the counts."""
    parts: Counter[str] = Counter()
    failures: Counter[str] = Counter()

    async def send(numbers: range) -> None:
        async with app(queue=10**4, body=10**5) as (client, _):
            asked = client._transport.app  # type: ignore[attr-defined]
            for number in numbers:
                scope, body = request(seed, number)
                try:
                    found = await asyncio.wait_for(answer(asked, scope, body), 20)
                    parts[f"{found[0]}"] += 1
                    problem = problem_of(scope, *found)
                except Exception as error:
                    parts["raised"] += 1
                    line = traceback.extract_tb(error.__traceback__)[-1]
                    place = f"{Path(line.filename).name}:{line.lineno}"
                    problem = f"{type(error).__name__} in {place}: {error!s:.200}"
                if problem is not None:
                    failures[kind := problem.partition(":")[0]] += 1
                    if failures[kind] == 1:
                        print(f"seed {seed}, number {number}: {problem}", flush=True)

    for first in range(0, count, ROUND):
        run(send(range(first, min(first + ROUND, count))))
    return parts, failures.total()
