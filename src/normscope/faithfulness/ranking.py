"""Orders and ranks of tokens by their scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from normscope.foundation.shapes import Float
from normscope.results.arrays import is_int


def descending(scores: Float[np.ndarray, " token"]) -> NDArray[np.int64]:
    """Return the positions from the largest score down; of equal scores, the earlier one first."""
    return np.argsort(-scores, kind="stable")


def ascending(scores: Float[np.ndarray, " token"]) -> NDArray[np.int64]:
    """Return the positions from the smallest score up; of equal scores, the earlier one first."""
    return np.argsort(scores, kind="stable")


def competition_rank(scores: Float[np.ndarray, " token"], chosen: Sequence[int]) -> int:
    """Return the best rank of the chosen tokens, from 1: one more than how many are larger.

    Equal scores share the better rank.
    """
    return 1 + int((scores > scores[list(chosen)].max()).sum())


def precision_at(
    scores: Float[np.ndarray, " token"], chosen: Sequence[int], k: int | None = None
) -> float:
    """Return the share of chosen tokens among the k largest scores.

    Where equal scores are on both sides of the border, each of them counts by the chance to be
    drawn, so that the order of the tokens does not matter.

    Args:
        scores: a score for each token.
        chosen: the tokens that should be among the first.
        k: how many are first; by default, as many as are chosen. No more than there are tokens.
    """
    k = min(len(chosen) if k is None else k, len(scores))
    border = np.sort(scores)[len(scores) - k]
    above, equal = scores > border, scores == border
    flags = np.zeros(len(scores), dtype=bool)
    flags[list(chosen)] = True
    drawn = (k - above.sum()) / equal.sum()
    return float(((above & flags).sum() + drawn * (equal & flags).sum()) / k)


def is_positions(value: object, count: int) -> bool:
    """Return whether a value is a list of positions of so many tokens, at least one."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) > 0
        and all(is_int(at) and 0 <= at < count for at in value)
    )
