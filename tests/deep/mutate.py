"""Change the source at random places, one at a time, and see whether a test fails.

A random sample of `--count` mutants is drawn with a seed from those in mutants.py, from each folder
in proportion to its size. Everything happens in one session of pytest, in processes forked from it
after the tests are collected and the source is imported. First, each file of tests runs with
tracing, to learn which tests execute which lines; this record is kept in the temporary folder until
the source or the tests change. A mutant is a function whose code is replaced. The tests that
execute the changed statement are then run, the fastest first, until one fails. Surviving mutants
are printed. A sample is added to the record of deep runs.

    python -m tests.deep.mutate --count 250 --seed 1
    python -m tests.deep.mutate --folders engine attribution --count 100 --seed 2
    python -m tests.deep.mutate --only measures/statistics/joint.py:120 --seconds 600
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
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import pytest

from tests.deep import record
from tests.deep.mutants import FILES, FOLDERS, LEFT_OUT, SOURCE, Mutant, apply, mutants

TESTS = Path(__file__).resolve().parent.parent
AT_ONCE = 2
CASES = 12  # of one test function at most, evenly spaced


class Job(NamedTuple):
    """The work of one forked process."""

    seconds: int  # of processor time at most: a mutant may never end
    run: Callable[[], int]
    done: Callable[[int, str], None]  # called with the exit status and the output


def start(job: Job, output: Path) -> int:
    """Fork a process that does a job and writes to ``output``; return its id."""
    child = os.fork()
    if child:
        return child
    status = 2
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (job.seconds, job.seconds))
        signal.alarm(1800)
        out = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        status = job.run()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def run_all(jobs: Iterator[Job]) -> None:
    """Run all jobs, a few at once."""
    running: dict[int, tuple[Job, Path]] = {}
    job, number = next(jobs, None), 0
    with tempfile.TemporaryDirectory(prefix="normscope-mutants-") as folder:
        while job or running:
            if job and len(running) < AT_ONCE:
                output, number = Path(folder) / str(number), number + 1
                running[start(job, output)] = job, output
                job = next(jobs, None)
                continue
            child, status = os.wait()
            ended, output = running.pop(child)
            ended.done(status, output.read_text(errors="replace"))


class Session:
    """A pytest plugin that runs the collected tests for each mutant."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
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
            file = path.relative_to(SOURCE)
            if folder_of(str(file)) and not str(file).startswith(LEFT_OUT):
                importlib.import_module(".".join(("normscope", *file.with_suffix("").parts)))
        if self.options.tests is None:
            run_all(self.map())
        run_all(self.mutants())
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.passed[report.nodeid] += report.passed  # set up, called, torn down
        if report.failed:
            self.failed = f"{report.nodeid}: {str(report.longrepr).splitlines()[-1]}"

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Count what a shared fixture executes for each test that uses it."""
        if fixturedef.scope == "function":
            return (yield)
        before = self.enter(f"fixture {fixturedef.argname}")
        try:
            return (yield)
        finally:
            self.enter(before)

    def enter(self, context: str) -> str:
        """Attribute time and lines to ``context`` from now on; return the previous context."""
        before, now = self.context, time.process_time()
        self.cost[before] += now - self.began
        self.context, self.began = context, now
        if self.tracer is not None:
            self.tracer.switch_context(context)
        return before

    def run(self, names: list[str], *, all: bool) -> None:
        """Run tests in this order, all or up to the first failure."""
        for name, following in zip_longest(names, names[1:]):
            self.enter(name)
            after = None if following is None else self.items[following]
            self.items[name].ihook.pytest_runtest_protocol(item=self.items[name], nextitem=after)
            if self.failed and not all:
                return

    def trace(self, names: list[str], path: Path) -> int:
        """Run tests, and write how long each takes and which lines it executes."""
        include = [f"{SOURCE}/{folder}/*" for folder in self.options.folders]
        self.tracer = coverage.Coverage(data_file=None, config_file=False, include=include)
        # A file of tests may execute nothing of the folders that were asked for.
        self.tracer.set_option("run:disable_warnings", ["no-data-collected"])
        self.tracer.start()
        self.run(names, all=True)
        self.enter("")
        self.tracer.stop()
        seconds, users = {}, {name: [name] for name in names}
        for name in names:
            shared = [f"fixture {fixture}" for fixture in self.items[name].fixturenames]
            seconds[name] = round(self.cost[name] + sum(map(self.cost.__getitem__, shared)), 3)
            for fixture in shared:
                users.setdefault(fixture, []).append(name)
        data, lines = self.tracer.get_data(), {}
        for file in data.measured_files():
            lines[str(Path(file).relative_to(SOURCE))] = {
                line: sorted({t for c in contexts for t in users.get(c, []) if self.passed[t] == 3})
                for line, contexts in data.contexts_by_lineno(file).items()
            }
        path.write_text(json.dumps({"seconds": seconds, "lines": lines}))
        print(self.failed)
        return 1 if self.failed else 0

    def map(self) -> Iterator[Job]:
        """Learn which tests execute each line, by tracing or from an earlier record."""
        helpers = [p for p in TESTS.glob("**/*.py") if not p.name.startswith("test_")]
        state = b"".join(p.read_bytes() for p in sorted([*SOURCE.glob("**/*.py"), *helpers]))
        kept = Path(tempfile.gettempdir()) / "normscope-mutants"
        kept.mkdir(exist_ok=True)
        state += " ".join(self.options.folders).encode()
        for file in tests_of(self.options.folders):
            key = hashlib.sha256(state + (TESTS / file).read_bytes()).hexdigest()[:20]
            path = kept / f"{file.removesuffix('.py').replace('/', '-')}-{key}.json"
            cases: dict[str, list[str]] = {}
            for name in self.items:
                if name.startswith(f"tests/{file}::"):
                    cases.setdefault(name.partition("[")[0], []).append(name)
            some = ((of, min(len(of), CASES)) for of in cases.values())
            names = [of[at * len(of) // most] for of, most in some for at in range(most)]

            def done(status: int, output: str, path: Path = path) -> None:
                print(f"{path.name}: traced {output.strip()[-300:] if status else ''}", flush=True)
                self._add(path.read_text())

            if path.exists():
                self._add(path.read_text())
            else:
                yield Job(3600, partial(self.trace, names, path), done)

    def _add(self, text: str) -> None:
        record = json.loads(text)
        self.seconds |= record["seconds"]
        for file, lines in record["lines"].items():
            for line, tests in lines.items():
                self.lines.setdefault((file, int(line)), set()).update(tests)

    # ---- mutants

    def tests(self, mutant: Mutant) -> tuple[list[str], float, int]:
        """Return the fastest tests of its statement, their time, and how many tests execute it."""
        users = set().union(*(self.lines.get((mutant.file, n), set()) for n in mutant.lines))
        order = sorted(users, key=lambda test: (self.seconds[test], test))
        times = list(accumulate(self.seconds[test] for test in order))
        count = max(1, bisect_right(times, self.options.seconds))
        return order[:count], sum(times[:count][-1:]), len(users)

    def kill(self, mutant: Mutant, tests: list[str]) -> int:
        """Run tests on a mutant; return 1 if one fails."""
        if mutant.number >= 0:
            apply(mutant)
        self.run(tests, all=False)
        print(self.failed)
        return 1 if self.failed else 0

    def mutants(self) -> Iterator[Job]:
        """Test each mutant that was drawn, and print how it ended."""
        began, ends = time.monotonic(), self.ends
        for mutant in chosen(self.options):
            if time.monotonic() - began > 60 * self.options.minutes:
                break
            tests, takes, of = self.tests(mutant)
            if self.options.tests is not None:
                tests = [n for n in self.items if any(part in n for part in self.options.tests)]
            counts = f"{len(tests)}/{of}"

            def done(status: int, output: str, m: Mutant = mutant, counts: str = counts) -> None:
                code = os.waitstatus_to_exitcode(status)
                end = "hung" if code < 0 else {0: "SURVIVED", 1: "killed"}.get(code, "NOT TRIED")
                why = output.strip().splitlines()[-1][-100:] if status and output.strip() else ""
                print(f"{end:8} {m.place}  {m.how}  ({counts}) {why}", flush=True)
                if m.number >= 0:
                    ends[folder_of(m.file), end] += 1
                elif status:
                    sys.exit(f"tests fail on unchanged source: {output[-3000:]}")

            yield Job(int(4 * takes + 120), partial(self.kill, mutant, tests), done)


def folder_of(file: str) -> str:
    """Return the folder in FOLDERS that a file of the source belongs to, or an empty string."""
    return next((folder for folder in FOLDERS if file.startswith(f"{folder}/")), "")


def tests_of(folders: Sequence[str]) -> list[str]:
    """Return the files of tests that are run on the mutants of these folders."""
    return [file for file in FILES if file.startswith(tuple(folders))]


def chosen(options: argparse.Namespace) -> list[Mutant]:
    """Draw a share of each folder's mutants; after them comes one control for each folder."""
    by_folder = {folder: mutants(folder) for folder in options.folders}
    if options.only is not None:
        every = [mutant for members in by_folder.values() for mutant in members]
        return [m for m in every for at in options.only if f"{m.place}:".startswith(f"{at}:")]
    drawn, controls = [], []
    for folder, members in by_folder.items():
        share = round(options.count * len(members) / sum(map(len, by_folder.values())))
        draw = random.Random(f"{options.seed} {folder}")
        drawn += draw.sample(members, share)
        controls.append(draw.choice(members)._replace(number=-1, how="unchanged: must survive"))
        print(f"{folder}: {share} of {len(members)} mutants", flush=True)
    random.Random(options.seed).shuffle(drawn)
    return [*drawn, *controls]


def main() -> None:
    """Collect the tests, and let the session run them on mutants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many mutants to draw")
    parser.add_argument("--seed", type=int, help="default: one that was not used before")
    parser.add_argument("--folders", nargs="*", choices=FOLDERS, default=FOLDERS)
    parser.add_argument("--seconds", type=int, default=60, help="of tests for a mutant at most")
    parser.add_argument("--minutes", type=float, default=600, help="start no mutant after these")
    parser.add_argument("--only", nargs="*", help="FILE:LINE[:NUMBER], instead of a sample")
    parser.add_argument("--tests", nargs="*", help="run tests with these in their names")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = record.next_seed("mutants")
    os.nice(10 if options.only is None else 0)
    os.chdir(TESTS.parent)
    sys.path.insert(0, str(SOURCE.parent))
    session = Session(options)
    flags = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist"]
    files = [f"tests/{file}" for file in tests_of(options.folders)]
    status = pytest.main([*flags, *files], plugins=[session])
    for folder in options.folders:
        print(folder, {end: n for (at, end), n in sorted(session.ends.items()) if at == folder})
    killed = sum(n for (_, end), n in session.ends.items() if end in ("killed", "hung"))
    print(f"{killed} of {session.ends.total()} killed")
    if options.only is None and options.tests is None and session.ends:
        parts: Counter[str] = Counter()
        for (folder, _), count in session.ends.items():
            parts[folder] += count
        record.append("mutants", options.seed, parts, parts.total() - killed)
    sys.exit(status)


if __name__ == "__main__":
    main()
