"""`normscope aer`: score word alignments against gold links."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from normscope.cli.options import CommandArguments, CommonOptions, command, option, shared
from normscope.cli.output import plain_console
from normscope.errors import InputError
from normscope.foundation.texts import printable

if TYPE_CHECKING:
    from normscope.alignment.aer import Score

Lengths = tuple[list[int] | None, list[int] | None]  # words per sentence: source, target
WIDE = 90  # columns that a table needs beside the names
COLUMNS = {"aer": "AER", "precision": "precision", "recall": "recall", "f1": "F1"}


@dataclass(frozen=True, kw_only=True)
class AerArguments(CommandArguments):
    """The options of `normscope aer`."""

    gold: Path = option(help="Gold links, sure and possible.", metavar="FILE")
    hypothesis: list[Path] = option(
        help="Links to score. May be given several times.", metavar="FILE"
    )
    source: Path | None = option(
        None, help="The source text, to detect links to missing words.", metavar="FILE"
    )
    target: Path | None = option(
        None, help="The target text, to detect links to missing words.", metavar="FILE"
    )
    gold_format: str = option(
        "auto",
        help="Format of the gold links: pharaoh, talp, jsonl or giza; auto: go by the file name.",
        metavar="FORMAT",
    )
    hypothesis_format: str = option(
        "auto", help="Format of the links to score; the same choices.", metavar="FORMAT"
    )
    resamples: int = option(1000, help="Bootstrap samples for the intervals.", metavar="N", min=0)
    seed: int = option(0, help="Seed for the bootstrap.", metavar="N", min=0)
    as_json: bool = shared(CommonOptions, "as_json")


@command
def aer(arguments: AerArguments) -> None:
    """Score word alignments against gold links.

    Prints precision, recall, alignment error rate and F1 over the whole corpus, with 95% intervals
    by bootstrap over sentences, and the counts. An error in a file is reported with its line
    number.

    \b
    Files, one sentence pair per line:
      .talp, .moses  1-1 2p3: counted from 1, - sure, p possible
      .jsonl         {"links": [[0, 0, 0.9]], "possible": [[1, 2]]}: from 0
      .final         GIZA++'s A3.final
      other names    0-0 1-2: Pharaoh, counted from 0

    \b
    Examples:
      normscope aer --gold text.talp --hypothesis links.pharaoh
      normscope aer --gold text.talp --hypothesis a.pharaoh --hypothesis b.jsonl \\
                    --source text.de --target text.en
    """  # noqa: D301
    lengths = _word_counts(arguments.source), _word_counts(arguments.target)
    formats = arguments.gold_format, arguments.hypothesis_format
    bootstrap = {"resamples": arguments.resamples, "seed": arguments.seed}
    scores = {
        printable(str(path)): score_file(arguments.gold, path, lengths, formats, **bootstrap)
        for path in arguments.hypothesis
    }
    if arguments.as_json:
        print(json.dumps({name: _to_dict(score) for name, score in scores.items()}, indent=1))
    else:
        print_scores(scores, stream=sys.stdout)


def _word_counts(path: Path | None) -> list[int] | None:
    from normscope.alignment.files import read_lines
    from normscope.alignment.words import split

    return None if path is None else [len(split(line)) for line in read_lines(path)]


def score_file(
    gold: Path,
    path: Path,
    lengths: Lengths = (None, None),
    formats: tuple[str, str] = ("auto", "auto"),
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Score:
    """Score one file of links against a file of gold links."""
    from normscope.alignment.aer import score
    from normscope.alignment.files import read_links

    truth = read_links(gold, formats[0], source=lengths[0], target=lengths[1])
    links = read_links(path, formats[1], source=lengths[0], target=lengths[1])
    if len(links) != len(truth):
        raise InputError(
            f"{gold} has {len(truth)} lines and {path} has {len(links)}: they must be the same "
            "sentences in the same order"
        )
    return score(truth, links, resamples=resamples, seed=seed)


def _to_dict(score: Score) -> dict[str, Any]:
    from normscope.alignment.aer import MEASURES

    return {
        **{name: getattr(score, name) for name in MEASURES},
        "intervals": {name: list(ends) for name, ends in score.intervals.items()},
        "confidence": score.confidence,
        "counts": vars(score.counts),
    }


def print_scores(scores: dict[str, Score], stream: TextIO) -> None:
    """Print a table of the measures with their intervals, then the counts.

    On a narrow terminal, the intervals are below the values.
    """
    from rich.table import Table

    longest = max(len(name) for name in scores)
    console = plain_console(file=stream)
    narrow = console.is_terminal and console.width < WIDE + longest

    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=not narrow, overflow="fold")
    for title in COLUMNS.values():
        table.add_column(title, justify="right", no_wrap=True)
    for name, score in scores.items():
        cells = [_percent(score, measure) for measure in COLUMNS]
        table.add_row(name, *(cell.replace(" [", "\n[") if narrow else cell for cell in cells))
    if not narrow:  # wide enough for any name
        console = plain_console(file=stream, width=WIDE + longest)
    console.print(table)
    for name, score in scores.items():
        counts = score.counts
        print(
            f"{name}: {counts.sentences} sentences, {counts.links} links; gold {counts.sure} sure, "
            f"{counts.possible} possible; hits {counts.sure_hits} sure, {counts.possible_hits} "
            "possible",
            file=stream,
        )


def _percent(score: Score, measure: str) -> str:
    value = f"{100 * getattr(score, measure):.1f}"
    ends = score.intervals.get(measure)
    return value if ends is None else f"{value} [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"
