"""Load on `normscope serve`: many clients at once for a while, and what they got.

    python benchmarks/serve_load.py --clients 50 --seconds 60 --json serve-load.json

Every client does what the page does: asks for an analysis, waits for it (its questions are kept
open), fetches the page of the result, begins again. Told to wait (429, 503), it waits as long as
it is told. The server runs twice: with its own limits, which hold one address back, and with a rate
that leaves only the queue as a limit. Memory is that of server and worker together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil

SENTENCES = (
    "The cat sat on the mat.",
    "Anna baked a cake, and Tom ate most of it.",
    "She was not angry, because he had eaten before.",
    "In the evening the two of them walked along the river and talked about the harvest.",
)
EXPECTED = {200, 202, 429, 503}


class Told:
    """What all clients together saw."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.problems: Counter[str] = Counter()
        self.finished: list[float] = []  # seconds from asking to having the page
        self.ran: list[float] = []  # seconds of the analyses themselves, as the server says
        self.answers: list[float] = []  # seconds of requests that are answered at once


async def client(http: httpx.AsyncClient, number: int, until: float, told: Told) -> None:
    """One client, until the time is up."""
    turn = number

    async def ask(method: str, path: str, *, timed: bool = True, **more: Any) -> httpx.Response:
        while True:
            started = time.perf_counter()
            answer = await http.request(method, path, **more)
            if timed:
                told.answers.append(time.perf_counter() - started)
            told.statuses[f"{method} {answer.status_code}"] += 1
            if answer.status_code not in (429, 503) or time.monotonic() > until:
                return answer
            await asyncio.sleep(float(answer.headers["Retry-After"]))

    while time.monotonic() < until:
        turn += 1
        started = time.perf_counter()
        text = SENTENCES[turn % len(SENTENCES)]
        asked = {"text": text, "maps": ["attn_w", "attn_n", "attn_res_ln_n", "atb_ff_res_ln"]}
        try:
            answer = await ask("POST", "/api/jobs", json=asked)
            if answer.status_code != 202:
                continue
            job = answer.json()
            while job["state"] in ("queued", "running"):
                query = {"wait": 15, "state": job["state"], "position": job["position"]}
                path = f"/api/jobs/{job['id']}"
                answer = await ask("GET", path, params=query, timed=False)
                if answer.status_code != 200:
                    break
                job = answer.json()
            if answer.status_code != 200:
                continue
            if job["state"] != "done":
                told.problems[f"{job['state']}: {job['error']}"] += 1
                continue
            page = await ask("GET", f"/api/jobs/{job['id']}/page")
            if page.status_code == 200 and b"<!doctype html>" in page.content[:20]:
                told.finished.append(time.perf_counter() - started)
                told.ran.append(job["seconds"])
        except httpx.HTTPError as error:
            told.problems[type(error).__name__] += 1


async def load(url: str, clients: int, seconds: float) -> Told:
    """All clients at once."""
    told, until = Told(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        await asyncio.gather(*(client(http, n, until, told) for n in range(clients)))
    return told


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {
        name: round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)
        for name, share in at.items()
    }


def measured(arguments: list[str], clients: int, seconds: float) -> dict[str, Any]:
    """Start a server, load it, stop it."""
    before = os.getloadavg()[0]
    process = subprocess.Popen(
        [sys.executable, "-m", "normscope", "serve", "--port", "0", *arguments],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    found = None
    while found is None:
        line = process.stderr.readline()
        if not line:
            raise SystemExit("the server did not start")
        found = re.search(r"(http://\S+?)/", line)
    parent = psutil.Process(process.pid)
    both = [parent, *parent.children()]
    memory: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            memory.append(sum(one.memory_info().rss for one in both) / 2**20)

    asyncio.run(load(found[1], 4, 3.0))  # so that what is loaded on first use is loaded
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        told = asyncio.run(load(found[1], clients, seconds))
    finally:
        over.set()
        watcher.join()
        process.terminate()
        process.communicate(timeout=30)
    unexpected = {s: n for s, n in told.statuses.items() if int(s.split()[1]) not in EXPECTED}
    thirds = len(memory) // 3
    return {
        "arguments": arguments,
        "clients": clients,
        "seconds": seconds,
        "analyses": len(told.finished),
        "analyses_per_second": round(len(told.finished) / seconds, 2),
        "statuses": dict(sorted(told.statuses.items())),
        "unexpected": unexpected,
        "problems": dict(told.problems),
        "analysis_ms": percentiles(told.finished),
        "of_which_running_ms": percentiles(told.ran),
        "request_ms": percentiles(told.answers),
        "memory_mib": {
            "first_third": round(sum(memory[:thirds]) / thirds, 1),
            "last_third": round(sum(memory[-thirds:]) / thirds, 1),
            "max": round(max(memory), 1),
        },
        "load_average": [round(one, 1) for one in (before, os.getloadavg()[0])],  # before, after
        "exit_status": process.returncode,
    }


def main() -> None:
    """Measure, print, write; status 1 if anything but the documented answers came."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    runs = {
        "own limits": measured([], given.clients, given.seconds),
        "no limit of rate": measured(["--rate", "60000"], given.clients, given.seconds),
    }
    machine = {
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "note": "clients, server and worker on the same machine, which others use as well",
    }
    data = json.dumps({"machine": machine, "runs": runs}, indent=1) + "\n"
    print(data)
    if given.json is not None:
        given.json.write_text(data)
    bad = [run for run in runs.values() if run["unexpected"] or run["problems"]]
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
