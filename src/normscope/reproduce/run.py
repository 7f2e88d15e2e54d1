"""Run an experiment by its name."""

from __future__ import annotations

from normscope.errors import InputError
from normscope.reproduce import (
    alti_plus,
    attribution_lm,
    attribution_sst2,
    emnlp2020,
    emnlp2021,
    iclr2024,
)
from normscope.reproduce.comparisons import MethodExperiment
from normscope.reproduce.exhibits import Report
from normscope.reproduce.measure import CorpusExperiment
from normscope.reproduce.options import ReproduceOptions
from normscope.reproduce.report import write

EXPERIMENTS: dict[str, CorpusExperiment | MethodExperiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        *(emnlp2020, emnlp2021, iclr2024),
        *(attribution_sst2, attribution_lm, alti_plus),
    )
}


def reproduce(experiment: str, options: ReproduceOptions) -> Report:
    """Reproduce the tables and figures of an experiment, and write them to `options.output`.

    In the same folder, an interrupted run is continued and a finished one is read.
    """
    if experiment not in EXPERIMENTS:
        raise InputError(f"there is no experiment {experiment!r}; valid: {', '.join(EXPERIMENTS)}")
    report = EXPERIMENTS[experiment](options)
    if options.output is not None:
        write(report, options.output)
    return report
