"""`normscope aer`: links scored against a gold alignment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.options import Debug
from normscope.errors import InputError

if TYPE_CHECKING:
    from normscope.alignment.aer import Score

Lengths = tuple[list[int] | None, list[int] | None]  # words of each sentence, by side


def aer(
    gold: Annotated[Path, typer.Option(metavar="FILE", help="Gold links, sure and possible.")],
    hypothesis: Annotated[
        list[Path],
        typer.Option(metavar="FILE", help="Links to score. May be given several times."),
    ],
    source: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The source text: indices beyond it are errors."),
    ] = None,
    target: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same for the target text.")
    ] = None,
    gold_format: Annotated[
        str,
        typer.Option(metavar="FORMAT", help="pharaoh, talp, jsonl, giza; auto goes by the name."),
    ] = "auto",
    hypothesis_format: Annotated[
        str, typer.Option(metavar="FORMAT", help="The same for the links to score.")
    ] = "auto",
    resamples: Annotated[
        int, typer.Option(min=0, metavar="N", help="Bootstrap samples for the intervals.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the samples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    debug: Debug = False,
) -> None:
    """Score links against a gold alignment.

    Precision, recall, alignment error rate and F1 over the whole corpus, with 95% intervals by
    bootstrap over sentences, and the counts. A mistake in a file is told with its line.

    \b
    Files, one sentence pair a line:
      .talp, .moses  1-1 2p3: from 1, - sure, p possible
      .jsonl         {"links": [[0, 0, 0.9]], "possible": [[1, 2]]}: from 0
      .final         GIZA++'s A3.final
      other names    0-0 1-2: Pharaoh, from 0

    \b
    Examples:
      normscope aer --gold text.talp --hypothesis links.pharaoh
      normscope aer --gold text.talp --hypothesis a.pharaoh --hypothesis b.jsonl \\
                    --source text.de --target text.en
    """  # noqa: D301
    from normscope.alignment.files import read_lines
    from normscope.alignment.words import split

    ours, theirs = (
        None if path is None else [len(split(line)) for line in read_lines(path)]
        for path in (source, target)
    )
    forms = gold_format, hypothesis_format
    scores = {
        str(path): score_file(gold, path, (ours, theirs), forms, resamples=resamples, seed=seed)
        for path in hypothesis
    }
    if as_json:
        print(json.dumps({name: _plain(one) for name, one in scores.items()}, indent=1))
    else:
        print_scores(scores, stream=sys.stdout)


def score_file(
    gold: Path,
    path: Path,
    lengths: Lengths = (None, None),
    forms: tuple[str, str] = ("auto", "auto"),
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Score:
    """The score of one file of links against another."""
    from normscope.alignment.aer import score
    from normscope.alignment.files import read_links

    truth = read_links(gold, forms[0], source=lengths[0], target=lengths[1])
    links = read_links(path, forms[1], source=lengths[0], target=lengths[1])
    if len(links) != len(truth):
        raise InputError(
            f"{gold} has {len(truth)} lines and {path} has {len(links)}: they must be the same "
            "sentences in the same order"
        )
    return score(truth, links, resamples=resamples, seed=seed)


def _plain(score: Score) -> dict[str, Any]:
    from normscope.alignment.aer import MEASURES

    return {
        **{name: getattr(score, name) for name in MEASURES},
        "intervals": {name: list(ends) for name, ends in score.intervals.items()},
        "confidence": score.confidence,
        "counts": vars(score.counts),
    }


def print_scores(scores: dict[str, Score], stream: Any) -> None:
    """A table of the measures with their intervals, then the counts."""
    from rich.console import Console
    from rich.table import Table

    from normscope.alignment.aer import MEASURES

    table = Table(box=None, pad_edge=False)
    columns = ("", "AER", "precision", "recall", "F1")
    for name in columns:
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    order = ("aer", "precision", "recall", "f1")
    assert set(order) == set(MEASURES)
    for name, score in scores.items():
        table.add_row(name, *(_percent(score, measure) for measure in order))
    width = 90 + max(len(name) for name in scores)  # names are not cut
    Console(file=stream, highlight=False, markup=False, emoji=False, width=width).print(table)
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
