"""The worker process, seen from the server: start it, ask it, kill it."""

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

# -P: the folder in which the server was started is not searched for modules.
COMMAND = (sys.executable, "-P", "-m", "normscope.serve.worker")


class WorkerEnded(Exception):
    """The process has ended; `status` is its exit status, negative for a signal."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"the worker process ended with status {status}")
        self.status = status


class WorkerProcess:
    """A process that answers questions; after `kill` it can be started again.

    Args:
        configuration: The header of the first frame: models, device, dtype and limits.
        command: The program to run.
    """

    def __init__(self, configuration: Mapping[str, Any], command: Sequence[str] = COMMAND) -> None:
        self.configuration, self.command = configuration, tuple(command)
        self._process: asyncio.subprocess.Process | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, or None if the process is not running."""
        if self._process is None or self._process.returncode is not None:
            return None
        return self._process.pid

    async def start(self) -> Frame:
        """Start the process and return its first answer, which comes when the models are loaded."""
        if self._folder is None:
            # Temporary files of the worker go here, so that they are removed if it is killed.
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
        """Send a question and return the answer.

        Raises:
            WorkerEnded: the process has ended without an answer.
        """
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
        """Kill the process and wait until it has ended."""
        process = self._process
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def close(self) -> None:
        """Kill the process and remove its temporary files."""
        await self.kill()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
