"""Access to the web app: Host, Origin, token and rates."""

from __future__ import annotations

import asyncio

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


def test_guessing_tokens_is_slow() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        answers = [await client.post("/api/session", **body(token=str(n))) for n in range(40)]
        assert [answer.status_code for answer in answers[:2]] == [401, 401]
        assert answers[-1].status_code == 429

    in_app(test, token=TOKEN, requests=30)


def test_too_many_requests_and_too_many_analyses() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        answers = [await client.post("/api/jobs", **body(text="a")) for _ in range(8)]
        assert [answer.status_code for answer in answers] == [202] * 5 + [429] * 3
        check_error(answers[-1], 429, "too many requests")
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 10
        many = [await client.get("/health") for _ in range(200)]  # 20 per second are allowed
        codes = {answer.status_code for answer in many}
        assert codes == {200, 429}
        assert all("retry-after" in answer.headers for answer in many if answer.status_code == 429)
        # A header does not make another client.
        others = [f"10.9.8.{number}" for number in range(100)]
        named = [{"X-Forwarded-For": host, "Forwarded": f"for={host}"} for host in others]
        answers = [await client.get("/health", headers=headers) for headers in named]
        assert 429 in {answer.status_code for answer in answers}

    in_app(test, rate=6, requests=20)


def test_simultaneous_requests_are_limited() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        name = (await client.post("/api/jobs", **body(text="sleep 20"))).json()["id"]
        while jobs.running is None:
            await asyncio.sleep(0.01)
        path = f"/api/jobs/{name}?wait=10&state=running"
        waiting = [asyncio.create_task(client.get(path)) for _ in range(3)]
        await asyncio.sleep(0.05)
        answer = await client.get("/api/models")
        check_error(answer, 503, "at once")
        assert int(answer.headers["retry-after"]) > 0
        job = jobs.get(name)
        assert job is not None
        jobs.cancel(job)
        for task in waiting:
            assert (await task).json()["state"] == "cancelled"
        assert (await client.get("/api/models")).status_code == 200

    in_app(test, in_flight=3)
