"""Precision, recall, AER and F1, computed by hand."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from normscope import InputError
from normscope.alignment.aer import counts_of, score
from normscope.alignment.links import Link, Links


def test_a_worked_example() -> None:
    # S = {00, 11}, P = S + {12, 21}; A = {00, 12, 30}: |A∩S| = 1, |A∩P| = 2.
    gold = [Links.of({(0, 0), (1, 1)}, {(1, 2), (2, 1)})]
    result = score(gold, [Links.of({(0, 0), (1, 2), (3, 0)})])
    assert result.precision == float(Fraction(2, 3))
    assert result.recall == float(Fraction(1, 2))
    assert result.aer == float(Fraction(2, 5))  # 1 − (2 + 1) / (3 + 2)
    assert result.f1 == float(Fraction(4, 7))  # 2·⅔·½ / (⅔ + ½)
    assert vars(result.counts) == {
        "sentences": 1, "links": 3, "sure": 2, "possible": 4, "sure_hits": 1, "possible_hits": 2,
    }  # fmt: skip


def test_the_corpus_counts_as_one() -> None:
    gold = [Links.of({(0, 0)}), Links.of({(0, 1), (1, 0)}, {(2, 2)}), Links()]
    hypothesis = [
        Links.of({(0, 0)}),
        Links.of({(0, 1), (2, 2), (3, 3), (4, 4)}),
        Links.of({(0, 0)}),
    ]
    result = score(gold, hypothesis)
    assert result.aer == float(1 - Fraction(1 + 2 + 0 + 1 + 1 + 0, 6 + 3))
    assert result.precision == float(Fraction(3, 6))
    assert result.recall == float(Fraction(2, 3))
    # Not the mean of the sentences' own: 0, 1 − 3/6 and 1.
    assert result.aer != pytest.approx((0 + 0.5 + 1) / 3)


def test_perfect_and_none() -> None:
    gold = [Links.of({(0, 0)}, {(1, 1)})]
    assert (score(gold, gold).aer, score(gold, gold).f1) == (0.0, 1.0)
    nothing = score(gold, [Links()])
    assert (nothing.precision, nothing.recall, nothing.aer, nothing.f1) == (0.0, 0.0, 1.0, 0.0)
    with pytest.raises(InputError, match=r"no sure links"):
        score([Links()], [Links()])
    with pytest.raises(InputError, match=r"gold has 1 sentences and the hypothesis 2"):
        score(gold, [Links(), Links()])


def corpora(seed: int, size: int = 40) -> tuple[list[Links], list[Links]]:
    draw = random.Random(seed)

    def some(most: int) -> set[Link]:
        return {(draw.randrange(6), draw.randrange(6)) for _ in range(1 + draw.randrange(most))}

    return [Links.of(some(7), some(4)) for _ in range(size)], [
        Links.of(some(9)) for _ in range(size)
    ]


def test_intervals_are_those_of_resampled_sentences() -> None:
    gold, hypothesis = corpora(1)
    result = score(gold, hypothesis, resamples=300, seed=7)
    draw = np.random.default_rng(7)
    rates = []
    for _ in range(300):
        picked = draw.integers(len(gold), size=len(gold))
        rates.append(score([gold[i] for i in picked], [hypothesis[i] for i in picked]).aer)
    low, high = np.quantile(rates, [0.025, 0.975])
    assert result.intervals["aer"] == pytest.approx((low, high), abs=1e-15)
    assert low < result.aer < high
    assert result == score(gold, hypothesis, resamples=300, seed=7)
    assert result.intervals != score(gold, hypothesis, resamples=300, seed=8).intervals
    narrow = score(gold, hypothesis, resamples=300, seed=7, confidence=0.5).intervals
    assert all(
        result.intervals[k][0] < narrow[k][0] < narrow[k][1] < result.intervals[k][1]
        for k in narrow
    )
    assert score(gold, hypothesis).intervals == {}
    for wrong in (95.0, 0.0, 1.0):
        with pytest.raises(InputError, match=r"between 0 and 1"):
            score(gold, hypothesis, resamples=2, confidence=wrong)


def test_counts_by_sentence() -> None:
    gold, hypothesis = corpora(2)
    for row, g, a in zip(counts_of(gold, hypothesis), gold, hypothesis, strict=True):
        both = [x for x in a.sure if x in g.sure], [x for x in a.sure if x in g.possible]
        assert row.tolist() == [
            len(a.sure), len(g.sure), len(g.possible), len(both[0]), len(both[1]),
        ]  # fmt: skip
