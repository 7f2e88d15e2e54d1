"""Access to the web app: Host, Origin, token and shares of one client."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from normscope.serve.jobs import JobQueue
from tests.helpers.serving import HOME, body, check_error, in_app

TOKEN = "correct horse battery"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost@evil.example",
        "localhost.evil.example:8765", "127.0.0.1:8765/x", "10.0.0.1", "", "[::1", "a b",
    ],
)  # fmt: skip
def test_foreign_hosts_are_refused(host: str) -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        for path in ("/", "/health", "/api/models", "/static/app.js"):
            check_error(await client.get(path, headers={"Host": host}), 421, "this server is not")
        posted = body(text="a")
        posted["headers"]["Host"] = host
        check_error(await client.post("/api/jobs", **posted), 421, "this server is not")
        assert jobs.running is None

    in_app(test)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:1", "[::1]:8765"])
def test_own_hosts_with_any_port(host: str) -> None:
    # A forwarded port may have another number.
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        assert (await client.get("/health", headers={"Host": host})).status_code == 200

    in_app(test)


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:3000", "http://localhost:8765", "file://"],
)
def test_foreign_pages_are_refused(origin: str) -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        posted = body(text="a")
        posted["headers"]["Origin"] = origin
        check_error(await client.post("/api/jobs", **posted), 403, "are not allowed")
        check_error(await client.get("/api/models", headers={"Origin": origin}), 403, "not allowed")
        assert not jobs._jobs
        # The answer to a preflight request permits nothing.
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        preflight = await client.options("/api/jobs", headers=headers)
        assert preflight.status_code == 403
        assert not [name for name in preflight.headers if name.startswith("access-control")]
        posted["headers"]["Origin"] = HOME
        assert (await client.post("/api/jobs", **posted)).status_code == 202

    in_app(test)


def test_cross_site_requests_are_refused() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        for site in ("cross-site", "same-site"):
            headers = {"Sec-Fetch-Site": site}
            check_error(await client.get("/api/models", headers=headers), 403, "other sites")
            assert (await client.get("/", headers=headers)).status_code == 200  # a link to it
        for site in ("same-origin", "none"):
            headers = {"Sec-Fetch-Site": site}
            assert (await client.get("/api/models", headers=headers)).status_code == 200

    in_app(test)


def test_paths_that_need_the_token() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        for path in ("/api/models", "/api/jobs/x", "/api/jobs/x/page", "/api/jobs/x/result.csv"):
            answer = await client.get(path)
            check_error(answer, 401, "needs its token")
            assert answer.headers["www-authenticate"] == "Bearer"
        check_error(await client.post("/api/jobs", **body(text="a")), 401, "needs its token")
        check_error(await client.delete("/api/jobs/x"), 401, "needs its token")
        for path in ("/", "/health", "/static/app.js"):
            assert (await client.get(path)).status_code == 200
        for wrong in ("", "x", TOKEN + "x", TOKEN[:-1], "ä"):
            sent = [(b"authorization", f"Bearer {wrong}".encode())]
            assert (await client.get("/api/models", headers=sent)).status_code == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert (await client.get("/api/models", headers=headers)).status_code == 200

    in_app(test, token=TOKEN)


def test_the_cookie_replaces_the_token() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        check_error(await client.post("/api/session", **body(token="wrong")), 401, "token is wrong")
        check_error(await client.post("/api/session", **body(token=1)), 400, "token")
        assert not client.cookies
        entered = await client.post("/api/session", **body(token=TOKEN))
        cookie = entered.headers["set-cookie"]
        assert cookie.startswith("normscope-8765=")
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in cookie
        assert (await client.get("/api/models")).status_code == 200
        client.cookies.set("normscope-8765", "forged", domain="127.0.0.1", path="/")
        forged = {"Cookie": "normscope-8765=forged"}
        client.cookies.clear()
        assert (await client.get("/api/models", headers=forged)).status_code == 401

    in_app(test, token=TOKEN)


def test_wrong_tokens_do_not_lock_out_the_right_one() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        for number in range(300):
            wrong = {"Authorization": f"Bearer {TOKEN}{number}"}
            answer = await client.get("/api/models", headers=wrong)
            check_error(answer, 401, "the token is wrong")
            assert answer.headers["connection"] == "close"
            guessed = await client.post("/api/session", **body(token=str(number)))
            check_error(guessed, 401, "the token is wrong")
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert (await client.get("/api/models", headers=right)).status_code == 200
        assert (await client.post("/api/session", **body(token=TOKEN))).status_code == 200
        assert (await client.get("/api/models")).status_code == 200  # with the cookie

    in_app(test, token=TOKEN)


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, ...]] = []

    def compare(*both: bytes) -> bool:
        compared.append(both)
        return True

    monkeypatch.setattr("hmac.compare_digest", compare)

    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        for sent in ("", "x", TOKEN * 9):
            headers = {"Authorization": f"Bearer {sent}", "Cookie": f"normscope-8765={sent}"}
            await client.get("/api/models", headers=headers)
            await client.post("/api/session", **body(token=sent))

    in_app(test, token=TOKEN)
    assert len(compared) == 6
    assert {len(digest) for both in compared for digest in both} == {32}


def test_one_address_has_a_quarter_of_the_queue() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        assert (await client.post("/api/jobs", **body(text="sleep 20"))).status_code == 202
        while jobs.running is None:
            await asyncio.sleep(0.01)
        statuses = []
        for number in range(6):
            posted = body(text="a")
            # A header does not make another client.
            host = f"10.9.8.{number}"
            posted["headers"] |= {"X-Forwarded-For": host, "Forwarded": f"for={host}"}
            answer = await client.post("/api/jobs", **posted)
            statuses.append(answer.status_code)
        assert statuses == [202] * 2 + [429] * 4
        check_error(answer, 429, "waiting analyses from one address (2) is reached")
        assert answer.headers["retry-after"] == "2"
        transport: Any = client._transport
        for address in ("10.0.0.2", "10.0.0.3", "10.0.0.4"):
            transport.client = (address, 1)
            answers = [await client.post("/api/jobs", **body(text="a")) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [202, 202]
        transport.client = ("10.0.0.5", 1)
        check_error(await client.post("/api/jobs", **body(text="a")), 503, "8 analyses are already")

    in_app(test, queue=8, allow_remote=True, token=TOKEN)


def test_without_other_machines_one_address_has_the_whole_queue() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        answers = [await client.post("/api/jobs", **body(text="sleep 20")) for _ in range(8)]
        assert {answer.status_code for answer in answers} == {202}
        many = [await client.get("/health") for _ in range(300)]
        assert {answer.status_code for answer in many} == {200}

    in_app(test, queue=8)
