"""The web app for tests: in this process with a fake worker, or as a program."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import psutil

import normscope
from normscope.serve.app import create_app
from normscope.serve.jobs import JobQueue
from normscope.serve.process import WorkerProcess
from normscope.serve.server import create_server
from normscope.serve.settings import ServeSettings

FAKE = Path(__file__).parent / "fake_worker.py"
HOME = "http://127.0.0.1:8765"
TEXT = "The cat sat on the mat."


def fake_jobs(settings: ServeSettings) -> JobQueue:
    """Return a queue whose worker is fake_worker.py."""
    names = ["fake", "translator", "masked"]
    return JobQueue(settings, WorkerProcess({"models": names}, [sys.executable, str(FAKE)]))


@asynccontextmanager
async def app(**settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, JobQueue]]:
    """Yield a client and the queue of an app whose worker is fake_worker.py."""
    changed = replace(ServeSettings(), **settings)
    jobs = fake_jobs(changed)
    transport = httpx.ASGITransport(create_app(changed, jobs))
    try:
        await jobs.start()
        async with httpx.AsyncClient(transport=transport, base_url=HOME) as client:
            yield client, jobs
    finally:
        await jobs.close()


@asynccontextmanager
async def listening(**settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, int, JobQueue]]:
    """Yield a client, the port and the queue of a server whose worker is fake_worker.py."""
    changed = replace(ServeSettings(), **settings)
    jobs = fake_jobs(changed)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as opened:
        port = opened.getsockname()[1]
        try:
            await jobs.start()
            program = create_server(changed, jobs)
            serving = asyncio.create_task(program.serve([opened]))
            while not program.started:
                await asyncio.sleep(0.01)
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                yield client, port, jobs
            program.should_exit = True
            await serving
        finally:
            await jobs.close()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a new thread: the main thread may have the event loop of a browser."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, coroutine).result()


def in_app(test: Callable[[httpx.AsyncClient, JobQueue], Awaitable[None]], **settings: Any) -> None:
    """Run an async test with an app that has these settings."""

    async def whole() -> None:
        async with app(**settings) as (client, jobs):
            await test(client, jobs)

    run(whole())


async def until_over(client: httpx.AsyncClient, name: str, seconds: float = 20.0) -> dict[str, Any]:
    """Wait until a job has ended and return its description."""
    deadline = time.monotonic() + seconds
    job: dict[str, Any] = {"state": "queued", "position": 0}
    while job["state"] in ("queued", "running"):
        assert time.monotonic() < deadline, job
        query = {"wait": 2, "state": job["state"], "position": job["position"]}
        job = (await client.get(f"/api/jobs/{name}", params=query)).json()
    return job


def check_error(response: httpx.Response, status: int, message: str) -> None:
    """Check that a response is an error in JSON with the headers of every response."""
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    assert message in response.json()["error"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in response.headers["content-security-policy"]


class Server:
    """`normscope serve` as a process."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: list[str]) -> None:
        self.process, self.url, self.log = process, url, log
        self.port = int(url.split(":")[2].split("/")[0])

    @property
    def worker(self) -> psutil.Process:
        """The current worker process."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def client(self, **options: Any) -> httpx.Client:
        """Return a client, which the caller closes."""
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60, **options)

    @cached_property
    def http(self) -> httpx.Client:
        """A client that is closed when the server stops."""
        return self.client()

    def until(self, name: str, state: str) -> None:
        """Wait until a job has this state."""
        deadline = time.monotonic() + 60
        while self.http.get(f"/api/jobs/{name}").json()["state"] != state:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def finish(self, name: str) -> dict[str, Any]:
        """Wait until a job has ended and return its description."""
        for _ in range(600):
            job: dict[str, Any] = self.http.get(f"/api/jobs/{name}").json()
            if job["state"] not in ("queued", "running"):
                return job
            time.sleep(0.1)
        raise AssertionError(job)


@contextmanager
def server(*arguments: str, **environment: str) -> Iterator[Server]:
    """Start a server on a free port; stop it with SIGTERM and check that no process is left."""
    process = subprocess.Popen(
        [sys.executable, "-m", "normscope", "serve", "--port", "0", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(normscope.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
            **environment,
        },
    )
    assert process.stderr is not None
    log: list[str] = []
    running = None
    try:
        url = None
        while url is None:
            assert select.select([process.stderr], [], [], 120)[0], (
                f"the server does not start: {log}"
            )
            log.append(line := process.stderr.readline())
            assert line, f"the server ended: {log}"
            url = re.search(r"http://\S+", line)
        running = Server(process, url[0], log)
        yield running
        if process.poll() is None:  # a test may have ended it itself
            workers = psutil.Process(process.pid).children()
            process.send_signal(signal.SIGTERM)
            log.append(process.communicate(timeout=60)[1])
            assert process.returncode == 0, log
            assert log[-1].endswith("normscope: stopped\n")
            assert "Traceback" not in log[-1]
            assert not psutil.wait_procs(workers, timeout=10)[1]
    finally:
        if running is not None:
            running.http.close()
        if process.poll() is None:
            process.kill()
        process.stderr.close()
        process.wait()


def body(**fields: Any) -> dict[str, Any]:
    """Return the arguments of a POST with these fields."""
    return {
        "content": json.dumps(fields).encode(),
        "headers": {"Content-Type": "application/json"},
    }
