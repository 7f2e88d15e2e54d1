"""The record of deep runs: one line for each slice, and their sums in docs.

    python -m tests.deep.record

writes the table of sums into docs/testing.md anew, and the counts into docs/promises.md.
"""

from __future__ import annotations

import datetime
import json
import platform
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUNS = Path(__file__).parent / "runs.jsonl"
PAGE = ROOT / "docs" / "testing.md"
PROMISES = ROOT / "docs" / "promises.md"
BEGIN, END = "<!-- deep runs: begin -->\n", "<!-- deep runs: end -->\n"

# What is counted, and in what order the page names it.
KINDS = {
    "configurations": "random configurations of models",
    "kernels": "random cases of the Triton kernels, in its interpreter",
    "drawn files and requests": "files and requests drawn from grammars",
    "damaged files": "damaged files of every format that is read",
    "damaged requests": "damaged requests to the web app",
    "interrupts": "interrupts of a running analysis",
    "kills": "kills of a process that writes",
    "mutants": "mutants of the source that were run; a failure is a mutant that survived",
}
PACKAGES = ("normscope", "torch", "transformers", "numpy")


def append(
    kind: str, seed: int, parts: Mapping[str, int], failures: int, path: Path = RUNS, **more: Any
) -> None:
    """Add the line of one slice: how many cases of each part were tried, and how many failed."""
    if kind not in KINDS:
        raise ValueError(f"there is no kind {kind!r}; the kinds are: {', '.join(KINDS)}")
    line = {
        "kind": kind,
        "seed": seed,
        "count": sum(parts.values()),
        "failures": failures,
        "parts": dict(sorted(parts.items())),
        **more,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in PACKAGES},
    }
    with path.open("a", encoding="utf-8") as file:  # one write: slices may run at the same time
        file.write(json.dumps(line) + "\n")


def read(path: Path = RUNS) -> list[dict[str, Any]]:
    """Return the lines of the record."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def next_seed(kind: str, path: Path = RUNS) -> int:
    """Return a seed that no slice of this kind has had."""
    return 1 + max((run["seed"] for run in read(path) if run["kind"] == kind), default=0)


def parts_of(kind: str, path: Path = RUNS) -> Counter[str]:
    """Return how many cases of each part all slices of a kind have tried."""
    total: Counter[str] = Counter()
    for run in read(path):
        if run["kind"] == kind:
            total.update(run["parts"])
    return total


def table(path: Path = RUNS) -> str:
    """Return the table of docs/testing.md: the sums over all slices of each kind."""
    rows = ["| what | slices | cases | failures |", "|---|---:|---:|---:|"]
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for run in read(path):
        sums[run["kind"]].update(slices=1, cases=run["count"], failures=run["failures"])
    for kind, title in KINDS.items():
        of = sums[kind]
        rows.append(f"| {title} | {of['slices']:,} | {of['cases']:,} | {of['failures']:,} |")
    return "\n".join(rows) + "\n"


def with_table(page: str, path: Path = RUNS) -> str:
    """Return the text of the page with the table of sums as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(path)}\n{END}{after}"


def with_counts(page: str, path: Path = RUNS) -> str:
    """Return the text of the page of promises with the number of cases of each kind it names."""
    for kind in KINDS:
        count = sum(run["count"] for run in read(path) if run["kind"] == kind)
        page = re.sub(rf"\| {kind}(: [\d,]+)? \|$", f"| {kind}: {count:,} |", page, flags=re.M)
    return page


if __name__ == "__main__":
    PROMISES.write_text(with_counts(PROMISES.read_text(encoding="utf-8")), encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
