"""What an alignment says, in counts and in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from normscope.alignment.aer import counts_of, measures
from normscope.alignment.links import Link, Links
from normscope.foundation.texts import printable

if TYPE_CHECKING:
    from normscope.alignment.result import Alignment

# How a link compares with the gold links, in the order in which they are listed.
SURE, POSSIBLE, WRONG, MISSING = "sure", "possible", "wrong", "missing"
MARKS = (SURE, POSSIBLE, WRONG, MISSING)


def compare(links: Links, gold: Links) -> dict[Link, str]:
    """Return how each link compares with the gold links, in the order of the words.

    "sure" and "possible" are links that the gold has; "wrong" ones it does not have; "missing" are
    sure gold links that were not found.
    """
    marks = {
        link: SURE if link in gold.sure else POSSIBLE if link in gold.possible else WRONG
        for link in links
    }
    marks |= dict.fromkeys(gold.sure - links.possible, MISSING)
    return dict(sorted(marks.items()))


@dataclass(frozen=True)
class Totals:
    """Counts over some pairs, for `headline`."""

    pairs: int
    linked: int  # target words with a link
    words: int  # target words
    links: int
    mean: float | None  # mean score of the links that have one
    best: tuple[str, str, float] | None = None  # source word, target word, score: of one pair
    rates: tuple[float, float, float] | None = None  # AER, sure links found, links wrong
    found: tuple[int, int] = (0, 0)  # sure links found, sure links
    wrong: int = 0


def totals(pairs: Sequence[Alignment]) -> Totals:
    """Count the words and links of some pairs, and compare them with their gold links."""
    scores = [score for pair in pairs for score in pair.links.scores.values()]
    total = Totals(
        len(pairs),
        sum(len({target for _, target in pair.links}) for pair in pairs),
        sum(len(pair.target) for pair in pairs),
        sum(len(pair.links) for pair in pairs),
        float(np.mean(scores)) if scores else None,
        _best(pairs[0]) if len(pairs) == 1 else None,
    )
    return _against_gold(total, pairs)


def _best(pair: Alignment) -> tuple[str, str, float] | None:
    """Return the link with the largest score, the first of several."""
    ranked = sorted(pair.word_pairs, key=lambda entry: -(entry[2] or 0.0))
    if not ranked or ranked[0][2] is None:
        return None
    source, target, score = ranked[0]
    return source, target, float(score or 0.0)


def _against_gold(total: Totals, pairs: Sequence[Alignment]) -> Totals:
    """Return the counts with those of gold links, if there are any sure ones."""
    gold = [(pair.gold, pair.links) for pair in pairs if pair.gold is not None]
    counts = counts_of([truth for truth, _ in gold], [links for _, links in gold]).sum(axis=0)
    links, sure, _, sure_hits, possible_hits = (int(count) for count in counts)
    if not sure:
        return total
    precision, recall, rate, _ = measures(counts[None])[0].tolist()
    return replace(
        total,
        rates=(rate, recall, 1 - precision if links else 0.0),
        found=(sure_hits, sure),
        wrong=links - possible_hits,
    )


def headline(pairs: Sequence[Alignment]) -> str:
    """Say in one sentence what the alignment of some pairs found.

    The page says the same sentence about the links that it shows (``js/links.js``).
    """
    total = totals(pairs)
    if total.rates is not None:
        return _headline_with_gold(total)
    if not total.linked:
        return "No words are linked."
    if total.pairs == 1:
        which = f"{total.linked} of {total.words}"
        if total.linked == total.words:
            which = "Both" if total.words == 2 else f"All {total.words}"
        some = f"{which} target words are linked"
        if total.words == 1:
            some = "The target word is linked"
        if total.best is None:
            return f"{some}."
        source, target, score = total.best
        surest = f"“{printable(source)}” – “{printable(target)}” is the surest link"
        return f"{some}; {surest} ({percent(score)})."
    score_words = "" if total.mean is None else f", with a mean score of {percent(total.mean)}"
    return (
        f"{total.linked:,} of {total.words:,} target words in {total.pairs:,} pairs are "
        f"linked{score_words}."
    )


def _headline_with_gold(total: Totals) -> str:
    assert total.rates is not None
    rate, recall, wrong = total.rates
    if total.pairs == 1:
        found, sure = total.found
        links = "link" if sure == 1 else "links"
        verb = "is" if total.wrong == 1 else "are"
        which = f"{total.wrong} of {total.links} links {verb}" if total.wrong else "no link is"
        return f"AER {fine_percent(rate)}: {found} of {sure} sure {links} found, {which} wrong."
    return (
        f"AER {fine_percent(rate)} on {total.pairs:,} pairs: {percent(recall)} of the sure links "
        f"are found, {percent(wrong)} of the links are wrong."
    )


def percent(share: float) -> str:
    """Format a share as a whole percentage, halves rounded up as in JavaScript."""
    return f"{int(100 * share + 0.5)}%"


def fine_percent(share: float) -> str:
    """Format a share with one decimal, likewise."""
    return f"{int(1000 * share + 0.5) / 10:.1f}%"
