"""The job queue: order, time limit, cancellation, crashes, stored results."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

import httpx
import psutil
import pytest

from normscope import InputError
from normscope.serve.jobs import JobQueue
from normscope.serve.process import WorkerProcess
from normscope.serve.settings import ServeSettings
from tests.helpers.serving import FAKE, body, in_app, run, until_over


async def submit(client: httpx.AsyncClient, text: str) -> str:
    answer = await client.post("/api/jobs", **body(text=text))
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def until_running(jobs: JobQueue, name: str) -> None:
    while jobs.running is None or jobs.running.id != name:
        await asyncio.sleep(0.01)


def test_jobs_run_in_order_and_have_positions() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        names = [await submit(client, text) for text in ("sleep 0.5", "sleep 0.1", "b")]
        assert len(set(names)) == 3
        assert all(len(name) == 24 for name in names)
        await until_running(jobs, names[0])
        states = [(await client.get(f"/api/jobs/{name}")).json() for name in names]
        assert [job["position"] for job in states] == [0, 1, 2]
        assert [job["state"] for job in states] == ["running", "queued", "queued"]
        # A waiting request is answered when the position changes, not only at the end.
        query: Any = {"wait": 20, "state": "queued", "position": 2}
        started = time.monotonic()
        moved = (await client.get(f"/api/jobs/{names[2]}", params=query)).json()
        assert moved["position"] == 1
        assert time.monotonic() - started < 5
        ended = [await until_over(client, name) for name in names]
        assert [job["state"] for job in ended] == ["done"] * 3
        assert 0.5 <= ended[0]["seconds"] < 5
        saved = await client.get(f"/api/jobs/{names[2]}/result.safetensors")
        assert saved.content == b"b"
        for kind in ("csv", "json"):
            converted = await client.get(f"/api/jobs/{names[2]}/result.{kind}")
            assert converted.content == b"converted b"
        assert (await client.get(f"/api/jobs/{names[2]}/result.exe")).status_code == 404

    in_app(test)


def test_a_waiting_request_ends_in_time() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        name = await submit(client, "sleep 30")
        await until_running(jobs, name)
        started = time.monotonic()
        answer = await client.get(f"/api/jobs/{name}?wait=0.2&state=running")
        assert answer.json()["state"] == "running"
        assert 0.2 <= time.monotonic() - started < 2
        for wait in ("x", "1&position=x"):
            assert (await client.get(f"/api/jobs/{name}?wait={wait}")).status_code == 400
        assert (await client.get(f"/api/jobs/{name}?wait=nan&state=running")).status_code == 200

    in_app(test)


def test_the_queue_is_bounded() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        first = await submit(client, "sleep 30")
        await until_running(jobs, first)
        rest = [await submit(client, "a") for _ in range(2)]
        answer = await client.post("/api/jobs", **body(text="a"))
        assert answer.status_code == 503
        assert "2 analyses are already waiting" in answer.json()["error"]
        assert int(answer.headers["retry-after"]) > 0
        assert (await client.delete(f"/api/jobs/{rest[0]}")).json()["state"] == "cancelled"
        await submit(client, "a")

    in_app(test, queue=2)


def test_cancellation_ends_the_computation() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        names = [await submit(client, text) for text in ("sleep 60", "never", "after")]
        await until_running(jobs, names[0])
        worker = jobs.worker.pid
        assert worker is not None
        assert (await client.delete(f"/api/jobs/{names[1]}")).json()["state"] == "cancelled"
        cancelled = (await client.delete(f"/api/jobs/{names[0]}")).json()
        assert (cancelled["state"], cancelled["error"]) == ("cancelled", "cancelled")
        assert (await until_over(client, names[2]))["state"] == "done"
        assert not psutil.pid_exists(worker)  # the process has ended, not only the job
        for name in names[:2]:
            job = (await client.get(f"/api/jobs/{name}")).json()
            assert job["state"] == "cancelled"
            assert (await client.get(f"/api/jobs/{name}/page")).status_code == 404
        again = await client.delete(f"/api/jobs/{names[2]}")
        assert again.json()["state"] == "done"  # a finished job cannot be cancelled

    in_app(test)


def test_a_cancelled_job_that_ends_soon_keeps_the_worker() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
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
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        name = await submit(client, "sleep 60")
        await until_running(jobs, name)
        worker = jobs.worker.pid
        assert worker is not None
        job = await until_over(client, name)
        assert job["state"] == "failed"
        assert job["error"] == "stopped after 0.3 seconds, the time limit"
        following = await submit(client, "after")
        assert (await until_over(client, following))["state"] == "done"
        assert not psutil.pid_exists(worker)

    in_app(test, time_limit=0.3)


def test_a_crash_fails_only_one_job() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        names = [await submit(client, text) for text in ("crash", "after", "mistake", "last")]
        ended = [await until_over(client, name) for name in names]
        assert [job["state"] for job in ended] == ["failed", "done", "failed", "done"]
        assert ended[0]["error"] == "the worker process ended with status 7"
        assert ended[2]["error"] == "a mistake"
        assert (await client.get("/health")).json()["status"] == "ok"

    in_app(test)


def test_a_job_whose_worker_is_killed_fails_and_says_why() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        name = await submit(client, "sleep 20")
        await until_running(jobs, name)
        await asyncio.sleep(0.2)  # until the worker has read it
        assert jobs.worker.pid is not None
        psutil.Process(jobs.worker.pid).kill()
        job = await until_over(client, name)
        assert job["state"] == "failed"
        assert job["error"].startswith("the worker process was killed by signal 9, perhaps because")
        assert list(jobs.worker.folder.iterdir()) == []

    in_app(test)


def test_a_worker_killed_while_idle_is_replaced_at_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        first = jobs.worker.pid
        assert first is not None
        psutil.Process(first).terminate()
        while (health := await client.get("/health")).status_code == 200:
            await asyncio.sleep(0.001)
        assert health.json()["status"] == "starting"
        assert health.json()["reason"] == "the worker process was killed by signal 15"
        while (await client.get("/health")).status_code == 503:
            await asyncio.sleep(0.01)
        assert jobs.worker.pid not in (None, first)

    in_app(test)
    said = capfd.readouterr().err
    assert said == "normscope: the worker process was killed by signal 15; starting it again\n"


@pytest.mark.parametrize("kind", ["analysis", "download"])
def test_a_job_runs_on_a_new_worker_if_the_old_one_is_dead(kind: str) -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        done = await submit(client, "a")
        await until_over(client, done)
        worker = jobs.worker.pid
        assert worker is not None
        os.kill(worker, signal.SIGSTOP)  # so that it cannot read
        if kind == "analysis":
            name = await submit(client, "b")
            await until_running(jobs, name)
        else:
            download = asyncio.create_task(client.get(f"/api/jobs/{done}/result.csv"))
            await asyncio.sleep(0.1)
        os.kill(worker, signal.SIGKILL)
        if kind == "analysis":
            assert (await until_over(client, name))["state"] == "done"
        else:
            assert (await download).content == b"converted a"
        assert jobs.worker.pid not in (None, worker)

    in_app(test)


def test_health_while_the_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.serve.jobs.PAUSES", (0.5,))

    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        name = await submit(client, "crash")
        await until_over(client, name)
        starting = await client.get("/health")
        assert (starting.status_code, starting.json()["status"]) == (503, "starting")
        waiting = await submit(client, "a")
        job = (await client.get(f"/api/jobs/{waiting}")).json()
        assert job["ready"] is False
        assert (await until_over(client, waiting))["state"] == "done"
        assert (await client.get("/health")).status_code == 200

    in_app(test)


def test_jobs_without_a_result_are_limited_by_number() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        done = await submit(client, "a")
        await until_over(client, done)
        names = []
        for _ in range(4):
            names.append(await submit(client, "mistake"))
            await until_over(client, names[-1])
            await client.get(f"/api/jobs/{names[0]}")  # keep it the most recently used
        codes = [(await client.get(f"/api/jobs/{name}")).status_code for name in names]
        assert codes == [200, 404, 404, 200]
        assert (await client.get(f"/api/jobs/{done}/page")).status_code == 200
        assert list(jobs._jobs) == [names[0], names[3], done]
        assert not any(job.request for job in jobs._jobs.values())  # texts are not kept

    in_app(test, kept=2)


def test_stored_results_are_limited_by_size_and_age() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        names = []
        for size in (400, 500, 500, 5000):
            names.append(await submit(client, f"size {size}"))
            await until_over(client, names[-1])
        # The newest stays even if it is too large by itself: a client waits for it.
        codes = [(await client.get(f"/api/jobs/{name}")).status_code for name in names]
        assert codes == [404, 404, 404, 200]
        assert [path.name for path in jobs.worker.folder.iterdir()] == names[3:]
        await asyncio.sleep(1.1)
        assert (await client.get(f"/api/jobs/{names[3]}")).status_code == 404
        assert not jobs._jobs
        assert list(jobs.worker.folder.iterdir()) == []

    in_app(test, kept_bytes=1000, kept_seconds=1.0)


def test_any_text_is_passed_unchanged() -> None:
    texts = ["</script><script>alert(1)</script>", "a\x00b", "\u202eabc", "é" * 100, "'\"`${x}"]

    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        for text in texts:
            name = await submit(client, text)
            assert (await until_over(client, name))["state"] == "done"
            saved = await client.get(f"/api/jobs/{name}/result.safetensors")
            assert saved.content == text.encode()

    in_app(test)


def test_closing_notifies_waiting_clients() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        done = await submit(client, "a")
        await until_over(client, done)
        names = [await submit(client, "sleep 60"), await submit(client, "b")]
        await until_running(jobs, names[0])
        requests = [
            client.get(f"/api/jobs/{names[0]}?wait=20&state=running"),
            client.get(f"/api/jobs/{names[1]}?wait=20&state=queued&position=1"),
            client.get(f"/api/jobs/{done}/result.csv"),
        ]
        waiting = [asyncio.create_task(request) for request in requests]
        await asyncio.sleep(0.1)
        started = time.monotonic()
        await jobs.close()
        answers = [await task for task in waiting]
        assert time.monotonic() - started < 5
        assert [answer.json()["state"] for answer in answers[:2]] == ["cancelled"] * 2
        assert answers[2].status_code == 503
        for answer in (await client.post("/api/jobs", **body(text="a")), answers[2]):
            assert answer.status_code == 503
            assert "being stopped" in answer.json()["error"]

    in_app(test)


def test_start_reports_models_that_cannot_be_loaded() -> None:
    async def start(*command: str) -> None:
        jobs = JobQueue(ServeSettings(), WorkerProcess({"models": ["broken"]}, command))
        try:
            await jobs.start()
        finally:
            await jobs.close()

    with pytest.raises(InputError, match="no such model"):
        run(start(sys.executable, str(FAKE)))
    with pytest.raises(InputError, match="ended with status 3"):
        run(start(sys.executable, "-c", "raise SystemExit(3)"))


def test_downloads_and_analyses_take_turns() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        done = await submit(client, "a")
        await until_over(client, done)
        first = await submit(client, "sleep 0.5")
        await until_running(jobs, first)
        later = [await submit(client, text) for text in ("sleep 0.2", "sleep 30")]
        ended: list[str] = []

        async def download(kind: str) -> None:
            assert (await client.get(f"/api/jobs/{done}/result.{kind}")).status_code == 200
            ended.append(kind)

        async def watch(name: str) -> None:
            await until_over(client, name)
            ended.append("analysis")

        tasks = [asyncio.create_task(download(kind)) for kind in ("csv", "json")]
        tasks += [asyncio.create_task(watch(name)) for name in (first, later[0])]
        await asyncio.gather(*tasks)
        assert ended == ["analysis", "csv", "analysis", "json"]
        assert (await client.get(f"/api/jobs/{later[1]}")).json()["state"] != "done"

    in_app(test)


def test_many_downloads_of_a_file_convert_it_once() -> None:
    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        done = await submit(client, "a")
        await until_over(client, done)
        asked: list[str] = []
        ask = jobs.worker.ask

        async def counted(question: Any) -> Any:
            asked.append(question["task"])
            return await ask(question)

        jobs.worker.ask = counted  # type: ignore[method-assign]
        path = f"/api/jobs/{done}/result.csv"
        answers = await asyncio.gather(*(client.get(path) for _ in range(20)))
        assert {answer.content for answer in (*answers, await client.get(path))} == {b"converted a"}
        assert asked == ["convert"]

    in_app(test)


def test_a_job_that_nobody_asks_for_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.serve.jobs.ABANDONED", 0.4)

    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        first = await submit(client, "sleep 30")
        await until_running(jobs, first)
        left, waited = await submit(client, "a"), await submit(client, "b")
        following = asyncio.create_task(until_over(client, waited))  # with long polls
        await asyncio.sleep(0.6)
        for name in (first, left):
            job = (await client.get(f"/api/jobs/{name}")).json()
            assert job["state"] == "cancelled"
            assert "nobody asked for it for 0.4 seconds" in job["error"]
        assert (await following)["state"] == "done"

    in_app(test)
