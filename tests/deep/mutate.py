"""Break the source at random places, one at a time, and see whether a test fails.

A sample, not all: `--count` mutants of those in mutants.py, drawn with a seed, from each folder by
its size. First the tests run once, traced, to learn which of them execute which lines; that map is
kept in the temporary folder until the source or the tests change. A mutant then runs the tests
that execute its statement, the quickest first, up to the first failure, in a process forked from
one that has the large imports behind it. What survives is printed, to be read.

    python tests/deep/mutate.py --count 250 --seed 0
    python tests/deep/mutate.py --only statistics/joint.py:120 --seconds 600
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mutants import SOURCE, Mutant, broken, mutants

TESTS = Path(__file__).parent.parent
FOLDERS = ("decomposition", "kernels", "statistics", "alignment")
# Tests that measure time, start processes or servers, or read the project's files tell little.
FILES = (
    *(
        "statistics_sketch",
        "statistics_parts",
        "exactness",
        "layers",
        "fused",
        "scopes",
        "analysis",
    ),
    *("kernels", "statistics", "statistics_equal"),
    *(
        "alignment_batches",
        "alignment_api",
        "alignment_auto",
        "alignment_embedded",
        "alignment_extract",
    ),
    *("alignment_scores", "alignment_words"),
)
HEAVY = (
    *("torch", "transformers", "scipy.stats", "hypothesis", "beartype", "pytest", "coverage"),
    *("transformers.modeling_utils", "matplotlib.pyplot", "pandas"),
)
AT_ONCE = 2
CASES = 12  # of one test function at most, evenly among them


class Job(NamedTuple):
    """What a process does, on a copy of the source with some files changed."""

    changed: dict[str, str]
    seconds: int  # of the processor; a mutant that goes on for ever is noticed too
    run: Callable[[Path], int]
    done: Callable[[Path, int], None]  # told the folder of the copy, and how the process ended


def start(job: Job, folder: Path) -> int:
    """The id of a forked process."""
    package = folder / "normscope"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("model", "__pycache__"))
    (package / "alignment" / "model").symlink_to(SOURCE / "alignment" / "model")
    for name, text in job.changed.items():
        (package / name).write_text(text)
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (job.seconds, job.seconds))
        signal.alarm(1800)
        said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.path[:0] = [str(folder), str(TESTS)]
        os.environ["PYTHONPATH"] = str(folder)
        sys.dont_write_bytecode = True
        os.chdir(TESTS.parent)
        status = job.run(folder)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def run_all(jobs: Iterator[Job]) -> None:
    """Start each job, a few at once, until all have ended."""
    running: dict[int, tuple[Job, tempfile.TemporaryDirectory[str]]] = {}
    job = next(jobs, None)
    while job or running:
        if job and len(running) < AT_ONCE:
            copied = tempfile.TemporaryDirectory(prefix="normscope-mutant-")
            running[start(job, Path(copied.name))] = job, copied
            job = next(jobs, None)
            continue
        child, status = os.wait()
        ended, copied = running.pop(child)
        ended.done(Path(copied.name), status)
        copied.cleanup()


def pytest_run(arguments: list[str], plugins: list[object] | None = None) -> int:
    """The exit status of the tests."""
    import pytest

    quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    quiet += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # imported before
    return int(pytest.main([*quiet, *arguments], plugins=plugins))


def trace(file: str, folder: Path) -> int:
    """Run a file of tests; write how long each took and which lines it executed."""
    import coverage
    import pytest

    include = [f"{folder}/normscope/{one}/*" for one in FOLDERS]
    tracer = coverage.Coverage(data_file=None, config_file=False, include=include)
    seconds: dict[str, float] = {}
    passed: Counter[str] = Counter()
    users: dict[str, list[str]] = {}
    context = [""]

    class Contexts:
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            cases: dict[str, list[Any]] = {}
            for item in items:
                cases.setdefault(item.originalname, []).append(item)
            items[:] = [one for of in cases.values() for one in of[:: -(-len(of) // CASES)]]

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
            for name in item.fixturenames:
                users.setdefault(f"fixture {name}", []).append(item.nodeid)
            context[0], began = item.nodeid, time.process_time()
            tracer.switch_context(item.nodeid)
            done = yield
            seconds[item.nodeid] = round(time.process_time() - began, 3)
            return done

        @pytest.hookimpl(wrapper=True)
        def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
            """What a shared fixture executes, each test that uses it executes."""
            before = context[0]
            if fixturedef.scope != "function":
                context[0] = f"fixture {fixturedef.argname}"
                tracer.switch_context(context[0])
            try:
                return (yield)
            finally:
                context[0] = before
                tracer.switch_context(before)

        def pytest_runtest_logreport(self, report: Any) -> None:
            passed[report.nodeid] += report.passed  # set up, called, torn down

    tracer.start()
    status = pytest_run([f"tests/{file}"], [Contexts()])
    tracer.stop()
    data, lines = tracer.get_data(), {}
    for name in data.measured_files():
        lines[str(Path(name).relative_to(folder / "normscope"))] = {
            line: sorted({t for c in contexts for t in users.get(c, [c]) if passed[t] == 3})
            for line, contexts in data.contexts_by_lineno(name).items()
        }
    (folder / "map").write_text(json.dumps({"seconds": seconds, "lines": lines, "rc": status}))
    return 0


class Map:
    """Which tests execute a line, and how long each takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.lines: dict[tuple[str, int], set[str]] = {}
        run_all(self._jobs())

    def _jobs(self) -> Iterator[Job]:
        """Trace the tests, or read what was traced of the same source and tests."""
        helpers = [p for p in TESTS.glob("*.py") if not p.name.startswith("test_")]
        common = [*SOURCE.glob("**/*.py"), *helpers]
        state = b"".join(p.read_bytes() for p in sorted(common))
        kept = Path(tempfile.gettempdir()) / "normscope-mutants"
        kept.mkdir(exist_ok=True)
        for name in FILES:
            file = f"test_{name}.py"
            key = hashlib.sha256(state + (TESTS / file).read_bytes()).hexdigest()[:20]
            path = kept / f"{name}-{key}.json"
            if path.exists():
                self._add(path.read_text())
                continue

            def done(folder: Path, status: int, path: Path = path, file: str = file) -> None:
                if status or json.loads((folder / "map").read_text())["rc"]:
                    print(f"{file} fails: {(folder / 'said').read_text()[-1500:]}")
                if not status:
                    path.write_text((folder / "map").read_text())
                    self._add(path.read_text())
                print(f"{file}: traced", flush=True)

            yield Job({}, 3600, lambda folder, file=file: trace(file, folder), done)  # type: ignore[misc]

    def _add(self, text: str) -> None:
        found = json.loads(text)
        self.seconds |= found["seconds"]
        for file, lines in found["lines"].items():
            for line, tests in lines.items():
                self.lines.setdefault((file, int(line)), set()).update(tests)

    def tests(self, mutant: Mutant, seconds: float) -> tuple[list[str], str, float]:
        """Those that execute its statement, the quickest first, while time is left; of how many."""
        found = set().union(*(self.lines.get((mutant.file, n), set()) for n in mutant.lines))
        chosen: list[str] = []
        total = 0.0
        for test in sorted(found, key=lambda test: (self.seconds[test], test)):
            if chosen and total + self.seconds[test] > seconds:
                break
            total += self.seconds[test]
            chosen.append(test)
        return chosen, f"{len(chosen)} of {len(found)} tests", total


def draw(count: int, seed: int) -> list[Mutant]:
    """A share of each folder's mutants, in any order; before them one each that is not broken."""
    there = {folder: mutants(folder) for folder in FOLDERS}
    drawn, controls = [], []
    for folder, found in there.items():
        share = round(count * len(found) / sum(map(len, there.values())))
        choose = random.Random(f"{seed} {folder}")
        drawn += choose.sample(found, share)
        controls.append(choose.choice(found)._replace(number=-1, how="not broken: must survive"))
        print(f"{folder}: {share} of {len(found)} mutants", flush=True)
    random.Random(seed).shuffle(drawn)
    return [*controls, *drawn]


def main() -> None:
    """Draw, break, test, tell."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--count", type=int, default=100)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--seconds", type=int, default=60, help="of tests for one mutant, at most")
    ask.add_argument("--minutes", type=float, default=600, help="after which no other is begun")
    ask.add_argument("--only", nargs="*", help="FILE:LINE[:NUMBER], in place of a sample")
    given = ask.parse_args()
    os.nice(10)
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in HEAVY:
        importlib.import_module(name)
    known = Map()
    if given.only is None:
        chosen = draw(given.count, given.seed)
    else:
        chosen = [m for folder in FOLDERS for m in mutants(folder)]
        chosen = [m for m in chosen for o in given.only if f"{m.place}:".startswith(f"{o}:")]
    began, ends = time.monotonic(), Counter[tuple[str, str]]()

    def jobs() -> Iterator[Job]:
        for mutant in chosen:
            if time.monotonic() - began > 60 * given.minutes:
                break
            tests, of, takes = known.tests(mutant, given.seconds)
            whole = ast.unparse(ast.parse((SOURCE / mutant.file).read_text()))
            text = whole if mutant.number < 0 else broken(mutant)

            def run(_: Path, tests: list[str] = tests) -> int:
                return pytest_run(["-x", *tests]) if tests else 0

            def done(at: Path, status: int, mutant: Mutant = mutant, of: str = of) -> None:
                said = (at / "said").read_text(errors="replace").splitlines()
                by = next((line[:90] for line in said if line.startswith(("FAILED", "ERROR"))), "")
                end = "hung" if os.WIFSIGNALED(status) else "killed" if status else "SURVIVED"
                print(f"{end:8} {mutant.place}  {mutant.how}  ({of}) {by}", flush=True)
                if mutant.number >= 0:
                    ends[mutant.file.split("/")[0], end] += 1
                elif status:
                    sys.exit("\n".join(said[-40:]))  # then their failing means nothing

            yield Job({mutant.file: text}, int(4 * takes + 120), run, done)

    run_all(jobs())
    for folder in FOLDERS:
        print(folder, {end: n for (one, end), n in sorted(ends.items()) if one == folder})
    caught = sum(n for (_, end), n in ends.items() if end != "SURVIVED")
    print(f"{caught} of {ends.total()} killed")


if __name__ == "__main__":
    main()
