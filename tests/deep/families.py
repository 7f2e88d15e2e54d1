"""Check every model type of the installed transformers, as `make test-families` does.

    python -m tests.deep.families                    # all of them; takes many minutes
    python -m tests.deep.families --only bert,llama  # these; without minima
    python -m tests.deep.families --markdown docs/families.md

It fails if parts of any type do not add up (wrong), if a type raises anything but an error of
normscope's own, or if fewer types are exact than `MINIMA` states.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from normscope.cli import sweep_page
from normscope.cli.sweep import TypeReport, sweep
from normscope.foundation.files import whole_file
from normscope.models.shrinking import model_types

TYPES = 788  # of transformers 5.22, for which the minima are stated; others have more or fewer
# How many types must at least be checked and exact: of all, and of those that read ids alone.
MINIMA = {
    "all": {"checked": 490, "attention": 430, "layer": 380, "attribute": 480},
    "text": {"attention": 218, "layer": 198, "attribute": 232},
}


def problems(reports: Sequence[TypeReport]) -> list[str]:
    """Return in words what is wrong, and which counts are below their minima."""
    found = [
        f"{name}: {check}: {verdict.status}: {verdict.reason}"
        for name, check, verdict in sweep_page.failures_of(reports)
    ]
    for kind, minima in MINIMA.items():
        of_kind = [report for report in reports if kind in ("all", report.modality)]
        counts = {name: each["exact"] for name, each in sweep_page.counts_of(of_kind).items()}
        counts["checked"] = len(sweep_page.checked(of_kind))
        for name, least in minima.items():
            wanted = round(least * min(1.0, len(reports) / TYPES))
            if counts[name] < wanted:
                found.append(
                    f"{kind} types, {name}: {counts[name]}, at least {wanted} are expected"
                )
    return found


def main() -> None:
    """Check the types, print the table and the counts, and exit with 1 if there are problems."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", help="these types, separated by commas; without minima")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--markdown", type=Path, help="also write the page of the documentation")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else model_types()
    reports = []
    for report in sweep(names, processes=arguments.processes):
        reports.append(report)
        print(f"{len(reports)}/{len(names)} {report.name}", file=sys.stderr, flush=True)
    reports.sort(key=lambda report: report.name)
    if arguments.markdown is not None:
        with whole_file(arguments.markdown) as file:
            file.write(sweep_page.to_markdown(reports).encode())
    print(*sweep_page.summary(reports), sep="\n")
    wrong = problems(reports)
    if arguments.only:
        wrong = wrong[: len(sweep_page.failures_of(reports))]
    sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
