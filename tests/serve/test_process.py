"""The worker process, seen from the server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from normscope.serve.frames import Frame
from normscope.serve.jobs import JobQueue
from normscope.serve.process import WorkerEnded, WorkerProcess
from tests.helpers.serving import FAKE, body, in_app, run


def question(text: str) -> Frame:
    return Frame({"task": "analyse", "text": text})


def test_ask_kill_and_start_again() -> None:
    async def test() -> None:
        worker = WorkerProcess({"models": ["fake"]}, [sys.executable, str(FAKE)])
        assert worker.pid is None
        try:
            answer = await worker.start()
            assert [model["name"] for model in answer.header["models"]] == ["fake"]
            assert (await worker.ask(question("a"))).blobs["safetensors"] == b"a"
            first = worker.pid
            await worker.kill()
            assert worker.pid is None
            with pytest.raises(WorkerEnded, match="status -9"):
                await worker.ask(question("a"))
            await worker.start()
            assert worker.pid not in (None, first)
            with pytest.raises(WorkerEnded, match="status 7"):
                await worker.ask(question("crash"))
        finally:
            await worker.close()

    run(test())


def test_closing_ends_the_process_and_removes_its_folder() -> None:
    left: list[Any] = []

    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        assert (await client.post("/api/jobs", **body(text="sleep 60"))).status_code == 202
        assert jobs.worker._folder is not None
        left.extend([jobs.worker.pid, jobs.worker._folder.name])
        assert Path(left[1]).is_dir()

    in_app(test)
    assert not psutil.pid_exists(left[0])
    assert not Path(left[1]).exists()
