"""Routes of the web app."""

from __future__ import annotations

from typing import Any

import httpx

from normscope.serve.jobs import JobQueue
from tests.helpers.serving import app, body, check_error, in_app, run, until_over


def test_headers_and_unknown_paths() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
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
            check_error(await client.get(path), 404, "")
        for path in ("/static/%2e%2e/app.py", "/api/jobs/..%2f..", "/api/jobs/x"):
            assert (await client.get(path)).status_code == 404
        check_error(await client.put("/api/jobs"), 405, "not allowed")
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


def test_an_unexpected_error_reveals_nothing() -> None:
    async def test() -> None:
        async with app() as (client, jobs):
            transport: Any = client._transport
            transport.raise_app_exceptions = False

            def fail(job_id: str) -> Any:
                raise RuntimeError("secret")

            jobs.get = fail  # type: ignore[method-assign]
            answer = await client.get("/api/jobs/x")
            check_error(answer, 500, "unexpected")
            assert "secret" not in answer.text

    run(test())
