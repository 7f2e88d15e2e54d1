"""The experiments by name, and running one of them."""

from __future__ import annotations

from collections.abc import Callable

from normscope.errors import InputError
from normscope.reproduce import emnlp2020, emnlp2021, iclr2024
from normscope.reproduce.exhibits import Report
from normscope.reproduce.measure import Request
from normscope.reproduce.report import write

# Another experiment is another line: a name, and a function from what was asked for to its report.
EXPERIMENTS: dict[str, Callable[[Request], Report]] = {
    "emnlp2020-bert": emnlp2020.EXPERIMENT,
    "emnlp2021": emnlp2021.EXPERIMENT,
    "iclr2024": iclr2024.EXPERIMENT,
}


def reproduce(experiment: str, request: Request) -> Report:
    """Make every table and figure of an experiment, and write them where that is asked for.

    An interrupted run in the same folder is continued; a finished one is read and told again.
    """
    try:
        make = EXPERIMENTS[experiment]
    except KeyError:
        raise InputError(
            f"there is no experiment {experiment!r}; there are: {', '.join(EXPERIMENTS)}"
        ) from None
    report = make(request)
    if request.output is not None:
        write(report, request.output)
    return report
