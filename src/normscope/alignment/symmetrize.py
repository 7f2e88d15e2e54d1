"""Combine the links of two directions (Och and Ney 2003; Koehn, Och and Marcu 2003).

``forward`` and ``reverse`` are links of the same pair, both as (source, target). Besides
``intersection`` and ``union`` there is the grow family, which starts from the intersection:

- *grow-diag*: go through the links by target word, then source word, and add each of a link's eight
  neighbours that one direction has and that links a word without links; repeat until nothing is
  added.
- *final*: then add forward links, and after them reverse links, that link a word without links.
- *final-and*: the same, but neither of the two words may have links.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Literal, get_args

from normscope.alignment.links import Link, Links
from normscope.errors import InputError

Symmetrization = Literal[
    "intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and"
]
SYMMETRIZATIONS: tuple[str, ...] = get_args(Symmetrization)
# Steps as (target, source), in the order of the published algorithm.
NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrize(forward: Iterable[Link], reverse: Iterable[Link], method: str) -> frozenset[Link]:
    """Combine the links of one sentence pair."""
    if method not in SYMMETRIZATIONS:
        raise InputError(f"unknown symmetrization {method!r}; valid: {', '.join(SYMMETRIZATIONS)}")
    ahead, back = frozenset(forward), frozenset(reverse)
    if method == "intersection":
        return ahead & back
    if method == "union":
        return ahead | back
    sure = ahead & back
    rest = (ahead | back) - sure
    if not rest:
        return sure
    points = {(t, s) for s, t in sure}
    targets, sources = {t for t, _ in points}, {s for _, s in points}
    _grow(points, {(t, s) for s, t in rest}, targets, sources)
    if method != "grow-diag":
        both = method == "grow-diag-final-and"
        for direction in (ahead, back):
            for t, s in sorted((t, s) for s, t in direction if (t, s) not in points):
                free = (t not in targets, s not in sources)
                if all(free) if both else any(free):
                    points.add((t, s))
                    targets.add(t)
                    sources.add(s)
    return frozenset((s, t) for t, s in points)


def symmetrize_links(forward: Links, reverse: Links, method: str) -> Links:
    """Combine links with their scores: the mean of both directions, 0 for a missing score."""
    kept = symmetrize(forward.possible, reverse.possible, method)
    a, b = forward.scores, reverse.scores
    scores = {}
    if a or b:
        scores = {link: (a.get(link, 0.0) + b.get(link, 0.0)) / 2 for link in kept}
    return Links(kept, kept, scores)


def _grow(points: set[Link], rest: set[Link], targets: set[int], sources: set[int]) -> None:
    """Run grow-diag on (target, source) points, in place.

    Linked words stay linked, so the neighbours of a link need to be tried only once. A sweep visits
    the untried links in order, including those that it adds ahead of itself; those that it adds
    behind itself wait for the next sweep.
    """
    sweep = sorted(points)
    while sweep and rest:
        later: list[Link] = []
        while sweep:
            point = heapq.heappop(sweep)
            t, s = point
            for down, right in NEIGHBOURS:
                new = t + down, s + right
                if new in rest and (new[0] not in targets or new[1] not in sources):
                    rest.discard(new)
                    points.add(new)
                    targets.add(new[0])
                    sources.add(new[1])
                    if new > point:
                        heapq.heappush(sweep, new)
                    else:
                        later.append(new)
        sweep = later
        heapq.heapify(sweep)
