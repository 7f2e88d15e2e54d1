"""Request bodies of the web app."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from normscope.serve.jobs import JobQueue
from tests.helpers.serving import body, check_error, in_app, until_over


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
        ({"text": "a", "model": "../../etc/passwd"}, "these models: fake, translator, masked"),
        ({"text": "a", "model": "owner/name"}, "these models: fake, translator, masked"),
        ({"text": "a", "model": ["fake"]}, "these models: fake, translator, masked"),
        ({"text": "a", "maps": ["atb_ff"]}, "maps must be a list of: attn_w, attn_n, atb"),
        ({"text": "a", "maps": []}, "maps must be a list"),
        ({"text": "a", "maps": "attn_w"}, "maps must be a list"),
        ({"text": "a", "maps": [["attn_w"]]}, "maps must be a list"),
        ({"text": "a", "heads": "all"}, "heads must be one of: sum, each"),
        ({"text": "a", "heads": ["sum"]}, "heads must be one of: sum, each"),
        ({"text": "a", "heads": "each", "maps": ["atb"]}, "single heads"),
        ({"text": "a", "target": "b"}, "fake does not accept a target"),
        ({"text": "a", "model": "translator"}, "translator needs a target"),
        ({"text": "a", "path": "/etc/passwd"}, "unknown: path"),
        ({"text": "a", "question": "label"}, "question to fake must be one of: maps, next, write"),
        ({"text": "a", "question": ["next"]}, "question to fake must be one of"),
        ({"text": "a", "question": "next", "maps": ["attn_w"]}, "unknown: maps; valid for the"),
        ({"text": "a", "answer": "b"}, "unknown: answer; valid for the question 'maps'"),
        ({"text": "a", "question": "next", "answer": 1}, "answer must be a string"),
        ({"text": "a", "question": "next", "foil": "b"}, "a foil, but no answer"),
        ({"text": "a", "question": "next", "answer": " ", "foil": "b"}, "a foil, but no answer"),
        ({"text": "a", "question": "next", "trace": 1}, "trace must be true or false"),
        ({"text": "a", "question": "write"}, "generate is empty"),
        ({"text": "a", "question": "write", "generate": True}, "generate must be a whole number"),
        ({"text": "a", "question": "write", "generate": 0}, "tokens from 1 to 10"),
        ({"text": "a", "question": "write", "generate": 11}, "tokens from 1 to 10"),
        ({"text": "a", "question": "mask", "position": "1"}, "position must be a whole number"),
        ({"text": "a", "question": "mask", "model": "masked"}, "the text has no mask token; put"),
        (
            {"text": "[MASK]", "text_pair": "[MASK]", "question": "mask", "model": "masked"},
            "the text has 2 mask tokens; put [MASK] once",
        ),
    ],
)
def test_errors_name_the_field(fields: dict[str, Any], message: str) -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        check_error(await client.post("/api/jobs", **body(**fields)), 400, message)
        assert not jobs._jobs

    in_app(test)


def test_a_question_reaches_the_worker_with_its_fields() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        for fields in (
            {"text": "a", "question": "next", "answer": "b", "foil": "c", "trace": True},
            {"text": "a [MASK]", "question": "mask", "model": "masked", "baseline": "zero"},
            {"text": "a", "question": "mask", "model": "masked", "position": 0},
        ):
            answer = await client.post("/api/jobs", **body(**fields))
            assert answer.status_code == 202, answer.text
            job = jobs.get(answer.json()["id"])
            assert job is not None
            assert job.request["task"] == "explain"
            assert {name: job.request[name] for name in fields} == fields
            assert (await until_over(client, job.id))["state"] == "done"

    in_app(test)
