"""Run one slice of a deep run, and add what it tried to the record.

    python -m tests.deep.slices configurations --depth 10
    python -m tests.deep.slices damaged-files --count 100000 --seed 7

A slice is told by its kind and its seed: with the same versions it tries the same cases again. The
default seed is one that the record does not have. Every slice adds a line to runs.jsonl, one that
finds a failure too.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from typing import Any

# Kinds whose cases hypothesis draws, and their tests.
TESTS = {
    "configurations": ["tests/project/test_random_models.py"],
    "kernels": ["tests/kernels/interpreted"],
    "drawn files and requests": ["tests/project/test_fuzz.py"],
}
DAMAGED = ("damaged files", "damaged requests")


def drawn(kind: str, seed: int, depth: int) -> tuple[Counter[str], int]:
    """Run property tests with a seed; return what they tried, and how many tests failed."""
    os.environ["NORMSCOPE_DEEP"] = str(depth)
    if kind == "kernels":  # read when triton is imported
        os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    import pytest

    class Failures:
        def __init__(self) -> None:
            self.count = 0

        def pytest_runtest_logreport(self, report: Any) -> None:
            self.count += bool(report.failed)

    failures = Failures()
    flags = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--hypothesis-seed={seed}"]
    pytest.main([*flags, *TESTS[kind]], plugins=[failures])
    from tests.helpers.profiles import TRIED  # hypothesis has to be imported by pytest

    return TRIED, failures.count


def main() -> None:
    """Run a slice and record it; exit with 1 if anything failed."""
    kinds = [kind.replace(" ", "-") for kind in (*TESTS, *DAMAGED)]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--seed", type=int, help="default: one that was not used before")
    parser.add_argument("--depth", type=int, default=10, help="of property tests")
    parser.add_argument("--count", type=int, default=10_000, help="of damaged files or requests")
    parser.add_argument("--only", nargs="*", help="readers of damaged files; not recorded")
    options = parser.parse_args()
    from tests.deep import record

    kind = options.kind.replace("-", " ")
    seed = record.next_seed(kind) if options.seed is None else options.seed
    began = time.monotonic()
    if kind in TESTS:
        parts, failures = drawn(kind, seed, max(2, options.depth))
    else:
        from tests.deep import damage, web

        if kind == "damaged files":
            parts, failures = damage.files(seed, options.count, options.only)
        else:
            parts, failures = web.requests(seed, options.count)
    seconds = time.monotonic() - began
    rate = parts.total() / seconds
    print(
        f"{kind}, seed {seed}: {parts.total():,} cases, {failures} failures, {rate:,.0f} a second"
    )
    if options.only is None:
        record.append(kind, seed, parts, failures, seconds=round(seconds))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
