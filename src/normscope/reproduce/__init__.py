"""Reproduce the papers' tables and figures: published next to measured numbers.

    options        the options of a reproduction
    data           the sequences that the model reads
    measure        run an experiment over sequences
    measurements   the numbers of a run, and how exhibits are made from them
    exhibits       tables, figures and findings under the papers' names
    emnlp2020, emnlp2021, iclr2024   what each paper shows and found
    comparisons    what experiments on methods of attribution share
    attribution_sst2, attribution_lm, alti_plus   measure methods as several papers did
    sst2_exhibits, lm_exhibits       what these papers show and found
    finetune, prompts, rollouts, yardsticks       classifiers, data and references for them
    frequency      exhibits that depend on frequency ranks
    statistics     statistics that only the reproductions need
    cost           the cost of statistics in forward passes
    report         write and show a report
    run            the experiments by name
    nmt            the translation experiment of the 2020 paper

Names are imported when they are first used, so that `options` can be loaded without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscope.reproduce.exhibits import Exhibit, Finding, Report
    from normscope.reproduce.options import ReproduceOptions
    from normscope.reproduce.run import EXPERIMENTS, reproduce

__all__ = ["EXPERIMENTS", "Exhibit", "Finding", "Report", "ReproduceOptions", "reproduce"]

_HOMES = {
    **dict.fromkeys(("Exhibit", "Finding", "Report"), "exhibits"),
    **dict.fromkeys(("EXPERIMENTS", "reproduce"), "run"),
    "ReproduceOptions": "options",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
