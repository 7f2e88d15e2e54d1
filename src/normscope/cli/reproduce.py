"""`normscope reproduce`: the papers' tables and figures, published beside measured."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.cli.options import (
    OUTPUT,
    CommandArguments,
    CommonOptions,
    argument,
    command,
    option,
    parse_sample,
    shared,
)
from normscope.cli.output import hint_on_interrupt, plain_console, quiet
from normscope.errors import InputError

TRANSLATION = "emnlp2020-nmt"  # the experiment that trains models


@dataclass(frozen=True, kw_only=True)
class ReproduceArguments(CommandArguments):
    """The options of `normscope reproduce`."""

    experiment: str = argument(
        help="emnlp2020-bert, emnlp2020-nmt, emnlp2021 or iclr2024.", metavar="NAME"
    )
    model: str | None = option(
        None,
        help="A folder, or a name on the Hugging Face hub (owner/name). Default: "
        "bert-base-uncased from the hub, the papers' model.",
        metavar="NAME",
    )
    data: list[Path] | None = option(
        None,
        help="Clark et al.'s unlabeled_attn.pkl, the papers' sequences; or a text file with "
        "one paragraph per line, from which pairs are made. May be given several times.",
        metavar="FILE",
    )
    output: Path | None = option(
        None,
        names=OUTPUT,
        help="Write the report with its tables and figures, and the run's checkpoints, to the "
        "folder DIR. Default: print the tables and keep nothing.",
        metavar="DIR",
    )
    sequences: int = option(992, help="Use the first N sequences.", metavar="N", min=1)
    sample: str | None = option(
        None,
        help="Use a fraction (0.1) or a number (60) of these, chosen by a hash. Default: all; "
        "32 for iclr2024, which is expensive.",
        metavar="SHARE|N",
    )
    ranks: str = option(
        "ids",
        help="Frequency ranks: the tokenizer's ids, counts in the text, or a file of lines "
        "`rank count token_id`. Numbers with ids are always shown as well.",
        metavar="ids|corpus|FILE",
    )
    seed: int = option(0, help="Seed of the sample, the masking and the bootstrap.", metavar="N")
    device: str | None = shared(CommonOptions, "device")
    dtype: str | None = shared(CommonOptions, "dtype")
    revision: str | None = shared(CommonOptions, "revision")
    restart: bool = option(False, help="Discard what DIR holds and start again.")
    valid: list[Path] | None = option(
        None, help="emnlp2020-nmt: text to validate on, as --data.", metavar="FILE"
    )
    gold: list[Path] | None = option(
        None,
        help="emnlp2020-nmt, three times: German text, English text, gold links (.talp).",
        metavar="FILE",
    )
    recipe: str = option(
        "released", help="emnlp2020-nmt: released, paper, small or tiny.", metavar="NAME"
    )
    minutes: float | None = option(
        None, help="emnlp2020-nmt: minutes of training for each direction.", metavar="N"
    )
    steps: int | None = option(
        None, help="emnlp2020-nmt: updates to train for, instead of minutes.", metavar="N"
    )

    def for_python(self) -> dict[str, Any]:
        """Return the fields of a request to reproduce an experiment on a masked language model."""
        return self.keywords(
            *("experiment", "valid", "gold", "recipe", "minutes", "steps"),
            data=tuple(self.data or ()),
            sample=None if self.sample is None else parse_sample(self.sample),
        )


@command
def reproduce(arguments: ReproduceArguments) -> None:
    """Reproduce a paper's tables and figures.

    Shows published beside measured numbers: each number with its convention, each finding of the
    paper and whether the measured numbers agree with it. A report on another model or another text
    than the paper's says so. With --output, the same command continues an interrupted run, and
    prints the report of a finished one.

    \b
    Examples:
      normscope reproduce emnlp2020-bert --data unlabeled_attn.pkl -o bert2020
      normscope reproduce emnlp2021 --data wiki.test.raw --model ./bert-base-uncased -o bert2021
      normscope reproduce iclr2024 --data wiki.test.raw --sample 60 -o bert2024
      normscope reproduce emnlp2020-nmt --data europarl.de --data europarl.en \\
          --valid dev.de --valid dev.en --gold de --gold en --gold alignment.talp \\
          --minutes 60 --device cuda -o nmt

    \b
    Files in DIR:
      report.md, report.html   the report; the page needs no other file
      tables/                  a .csv for each table, and -data.csv with all its numbers
      figures/                 a .png for each figure
      measured/                the output of normscope corpus: statistics.json, checkpoints
      cost.json                iclr2024: the cost of a sequence

    \b
    Exit status:
      0 success, whether or not the numbers agree; 1 unexpected error; 2 usage error;
      130 interrupted
    """  # noqa: D301
    if arguments.experiment == TRANSLATION:
        _reproduce_translation(arguments)
        return
    from normscope.reproduce import Request
    from normscope.reproduce import reproduce as run
    from normscope.reproduce.measure import MEASURED
    from normscope.reproduce.report import show

    output = arguments.output
    request = Request(**arguments.for_python())
    checkpoints = None if output is None else output / MEASURED
    with quiet(), hint_on_interrupt(checkpoints, arguments.restart):
        report = run(arguments.experiment, request)
    show(report, plain_console())
    if output is not None:
        print(f"wrote {output / 'report.html'}", file=sys.stderr)
    print(report.signature, file=sys.stderr)


def _reproduce_translation(arguments: ReproduceArguments) -> None:
    """Train the translation models of the 2020 paper and print its tables."""
    from normscope.reproduce.nmt import reproduce_nmt

    if arguments.restart:
        raise InputError(
            f"{TRANSLATION} does not support --restart: it trains for hours and removes nothing by "
            "itself; to start again, give another --output or remove the folder"
        )
    tables = reproduce_nmt(
        arguments.data or [],
        arguments.valid or [],
        arguments.gold or [],
        arguments.output,
        recipe=arguments.recipe,
        minutes=arguments.minutes,
        steps=arguments.steps,
        seed=arguments.seed,
        device=arguments.device,
    )
    print(tables.read_text(encoding="utf-8"))
    print(f"wrote {tables.parent}", file=sys.stderr)
