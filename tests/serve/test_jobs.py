"""The queue of the web app: order, time limit, cancellation, crashes, what is kept."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from normscope import InputError
from normscope.serve.jobs import Jobs
from normscope.serve.process import Worker
from normscope.serve.settings import Settings
from tests.helpers.serving import FAKE, body, in_app, run, until_over


async def submit(client: httpx.AsyncClient, text: str) -> str:
    answer = await client.post("/api/jobs", **body(text=text))
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def until_running(jobs: Jobs, name: str) -> None:
    while jobs.running is None or jobs.running.id != name:
        await asyncio.sleep(0.01)


def test_jobs_run_in_order_and_say_where_they_are() -> None:
    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        names = [await submit(client, text) for text in ("sleep 0.5", "sleep 0.1", "b")]
        assert len(set(names)) == 3
        assert all(len(name) == 24 for name in names)
        await until_running(jobs, names[0])
        told = [(await client.get(f"/api/jobs/{name}")).json() for name in names]
        assert [one["position"] for one in told] == [0, 1, 2]
        assert [one["state"] for one in told] == ["running", "queued", "queued"]
        # A question that is kept open is answered when the place changes, not only at the end.
        query: Any = {"wait": 20, "state": "queued", "position": 2}
        started = time.monotonic()
        moved = (await client.get(f"/api/jobs/{names[2]}", params=query)).json()
        assert moved["position"] == 1
        assert time.monotonic() - started < 5
        over = [await until_over(client, name) for name in names]
        assert [one["state"] for one in over] == ["done"] * 3
        assert 0.5 <= over[0]["seconds"] < 5
        saved = await client.get(f"/api/jobs/{names[2]}/result.safetensors")
        assert saved.content == b"b"
        for kind in ("csv", "json"):
            made = await client.get(f"/api/jobs/{names[2]}/result.{kind}")
            assert made.content == b"converted b"
        assert (await client.get(f"/api/jobs/{names[2]}/result.exe")).status_code == 404

    in_app(test)


def test_a_question_that_is_kept_open_ends_in_time() -> None:
    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        name = await submit(client, "sleep 30")
        await until_running(jobs, name)
        started = time.monotonic()
        told = await client.get(f"/api/jobs/{name}?wait=0.2&state=running")
        assert told.json()["state"] == "running"
        assert 0.2 <= time.monotonic() - started < 2
        for wait in ("x", "1&position=x"):
            assert (await client.get(f"/api/jobs/{name}?wait={wait}")).status_code == 400
        assert (await client.get(f"/api/jobs/{name}?wait=nan&state=running")).status_code == 200

    in_app(test)


def test_the_queue_is_bounded() -> None:
    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        first = await submit(client, "sleep 30")
        await until_running(jobs, first)
        rest = [await submit(client, "a") for _ in range(2)]
        answer = await client.post("/api/jobs", **body(text="a"))
        assert answer.status_code == 503
        assert "2 analyses wait already" in answer.json()["error"]
        assert int(answer.headers["retry-after"]) > 0
        assert (await client.delete(f"/api/jobs/{rest[0]}")).json()["state"] == "cancelled"
        await submit(client, "a")

    in_app(test, queue=2)


def test_a_cancelled_job_really_stops_and_the_next_one_runs() -> None:
    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        names = [await submit(client, text) for text in ("sleep 60", "never", "after")]
        await until_running(jobs, names[0])
        worker = jobs.worker.pid
        assert worker is not None
        assert (await client.delete(f"/api/jobs/{names[1]}")).json()["state"] == "cancelled"
        told = (await client.delete(f"/api/jobs/{names[0]}")).json()
        assert (told["state"], told["error"]) == ("cancelled", "cancelled")
        assert (await until_over(client, names[2]))["state"] == "done"
        assert not psutil.pid_exists(worker)  # the computation is gone, not only the answer
        for name in names[:2]:
            told = (await client.get(f"/api/jobs/{name}")).json()
            assert told["state"] == "cancelled"
            assert (await client.get(f"/api/jobs/{name}/page")).status_code == 404
        again = await client.delete(f"/api/jobs/{names[2]}")
        assert again.json()["state"] == "done"  # what is over cannot be cancelled

    in_app(test)


def test_a_job_that_is_about_to_end_costs_no_worker() -> None:
    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        name = await submit(client, "sleep 0.2")
        await until_running(jobs, name)
        worker = jobs.worker.pid
        await client.delete(f"/api/jobs/{name}")
        following = await submit(client, "after")
        assert (await until_over(client, following))["state"] == "done"
        assert (await client.get(f"/api/jobs/{name}")).json()["state"] == "cancelled"
        assert jobs.worker.pid == worker

    in_app(test)


def test_the_time_limit_stops_a_job() -> None:
    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        name = await submit(client, "sleep 60")
        await until_running(jobs, name)
        worker = jobs.worker.pid
        assert worker is not None
        told = await until_over(client, name)
        assert told["state"] == "failed"
        assert told["error"] == "stopped after 0.3 seconds, the time limit"
        following = await submit(client, "after")
        assert (await until_over(client, following))["state"] == "done"
        assert not psutil.pid_exists(worker)

    in_app(test, time_limit=0.3)


def test_a_crash_fails_one_job_only() -> None:
    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        names = [await submit(client, text) for text in ("crash", "after", "mistake", "last")]
        over = [await until_over(client, name) for name in names]
        assert [one["state"] for one in over] == ["failed", "done", "failed", "done"]
        assert "status 7" in over[0]["error"]
        assert over[2]["error"] == "a mistake"
        assert (await client.get("/health")).json()["status"] == "ok"

    in_app(test)


def test_a_worker_killed_while_it_idles_is_replaced() -> None:
    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        assert jobs.worker.pid is not None
        psutil.Process(jobs.worker.pid).kill()
        first, second = await submit(client, "a"), await submit(client, "b")
        assert (await until_over(client, first))["state"] == "failed"
        assert (await until_over(client, second))["state"] == "done"

    in_app(test)


def test_health_tells_when_the_worker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.serve.jobs.PAUSES", (0.5,))

    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        name = await submit(client, "crash")
        await until_over(client, name)
        away = await client.get("/health")
        assert (away.status_code, away.json()["status"]) == (503, "starting")
        waiting = await submit(client, "a")
        told = (await client.get(f"/api/jobs/{waiting}")).json()
        assert told["ready"] is False
        assert (await until_over(client, waiting))["state"] == "done"
        assert (await client.get("/health")).status_code == 200

    in_app(test)


def test_what_is_kept_is_bounded_by_number() -> None:
    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        names = []
        for number in range(4):
            names.append(await submit(client, str(number)))
            await until_over(client, names[-1])
            await client.get(f"/api/jobs/{names[-1]}/page")
            await client.get(f"/api/jobs/{names[0]}")  # the one in use stays
        codes = [(await client.get(f"/api/jobs/{name}")).status_code for name in names]
        assert codes == [200, 404, 404, 200]
        assert len(jobs._jobs) == 2

    in_app(test, kept=2)


def test_a_result_that_nobody_has_had_waits_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        names = [await submit(client, str(number)) for number in range(4)]
        for name in names:
            await until_over(client, name)
        assert list(jobs._jobs) == names
        await client.get(f"/api/jobs/{names[1]}/page")
        await client.get(f"/api/jobs/{names[2]}/page")
        assert len(jobs._jobs) == 4
        monkeypatch.setattr("normscope.serve.jobs.UNREAD", -1.0)
        # One at most is kept: the one used last.
        assert (await client.get(f"/api/jobs/{names[0]}")).status_code == 404
        assert list(jobs._jobs) == [names[2]]

    in_app(test, kept=1)


def test_what_is_kept_is_bounded_by_size_and_age() -> None:
    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        names = []
        for size in (400, 500, 500, 5000):
            names.append(await submit(client, f"size {size}"))
            await until_over(client, names[-1])
        # The newest stays, even if it alone is too large: somebody waits for it.
        codes = [(await client.get(f"/api/jobs/{name}")).status_code for name in names]
        assert codes == [404, 404, 404, 200]
        await asyncio.sleep(1.1)
        assert (await client.get(f"/api/jobs/{names[3]}")).status_code == 404
        assert not jobs._jobs

    in_app(test, kept_bytes=1000, kept_seconds=1.0)


def test_hostile_text_goes_through_as_text() -> None:
    texts = ["</script><script>alert(1)</script>", "a\x00b", "\u202eabc", "é" * 100, "'\"`${x}"]

    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        for text in texts:
            name = await submit(client, text)
            assert (await until_over(client, name))["state"] == "done"
            saved = await client.get(f"/api/jobs/{name}/result.safetensors")
            assert saved.content == text.encode()

    in_app(test)


def test_closing_ends_worker_and_folder() -> None:
    found: list[Any] = []

    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        await until_running(jobs, await submit(client, "sleep 60"))
        assert jobs.worker._folder is not None
        found.extend([jobs.worker.pid, jobs.worker._folder.name])

    in_app(test)
    assert not psutil.pid_exists(found[0])
    with pytest.raises(FileNotFoundError):
        next(Path(found[1]).iterdir())


def test_closing_tells_all_who_wait() -> None:
    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        done = await submit(client, "a")
        await until_over(client, done)
        names = [await submit(client, "sleep 60"), await submit(client, "b")]
        await until_running(jobs, names[0])
        asked = [
            client.get(f"/api/jobs/{names[0]}?wait=20&state=running"),
            client.get(f"/api/jobs/{names[1]}?wait=20&state=queued&position=1"),
            client.get(f"/api/jobs/{done}/result.csv"),
        ]
        waiting = [asyncio.create_task(one) for one in asked]
        await asyncio.sleep(0.1)
        started = time.monotonic()
        await jobs.close()
        answers = [await one for one in waiting]
        assert time.monotonic() - started < 5
        assert [one.json()["state"] for one in answers[:2]] == ["cancelled"] * 2
        assert answers[2].status_code == 503
        for answer in (await client.post("/api/jobs", **body(text="a")), answers[2]):
            assert answer.status_code == 503
            assert "being stopped" in answer.json()["error"]

    in_app(test)


def test_models_that_cannot_be_loaded_are_told_at_the_start() -> None:
    async def whole(*command: str) -> None:
        jobs = Jobs(Settings(), Worker({"models": ["broken"]}, command))
        try:
            await jobs.start()
        finally:
            await jobs.close()

    with pytest.raises(InputError, match="no such model"):
        run(whole(sys.executable, str(FAKE)))
    with pytest.raises(InputError, match="ended with status 3"):
        run(whole(sys.executable, "-c", "raise SystemExit(3)"))


def test_downloads_and_analyses_take_turns() -> None:
    async def test(client: httpx.AsyncClient, jobs: Jobs) -> None:
        done = await submit(client, "a")
        await until_over(client, done)
        first = await submit(client, "sleep 0.5")
        await until_running(jobs, first)
        later = [await submit(client, text) for text in ("sleep 0.2", "sleep 30")]
        ended: list[str] = []

        async def download(number: int) -> None:
            assert (await client.get(f"/api/jobs/{done}/result.csv")).status_code == 200
            ended.append(f"download {number}")

        async def watch(name: str) -> None:
            await until_over(client, name)
            ended.append("analysis")

        tasks = [asyncio.create_task(download(number)) for number in range(2)]
        tasks += [asyncio.create_task(watch(name)) for name in (first, later[0])]
        await asyncio.gather(*tasks)
        assert ended == ["analysis", "download 0", "analysis", "download 1"]
        assert (await client.get(f"/api/jobs/{later[1]}")).json()["state"] != "done"

    in_app(test)
