"""Request bodies of the web app."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from normscope.serve.jobs import JobQueue
from tests.helpers.serving import body, check_error, in_app


def test_only_json_within_the_limit() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        posted = body(text="a")
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            posted["headers"]["Content-Type"] = kind
            check_error(await client.post("/api/jobs", **posted), 415, "application/json")
        large = body(text="a" * 2000)
        check_error(await client.post("/api/jobs", **large), 413, "1000 bytes")
        for length in ("99999999999999999999999999", "-1", "x"):
            headers = {**large["headers"], "Content-Length": length}
            answer = await client.post("/api/jobs", content=b"{}", headers=headers)
            assert answer.status_code == 413

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(1000):  # without Content-Length
                yield b"a" * 100

        answer = await client.post("/api/jobs", content=pieces(), headers=large["headers"])
        check_error(answer, 413, "1000 bytes")
        halves = b'{"\\ud800": 1}', b'{"text": "a \\udfff"}', b'{"maps": ["\\ud800"]}'
        for wrong in (b"", b"{", b"[]", b'"a"', b"\xff", b"[" * 900, *halves):
            answer = await client.post("/api/jobs", content=wrong, headers=large["headers"])
            check_error(answer, 400, "JSON")
        assert not jobs._jobs

    in_app(test, body=1000)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "text is empty"),
        ({"text": " \n"}, "text is empty"),
        ({"text": 1}, "text must be a string"),
        ({"text": "a", "model": "../../etc/passwd"}, "these models: fake, translator"),
        ({"text": "a", "model": "owner/name"}, "these models: fake, translator"),
        ({"text": "a", "model": ["fake"]}, "these models: fake, translator"),
        ({"text": "a", "maps": ["atb_ff"]}, "maps must be a list of: attn_w, attn_n, atb"),
        ({"text": "a", "maps": []}, "maps must be a list"),
        ({"text": "a", "maps": "attn_w"}, "maps must be a list"),
        ({"text": "a", "maps": [["attn_w"]]}, "maps must be a list"),
        ({"text": "a", "heads": "all"}, "heads must be one of: sum, each"),
        ({"text": "a", "heads": ["sum"]}, "heads must be one of: sum, each"),
        ({"text": "a", "heads": "each", "maps": ["atb"]}, "single heads"),
        ({"text": "a", "target": "b"}, "fake takes no target"),
        ({"text": "a", "model": "translator"}, "translator needs a target"),
        ({"text": "a", "path": "/etc/passwd"}, "unknown: path"),
    ],
)
def test_errors_name_the_field(fields: dict[str, Any], message: str) -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        check_error(await client.post("/api/jobs", **body(**fields)), 400, message)
        assert not jobs._jobs

    in_app(test)
