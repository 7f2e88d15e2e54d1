"""The worker process, seen from the server: start it, ask it, kill it.

Questions and answers are lines of JSON; results are files in a folder that both know. Nothing is
unpickled, so neither process can run code in the other. Connections of `multiprocessing` are not
used because they block: each read in the server would need a thread that cannot be cancelled.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import normscope

# -P: the folder in which the server was started is not searched for modules.
COMMAND = (sys.executable, "-P", "-m", "normscope.serve.worker")
LONGEST_ANSWER = 2**24  # bytes in a line


class WorkerEnded(Exception):
    """The process has ended.

    Attributes:
        status: Its exit status, negative for a signal.
        begun: Whether it had begun to work on a question.
    """

    def __init__(self, status: int, begun: bool = False) -> None:
        how = f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
        super().__init__(f"the worker process {how}")
        self.status, self.begun = status, begun


class WorkerProcess:
    """A process that answers questions; after `kill` it can be started again.

    Args:
        configuration: The first line that it reads: models, device, dtype and limits.
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

    @property
    def folder(self) -> Path:
        """The folder for results and temporary files, which `close` removes."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(
                prefix="normscope-serve-", ignore_cleanup_errors=True
            )
        return Path(self._folder.name)

    async def start(self) -> dict[str, Any]:
        """Start the process and return its first answer, which comes when the models are loaded."""
        folder = str(self.folder)
        package = str(Path(normscope.__file__).parents[1])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": folder},
            limit=LONGEST_ANSWER,
        )
        return await self.ask({**self.configuration, "folder": folder})

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Send a question and return the answer.

        Raises:
            WorkerEnded: the process has ended without an answer.
        """
        process, begun = self._process, False
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question).encode("ascii") + b"\n")
            await process.stdin.drain()
            await process.stdout.readuntil()  # says that the question has been read
            begun = True
            return dict(json.loads(await process.stdout.readuntil()))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WorkerEnded(await process.wait(), begun) from None

    async def ended(self) -> WorkerEnded:
        """Wait until the process has ended, and return how."""
        assert self._process is not None
        return WorkerEnded(await self._process.wait())

    async def kill(self) -> None:
        """Kill the process and wait until it has ended."""
        process = self._process
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def close(self) -> None:
        """Kill the process and remove its folder."""
        await self.kill()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
