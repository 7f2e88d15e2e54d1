"""The worker process, seen from the server."""

from __future__ import annotations

import sys
from typing import Any

import httpx
import psutil
import pytest

from normscope.serve.jobs import JobQueue
from normscope.serve.process import WorkerEnded, WorkerProcess
from tests.helpers.serving import FAKE, body, in_app, run


def test_ask_kill_and_start_again() -> None:
    async def test() -> None:
        worker = WorkerProcess({"models": ["fake"]}, [sys.executable, str(FAKE)])

        def question(text: str) -> dict[str, str]:
            return {"task": "analyse", "text": text, "folder": str(worker.folder / str(len(text)))}

        assert worker.pid is None
        try:
            answer = await worker.start()
            assert [model["name"] for model in answer["models"]] == ["fake"]
            for text in ("a", "\x00</script> \n é\U0001f642"):  # any text, and never two lines
                await worker.ask(question(text))
                saved = worker.folder / str(len(text)) / "normscope.safetensors"
                assert saved.read_bytes() == text.encode()
            first = worker.pid
            await worker.kill()
            assert worker.pid is None
            with pytest.raises(WorkerEnded, match="was killed by signal 9") as ended:
                await worker.ask(question("bc"))
            assert not ended.value.begun
            await worker.start()
            assert worker.pid not in (None, first)
            with pytest.raises(WorkerEnded, match="ended with status 7") as ended:
                await worker.ask(question("crash"))
            assert ended.value.begun
        finally:
            await worker.close()

    run(test())


def test_closing_ends_the_process_and_removes_its_folder() -> None:
    left: list[Any] = []

    async def test(client: httpx.AsyncClient, jobs: JobQueue) -> None:
        assert (await client.post("/api/jobs", **body(text="sleep 60"))).status_code == 202
        left.extend([jobs.worker.pid, jobs.worker.folder])
        assert left[1].is_dir()
        assert left[1].stat().st_mode & 0o077 == 0  # texts of a user

    in_app(test)
    assert not psutil.pid_exists(left[0])
    assert not left[1].exists()
