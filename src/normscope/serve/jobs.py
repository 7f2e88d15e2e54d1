"""The job queue: one analysis at a time, with a time limit and cancellation."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from normscope.errors import InputError
from normscope.serve.frames import Frame
from normscope.serve.process import WorkerEnded, WorkerProcess
from normscope.serve.settings import ServeSettings

JobState = Literal["queued", "running", "done", "failed", "cancelled"]
FINAL_STATES: tuple[JobState, ...] = ("done", "failed", "cancelled")
STOPPING = "the server is being stopped"
GRACE = 0.5  # seconds for a cancelled job to end by itself, which is faster than a new worker
UNFETCHED = 60.0  # seconds for which a result that was not fetched yet does not count as stored
PAUSES = (0.0, 1.0, 5.0, 15.0)  # seconds before the worker is started again, by failures so far


class QueueFull(Exception):
    """The maximum number of jobs is waiting."""


class Unavailable(Exception):
    """The worker cannot do what was asked; the message says why."""


@dataclass(eq=False)
class AnalysisJob:
    """An analysis that a client asked for."""

    request: Mapping[str, Any]
    id: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    state: JobState = "queued"
    started: float | None = None
    ended: float | None = None
    error: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)  # what the worker says of the result
    files: dict[str, bytes] = field(default_factory=dict)
    fetched: bool = False  # whether a client has read the result
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return sum(map(len, self.files.values()))

    @property
    def seconds(self) -> float:
        """How long the job has been running, or ran."""
        if self.started is None:
            return 0.0
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    @property
    def age(self) -> float:
        """Seconds since the job ended."""
        return 0.0 if self.ended is None else time.monotonic() - self.ended


@dataclass(eq=False)
class _Conversion:
    """The conversion of a result to another format, for a client that waits for it."""

    frame: Frame
    answer: asyncio.Future[Frame]

    def fail(self, reason: str) -> None:
        """Report an error to the client, unless it has gone."""
        if not self.answer.done():
            self.answer.set_exception(Unavailable(reason))


class JobQueue:
    """All jobs, and the worker process that runs them.

    A single task (`_work`) talks to the worker. Other tasks add jobs and wait for changes.
    """

    def __init__(self, settings: ServeSettings, worker: WorkerProcess | None = None) -> None:
        self.settings = settings
        self.worker = worker or WorkerProcess(
            {
                "models": list(settings.models) or [None],
                "device": settings.device,
                "dtype": settings.dtype,
                "max_length": settings.max_length,
                "max_cells": settings.max_cells,
            }
        )
        self.models: dict[str, dict[str, Any]] = {}
        self.ready = False  # whether the worker has loaded the models
        self.running: AnalysisJob | None = None
        self._waiting: deque[AnalysisJob] = deque()
        self._conversions: deque[_Conversion] = deque()
        self._jobs: OrderedDict[str, AnalysisJob] = OrderedDict()  # by id; the last used is last
        self._change = asyncio.Event()  # set, and replaced by a new one, at every change
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    # ---- called by the routes

    async def start(self) -> None:
        """Load the models, then begin to run jobs.

        Raises:
            InputError: the models cannot be loaded.
        """
        try:
            answer = await self.worker.start()
        except WorkerEnded as ended:
            raise InputError(
                f"the process that loads the models ended with status {ended.status}"
            ) from None
        if error := answer.header.get("error"):
            raise InputError(error)
        self.models = {model["name"]: model for model in answer.header["models"]}
        self.ready = True
        self._task = asyncio.create_task(self._work())

    async def close(self) -> None:
        """Cancel all jobs, notify the waiting clients and end the worker."""
        self._closed = True
        for job in list(self._jobs.values()):
            self._end(job, "cancelled", STOPPING)
        for conversion in self._conversions:
            conversion.fail(STOPPING)
        self._notify()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.worker.close()

    def submit(self, request: Mapping[str, Any]) -> AnalysisJob:
        """Add a job to the end of the queue and return it."""
        if self._closed:
            raise Unavailable(STOPPING)
        if len(self._waiting) >= self.settings.queue:
            raise QueueFull
        job = AnalysisJob(request)
        self._jobs[job.id] = job
        self._waiting.append(job)
        self._discard()
        self._notify()
        return job

    def get(self, job_id: str) -> AnalysisJob | None:
        """Return the job with this id, or None if it is not stored."""
        self._discard()
        if job_id in self._jobs:
            self._jobs.move_to_end(job_id)
        return self._jobs.get(job_id)

    def cancel(self, job: AnalysisJob) -> None:
        """Remove a job from the queue, or stop it if it is running."""
        if job.state in FINAL_STATES:
            return
        if job in self._waiting:
            self._waiting.remove(job)
        job.stop.set()
        self._end(job, "cancelled", "cancelled")

    def position(self, job: AnalysisJob) -> int:
        """Return how many jobs come before this one; 0 if it is not waiting."""
        if job not in self._waiting:
            return 0
        return self._waiting.index(job) + (self.running is not None)

    def describe(self, job: AnalysisJob) -> dict[str, Any]:
        """Return what a client is told about a job."""
        return {
            "id": job.id,
            "state": job.state,
            "position": self.position(job),
            "ready": self.ready,
            "seconds": round(job.seconds, 3),
            "time_limit": self.settings.time_limit,
            "error": job.error,
            **job.details,
        }

    async def wait(self, job: AnalysisJob, known: tuple[str, int], seconds: float) -> None:
        """Wait until state and position differ from the known ones, but at most `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (job.state, self.position(job)) == known:
                    await self._change.wait()

    async def convert(self, job: AnalysisJob, kind: str) -> bytes:
        """Return the result of a finished job as "json" or "csv".

        A conversion waits for at most one analysis.
        """
        if self._closed:
            raise Unavailable(STOPPING)
        frame = Frame({"task": "convert", "to": kind}, {"safetensors": job.files["safetensors"]})
        conversion = _Conversion(frame, asyncio.get_running_loop().create_future())
        self._conversions.append(conversion)
        self._notify()
        return (await conversion.answer).blobs[kind]

    # ---- the task that talks to the worker

    async def _work(self) -> None:
        while True:
            while not (self._conversions or self._waiting):
                await self._change.wait()
            if not self.ready:
                await self._restart()
            # Alternate, so that neither downloads nor analyses wait long for the others.
            if self._conversions:
                await self._convert(self._conversions.popleft())
            if self._waiting and self.ready:
                await self._run(self._waiting.popleft())

    async def _run(self, job: AnalysisJob) -> None:
        self.running, job.state, job.started = job, "running", time.monotonic()
        self._notify()
        asking = asyncio.create_task(self.worker.ask(Frame(job.request)))
        stopping = asyncio.create_task(job.stop.wait())
        limit = self.settings.time_limit
        try:
            await asyncio.wait(
                {asking, stopping}, timeout=limit, return_when=asyncio.FIRST_COMPLETED
            )
            if stopping.done():
                await asyncio.wait({asking}, timeout=GRACE)
            if asking.done():
                self._finish(job, asking.result())
            else:
                self._end(job, "failed", f"stopped after {limit:g} seconds, the time limit")
                await self._kill()
        except WorkerEnded as ended:
            self.ready = False
            self._end(
                job,
                "failed",
                f"the worker process ended with status {ended.status}, perhaps because it ran out "
                "of memory; try a shorter text, fewer maps or no layers",
            )
        finally:
            for task in (asking, stopping):
                task.cancel()
            await asyncio.gather(asking, stopping, return_exceptions=True)
            self.running = None
            self._notify()
        if not self.ready:
            await self._restart()  # before the next job arrives

    def _finish(self, job: AnalysisJob, answer: Frame) -> None:
        if "error" in answer.header:
            self._end(job, "failed", str(answer.header["error"]))
        elif job.state == "running":  # it may have been cancelled since
            job.files, job.details = dict(answer.blobs), dict(answer.header)
            self._end(job, "done")

    async def _convert(self, conversion: _Conversion) -> None:
        if conversion.answer.done():  # the client has gone
            return
        try:
            async with asyncio.timeout(self.settings.time_limit):
                answer = await self.worker.ask(conversion.frame)
            error = answer.header.get("error")
        except asyncio.CancelledError:
            conversion.fail(STOPPING)
            raise
        except TimeoutError:
            error = f"the conversion took longer than {self.settings.time_limit:g} seconds"
            await self._kill()
        except WorkerEnded as ended:
            error, self.ready = str(ended), False
        if error:
            conversion.fail(error)
        elif not conversion.answer.done():
            conversion.answer.set_result(answer)

    async def _kill(self) -> None:
        self.ready = False
        await self.worker.kill()

    async def _restart(self) -> None:
        """Start the worker, again and again until it has loaded the models."""
        for failures in itertools.count():
            await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
            await self.worker.kill()
            try:
                answer = await self.worker.start()
            except (WorkerEnded, OSError):
                continue
            if "error" not in answer.header:
                self.ready = True
                self._notify()
                return

    # ---- stored jobs

    def _end(self, job: AnalysisJob, state: JobState, error: str | None = None) -> None:
        if job.state not in FINAL_STATES:
            job.state, job.error, job.ended = state, error, time.monotonic()
            if job.id in self._jobs:
                self._jobs.move_to_end(job.id)
            self._discard()
            self._notify()

    def _discard(self) -> None:
        """Remove finished jobs that are too old, and the least recently used of too many."""
        for job in self._finished():
            if job.age > self.settings.kept_seconds:
                del self._jobs[job.id]
        finished = self._finished()
        size = sum(job.size for job in finished)
        counted = [job for job in finished if not self._is_awaited(job)]
        excess = len(counted) - self.settings.kept
        for job in finished[:-1]:  # the most recently used job always stays
            if size > self.settings.kept_bytes or (excess > 0 and job in counted):
                size, excess = size - job.size, excess - (job in counted)
                del self._jobs[job.id]

    def _finished(self) -> list[AnalysisJob]:
        return [job for job in self._jobs.values() if job.state in FINAL_STATES]

    def _is_awaited(self, job: AnalysisJob) -> bool:
        """Return whether a client that was told to retry may still come for this result."""
        return job.state == "done" and not job.fetched and job.age <= UNFETCHED

    def _notify(self) -> None:
        """Wake up all tasks that wait for a change."""
        change, self._change = self._change, asyncio.Event()
        change.set()
