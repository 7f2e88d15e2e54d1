"""What a sweep found: counts, a table for the terminal, JSON and a page of the documentation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from normscope.cli.sweep import STATUSES, TypeReport, Verdict

if TYPE_CHECKING:
    from rich.table import Table

CHECKS = {"attention": "attention maps", "layer": "whole layer", "attribute": "attribute"}
LONGEST = 160  # characters of a reason in a table


def counts_of(reports: Sequence[TypeReport]) -> dict[str, dict[str, int]]:
    """Return how many types had each status, by check."""
    counts = {
        check: Counter(r.verdicts[check].status for r in checked(reports)) for check in CHECKS
    }
    return {check: {s: counts[check][s] for s in STATUSES} for check in CHECKS}


def checked(reports: Sequence[TypeReport]) -> list[TypeReport]:
    """Return the types that were built and run."""
    return [report for report in reports if report.verdicts]


def failures_of(reports: Sequence[TypeReport]) -> list[tuple[str, str, Verdict]]:
    """Return (type, check, verdict) wherever something is wrong or another error was raised."""
    return [
        (report.name, check, verdict)
        for report in reports
        for check, verdict in report.verdicts.items()
        if verdict.status in ("wrong", "raised")
    ]


def to_dict(reports: Sequence[TypeReport]) -> dict[str, Any]:
    """Return everything that JSON shows."""
    return {
        "transformers": _version(),
        "checked": len(checked(reports)),
        "counts": counts_of(reports),
        "types": [asdict(report) for report in reports],
    }


def summary(reports: Sequence[TypeReport]) -> list[str]:
    """Return the counts in lines of text."""
    ran = checked(reports)
    lines = [f"{len(ran)} of {len(reports)} model types of transformers {_version()} checked."]
    for check, counts in counts_of(reports).items():
        parts = [f"{count} {status}" for status, count in counts.items() if count]
        lines.append(f"{CHECKS[check]}: {', '.join(parts) or 'none'}")
    return lines


def table_of(reports: Sequence[TypeReport]) -> Table:
    """Make a table for a terminal, with a row for each type that was checked."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for title in ("type", "reads", *CHECKS.values()):
        table.add_column(title, no_wrap=True)
    for report in checked(reports):
        cells = [_short(report.verdicts[check]) for check in CHECKS]
        bad = any(v.status in ("wrong", "raised") for v in report.verdicts.values())
        table.add_row(report.name, report.modality, *cells, style="bold red" if bad else "")
    return table


def _short(verdict: Verdict) -> str:
    return verdict.status if verdict.error is None else f"{verdict.error:.0e}"


def to_markdown(reports: Sequence[TypeReport]) -> str:
    """Return the page of the documentation."""
    ran = checked(reports)
    lines = [
        "# Every model type",
        "",
        f"What normscope gives for each of the {len(reports)} model types of transformers "
        f"{_version()}. `normscope families --all --markdown docs/families.md` makes this page: "
        "of each type it builds a small model from its configuration, all parameters random, in "
        "float64, and runs it on a padded batch of random inputs. A figure is the largest "
        "relative difference between the parts and what the model itself computed; *refused* "
        "says that there is an error that names the reason, given below the table.",
        "",
        "| | " + " | ".join(STATUSES) + " |",
        "|---" * (len(STATUSES) + 1) + "|",
    ]
    for check, counts in counts_of(reports).items():
        lines.append(f"| {CHECKS[check]} | " + " | ".join(map(str, counts.values())) + " |")
    lines += ["", *_kinds(ran), "", "## Types that were checked", ""]
    lines += ["| type | class | reads | " + " | ".join(CHECKS.values()) + " |", "|---" * 6 + "|"]
    for report in ran:
        cells = [report.name, report.model, report.modality]
        cells += [_short(report.verdicts[check]) for check in CHECKS]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "## Why types are refused", "", "| type | | reason |", "|---|---|---|"]
    for report in ran:
        for check, verdict in report.verdicts.items():
            if verdict.status != "exact":
                title, reason = CHECKS[check], _reason(verdict.reason)
                lines.append(f"| {report.name} | {title} | {verdict.status}: {reason} |")
    lines += ["", "## Types that were not checked", "", *_missing(reports), ""]
    return "\n".join(lines)


def _kinds(ran: Sequence[TypeReport]) -> list[str]:
    """Return a table of what types read, and how many are exact."""
    lines = ["| reads | types | " + " | ".join(f"{t}, exact" for t in CHECKS.values()) + " |"]
    lines.append("|---" * 5 + "|")
    for kind, number in Counter(report.modality for report in ran).most_common():
        of_kind = [report for report in ran if report.modality == kind]
        exact = [sum(r.verdicts[c].status == "exact" for r in of_kind) for c in CHECKS]
        lines.append(f"| {kind} | {number} | " + " | ".join(map(str, exact)) + " |")
    return lines


def _missing(reports: Sequence[TypeReport]) -> list[str]:
    """Return the types that were not checked, those without a reason of their own together."""
    by_reason: dict[str, list[str]] = {}
    for report in reports:
        if report.missing:
            by_reason.setdefault(_reason(report.missing), []).append(report.name)
    lines = ["| types | reason |", "|---|---|"]
    for reason, names in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        lines.append(f"| {', '.join(names)} | {reason} |")
    return lines


def _reason(text: str) -> str:
    """Return the first sentence of a message, as a cell of a table."""
    first = re.split(r"(?<=[a-z\)])[.;] |, so | If ", text)[0].strip().rstrip(".")
    first = first if len(first) <= LONGEST else first[: LONGEST - 1] + "…"
    return re.sub(r"([|<>*_`\\])", r"\\\1", first)


def _version() -> str:
    import transformers

    return str(transformers.__version__)
