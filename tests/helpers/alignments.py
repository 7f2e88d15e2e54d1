"""Alignments made by hand, to be shown: no model is needed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from normscope.alignment.links import Link, Links
from normscope.alignment.result import Alignment, Alignments

SIGNATURE = "model:tiny-translator|revision:none|map:attn_n"


def links(scores: Mapping[Link, float]) -> Links:
    return Links(frozenset(scores), frozenset(scores), dict(scores))


def pair(*, gold: bool = True, soft: bool = True) -> Alignment:
    """Six German and five English words; of four links one is possible and one is wrong."""
    source = ("Die", "Katze", "schlief", "heute", "gut", ".")
    target = ("The", "cat", "slept", "well", ".")
    scores = {(0, 0): 0.56, (1, 1): 0.84, (1, 2): 0.32, (4, 3): 0.7}
    values = np.full((5, 7), 1.0, dtype=np.float32)
    for (s, t), score in scores.items():
        values[t, s] = 6 * score / (1 - score)  # so that it has this share of its row
    truth = Links.of({(0, 0), (1, 1), (2, 2), (5, 4)}, {(4, 3)})
    return Alignment(
        source,
        target,
        links(scores),
        values if soft else None,
        gold=truth if gold else None,
        how=SIGNATURE,
    )


def several(count: int = 40, *, gold: bool = True) -> Alignments:
    """Many pairs; the word "needle" is in the seventh, and the ninth could not be aligned."""
    pairs = []
    random = np.random.default_rng(0)
    for number in range(count):
        size = 4 + number % 5
        source = tuple(f"wort{number}_{at}" for at in range(size))
        target = tuple("needle" if (number, at) == (6, 1) else f"word{at}" for at in range(size))
        scores = {
            (int(random.integers(size)), at): float(random.uniform(0.2, 1)) for at in range(size)
        }
        truth = Links.of({(at, at) for at in range(size)}, {(0, 1)})
        if number == 8:
            pairs.append(Alignment(source, target, Links(), skipped="too long", gold=truth))
            continue
        pairs.append(Alignment(source, target, links(scores), gold=truth if gold else None))
    return Alignments(tuple(pairs), how=SIGNATURE)
