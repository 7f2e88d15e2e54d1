"""The sentence about an alignment, and links compared with gold links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normscope.alignment.aer import score
from normscope.alignment.links import Links
from normscope.alignment.result import Alignment
from normscope.alignment.summary import compare, fine_percent, headline, percent
from tests.helpers.alignments import pair, several


def test_links_are_compared_with_gold() -> None:
    one = pair()
    assert one.gold is not None
    assert compare(one.links, one.gold) == {
        (0, 0): "sure",
        (1, 1): "sure",
        (1, 2): "wrong",
        (2, 2): "missing",
        (4, 3): "possible",
        (5, 4): "missing",
    }


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (
            pair(gold=False),
            "4 of 5 target words are linked; “Katze” – “cat” is the surest link (84%).",
        ),
        (pair(), "AER 37.5%: 2 of 4 sure links found, 1 of 4 links is wrong."),
        (Alignment(("a",), ("b",), Links.of({(0, 0)})), "The target word is linked."),
        (
            Alignment(("a",), ("b", "c"), Links.of({(0, 0), (0, 1)})),
            "Both target words are linked.",
        ),
        (
            Alignment(tuple("abc"), tuple("abc"), Links.of({(0, 0), (1, 1), (2, 2)})),
            "All 3 target words are linked.",
        ),
        (Alignment(("a",), ("b",), Links()), "No words are linked."),
        (
            Alignment(("a",), ("b",), Links.of({(0, 0)}), gold=Links.of({(0, 0)})),
            "AER 0.0%: 1 of 1 sure link found, no link is wrong.",
        ),
        (
            Alignment(("a",), ("b",), Links.of({(0, 0)}), gold=Links.of(set())),
            "The target word is linked.",
        ),
    ],
)
def test_the_headline_of_a_pair(one: Alignment, expected: str) -> None:
    assert one.headline == headline([one]) == expected


def test_the_headline_of_many_pairs() -> None:
    all_pairs = several(1200)
    gold = [one.gold or Links() for one in all_pairs]
    rates = score(gold, all_pairs.links)
    assert all_pairs.headline == (
        f"AER {100 * rates.aer:.1f}% on 1,200 pairs: {percent(rates.recall)} of the sure links are "
        f"found, {percent(1 - rates.precision)} of the links are wrong."
    )
    without = [replace(one, gold=None) for one in all_pairs]
    words = sum(len(one.target) for one in all_pairs)
    skipped = len(all_pairs[8].target)
    assert headline(without) == (
        f"{words - skipped:,} of {words:,} target words in 1,200 pairs are linked, with a mean "
        "score of 60%."
    )


def test_percentages_round_halves_up() -> None:
    assert [percent(x) for x in (0.125, 0.135, 1.0)] == ["13%", "14%", "100%"]
    assert fine_percent(0.0625) == "6.3%"
