"""The job queue: one analysis at a time, with a time limit and cancellation."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import shutil
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from normscope.errors import InputError
from normscope.serve.errors import busy
from normscope.serve.process import WorkerEnded, WorkerProcess
from normscope.serve.settings import ServeSettings

JobState = Literal["queued", "running", "done", "failed", "cancelled"]
FINAL_STATES: tuple[JobState, ...] = ("done", "failed", "cancelled")
STOPPING = "the server is being stopped"
GRACE = 0.5  # seconds for a cancelled job to end by itself, which is faster than a new worker
SIGKILL = -9  # the status of a process that the system killed, for example to free memory
ABANDONED = 60.0  # seconds after which a job that nobody asks for is cancelled
PAUSES = (0.0, 1.0, 5.0, 15.0)  # seconds before the worker is started again, by failures so far


@dataclass(eq=False)
class AnalysisJob:
    """An analysis that a client asked for."""

    request: Mapping[str, Any]
    client: str
    id: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    state: JobState = "queued"
    started: float | None = None
    ended: float | None = None
    error: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)  # what the worker says of the result
    files: dict[str, Path] = field(default_factory=dict)  # by format
    size: int = 0  # of all files, in bytes
    asked: float = field(default_factory=time.monotonic)  # when a client last asked for it
    clients: int = 0  # requests that wait for it
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def seconds(self) -> float:
        """How long the job has been running, or ran."""
        if self.started is None:
            return 0.0
        return (time.monotonic() if self.ended is None else self.ended) - self.started


@dataclass(eq=False)
class _Conversion:
    """The conversion of a result to another format, for the clients that wait for it."""

    job: AnalysisJob
    kind: str
    clients: int = 0
    error: str | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


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
        self.reason: str | None = None  # why it is being started again
        self.running: AnalysisJob | None = None
        self._waiting: deque[AnalysisJob] = deque()
        self._conversions: dict[tuple[str, str], _Conversion] = {}  # by job and format
        self._jobs: OrderedDict[str, AnalysisJob] = OrderedDict()  # by id; the last used is last
        self._change = asyncio.Event()  # set, and replaced by a new one, at every change
        self._tasks: set[asyncio.Task[None]] = set()
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
            raise InputError(f"the models could not be loaded: {ended}") from None
        if error := answer.get("error"):
            raise InputError(error)
        self.models = {model["name"]: model for model in answer["models"]}
        self._set_ready()
        self._tasks.add(asyncio.create_task(self._work()))

    async def close(self) -> None:
        """Cancel all jobs, notify the waiting clients and end the worker."""
        self._closed = True
        for job in list(self._jobs.values()):
            self._end(job, "cancelled", STOPPING)
        for conversion in self._conversions.values():
            conversion.error = STOPPING
            conversion.ended.set()
        self._notify()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.worker.close()

    def submit(self, request: Mapping[str, Any], client: str = "") -> AnalysisJob:
        """Add a job to the end of the queue and return it.

        Args:
            request: The question for the worker.
            client: Whose job it is. If other machines are let in, a client may have a part of the
                queue.
        """
        if self._closed:
            raise busy(STOPPING)
        if len(self._waiting) >= self.settings.queue:
            raise busy(f"{self.settings.queue} analyses are already waiting")
        own = sum(job.client == client for job in self._waiting)
        if own >= self.settings.share(self.settings.queue):
            raise busy(f"the limit of waiting analyses from one address ({own}) is reached", 429)
        job = AnalysisJob(request, client)
        self._jobs[job.id] = job
        self._waiting.append(job)
        self._discard()
        self._notify()
        asyncio.get_running_loop().call_later(ABANDONED, self._abandon, job)
        return job

    def get(self, job_id: str) -> AnalysisJob | None:
        """Return the job with this id, or None if it is not stored."""
        self._discard()
        job = self._jobs.get(job_id)
        if job is not None:
            self._jobs.move_to_end(job_id)
            job.asked = time.monotonic()
        return job

    def cancel(self, job: AnalysisJob, error: str = "cancelled") -> None:
        """Remove a job from the queue, or stop it if it is running."""
        if job.state in FINAL_STATES:
            return
        if job in self._waiting:
            self._waiting.remove(job)
        job.stop.set()
        self._end(job, "cancelled", error)

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
        job.clients += 1
        try:
            async with asyncio.timeout(seconds):
                while (job.state, self.position(job)) == known:
                    await self._change.wait()
        except TimeoutError:
            pass
        finally:
            job.clients, job.asked = job.clients - 1, time.monotonic()

    async def convert(self, job: AnalysisJob, kind: str) -> None:
        """Add "json" or "csv" to the files of a finished job."""
        if self._closed:
            raise busy(STOPPING)
        conversion = self._conversions.setdefault((job.id, kind), _Conversion(job, kind))
        conversion.clients += 1
        self._notify()
        try:
            await conversion.ended.wait()
        finally:
            conversion.clients -= 1
        if conversion.error is not None:
            raise busy(conversion.error)

    # ---- the task that talks to the worker

    async def _work(self) -> None:
        while True:
            if not self.ready:
                await self._restart()
            elif not (self._conversions or self._waiting):
                await self._change.wait()
            # Alternate, so that neither downloads nor analyses wait long for the others.
            if self._conversions and self.ready:
                await self._convert(next(iter(self._conversions.values())))
            if self._waiting and self.ready:
                await self._run(self._waiting.popleft())

    async def _run(self, job: AnalysisJob) -> None:
        self.running, job.state, job.started = job, "running", time.monotonic()
        self._notify()
        question = {**job.request, "folder": str(self._folder(job))}
        asking = asyncio.create_task(self.worker.ask(question))
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
            self._lose(ended)
            if ended.begun:
                self._end(job, "failed", f"{ended}{_advice(ended)}")
            elif not job.stop.is_set():  # the worker had ended before: a new one runs the job
                job.state, job.started = "queued", None
                self._waiting.appendleft(job)
        finally:
            for task in (asking, stopping):
                task.cancel()
            await asyncio.gather(asking, stopping, return_exceptions=True)
            self.running = None
            if not job.files:
                shutil.rmtree(self._folder(job), ignore_errors=True)
            self._notify()

    def _finish(self, job: AnalysisJob, answer: dict[str, Any]) -> None:
        if "error" in answer:
            self._end(job, "failed", str(answer["error"]))
        elif job.state == "running":  # it may have been cancelled since
            job.details = answer
            self._read_files(job)
            self._end(job, "done")

    async def _convert(self, conversion: _Conversion) -> None:
        job = conversion.job
        question = {"task": "convert", "to": conversion.kind, "folder": str(self._folder(job))}
        try:
            if conversion.clients:
                async with asyncio.timeout(self.settings.time_limit):
                    conversion.error = (await self.worker.ask(question)).get("error")
            if conversion.error is None and job.id in self._jobs:
                self._read_files(job)
        except TimeoutError:
            conversion.error = f"stopped after {self.settings.time_limit:g} seconds, the time limit"
            await self._kill()
        except WorkerEnded as ended:
            self._lose(ended)
            if not ended.begun:  # a new worker converts it
                return
            conversion.error = f"{ended}{_advice(ended)}"
        del self._conversions[job.id, conversion.kind]
        conversion.ended.set()

    async def _kill(self) -> None:
        self.ready = False
        await self.worker.kill()

    def _lose(self, ended: WorkerEnded) -> None:
        """Note that the worker has ended by itself."""
        if self.ready and not self._closed:
            self.ready, self.reason = False, str(ended)
            print(f"normscope: {ended}; starting it again", file=sys.stderr, flush=True)
            self._notify()

    def _set_ready(self) -> None:
        self.ready, self.reason = True, None
        task = asyncio.create_task(self._watch())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._notify()

    async def _watch(self) -> None:
        """Note the end of the worker also when nothing is asked of it."""
        self._lose(await self.worker.ended())

    async def _restart(self) -> None:
        """Start the worker, again and again until it has loaded the models."""
        for failures in itertools.count():
            await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
            await self.worker.kill()
            with suppress(WorkerEnded, OSError):
                if "error" not in await self.worker.start():
                    self._set_ready()
                    return

    # ---- stored jobs

    def _folder(self, job: AnalysisJob) -> Path:
        return self.worker.folder / job.id

    def _read_files(self, job: AnalysisJob) -> None:
        job.files = {path.suffix[1:]: path for path in self._folder(job).iterdir()}
        job.size = sum(path.stat().st_size for path in job.files.values())
        self._jobs.move_to_end(job.id)
        self._discard()

    def _abandon(self, job: AnalysisJob) -> None:
        """Cancel a job that nobody asks for, now or later."""
        now = time.monotonic()
        left = job.asked + ABANDONED - now if job.clients == 0 else ABANDONED
        if job.state in FINAL_STATES:
            return
        if left <= 0:
            self.cancel(job, f"cancelled, because nobody asked for it for {ABANDONED:g} seconds")
        else:
            asyncio.get_running_loop().call_later(left, self._abandon, job)

    def _end(self, job: AnalysisJob, state: JobState, error: str | None = None) -> None:
        if job.state not in FINAL_STATES:
            job.state, job.error, job.ended, job.request = state, error, time.monotonic(), {}
            self._jobs.move_to_end(job.id)
            self._discard()
            self._notify()

    def _discard(self) -> None:
        """Remove finished jobs that are too old, and the least recently used of too many."""
        size = failed = 0
        finished = [job for job in self._jobs.values() if job.ended is not None]
        oldest = time.monotonic() - self.settings.kept_seconds
        for job in reversed(finished):
            size, failed = size + job.size, failed + (not job.files)
            fits = size <= self.settings.kept_bytes if job.files else failed <= self.settings.kept
            # The most recently used job always stays: its client is there.
            if (job.ended or 0.0) < oldest or not (fits or job is finished[-1]):
                size, failed = size - job.size, failed - (not job.files)
                del self._jobs[job.id]
                shutil.rmtree(self._folder(job), ignore_errors=True)

    def _notify(self) -> None:
        """Wake up all tasks that wait for a change."""
        change, self._change = self._change, asyncio.Event()
        change.set()


def _advice(ended: WorkerEnded) -> str:
    """Return what a user can do if the system killed the worker because memory ran out."""
    advice = ", perhaps because memory ran out; try a shorter text, fewer maps or no layers"
    return advice if ended.status == SIGKILL else ""
