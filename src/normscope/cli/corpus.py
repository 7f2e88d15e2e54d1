"""`normscope corpus`: statistics over many sequences."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.options import Debug, Device, Dtype, Model, Revision
from normscope.errors import InputError

DEFAULT = "dispersion,categories,frequency,mixing,preserve_mix"


def corpus(
    more: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="More files: --data *.txt is understood."),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Files of sequences. By the name: .txt one sequence "
            "a line; .jsonl with text (and text_pair); .tsv pairs; .parquet with the columns "
            "text (and text_pair); .pkl Clark et al.'s tokens.",
        ),
    ] = None,
    model: Model = None,
    statistics: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME]",
            help="dispersion, categories, alpha_vs_norm, frequency, mixing, preserve_mix, change, "
            "amplification; or all.",
        ),
    ] = DEFAULT,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="A folder for tables, figures, report and checkpoints. An interrupted run is "
            "continued there. Without it, the tables are printed and nothing is kept.",
        ),
    ] = None,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="text, jsonl, tsv, parquet, clark. Without it, by the names of the files.",
        ),
    ] = None,
    text_field: Annotated[
        str, typer.Option(metavar="NAME", help="The JSON field or Parquet column with the text.")
    ] = "text",
    pair_field: Annotated[
        str, typer.Option(metavar="NAME", help="The one with a second text, if there is one.")
    ] = "text_pair",
    bad_rows: Annotated[
        str,
        typer.Option(
            metavar="skip|error",
            help="Rows that are empty, no UTF-8, broken JSON and so on: skip, count and report "
            "them, or stop at the first.",
        ),
    ] = "skip",
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N rows.")
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE|N",
            help="Of these a share (0.01) or a number (1000) of rows, chosen by a hash of the "
            "row's number and the seed.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Of the sample, of masking and of the bootstrap.")
    ] = 0,
    max_length: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Cut longer sequences to N tokens. Without it, to what the model takes.",
        ),
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tokens that go through the model at once.")
    ] = 4096,
    masking: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.99, metavar="SHARE", help="Tokens masked for the mixing ratios."
        ),
    ] = 0.12,
    category: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TOKENS",
            help="A category of tokens of your own, in place of the usual ones: NAME=TOKEN,TOKEN, "
            "as the tokenizer writes them, or NAME=/REGEX/, which a whole token matches. May be "
            "given several times; the first that names a token has it.",
        ),
    ] = None,
    ranks: Annotated[
        str,
        typer.Option(
            metavar="ids|corpus|FILE",
            help="Frequency ranks: the tokenizer's ids, counted in the corpus, or a file of lines "
            "`rank count token_id`.",
        ),
    ] = "ids",
    replicates: Annotated[
        int, typer.Option(min=0, metavar="N", help="Of the bootstrap; 0: no intervals.")
    ] = 200,
    dump: Annotated[
        bool,
        typer.Option(
            "--dump", help="Also write the maps of every sequence: maps/part-*.parquet. Large."
        ),
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget what DIR holds and start anew.")
    ] = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0.0, metavar="S", help="How often a checkpoint is written.")
    ] = 60.0,
    engine: Annotated[
        str, typer.Option(metavar="local|ray", help="ray: on all machines of a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="Of the Ray cluster; auto: the one this machine belongs to. Without it, Ray is "
            "started here.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Models that Ray runs at once. Without it, one a GPU or CPU."
        ),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    revision: Revision = None,
    debug: Debug = False,
) -> None:
    """Measure a corpus in one pass that can be interrupted.

    Every sequence goes through the model once (twice where masked text is wanted as well), and
    only small states are kept: memory does not grow with the corpus. With --output the standing
    of the run is written as it goes; the same command again continues it, also after a crash, and
    gives the same numbers. A folder with another model, other data or other settings is refused.

    \b
    Examples:
      normscope corpus --data wiki.txt
      normscope corpus --data wiki.txt --statistics dispersion,mixing --output wiki
      normscope corpus --data a.jsonl b.jsonl --sample 0.01 --seed 7 -o sample
      normscope corpus --data wiki.txt --category "stop=the,a,of" --category "digits=/[0-9]+/"
      normscope corpus --data big.parquet --engine ray --address auto --device cuda -o big

    \b
    Files in DIR:
      statistics.json     signature, settings, account of the rows, all tables
      run.json            times and speed: what differs between equal runs
      tables/             one .csv and one .parquet for each table
      figures/            pictures of them
      report.html         all of it on one page
      maps/               with --dump
      checkpoint.npz      while the run is not finished

    \b
    Exit status:
      0 done, 1 unexpected error, 2 mistake in what was given, 130 interrupted
    """  # noqa: D301
    from rich.console import Console

    from normscope.cli.quiet import quiet as _quiet
    from normscope.corpus.run import corpus as run
    from normscope.measures.statistics import Settings
    from normscope.results.arrays import printable

    settings = Settings(
        categories=categories_of(category) if category else None,
        ranks=ranks,
        masking=masking,
        seed=seed,
        replicates=replicates,
    )
    files = [*(data or ()), *(more or ())]
    if not files:
        raise InputError("no data was given: name the files, as in --data wiki.txt")
    with _quiet(), continued(output, restart):
        result = run(
            model,
            files,
            statistics,
            output=output,
            settings=settings,
            limit=limit,
            sample=None if sample is None else sample_of(sample),
            max_length=max_length,
            batch_tokens=batch_tokens,
            bad_rows=bad_rows,
            format=file_format,
            text_field=text_field,
            pair_field=pair_field,
            dump=dump,
            restart=restart,
            checkpoint_seconds=checkpoint_seconds,
            engine=engine,
            address=address,
            workers=workers,
            device=device,
            dtype=dtype,
            revision=revision,
        )
    counts, bad = result.counts, sum(result.counts["bad"].values())
    for problem in result.problems:
        print(f"normscope: bad row: {printable(str(problem))}", file=sys.stderr)
    if bad > len(result.problems):
        print(f"normscope: … and {bad - len(result.problems)} more bad rows", file=sys.stderr)
    if output is None:
        from normscope.corpus.listing import listing

        console = Console(highlight=False, markup=False, emoji=False)
        for table, width in listing(result.tables):
            # Wider than the terminal rather than with half of each number.
            console.print(table, width=max(width, console.width), crop=False)
    print(
        f"{counts['sequences']:,} sequences, {counts['tokens']:,} tokens; "
        f"{bad:,} of {counts['rows']:,} rows bad, {counts['cut']:,} cut",
        file=sys.stderr,
    )
    where = "" if output is None else f"wrote {output}\n"
    print(f"{where}{result.signature}", file=sys.stderr)


@contextmanager
def continued(output: Path | None, restart: bool) -> Iterator[None]:
    """Ctrl-C: say what became of the work."""
    from normscope.corpus.checkpoint import FILE

    try:
        yield
    except KeyboardInterrupt:
        if output is None:
            told = "nothing was kept; with --output DIR a run can be continued"
        elif (output / FILE).is_file():
            again = "the same command without --restart" if restart else "the same command"
            told = f"the standing is kept in {output}; {again} continues from there"
        else:
            told = "nothing was measured yet; the same command begins anew"
        print(f"normscope: {told}", file=sys.stderr)
        raise


def categories_of(given: Sequence[str]) -> dict[str, list[str] | re.Pattern[str]]:
    """Categories by name: TOKEN,TOKEN a list of tokens, /REGEX/ a regular expression."""
    found: dict[str, list[str] | re.Pattern[str]] = {}
    for one in given:
        name, _, what = one.partition("=")
        if not name or not what:
            raise InputError(
                "--category is NAME=TOKEN,TOKEN or NAME=/REGEX/, as in stop=the,a,of or "
                f"digits=/[0-9]+/, but was given {one!r}"
            )
        if name in found:
            raise InputError(
                f"--category {name} was given twice; its tokens go together: {name}=TOKEN,TOKEN"
            )
        if len(what) > 2 and what[0] == what[-1] == "/":
            try:
                found[name] = re.compile(what[1:-1])
            except re.error as problem:
                raise InputError(
                    f"--category {name}: {what!r} is no regular expression: {problem}"
                ) from problem
        else:
            found[name] = tokens_of(what)
    return found


def tokens_of(listed: str) -> list[str]:
    """Tokens parted by commas, as in a CSV file: `the,",",of` has a comma as its second."""
    try:
        (tokens,) = csv.reader([listed], strict=True)
    except (csv.Error, ValueError):
        tokens = []
    if not tokens or not all(tokens):
        raise InputError(
            f"cannot read the tokens {listed!r}: they are parted by one comma each; a token with "
            'a comma in it stands in quotes, as in .,","'
        )
    return tokens


def sample_of(text: str) -> int | float:
    """1000 is a number of rows; 0.01, 1.0 or 1e-3 is a share."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"a sample is a share such as 0.01 or a number of rows such as 1000, not {text!r}"
        ) from None
