"""`normscope reproduce`: the papers' tables and figures, published beside measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.corpus import continued, sample_of
from normscope.cli.options import Debug, Device, Dtype, Revision


def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="emnlp2020-bert, emnlp2020-nmt, emnlp2021 or iclr2024."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A folder, or a name on the Hugging Face hub (owner/name). Without it, the "
            "papers' model: bert-base-uncased, from the hub.",
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Clark et al.'s unlabeled_attn.pkl, the papers' sequences; or a text file with "
            "one paragraph a line, from which pairs are made. May be given several times.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="A folder for the report, its tables and figures, and the run's checkpoints. "
            "Without it, the tables are printed and nothing is kept.",
        ),
    ] = None,
    sequences: Annotated[
        int, typer.Option(min=1, metavar="N", help="Take the first N sequences.")
    ] = 992,
    sample: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE|N",
            help="Of these a share (0.1) or a number (60), chosen by a hash. Without it all; for "
            "iclr2024, which is expensive, 32.",
        ),
    ] = None,
    ranks: Annotated[
        str,
        typer.Option(
            metavar="ids|corpus|FILE",
            help="Frequency ranks: the tokenizer's ids, counted in the text, or a file of lines "
            "`rank count token_id`. Numbers with ids are always shown as well.",
        ),
    ] = "ids",
    seed: Annotated[
        int, typer.Option(metavar="N", help="Of the sample, of masking and of the bootstrap.")
    ] = 0,
    device: Device = None,
    dtype: Dtype = None,
    revision: Revision = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget what DIR holds and start anew.")
    ] = False,
    valid: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="emnlp2020-nmt: text to validate on, as --data."),
    ] = None,
    gold: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="emnlp2020-nmt, three times: German text, English text, gold links (.talp).",
        ),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(metavar="NAME", help="emnlp2020-nmt: released, paper, small or tiny."),
    ] = "released",
    minutes: Annotated[
        float | None,
        typer.Option(metavar="N", help="emnlp2020-nmt: of training, for each direction."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="emnlp2020-nmt: updates instead of minutes.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Reproduce a paper's tables and figures.

    Published beside measured: every number with its convention, every finding of the paper with
    whether the numbers measured here agree with it. A report of another model or another text
    than the paper's says so. With --output the same command again continues an interrupted run,
    and prints the report of a finished one.

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
      report.md, report.html   the report; the page needs nothing else
      tables/                  a .csv for each table, and -data.csv with all its numbers
      figures/                 a .png for each figure
      measured/                what normscope corpus writes: statistics.json, checkpoints
      cost.json                iclr2024: what a sequence costs

    \b
    Exit status:
      0 done, whatever agrees or does not; 1 unexpected error; 2 mistake in what was given;
      130 interrupted
    """  # noqa: D301
    from normscope.reproduce.options import NMT, ReproduceOptions

    options = ReproduceOptions(
        model=model,
        data=tuple(data or ()),
        output=output,
        sequences=sequences,
        sample=None if sample is None else sample_of(sample),
        ranks=ranks,
        seed=seed,
        device=device,
        dtype=dtype,
        revision=revision,
        restart=restart,
        valid=tuple(valid or ()),
        gold=tuple(gold or ()),
        recipe=recipe,
        minutes=minutes,
        steps=steps,
    )
    if experiment == NMT:
        from normscope.reproduce.nmt import reproduce_nmt

        tables = reproduce_nmt(options)
        print(tables.read_text(encoding="utf-8"))
        print(f"wrote {tables.parent}", file=sys.stderr)
        return
    from rich.console import Console

    from normscope.cli.quiet import quiet as _quiet
    from normscope.reproduce.measure import MEASURED
    from normscope.reproduce.report import show
    from normscope.reproduce.run import reproduce as run

    with _quiet(), continued(None if output is None else output / MEASURED, restart):
        report = run(experiment, options)
    show(report, Console(highlight=False, markup=False, emoji=False))
    where = "" if output is None else f"wrote {output / 'report.html'}\n"
    print(f"{where}{report.signature}", file=sys.stderr)
