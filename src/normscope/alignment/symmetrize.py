"""Two directions of alignment made one (Och and Ney 2003; Koehn, Och and Marcu 2003).

``forward`` and ``reverse`` are links of the same pair, both as (source, target). ``intersection``
and ``union`` are what they say. The grow family starts from the intersection:

- *grow-diag*: while anything is added, go through the links by target word, then source word; add
  each of a link's eight neighbours that one direction has and that links a word without any link.
- *final*: then add the forward links, then the reverse ones, that link a word without any.
- *final-and*: the same, but both words must be without any link.
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
# As (target, source) steps, in the order in which the published algorithm tries them.
NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrize(forward: Iterable[Link], reverse: Iterable[Link], method: str) -> frozenset[Link]:
    """The links of one sentence pair by both directions together."""
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
    """The same with scores: the mean of both directions', a missing one counting nothing."""
    kept = symmetrize(forward.possible, reverse.possible, method)
    a, b = forward.scores, reverse.scores
    scores = {}
    if a or b:
        scores = {link: (a.get(link, 0.0) + b.get(link, 0.0)) / 2 for link in kept}
    return Links(kept, kept, scores)


def _grow(points: set[Link], rest: set[Link], targets: set[int], sources: set[int]) -> None:
    """Grow-diag, in place, on (target, source) points.

    A link whose neighbours have been tried need not be tried again: words that are linked stay
    linked. So a sweep takes the links not yet tried, in order, and among them those that it adds
    further on; those it adds behind itself wait for the next sweep.
    """
    sweep = sorted(points)
    while sweep and rest:
        later: list[Link] = []
        while sweep:
            here = heapq.heappop(sweep)
            t, s = here
            for down, right in NEIGHBOURS:
                new = t + down, s + right
                if new in rest and (new[0] not in targets or new[1] not in sources):
                    rest.discard(new)
                    points.add(new)
                    targets.add(new[0])
                    sources.add(new[1])
                    if new > here:
                        heapq.heappush(sweep, new)
                    else:
                        later.append(new)
        sweep = later
        heapq.heapify(sweep)
