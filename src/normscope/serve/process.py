"""The worker, seen from the server: start it, ask it, kill it."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import normscope
from normscope.serve.frames import Frame, receive_frame

# -P keeps the folder from which the server was started out of the worker's imports.
COMMAND = (sys.executable, "-P", "-m", "normscope.serve.worker")


class WorkerEnded(Exception):
    """The process is no more; `status` is its exit status, negative for a signal."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"the worker ended with status {status}")
        self.status = status


class Worker:
    """One process; a new one takes its place when it has to be killed."""

    def __init__(self, configuration: Mapping[str, Any], command: Sequence[str] = COMMAND) -> None:
        self.configuration, self.command = configuration, tuple(command)
        self._process: asyncio.subprocess.Process | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def pid(self) -> int | None:
        """The process's number while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    async def start(self) -> Frame:
        """Start the process and wait until it has loaded its models."""
        if self._folder is None:
            # The worker's own temporary files lie in here, and go even when it is killed.
            self._folder = tempfile.TemporaryDirectory(prefix="normscope-serve-")
        package = str(Path(normscope.__file__).parents[1])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "TMPDIR": self._folder.name,
            },
        )
        return await self.ask(Frame(self.configuration))

    async def ask(self, question: Frame) -> Frame:
        """The answer to one question; `WorkerEnded` if none will come."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(question.pack())
            await process.stdin.drain()
            return await receive_frame(process.stdout)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WorkerEnded(await process.wait()) from None

    async def kill(self) -> None:
        """End the process at once, whatever it does, and wait until it is gone."""
        process = self._process
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def close(self) -> None:
        """Kill it for good, and remove its temporary files."""
        await self.kill()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
