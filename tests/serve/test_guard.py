"""Who is let in to the web app, and what every answer carries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest

from normscope import InputError
from normscope.serve.frames import Frame, receive_frame
from normscope.serve.limits import CLIENTS, Rate
from normscope.serve.settings import Settings
from tests.helpers.serving import HOME, app, body, in_app, run, until_over

TOKEN = "correct horse battery"


def refused(response: httpx.Response, status: int, said: str) -> None:
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    assert said in response.json()["error"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in response.headers["content-security-policy"]


# ---- settings


def test_other_machines_only_when_asked_for_and_never_without_a_token() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.2"):
        assert Settings(host=host).local
        assert Settings(host=host).token is None
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org"):
        with pytest.raises(InputError, match=r"lets other machines.*--allow-remote"):
            Settings(host=host)
        one, two = (Settings(host=host, allow_remote=True).token for _ in range(2))
        assert one is not None
        assert len(one) >= 24
        assert one != two
    # Behind a tunnel or a proxy it listens on loopback, and others come in all the same.
    assert Settings(allow_remote=True).token is not None
    with pytest.raises(InputError, match="at least 16 characters"):
        Settings(token="short")
    with pytest.raises(InputError, match="use ASCII"):
        Settings(token="ä" * 20)


@pytest.mark.parametrize("name", ["max_length", "time_limit", "queue", "rate"])
def test_limits_are_above_zero(name: str) -> None:
    option = name.replace("_", "-")
    for wrong in (0, float("inf"), float("nan")) if name == "time_limit" else (0,):
        with pytest.raises(InputError, match=f"--{option} must be a number above 0, not {wrong}"):
            replace(Settings(), **cast(Any, {name: wrong}))


def test_names_of_the_server() -> None:
    local = Settings(names=("Lab.example.org",))
    assert local.answers_to("localhost")
    assert local.answers_to("127.0.0.1")
    assert local.answers_to("::1")
    assert local.answers_to("lab.example.org")
    assert not local.answers_to("192.168.1.2")
    assert not local.answers_to("example.org")
    remote = Settings(host="0.0.0.0", allow_remote=True)
    assert remote.answers_to("192.168.1.2")  # no page can make its own address be this one
    assert not remote.answers_to("rebound.example.org")


# ---- Host and Origin


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost@evil.example",
        "localhost.evil.example:8765", "127.0.0.1:8765/x", "10.0.0.1", "", "[::1", "a b",
    ],
)  # fmt: skip
def test_foreign_hosts_are_refused_everywhere(host: str) -> None:
    async def test(client: httpx.AsyncClient, jobs: Any) -> None:
        for path in ("/", "/health", "/api/models", "/static/app.js"):
            refused(await client.get(path, headers={"Host": host}), 421, "this server is not")
        posted = body(text="a")
        posted["headers"]["Host"] = host
        refused(await client.post("/api/jobs", **posted), 421, "this server is not")
        assert jobs.running is None

    in_app(test)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:1", "[::1]:8765"])
def test_own_hosts_are_answered_whatever_the_port(host: str) -> None:
    # The port may be another one where it is forwarded.
    async def test(client: httpx.AsyncClient, jobs: Any) -> None:
        assert (await client.get("/health", headers={"Host": host})).status_code == 200

    in_app(test)


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:3000", "http://localhost:8765", "file://"],
)
def test_pages_from_elsewhere_are_refused(origin: str) -> None:
    async def test(client: httpx.AsyncClient, jobs: Any) -> None:
        posted = body(text="a")
        posted["headers"]["Origin"] = origin
        refused(await client.post("/api/jobs", **posted), 403, "are not answered")
        refused(await client.get("/api/models", headers={"Origin": origin}), 403, "not answered")
        assert not jobs._jobs
        # A preflight is answered with no permission.
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        preflight = await client.options("/api/jobs", headers=asked)
        assert preflight.status_code == 403
        assert not [name for name in preflight.headers if name.startswith("access-control")]
        posted["headers"]["Origin"] = HOME
        assert (await client.post("/api/jobs", **posted)).status_code == 202

    in_app(test)


def test_requests_that_a_browser_calls_cross_site_are_refused() -> None:
    async def test(client: httpx.AsyncClient, jobs: Any) -> None:
        for site in ("cross-site", "same-site"):
            headers = {"Sec-Fetch-Site": site}
            refused(await client.get("/api/models", headers=headers), 403, "other sites")
            assert (await client.get("/", headers=headers)).status_code == 200  # a link to it
        for site in ("same-origin", "none"):
            headers = {"Sec-Fetch-Site": site}
            assert (await client.get("/api/models", headers=headers)).status_code == 200

    in_app(test)


# ---- the token


def test_with_a_token_everything_that_tells_or_does_needs_it() -> None:
    async def test(client: httpx.AsyncClient, jobs: Any) -> None:
        for path in ("/api/models", "/api/jobs/x", "/api/jobs/x/page", "/api/jobs/x/result.csv"):
            answer = await client.get(path)
            refused(answer, 401, "needs its token")
            assert answer.headers["www-authenticate"] == "Bearer"
        refused(await client.post("/api/jobs", **body(text="a")), 401, "needs its token")
        refused(await client.delete("/api/jobs/x"), 401, "needs its token")
        for path in ("/", "/health", "/static/app.js"):
            assert (await client.get(path)).status_code == 200
        for wrong in ("", "x", TOKEN + "x", TOKEN[:-1], "ä"):
            sent = [(b"authorization", f"Bearer {wrong}".encode())]
            assert (await client.get("/api/models", headers=sent)).status_code == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert (await client.get("/api/models", headers=headers)).status_code == 200

    in_app(test, token=TOKEN)


def test_the_page_changes_the_token_for_a_cookie() -> None:
    async def test(client: httpx.AsyncClient, jobs: Any) -> None:
        refused(await client.post("/api/session", **body(token="wrong")), 401, "token is wrong")
        refused(await client.post("/api/session", **body(token=1)), 400, "token")
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
    async def test(client: httpx.AsyncClient, jobs: Any) -> None:
        answers = [await client.post("/api/session", **body(token=str(n))) for n in range(40)]
        assert [answer.status_code for answer in answers[:2]] == [401, 401]
        assert answers[-1].status_code == 429

    in_app(test, token=TOKEN, requests=30)


# ---- sizes, kinds and rates


def test_only_json_within_the_limit_is_read() -> None:
    async def test(client: httpx.AsyncClient, jobs: Any) -> None:
        posted = body(text="a")
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            posted["headers"]["Content-Type"] = kind
            refused(await client.post("/api/jobs", **posted), 415, "application/json")
        large = body(text="a" * 2000)
        refused(await client.post("/api/jobs", **large), 413, "1000 bytes")
        for length in ("99999999999999999999999999", "-1", "x"):
            headers = {**large["headers"], "Content-Length": length}
            answer = await client.post("/api/jobs", content=b"{}", headers=headers)
            assert answer.status_code == 413

        given: list[int] = []

        async def pieces() -> AsyncIterator[bytes]:
            for number in range(1000):  # with no length told beforehand
                given.append(number)
                yield b"a" * 100

        answer = await client.post("/api/jobs", content=pieces(), headers=large["headers"])
        refused(answer, 413, "1000 bytes")
        halves = b'{"\\ud800": 1}', b'{"text": "a \\udfff"}', b'{"maps": ["\\ud800"]}'
        for wrong in (b"", b"{", b"[]", b'"a"', b"\xff", b"[" * 900, *halves):
            answer = await client.post("/api/jobs", content=wrong, headers=large["headers"])
            refused(answer, 400, "JSON")
        assert not jobs._jobs

    in_app(test, body=1000)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "text is empty"),
        ({"text": " \n"}, "text is empty"),
        ({"text": 1}, "text is a string"),
        ({"text": "a", "model": "../../etc/passwd"}, "these models: fake, translator"),
        ({"text": "a", "model": "owner/name"}, "these models: fake, translator"),
        ({"text": "a", "model": ["fake"]}, "these models: fake, translator"),
        ({"text": "a", "maps": ["atb_ff"]}, "maps is a list of: attn_w, attn_n, atb"),
        ({"text": "a", "maps": []}, "maps is a list"),
        ({"text": "a", "maps": "attn_w"}, "maps is a list"),
        ({"text": "a", "maps": [["attn_w"]]}, "maps is a list"),
        ({"text": "a", "heads": "all"}, "heads is one of: sum, each"),
        ({"text": "a", "heads": ["sum"]}, "heads is one of: sum, each"),
        ({"text": "a", "heads": "each", "maps": ["atb"]}, "single heads"),
        ({"text": "a", "target": "b"}, "fake takes no target"),
        ({"text": "a", "model": "translator"}, "translator needs a target"),
        ({"text": "a", "path": "/etc/passwd"}, "unknown: path"),
    ],
)
def test_mistakes_in_a_request_are_named(fields: dict[str, Any], said: str) -> None:
    async def test(client: httpx.AsyncClient, jobs: Any) -> None:
        refused(await client.post("/api/jobs", **body(**fields)), 400, said)
        assert not jobs._jobs

    in_app(test)


def test_too_many_requests_and_too_many_analyses() -> None:
    async def test(client: httpx.AsyncClient, jobs: Any) -> None:
        answers = [await client.post("/api/jobs", **body(text="a")) for _ in range(8)]
        assert [answer.status_code for answer in answers] == [202] * 5 + [429] * 3
        refused(answers[-1], 429, "too many requests")
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 10
        many = [await client.get("/health") for _ in range(200)]  # 20 a second are answered
        codes = {answer.status_code for answer in many}
        assert codes == {200, 429}
        assert all("retry-after" in answer.headers for answer in many if answer.status_code == 429)
        # Another client has its own count, and a header does not make one.
        others = [f"10.9.8.{number}" for number in range(100)]
        named = [{"X-Forwarded-For": one, "Forwarded": f"for={one}"} for one in others]
        answers = [await client.get("/health", headers=headers) for headers in named]
        assert 429 in {answer.status_code for answer in answers}

    in_app(test, rate=6, requests=20)


def test_requests_at_once_are_limited() -> None:
    async def test(client: httpx.AsyncClient, jobs: Any) -> None:
        name = (await client.post("/api/jobs", **body(text="sleep 20"))).json()["id"]
        while jobs.running is None:
            await asyncio.sleep(0.01)
        path = f"/api/jobs/{name}?wait=10&state=running"
        waiting = [asyncio.create_task(client.get(path)) for _ in range(3)]
        await asyncio.sleep(0.05)
        answer = await client.get("/api/models")
        refused(answer, 503, "at once")
        assert int(answer.headers["retry-after"]) > 0
        jobs.cancel(jobs.get(name))
        for task in waiting:
            assert (await task).json()["state"] == "cancelled"
        assert (await client.get("/api/models")).status_code == 200

    in_app(test, in_flight=3)


def test_a_rate_fills_with_time_and_forgets_old_clients() -> None:
    now = [0.0]
    rate = Rate(2.0, 4, lambda: now[0])
    assert [rate.wait("a") for _ in range(4)] == [0.0] * 4
    assert rate.wait("a") == 0.5
    assert rate.wait("b") == 0.0
    now[0] = 0.5
    assert rate.wait("a") == 0.0
    assert rate.wait("a", cost=3) == 1.5
    now[0] = 100.0
    assert [rate.wait("a") > 0 for _ in range(5)] == [False] * 4 + [True]
    for number in range(3 * CLIENTS):
        rate.wait(str(number))
    assert len(rate._buckets) == CLIENTS


# ---- answers


def test_every_answer_has_its_headers_and_unknown_things_are_json() -> None:
    async def test(client: httpx.AsyncClient, jobs: Any) -> None:
        page = await client.get("/")
        policy = page.headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["referrer-policy"] == "no-referrer"
        assert page.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in page.headers
        assert "<script src=" in page.text
        assert not [word for word in ("onclick", "http:", "https:", "<style") if word in page.text]
        for path in ("/no", "/static/x", "/static/..%2fapp.py", "/static/../app.py", "/api"):
            refused(await client.get(path), 404, "")
        for path in ("/static/%2e%2e/app.py", "/api/jobs/..%2f..", "/api/jobs/x"):
            assert (await client.get(path)).status_code == 404
        refused(await client.put("/api/jobs"), 405, "not allowed")
        assert (await client.head("/")).status_code == 200

        name = (await client.post("/api/jobs", **body(text="a"))).json()["id"]
        assert (await until_over(client, name))["state"] == "done"
        shown = await client.get(f"/api/jobs/{name}/page")
        assert shown.text == "<p>page"
        policy = shown.headers["content-security-policy"]
        assert policy.startswith("sandbox allow-scripts allow-downloads;")
        assert "allow-same-origin" not in policy
        assert "connect-src" not in policy  # default-src 'none'
        saved = await client.get(f"/api/jobs/{name}/result.html")
        assert saved.headers["content-disposition"] == 'attachment; filename="normscope.html"'
        assert saved.headers["content-security-policy"] == policy

    in_app(test)


def test_an_unexpected_error_tells_nothing() -> None:
    async def whole() -> None:
        async with app() as (client, jobs):
            transport: Any = client._transport
            transport.raise_app_exceptions = False

            def fail(name: str) -> Any:
                raise RuntimeError("secret")

            jobs.get = fail  # type: ignore[method-assign]
            answer = await client.get("/api/jobs/x")
            refused(answer, 500, "unexpected")
            assert "secret" not in answer.text

    run(whole())


def test_frames_carry_any_text_and_any_bytes() -> None:
    async def whole() -> None:
        stream = asyncio.StreamReader()
        frame = Frame({"text": "a\ud800\x00</script>", "n": 1}, {"a": bytes(range(256)), "b": b""})
        stream.feed_data(frame.pack() + frame.pack())
        stream.feed_eof()
        for _ in range(2):
            assert await receive_frame(stream) == frame
        with pytest.raises(asyncio.IncompleteReadError):
            await receive_frame(stream)

    run(whole())
    assert json.loads(Frame({"a": 1}).pack()[4:]) == {"a": 1, "blobs": []}
