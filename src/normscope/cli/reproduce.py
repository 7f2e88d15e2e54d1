"""`normscope reproduce`: the papers' tables and figures, published beside measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.cli.options import CommandArguments, argument, command, parse_sample, shared
from normscope.cli.output import hint_on_interrupt, plain_console, print_signature, say
from normscope.cli.status import working
from normscope.errors import InputError
from normscope.models.sources import check_source
from normscope.reproduce.options import ALTI_PLUS, LM, NMT, SST2, ReproduceOptions

NAMES = ("emnlp2020-bert", NMT, "emnlp2021", "iclr2024", SST2, LM, ALTI_PLUS)


@dataclass(frozen=True, kw_only=True)
class ReproduceArguments(CommandArguments):
    """The options of `normscope reproduce`."""

    experiment: str = argument(
        help="emnlp2020-bert, emnlp2020-nmt, emnlp2021, iclr2024, attribution-sst2, "
        "attribution-lm or alti-plus.",
        metavar="NAME",
    )
    model: str | None = shared(ReproduceOptions, "model")
    data: list[Path] = shared(ReproduceOptions, "data")
    output: Path | None = shared(ReproduceOptions, "output")
    sequences: int | None = shared(ReproduceOptions, "sequences")
    sample: str | None = shared(ReproduceOptions, "sample")
    ranks: str = shared(ReproduceOptions, "ranks")
    seed: int = shared(ReproduceOptions, "seed")
    device: str | None = shared(ReproduceOptions, "device")
    dtype: str | None = shared(ReproduceOptions, "dtype")
    revision: str | None = shared(ReproduceOptions, "revision")
    restart: bool = shared(ReproduceOptions, "restart")
    valid: list[Path] = shared(ReproduceOptions, "valid")
    gold: list[Path] = shared(ReproduceOptions, "gold")
    recipe: str = shared(ReproduceOptions, "recipe")
    minutes: float | None = shared(ReproduceOptions, "minutes")
    steps: int | None = shared(ReproduceOptions, "steps")
    method: list[str] = shared(ReproduceOptions, "method")

    def for_python(self) -> dict[str, Any]:
        """Return the fields of `ReproduceOptions`."""
        return self.keywords(
            "experiment",
            data=tuple(self.data),
            valid=tuple(self.valid),
            gold=tuple(self.gold),
            method=tuple(self.method),
            sample=None if self.sample is None else parse_sample(self.sample),
        )


@command
def reproduce(arguments: ReproduceArguments) -> None:
    """Reproduce a paper's tables and figures.

    Shows published numbers beside measured ones: each number with its convention, and each finding
    of the paper with whether the measured numbers agree. A report on a model or text other than the
    paper's says so. With --output, the same command resumes an interrupted run, and prints the
    report of a finished one.

    \b
    Examples:
      normscope reproduce emnlp2020-bert --data unlabeled_attn.pkl -o bert2020
      normscope reproduce emnlp2021 --data wiki.test.raw --model ./bert-base-uncased -o bert2021
      normscope reproduce iclr2024 --data wiki.test.raw --sample 60 -o bert2024
      normscope reproduce emnlp2020-nmt --data europarl.de --data europarl.en \\
          --valid dev.de --valid dev.en --gold de --gold en --gold alignment.talp \\
          --minutes 60 --device cuda -o nmt
      normscope reproduce attribution-sst2 --data train.tsv --valid dev.tsv -o sst2
      normscope reproduce attribution-lm --data blimp --data ioi_dataset.csv \\
          --data lambada.json --sequences 100 -o lm
      normscope reproduce alti-plus --gold de --gold en --gold alignment.talp -o alti

    \b
    Files in DIR:
      report.md, report.html   the report; the page needs no other file
      tables/                  a .csv for each table, and -data.csv with all its numbers
      figures/                 a .png for each figure
      measured/                the output of normscope corpus: statistics.json, checkpoints; or a
                               row for each text
      model/                   attribution-sst2: the classifier
      cost.json                iclr2024: the cost of a sequence

    \b
    Exit status:
      0 success, whether or not the numbers agree; 1 unexpected error; 2 usage error;
      130 Ctrl-C, 143 SIGTERM, 129 SIGHUP
    """  # noqa: D301
    options = ReproduceOptions(**arguments.for_python())
    if arguments.experiment not in NAMES:
        raise InputError(
            f"there is no experiment {arguments.experiment!r}; valid: {', '.join(NAMES)}"
        )
    if arguments.experiment == NMT:
        from normscope.reproduce.nmt import reproduce_nmt

        tables = reproduce_nmt(options)
        print(tables.read_text(encoding="utf-8"))
        say(f"wrote {tables.parent}")
        return
    check_source(arguments.model, arguments.revision)
    output = options.output
    with working(arguments.model or "the model"):
        from normscope.reproduce.measure import MEASURED
        from normscope.reproduce.report import show
        from normscope.reproduce.run import reproduce as run

        checkpoints = None if output is None else output / MEASURED
        with hint_on_interrupt(checkpoints, options.restart):
            report = run(arguments.experiment, options)
    show(report, plain_console())
    if output is not None:
        say(f"wrote {output / 'report.html'}")
    print_signature(report.signature, "in report.md" if output else "with --output")
