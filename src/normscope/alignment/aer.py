"""Precision, recall, F1 and alignment error rate (AER) of an alignment.

With A the links to score, S the sure and P the possible gold links (S is a subset of P):

    precision = |A∩P| / |A|     recall = |A∩S| / |S|
    AER = 1 − (|A∩P| + |A∩S|) / (|A| + |S|)

Counts are summed over all sentences first. F1 is the harmonic mean of precision and recall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from normscope.alignment.links import Links
from normscope.errors import InputError

MEASURES = ("precision", "recall", "aer", "f1")


@dataclass(frozen=True)
class Counts:
    """Numbers of links, summed over sentences."""

    sentences: int
    links: int  # |A|
    sure: int  # |S|
    possible: int  # |P|
    sure_hits: int  # |A∩S|
    possible_hits: int  # |A∩P|


@dataclass(frozen=True)
class Score:
    """The measures of a corpus, between 0 and 1, with the counts behind them."""

    precision: float
    recall: float
    aer: float
    f1: float
    counts: Counts
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Bootstrap intervals over sentences, by measure; empty without ``resamples``."""
    confidence: float = 0.95


def counts_of(gold: Sequence[Links], hypothesis: Sequence[Links]) -> NDArray[np.int64]:
    """Return (sentence, 5): |A|, |S|, |P|, |A∩S| and |A∩P| of each sentence."""
    if len(gold) != len(hypothesis):
        raise InputError(
            f"the gold has {len(gold)} sentences and the hypothesis {len(hypothesis)}: they must "
            "be the same sentences in the same order"
        )
    rows = [
        (len(a), len(g.sure), len(g.possible), len(a & g.sure), len(a & g.possible))
        for g, a in zip(gold, (links.possible for links in hypothesis), strict=True)
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 5)


def score(
    gold: Sequence[Links],
    hypothesis: Sequence[Links],
    *,
    resamples: int = 0,
    confidence: float = 0.95,
    seed: int = 0,
) -> Score:
    """Score the links of a corpus against gold links.

    Args:
        gold: sure and possible links of each sentence.
        hypothesis: the links to score. Links that are only possible count like sure ones.
        resamples: bootstrap resamples of the sentences for the intervals; 0 for no intervals.
        confidence: the share of the resamples within an interval.
        seed: the seed of the resampling.
    """
    rows = counts_of(gold, hypothesis)
    total = rows.sum(axis=0)
    if not total[1]:
        raise InputError("the gold has no sure links, so recall and AER are undefined")
    counts = Counts(len(rows), *(int(count) for count in total))
    values = measures(total[None])[0]
    intervals = {}
    if resamples:
        if not 0 < confidence < 1:
            raise InputError(f"confidence must lie between 0 and 1, not {confidence}")
        drawn = measures(_resampled(rows, resamples, seed))
        ends = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
        intervals = {
            name: (float(low), float(high))
            for name, (low, high) in zip(MEASURES, ends.T, strict=True)
        }
    precision, recall, aer, f1 = values.tolist()
    return Score(precision, recall, aer, f1, counts, intervals, confidence)


def measures(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute (…, 4) measures from (…, 5) counts; 0 / 0 counts as 0."""
    a, s, _, sure, possible = np.moveaxis(counts, -1, 0)
    precision, recall = _ratio(possible, a), _ratio(sure, s)
    # From whole numbers rather than from precision and recall: rounded only once.
    f1 = _ratio(2 * possible * sure, possible * s + sure * a)
    aer = _ratio(a + s - possible - sure, a + s)
    return np.stack([precision, recall, aer, f1], axis=-1)


def _ratio(upper: NDArray[np.int64], lower: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(lower == 0, 0.0, upper / np.maximum(lower, 1))


def _resampled(rows: NDArray[np.int64], resamples: int, seed: int) -> NDArray[np.int64]:
    """Return (resample, 5): counts summed over sentences drawn with replacement."""
    draw = np.random.default_rng(seed)
    size = len(rows)
    sums = np.empty((resamples, rows.shape[1]), dtype=np.int64)
    for at in range(resamples):
        times = np.bincount(draw.integers(size, size=size), minlength=size)
        sums[at] = times @ rows
    return sums
