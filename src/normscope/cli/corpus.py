"""`normscope corpus`: statistics over many sequences."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.cli.options import (
    CommandArguments,
    CommonOptions,
    argument,
    command,
    option,
    parse_sample,
    shared,
)
from normscope.cli.output import hint_on_interrupt, note, plain_console, print_signature, say
from normscope.cli.status import working
from normscope.corpus.options import DEFAULT_STATISTICS, CorpusOptions
from normscope.errors import InputError
from normscope.measures.statistics.settings import StatisticSettings
from normscope.models.sources import check_source

if TYPE_CHECKING:
    from normscope.corpus.output import CorpusResult


@dataclass(frozen=True, kw_only=True)
class CorpusArguments(CommandArguments):
    """The options of `normscope corpus`."""

    more: list[Path] | None = argument(
        None, help="More files, so that --data *.txt works.", metavar="FILE"
    )
    data: list[Path] | None = option(
        None,
        help="A file of sequences, in the format that its name implies: .txt one sequence per "
        "line; "
        ".jsonl with text (and text_pair); .tsv pairs; .parquet with the columns text (and "
        "text_pair); .pkl Clark et al.'s tokens. May be given several times.",
        metavar="FILE",
    )
    model: str | None = shared(CommonOptions, "model")
    statistics: str = option(
        ",".join(DEFAULT_STATISTICS),
        help="dispersion, categories, alpha_vs_norm, frequency, mixing, preserve_mix, change, "
        "amplification; or all.",
        metavar="NAME[,NAME]",
    )
    output: Path | None = shared(CorpusOptions, "output")
    format: str | None = shared(CorpusOptions, "format")
    text_field: str = shared(CorpusOptions, "text_field")
    pair_field: str = shared(CorpusOptions, "pair_field")
    bad_rows: str = shared(CorpusOptions, "bad_rows")
    limit: int | None = shared(CorpusOptions, "limit")
    sample: str | None = shared(CorpusOptions, "sample")
    seed: int = shared(CorpusOptions, "seed", default=StatisticSettings.seed)
    max_length: int | None = shared(CorpusOptions, "max_length")
    batch_tokens: int = shared(CorpusOptions, "batch_tokens")
    masking: float = shared(StatisticSettings, "masking")
    category: list[str] | None = shared(StatisticSettings, "categories")
    ranks: str = shared(StatisticSettings, "ranks")
    replicates: int = shared(StatisticSettings, "replicates")
    dump: bool = shared(CorpusOptions, "dump")
    restart: bool = shared(CorpusOptions, "restart")
    checkpoint_seconds: float = shared(CorpusOptions, "checkpoint_seconds")
    engine: str = shared(CorpusOptions, "engine")
    address: str | None = shared(CorpusOptions, "address")
    workers: int | None = shared(CorpusOptions, "workers")
    device: str | None = shared(CorpusOptions, "device")
    dtype: str | None = shared(CorpusOptions, "dtype")
    revision: str | None = shared(CorpusOptions, "revision")
    strict: bool = shared(CommonOptions, "strict")

    def for_python(self) -> dict[str, Any]:
        """Return the keyword arguments of `normscope.corpus`."""
        files = [*(self.data or ()), *(self.more or ())]
        if not files:
            raise InputError("no data was given: name the files, as in --data wiki.txt")
        return self.keywords(
            *("more", "category", "masking", "ranks", "replicates"),
            data=files,
            sample=None if self.sample is None else parse_sample(self.sample),
            settings=StatisticSettings(
                categories=parse_categories(self.category) if self.category else None,
                ranks=self.ranks,
                masking=self.masking,
                seed=self.seed,
                replicates=self.replicates,
            ),
        )


@command
def corpus(arguments: CorpusArguments) -> None:
    """Compute corpus statistics in one resumable pass.

    Every sequence goes through the model once (twice if masked text is needed too), and only small
    summaries are kept: memory does not grow with the corpus. With --output, progress is saved
    regularly; the same command resumes an interrupted run, even after a crash, and gives the same
    numbers. A folder that holds a run with a different model, data or settings is refused.

    \b
    Examples:
      normscope corpus --data wiki.txt
      normscope corpus --data wiki.txt --statistics dispersion,mixing --output wiki
      normscope corpus --data a.jsonl b.jsonl --sample 0.01 --seed 7 -o sample
      normscope corpus --data wiki.txt --category "stop=the,a,of" --category "digits=/[0-9]+/"
      normscope corpus --data big.parquet --engine ray --address auto --device cuda -o big

    \b
    Files in DIR:
      statistics.json     signature, settings, row counts and all tables
      run.json            times and speed, which differ between identical runs
      tables/             one .csv and one .parquet for each table
      figures/            pictures of the tables
      report.html         all of it on one page
      maps/               with --dump
      checkpoint.npz      while the run is not finished

    \b
    Exit status:
      0 success, 1 unexpected error, 2 usage error, 130 Ctrl-C, 143 SIGTERM,
      129 SIGHUP
    """  # noqa: D301
    keywords = arguments.for_python()
    check_source(arguments.model, arguments.revision)
    with working(arguments.model), hint_on_interrupt(arguments.output, arguments.restart):
        import normscope

        result = normscope.corpus(**keywords)
    _print_bad_rows(result)
    if arguments.output is None:
        _print_tables(result)
    _print_summary(result, arguments.output)


def _print_bad_rows(result: CorpusResult) -> None:
    for problem in result.problems:
        note(f"bad row: {problem}")
    more = sum(result.counts["bad"].values()) - len(result.problems)
    if more > 0:
        note(f"… and {more} more bad rows")


def _print_tables(result: CorpusResult) -> None:
    from normscope.corpus.listing import listing

    console = plain_console()
    for table, width in listing(result.tables):
        # Exceed the width of the terminal rather than cut numbers.
        console.print(table, width=max(width, console.width), crop=False)


def _print_summary(result: CorpusResult, output: Path | None) -> None:
    counts, bad = result.counts, sum(result.counts["bad"].values())
    say(
        f"{counts['sequences']:,} sequences, {counts['tokens']:,} tokens; "
        f"{bad:,} of {counts['rows']:,} rows bad, {counts['cut']:,} cut"
    )
    if output is not None:
        say(f"wrote {output}")
    print_signature(result.signature, "in statistics.json" if output else "with --output")


def parse_categories(entries: Sequence[str]) -> dict[str, list[str] | re.Pattern[str]]:
    """Parse NAME=TOKEN,TOKEN into lists of tokens and NAME=/REGEX/ into regular expressions."""
    categories: dict[str, list[str] | re.Pattern[str]] = {}
    for entry in entries:
        name, _, members = entry.partition("=")
        if not name or not members:
            raise InputError(
                "--category must be NAME=TOKEN,TOKEN or NAME=/REGEX/, as in stop=the,a,of or "
                f"digits=/[0-9]+/, not {entry!r}"
            )
        if name in categories:
            raise InputError(
                f"--category {name} was given twice; list all its tokens at once: "
                f"{name}=TOKEN,TOKEN"
            )
        if len(members) > 2 and members[0] == members[-1] == "/":
            try:
                categories[name] = re.compile(members[1:-1])
            except re.error as problem:
                raise InputError(
                    f"--category {name}: {members!r} is not a valid regular expression: {problem}"
                ) from problem
        else:
            categories[name] = parse_tokens(members)
    return categories


def parse_tokens(text: str) -> list[str]:
    """Split tokens at commas as in a CSV file: the second token of `the,",",of` is a comma."""
    try:
        (tokens,) = csv.reader([text], strict=True)
    except (csv.Error, ValueError):
        tokens = []
    if not tokens or not all(tokens):
        raise InputError(
            f"cannot read the tokens {text!r}: separate them by single commas, and put a token "
            'that contains a comma in quotes, as in .,","'
        )
    return tokens
