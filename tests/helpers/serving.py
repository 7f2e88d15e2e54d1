"""For the tests of the web app: one with a pretended worker, and the real one as a program."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
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
from normscope.serve.jobs import Jobs
from normscope.serve.process import Worker
from normscope.serve.settings import Settings

FAKE = Path(__file__).parent / "fake_worker.py"
HOME = "http://127.0.0.1:8765"
TEXT = "The cat sat on the mat."


@asynccontextmanager
async def app(**settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Jobs]]:
    """A client of an app whose worker is pretended: see fake_worker.py for what a text does."""
    chosen = replace(Settings(), **settings)
    jobs = Jobs(chosen, Worker({"models": ["fake", "translator"]}, [sys.executable, str(FAKE)]))
    transport = httpx.ASGITransport(create_app(chosen, jobs))
    try:
        await jobs.start()
        async with httpx.AsyncClient(transport=transport, base_url=HOME) as client:
            yield client, jobs
    finally:
        await jobs.close()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """asyncio.run in a thread of its own: a browser driven in this one has a loop there."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, coroutine).result()


def in_app(test: Callable[[httpx.AsyncClient, Jobs], Awaitable[None]], **settings: Any) -> None:
    """Run an async test with an app of these settings."""

    async def whole() -> None:
        async with app(**settings) as (client, jobs):
            await test(client, jobs)

    run(whole())


async def until_over(client: httpx.AsyncClient, name: str, seconds: float = 20.0) -> dict[str, Any]:
    """What is told of a job when it is no longer queued nor running."""
    deadline = time.monotonic() + seconds
    told: dict[str, Any] = {"state": "queued", "position": 0}
    while told["state"] in ("queued", "running"):
        assert time.monotonic() < deadline, told
        query = {"wait": 2, "state": told["state"], "position": told["position"]}
        told = (await client.get(f"/api/jobs/{name}", params=query)).json()
    return told


class Server:
    """`normscope serve` as a process."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: list[str]) -> None:
        self.process, self.url, self.log = process, url, log
        self.port = int(url.split(":")[2].split("/")[0])

    @property
    def worker(self) -> psutil.Process:
        """The process that computes, now."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def client(self, **options: Any) -> httpx.Client:
        """A client, to be closed by who asks for it."""
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60, **options)

    @cached_property
    def http(self) -> httpx.Client:
        """A client that is closed with the server."""
        return self.client()

    def finish(self, name: str) -> dict[str, Any]:
        """What is told of a job when it is over."""
        for _ in range(600):
            told: dict[str, Any] = self.http.get(f"/api/jobs/{name}").json()
            if told["state"] not in ("queued", "running"):
                return told
            time.sleep(0.1)
        raise AssertionError(told)


@contextmanager
def server(*arguments: str, **environment: str) -> Iterator[Server]:
    """Start it on a free port; end it by SIGTERM, and see that nothing of it is left."""
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
            assert select.select([process.stderr], [], [], 120)[0], f"it does not start: {log}"
            log.append(line := process.stderr.readline())
            assert line, f"it ended: {log}"
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
    """What a POST of these fields needs."""
    return {
        "content": json.dumps(fields).encode(),
        "headers": {"Content-Type": "application/json"},
    }
