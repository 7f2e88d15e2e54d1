"""Figures of faithfulness from token scores: what a model's answer loses without some tokens.

Conventions. Tokens are ranked by their score, as it is signed; of equal scores the earlier token
comes first, from either end. Special tokens are neither ranked, replaced nor deleted, and n is the
number of the others. p(x) is the probability of the class that the model predicts for the whole
sentence. All figures are means of p(whole) − p(changed) over the steps of a sentence:

- ``aopc_most``, ``aopc_least``: the floor(n·K) most (least) important tokens replaced by the mask
  token, K = 10%, 20%, …, 90%. With all tokens replaced every method is the same, so that 100% is
  left out.
- ``comprehensiveness``, ``sufficiency``: the ceil(n·k) most important tokens deleted, or all others
  deleted, k = 1, 5, 10, 20, 50%.
- ``…_monotone``: the same two as released with ALTI: the least (largest) probability so far in
  place of each probability, and the sum divided by six, for k = 0% is counted.

Deletion shortens the sentence, so that later tokens move to earlier positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

REPLACED = tuple(range(10, 100, 10))  # percent
DELETED = (1, 5, 10, 20, 50)  # percent
FIGURES = ("aopc_most", "aopc_least", "comprehensiveness", "sufficiency")
MONOTONE = ("comprehensiveness_monotone", "sufficiency_monotone")
HIGHER_IS_BETTER = ("aopc_most", "comprehensiveness", "comprehensiveness_monotone")

Ids = tuple[int, ...]
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Changed:
    """A sentence with tokens replaced or deleted, in steps; see the module for the names."""

    aopc_most: tuple[Ids, ...]
    aopc_least: tuple[Ids, ...]
    comprehensiveness: tuple[Ids, ...]
    sufficiency: tuple[Ids, ...]

    def forms(self) -> set[Ids]:
        """Return all forms of the sentence."""
        return {ids for name in FIGURES for ids in getattr(self, name)}


def changed(ids: Sequence[int], special: Sequence[bool], scores: Scores, mask: int) -> Changed:
    """Return a sentence without its most and least important tokens.

    Args:
        ids: the sentence's token ids.
        special: which of them are special tokens.
        scores: a score for each of them; those of special tokens are not used.
        mask: the token that stands in for a replaced one.
    """
    places = np.flatnonzero(~np.asarray(special, dtype=bool))
    most = places[np.argsort(-scores[places], kind="stable")]
    least = places[np.argsort(scores[places], kind="stable")]
    n = len(places)

    def replace(gone: NDArray[np.int64]) -> Ids:
        chosen = set(gone.tolist())
        return tuple(mask if i in chosen else token for i, token in enumerate(ids))

    def delete(gone: NDArray[np.int64]) -> Ids:
        chosen = set(gone.tolist())
        return tuple(token for i, token in enumerate(ids) if i not in chosen)

    counts = [-(-n * percent // 100) for percent in DELETED]
    return Changed(
        aopc_most=tuple(replace(most[: n * percent // 100]) for percent in REPLACED),
        aopc_least=tuple(replace(least[: n * percent // 100]) for percent in REPLACED),
        comprehensiveness=tuple(delete(most[:count]) for count in counts),
        sufficiency=tuple(delete(most[count:]) for count in counts),
    )


def figures(whole: float, sentence: Changed, probability: Mapping[Ids, float]) -> dict[str, float]:
    """Return all figures of one sentence.

    Args:
        whole: the probability of the predicted class, given the whole sentence.
        sentence: its changed forms.
        probability: the probability of the same class, given each of them.
    """
    curves = {
        name: np.array([probability[ids] for ids in getattr(sentence, name)]) for name in FIGURES
    }
    found = {name: whole - float(curve.mean()) for name, curve in curves.items()}
    falling = np.minimum.accumulate(curves["comprehensiveness"])
    rising = np.maximum.accumulate(curves["sufficiency"])
    for name, curve in zip(MONOTONE, (falling, rising), strict=True):
        found[name] = float((whole - curve).sum()) / (len(DELETED) + 1)
    return found


def reciprocal_rank(scores: Scores, evidence: Sequence[int]) -> float:
    """Return 1/rank of the best-ranked token of the evidence.

    Competition ranking: the rank is one more than the number of tokens with a larger score, so that
    equal scores share the better rank.
    """
    return 1 / (1 + int((scores > scores[list(evidence)].max()).sum()))


def interval(values: Scores, seed: int = 0) -> list[float]:
    """Return the 95% interval of the mean: percentiles of bootstrap resamples of the rows."""
    from scipy.stats import bootstrap

    if len(values) < 2 or np.ptp(values) == 0:
        return [float(values.mean())] * 2
    result = bootstrap(
        (values,), np.mean, n_resamples=9999, batch=200, method="percentile", rng=seed
    )
    return [float(result.confidence_interval.low), float(result.confidence_interval.high)]


def summary(values: Scores) -> dict[str, object]:
    """Return the mean over rows, and its interval."""
    return {"mean": float(values.mean()), "interval": interval(values), "rows": len(values)}
