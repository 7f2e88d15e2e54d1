"""Load test of `normscope serve` with many simultaneous clients.

    python benchmarks/serve_load.py --clients 50 --seconds 60 --json serve-load.json

Each client sends the same requests as the page: it asks for an analysis, waits for it, fetches the
page of the result, and starts again. After 429 or 503 it waits as long as the response says. Memory
is the sum of server and worker.
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


class Outcome:
    """What all clients together measured."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.problems: Counter[str] = Counter()
        self.finished: list[float] = []  # seconds from request to page
        self.ran: list[float] = []  # seconds of the analyses, as the server reports them
        self.answers: list[float] = []  # seconds of requests that do not wait for a job


async def client(http: httpx.AsyncClient, number: int, until: float, outcome: Outcome) -> None:
    """Send the requests of one client until the time is up."""
    turn = number

    async def ask(method: str, path: str, *, timed: bool = True, **more: Any) -> httpx.Response:
        while True:
            started = time.perf_counter()
            answer = await http.request(method, path, **more)
            if timed:
                outcome.answers.append(time.perf_counter() - started)
            outcome.statuses[f"{method} {answer.status_code}"] += 1
            if answer.status_code not in (429, 503) or time.monotonic() > until:
                return answer
            await asyncio.sleep(float(answer.headers["Retry-After"]))

    while time.monotonic() < until:
        turn += 1
        started = time.perf_counter()
        text = SENTENCES[turn % len(SENTENCES)]
        analysis = {"text": text, "maps": ["attn_w", "attn_n", "attn_res_ln_n", "atb_ff_res_ln"]}
        try:
            answer = await ask("POST", "/api/jobs", json=analysis)
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
                outcome.problems[f"{job['state']}: {job['error']}"] += 1
                continue
            page = await ask("GET", f"/api/jobs/{job['id']}/page")
            if page.status_code == 200 and b"<!doctype html>" in page.content[:20]:
                outcome.finished.append(time.perf_counter() - started)
                outcome.ran.append(job["seconds"])
        except httpx.HTTPError as error:
            outcome.problems[type(error).__name__] += 1


async def load(url: str, clients: int, seconds: float) -> Outcome:
    """Run all clients at once."""
    outcome, until = Outcome(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        await asyncio.gather(*(client(http, n, until, outcome) for n in range(clients)))
    return outcome


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return percentiles in milliseconds."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {
        name: round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)
        for name, share in at.items()
    }


def measured(clients: int, seconds: float) -> dict[str, Any]:
    """Start a server, run the clients, and stop it."""
    before = os.getloadavg()[0]
    process = subprocess.Popen(
        [sys.executable, "-m", "normscope", "serve", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    address = None
    while address is None:
        line = process.stderr.readline()
        if not line:
            raise SystemExit("the server did not start")
        address = re.search(r"(http://\S+?)/", line)
    parent = psutil.Process(process.pid)
    both = [parent, *parent.children()]
    memory: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            memory.append(sum(program.memory_info().rss for program in both) / 2**20)

    asyncio.run(load(address[1], 4, 3.0))  # warm up
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        outcome = asyncio.run(load(address[1], clients, seconds))
    finally:
        over.set()
        watcher.join()
        process.terminate()
        process.communicate(timeout=30)
    unexpected = {s: n for s, n in outcome.statuses.items() if int(s.split()[1]) not in EXPECTED}
    thirds = len(memory) // 3
    return {
        "clients": clients,
        "seconds": seconds,
        "analyses": len(outcome.finished),
        "analyses_per_second": round(len(outcome.finished) / seconds, 2),
        "statuses": dict(sorted(outcome.statuses.items())),
        "unexpected": unexpected,
        "problems": dict(outcome.problems),
        "analysis_ms": percentiles(outcome.finished),
        "of_which_running_ms": percentiles(outcome.ran),
        "request_ms": percentiles(outcome.answers),
        "memory_mib": {
            "first_third": round(sum(memory[:thirds]) / thirds, 1),
            "last_third": round(sum(memory[-thirds:]) / thirds, 1),
            "max": round(max(memory), 1),
        },
        "load_average": [
            round(average, 1) for average in (before, os.getloadavg()[0])
        ],  # before, after
        "exit_status": process.returncode,
    }


def main() -> None:
    """Measure, print and write; exit with status 1 if there were undocumented responses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    run = measured(options.clients, options.seconds)
    machine = {
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "note": "clients, server and worker on one machine, shared with other programs",
    }
    data = json.dumps({"machine": machine, "run": run}, indent=1) + "\n"
    print(data)
    if options.json is not None:
        options.json.write_text(data)
    sys.exit(1 if run["unexpected"] or run["problems"] else 0)


if __name__ == "__main__":
    main()
