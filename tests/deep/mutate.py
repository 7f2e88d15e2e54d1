"""Break the source at random places, one at a time, and see whether a test fails.

A sample, not all: `--count` mutants of those in mutants.py, drawn with a seed, from each folder by
its size. All is done in one session of pytest, in processes forked from it once the tests are
collected and the source is imported. First each file of tests runs, traced, to learn which tests
execute which lines; that map is kept in the temporary folder until the source or the tests change.
A mutant is a function whose code is replaced; it runs the tests that execute its statement, the
quickest first, up to the first failure. What survives is printed, to be read.

    python tests/deep/mutate.py --count 250 --seed 0
    python tests/deep/mutate.py --only statistics/joint.py:120 --seconds 600
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import pytest

from tests.deep.mutants import LEFT_OUT, SOURCE, Mutant, apply, mutants

TESTS = Path(__file__).resolve().parent.parent
FOLDERS = ("decomposition", "kernels", "statistics", "alignment")
# Tests that measure time, start processes or servers, or read the project's files tell little.
FILES = (
    *("kernels_torch", "products", "decomposition", "exactness", "layers", "fused", "scopes"),
    *("analysis", "statistics", "statistics_equal", "statistics_sketch", "statistics_parts"),
    *("alignment_batches", "alignment_api", "alignment_auto", "alignment_embedded"),
    *("alignment_extract", "alignment_scores", "alignment_words"),
)
AT_ONCE = 2
CASES = 12  # of one test function at most, evenly among them


class Job(NamedTuple):
    """What a process does."""

    seconds: int  # of the processor; a mutant that goes on for ever is noticed too
    run: Callable[[], int]
    done: Callable[[int, str], None]  # told how it ended, and what it said


def start(job: Job, said: Path) -> int:
    """The id of a forked process."""
    child = os.fork()
    if child:
        return child
    status = 2
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (job.seconds, job.seconds))
        signal.alarm(1800)
        out = os.open(said, os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        status = job.run()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def run_all(jobs: Iterator[Job]) -> None:
    """Start each job, a few at once, until all have ended."""
    running: dict[int, tuple[Job, Path]] = {}
    job, number = next(jobs, None), 0
    with tempfile.TemporaryDirectory(prefix="normscope-mutants-") as folder:
        while job or running:
            if job and len(running) < AT_ONCE:
                said, number = Path(folder) / str(number), number + 1
                running[start(job, said)] = job, said
                job = next(jobs, None)
                continue
            child, status = os.wait()
            ended, said = running.pop(child)
            ended.done(status, said.read_text(errors="replace"))


class Session:
    """A plugin of pytest: the tests are collected as ever, and then run as often as it takes."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.items: dict[str, Any] = {}
        self.passed: Counter[str] = Counter()
        self.failed = ""
        self.tracer: Any = None
        self.context = ""
        self.began = 0.0
        self.cost: dict[str, float] = defaultdict(float)  # of tests, and of fixtures they share
        self.seconds: dict[str, float] = {}
        self.lines: dict[tuple[str, int], set[str]] = {}
        self.ends: Counter[tuple[str, str]] = Counter()

    def pytest_runtestloop(self, session: Any) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        for path in sorted(SOURCE.glob("**/*.py")):
            name = path.relative_to(SOURCE).with_suffix("")
            if name.parts[0] in FOLDERS and not f"{name}.py".startswith(LEFT_OUT):
                importlib.import_module(".".join(("normscope", *name.parts)))
        if self.given.tests is None:
            run_all(self.map())
        run_all(self.mutants())
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.passed[report.nodeid] += report.passed  # set up, called, torn down
        if report.failed:
            self.failed = f"{report.nodeid}: {str(report.longrepr).splitlines()[-1]}"

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """What a shared fixture executes, each test that uses it executes."""
        if fixturedef.scope == "function":
            return (yield)
        before = self.enter(f"fixture {fixturedef.argname}")
        try:
            return (yield)
        finally:
            self.enter(before)

    def enter(self, context: str) -> str:
        """What runs from here on, for the tracer and by its time; tells what ran until here."""
        before, now = self.context, time.process_time()
        self.cost[before] += now - self.began
        self.context, self.began = context, now
        if self.tracer is not None:
            self.tracer.switch_context(context)
        return before

    def run(self, names: list[str], *, all: bool) -> None:
        """Some tests, in this order, all or up to the first failure."""
        for name, following in zip_longest(names, names[1:]):
            self.enter(name)
            after = None if following is None else self.items[following]
            self.items[name].ihook.pytest_runtest_protocol(item=self.items[name], nextitem=after)
            if self.failed and not all:
                return

    def trace(self, names: list[str], path: Path) -> int:
        """Run tests; write how long each takes and which lines it executes."""
        include = [f"{SOURCE}/{one}/*" for one in FOLDERS]
        self.tracer = coverage.Coverage(data_file=None, config_file=False, include=include)
        self.tracer.start()
        self.run(names, all=True)
        self.enter("")
        self.tracer.stop()
        seconds, users = {}, {name: [name] for name in names}
        for name in names:
            shared = [f"fixture {one}" for one in self.items[name].fixturenames]
            seconds[name] = round(self.cost[name] + sum(self.cost[one] for one in shared), 3)
            for one in shared:
                users.setdefault(one, []).append(name)
        data, lines = self.tracer.get_data(), {}
        for file in data.measured_files():
            lines[str(Path(file).relative_to(SOURCE))] = {
                line: sorted({t for c in found for t in users.get(c, []) if self.passed[t] == 3})
                for line, found in data.contexts_by_lineno(file).items()
            }
        path.write_text(json.dumps({"seconds": seconds, "lines": lines}))
        print(self.failed)
        return 1 if self.failed else 0

    def map(self) -> Iterator[Job]:
        """Which tests execute a line: traced, or read if the same was traced before."""
        helpers = [p for p in TESTS.glob("*.py") if not p.name.startswith("test_")]
        state = b"".join(p.read_bytes() for p in sorted([*SOURCE.glob("**/*.py"), *helpers]))
        kept = Path(tempfile.gettempdir()) / "normscope-mutants"
        kept.mkdir(exist_ok=True)
        for file in FILES:
            test = TESTS / f"test_{file}.py"
            key = hashlib.sha256(state + test.read_bytes()).hexdigest()[:20]
            path = kept / f"{file}-{key}.json"
            cases: dict[str, list[str]] = {}
            for name in self.items:
                if name.startswith(f"tests/{test.name}::"):
                    cases.setdefault(name.partition("[")[0], []).append(name)
            some = ((of, min(len(of), CASES)) for of in cases.values())
            names = [of[at * len(of) // most] for of, most in some for at in range(most)]

            def done(status: int, said: str, path: Path = path) -> None:
                print(f"{path.name}: traced {said.strip()[-300:] if status else ''}", flush=True)
                self._add(path.read_text())

            if path.exists():
                self._add(path.read_text())
            else:
                yield Job(3600, partial(self.trace, names, path), done)

    def _add(self, text: str) -> None:
        found = json.loads(text)
        self.seconds |= found["seconds"]
        for file, lines in found["lines"].items():
            for line, tests in lines.items():
                self.lines.setdefault((file, int(line)), set()).update(tests)

    # ---- breaking

    def tests(self, mutant: Mutant) -> tuple[list[str], float, int]:
        """Those that execute its statement, the quickest first, while time is left; of how many."""
        found = set().union(*(self.lines.get((mutant.file, n), set()) for n in mutant.lines))
        order = sorted(found, key=lambda test: (self.seconds[test], test))
        times = list(accumulate(self.seconds[test] for test in order))
        count = max(1, bisect_right(times, self.given.seconds))
        return order[:count], sum(times[:count][-1:]), len(found)

    def kill(self, mutant: Mutant, tests: list[str]) -> int:
        """1 if a test fails on it."""
        if mutant.number >= 0:
            apply(mutant)
        self.run(tests, all=False)
        print(self.failed)
        return 1 if self.failed else 0

    def mutants(self) -> Iterator[Job]:
        """Each that was drawn; tells how all of them ended."""
        began, ends = time.monotonic(), self.ends
        for mutant in chosen(self.given):
            if time.monotonic() - began > 60 * self.given.minutes:
                break
            tests, takes, of = self.tests(mutant)
            if self.given.tests is not None:
                tests = [n for n in self.items if any(one in n for one in self.given.tests)]
            told = f"{len(tests)}/{of}"

            def done(status: int, said: str, m: Mutant = mutant, of: str = told) -> None:
                code = os.waitstatus_to_exitcode(status)
                end = "hung" if code < 0 else {0: "SURVIVED", 1: "killed"}.get(code, "NOT TRIED")
                why = said.strip().splitlines()[-1][-100:] if status and said.strip() else ""
                print(f"{end:8} {m.place}  {m.how}  ({of}) {why}", flush=True)
                if m.number >= 0:
                    ends[m.file.split("/")[0], end] += 1
                elif status:
                    sys.exit(f"tests fail on what is not broken: {said[-3000:]}")

            yield Job(int(4 * takes + 120), partial(self.kill, mutant, tests), done)


def chosen(given: argparse.Namespace) -> list[Mutant]:
    """A share of each folder's mutants, in any order; after them one each that is not broken."""
    there = {folder: mutants(folder) for folder in FOLDERS}
    if given.only is not None:
        every = [m for found in there.values() for m in found]
        return [m for m in every for one in given.only if f"{m.place}:".startswith(f"{one}:")]
    drawn, controls = [], []
    for folder, found in there.items():
        share = round(given.count * len(found) / sum(map(len, there.values())))
        draw = random.Random(f"{given.seed} {folder}")
        drawn += draw.sample(found, share)
        controls.append(draw.choice(found)._replace(number=-1, how="not broken: must survive"))
        print(f"{folder}: {share} of {len(found)} mutants", flush=True)
    random.Random(given.seed).shuffle(drawn)
    return [*drawn, *controls]


def main() -> None:
    """Collect, then let the session do the rest."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--count", type=int, default=100)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--seconds", type=int, default=60, help="of tests for one mutant, at most")
    ask.add_argument("--minutes", type=float, default=600, help="after which no other is begun")
    ask.add_argument("--only", nargs="*", help="FILE:LINE[:NUMBER], in place of a sample")
    ask.add_argument("--tests", nargs="*", help="run those with such names, whatever they execute")
    given = ask.parse_args()
    os.nice(10 if given.only is None else 0)
    os.chdir(TESTS.parent)
    sys.path[:0] = [str(SOURCE.parent), str(TESTS)]
    session = Session(given)
    options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist"]
    status = pytest.main([*options, *(f"tests/test_{f}.py" for f in FILES)], plugins=[session])
    for folder in FOLDERS:
        print(folder, {end: n for (one, end), n in sorted(session.ends.items()) if one == folder})
    caught = sum(n for (_, end), n in session.ends.items() if end in ("killed", "hung"))
    print(f"{caught} of {session.ends.total()} killed")
    sys.exit(status)


if __name__ == "__main__":
    main()
