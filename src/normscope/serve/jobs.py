"""The queue: one analysis at a time, each with a time limit, each of which can be stopped."""

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
from normscope.serve.process import Worker, WorkerEnded
from normscope.serve.settings import Settings

State = Literal["queued", "running", "done", "failed", "cancelled"]
OVER: tuple[State, ...] = ("done", "failed", "cancelled")
STOPPED = "the server is being stopped"
GRACE = 0.5  # seconds a cancelled job may take to end by itself: shorter than loading models anew
UNREAD = 60.0  # seconds for which a result that nobody has had yet does not count among the kept
PAUSES = (0.0, 1.0, 5.0, 15.0)  # seconds before the worker is started again, failure by failure


class QueueFull(Exception):
    """As many jobs wait as may."""


class Unavailable(Exception):
    """The worker could not do it, and the message says why."""


@dataclass(eq=False)
class Job:
    """One analysis, from the moment it is asked for until it is forgotten."""

    request: Mapping[str, Any]
    id: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    state: State = "queued"
    started: float | None = None
    ended: float | None = None
    error: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    read: bool = False  # whether its result has been had
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def size(self) -> int:
        """Bytes that its files take."""
        return sum(map(len, self.files.values()))

    @property
    def seconds(self) -> float:
        """How long it has run."""
        if self.started is None:
            return 0.0
        return (time.monotonic() if self.ended is None else self.ended) - self.started


@dataclass(eq=False)
class _Conversion:
    """A finished job's result in another format; somebody waits for it."""

    frame: Frame
    answer: asyncio.Future[Frame]

    def fail(self, why: str) -> None:
        """Tell who waits, if anybody still does."""
        if not self.answer.done():
            self.answer.set_exception(Unavailable(why))


class Jobs:
    """All jobs, and the worker that does them."""

    def __init__(self, settings: Settings, worker: Worker | None = None) -> None:
        self.settings = settings
        self.worker = worker or Worker(
            {
                "models": list(settings.models),
                "device": settings.device,
                "dtype": settings.dtype,
                "max_length": settings.max_length,
                "max_cells": settings.max_cells,
            }
        )
        self.models: dict[str, dict[str, Any]] = {}
        self.ready = False  # whether the worker has its models
        self.running: Job | None = None
        self._waiting: deque[Job] = deque()
        self._conversions: deque[_Conversion] = deque()
        self._jobs: OrderedDict[str, Job] = OrderedDict()  # all of them, the last used last
        self._change = asyncio.Event()  # set, and replaced by another, when anything changes
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    # ---- from outside

    async def start(self) -> None:
        """Load the models, then begin to take jobs; InputError if the models cannot be had."""
        try:
            answer = await self.worker.start()
        except WorkerEnded as ended:
            raise InputError(
                f"the process that loads the models ended with status {ended.status}"
            ) from None
        if problem := answer.header.get("error"):
            raise InputError(problem)
        self.models = {model["name"]: model for model in answer.header["models"]}
        self.ready = True
        self._task = asyncio.create_task(self._work())

    async def close(self) -> None:
        """Stop everything and tell who waits; the worker is gone when this returns."""
        self._closed = True
        for job in list(self._jobs.values()):
            self._end(job, "cancelled", STOPPED)
        for conversion in self._conversions:
            conversion.fail(STOPPED)
        self._tell()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.worker.close()

    def submit(self, request: Mapping[str, Any]) -> Job:
        """A new job at the end of the queue."""
        if self._closed:
            raise Unavailable(STOPPED)
        if len(self._waiting) >= self.settings.queue:
            raise QueueFull
        job = Job(request)
        self._jobs[job.id] = job
        self._waiting.append(job)
        self._forget()
        self._tell()
        return job

    def get(self, name: str) -> Job | None:
        """The job with this id, if it is still known."""
        self._forget()
        if name in self._jobs:
            self._jobs.move_to_end(name)
        return self._jobs.get(name)

    def cancel(self, job: Job) -> None:
        """Take it from the queue, or stop it where it runs."""
        if job.state in OVER:
            return
        if job in self._waiting:
            self._waiting.remove(job)
        job.stop.set()
        self._end(job, "cancelled", "cancelled")

    def position(self, job: Job) -> int:
        """How many jobs are before it; 0 once it runs."""
        if job not in self._waiting:
            return 0
        return self._waiting.index(job) + (self.running is not None)

    def describe(self, job: Job) -> dict[str, Any]:
        """What a client is told of a job."""
        return {
            "id": job.id,
            "state": job.state,
            "position": self.position(job),
            "ready": self.ready,
            "seconds": round(job.seconds, 3),
            "time_limit": self.settings.time_limit,
            "error": job.error,
            **job.about,
        }

    async def wait(self, job: Job, seen: tuple[str, int], seconds: float) -> None:
        """Return when state or position are no longer those seen, or after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (job.state, self.position(job)) == seen:
                    await self._change.wait()

    async def convert(self, job: Job, kind: str) -> bytes:
        """A finished job's result as "json" or "csv"; it waits for one analysis at most."""
        if self._closed:
            raise Unavailable(STOPPED)
        frame = Frame({"task": "convert", "to": kind}, {"safetensors": job.files["safetensors"]})
        conversion = _Conversion(frame, asyncio.get_running_loop().create_future())
        self._conversions.append(conversion)
        self._tell()
        return (await conversion.answer).blobs[kind]

    # ---- the one task that talks to the worker

    async def _work(self) -> None:
        while True:
            while not (self._conversions or self._waiting):
                await self._change.wait()
            if not self.ready:
                await self._restart()
            # Taking turns, so that downloads need not wait long and cannot hold up all analyses.
            if self._conversions:
                await self._convert(self._conversions.popleft())
            if self._waiting and self.ready:
                await self._run(self._waiting.popleft())

    async def _run(self, job: Job) -> None:
        self.running, job.state, job.started = job, "running", time.monotonic()
        self._tell()
        asking = asyncio.create_task(self.worker.ask(Frame({"task": "analyse", **job.request})))
        stopping = asyncio.create_task(job.stop.wait())
        try:
            limit = self.settings.time_limit
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
                job, "failed",
                f"the process that computes ended (status {ended.status}), perhaps for want of "
                "memory; try a shorter text or fewer maps",
            )  # fmt: skip
        finally:
            for task in (asking, stopping):
                task.cancel()
            await asyncio.gather(asking, stopping, return_exceptions=True)
            self.running = None
            self._tell()
        if not self.ready:
            await self._restart()  # now, and not when the next job already waits

    def _finish(self, job: Job, answer: Frame) -> None:
        if "error" in answer.header:
            self._end(job, "failed", str(answer.header["error"]))
        elif job.state == "running":  # and not cancelled in the meantime
            job.files, job.about = dict(answer.blobs), dict(answer.header)
            self._end(job, "done")

    async def _convert(self, conversion: _Conversion) -> None:
        if conversion.answer.done():  # who asked has gone
            return
        try:
            async with asyncio.timeout(self.settings.time_limit):
                answer = await self.worker.ask(conversion.frame)
            problem = answer.header.get("error")
        except asyncio.CancelledError:
            conversion.fail(STOPPED)
            raise
        except TimeoutError:
            problem = f"the conversion took longer than {self.settings.time_limit:g} seconds"
            await self._kill()
        except WorkerEnded as ended:
            problem, self.ready = f"the worker ended with status {ended.status}", False
        if problem:
            conversion.fail(problem)
        elif not conversion.answer.done():
            conversion.answer.set_result(answer)

    async def _kill(self) -> None:
        self.ready = False
        await self.worker.kill()

    async def _restart(self) -> None:
        """Start the worker until it stays; in between, jobs wait and may be cancelled."""
        for failures in itertools.count():
            await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
            await self.worker.kill()
            try:
                answer = await self.worker.start()
            except (WorkerEnded, OSError):
                continue
            if "error" not in answer.header:
                self.ready = True
                self._tell()
                return

    # ---- bookkeeping

    def _end(self, job: Job, state: State, error: str | None = None) -> None:
        if job.state not in OVER:
            job.state, job.error, job.ended = state, error, time.monotonic()
            if job.id in self._jobs:
                self._jobs.move_to_end(job.id)
            self._forget()
            self._tell()

    def _forget(self) -> None:
        """Drop finished jobs: the old ones, and the least used while there are too many."""
        now = time.monotonic()
        for job in [job for job in self._jobs.values() if job.state in OVER]:
            assert job.ended is not None
            if now - job.ended > self.settings.kept_seconds:
                del self._jobs[job.id]
        finished = [job for job in self._jobs.values() if job.state in OVER]
        size = sum(job.size for job in finished)
        counted = [job for job in finished if not self._waited_for(job)]
        many = len(counted) - self.settings.kept
        for job in finished[:-1]:  # the last one is always there to be looked at
            if size > self.settings.kept_bytes or (many > 0 and job in counted):
                size, many = size - job.size, many - (job in counted)
                del self._jobs[job.id]

    def _waited_for(self, job: Job) -> bool:
        """Whether a client that was told to come again later may still come for its result."""
        assert job.ended is not None
        fresh = time.monotonic() - job.ended <= UNREAD
        return fresh and job.state == "done" and not job.read

    def _tell(self) -> None:
        """Wake all who wait for a change."""
        change, self._change = self._change, asyncio.Event()
        change.set()
