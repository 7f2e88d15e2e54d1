"""Symmetrization, compared with the published pseudo-code."""

from __future__ import annotations

import math
import random

import pytest

from normscope import InputError
from normscope.alignment.links import Link, Links
from normscope.alignment.symmetrize import SYMMETRIZATIONS, symmetrize, symmetrize_links


def published(forward: set[Link], reverse: set[Link], method: str) -> set[Link]:
    """The published pseudo-code over whole matrices, word for word: e target, f source."""
    size = 1 + max((max(link) for link in forward | reverse), default=0)
    union = forward | reverse
    alignment = forward & reverse
    if method == "intersection":
        return alignment
    if method == "union":
        return union
    neighbouring = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]

    def e_aligned(e: int) -> bool:
        return any((f, e) in alignment for f in range(size))

    def f_aligned(f: int) -> bool:
        return any((f, e) in alignment for e in range(size))

    added = True
    while added:
        added = False
        for e in range(size):
            for f in range(size):
                if (f, e) not in alignment:
                    continue
                for step_e, step_f in neighbouring:
                    new_e, new_f = e + step_e, f + step_f
                    free = not e_aligned(new_e) or not f_aligned(new_f)
                    new = new_f, new_e
                    if free and new in union and new not in alignment:
                        alignment = alignment | {new}
                        added = True
    if method == "grow-diag":
        return alignment
    for direction in (forward, reverse):
        for e in range(size):
            for f in range(size):
                both = [not e_aligned(e), not f_aligned(f)]
                wanted = all(both) if method.endswith("and") else any(both)
                if wanted and (f, e) in direction:
                    alignment = alignment | {(f, e)}
    return alignment


def test_a_worked_symmetrization() -> None:
    # Intersection {00, 22}. 11 touches 00 across the corner: both its words are free, so it grows,
    # and 12 (source 1, target 2) then joins two words that are linked. 44 touches nothing.
    forward = {(0, 0), (2, 2), (1, 1), (4, 4), (3, 2)}
    reverse = {(0, 0), (2, 2), (1, 2), (0, 4), (5, 5)}
    expected = {
        "intersection": {(0, 0), (2, 2)},
        "union": forward | reverse,
        # From 00: 11 is free on both sides. From 22: 32 has a free source word; 12 has none then.
        "grow-diag": {(0, 0), (2, 2), (1, 1), (3, 2)},
        # Forward adds 44; reverse: target 4 and source 0 are linked, 55 is free.
        "grow-diag-final": {(0, 0), (2, 2), (1, 1), (3, 2), (4, 4), (5, 5)},
        "grow-diag-final-and": {(0, 0), (2, 2), (1, 1), (3, 2), (4, 4), (5, 5)},
    }
    for method, links in expected.items():
        assert symmetrize(forward, reverse, method) == links, method


def test_final_takes_what_final_and_leaves() -> None:
    forward, reverse = {(0, 0), (5, 0)}, {(0, 0), (0, 7)}
    assert symmetrize(forward, reverse, "grow-diag") == {(0, 0)}
    assert symmetrize(forward, reverse, "grow-diag-final-and") == {(0, 0)}
    assert symmetrize(forward, reverse, "grow-diag-final") == {(0, 0), (5, 0), (0, 7)}


def test_forward_comes_before_reverse() -> None:
    forward, reverse = {(3, 3)}, {(3, 5)}
    assert symmetrize(forward, reverse, "grow-diag-final-and") == {(3, 3)}
    assert symmetrize(reverse, forward, "grow-diag-final-and") == {(3, 5)}


@pytest.mark.parametrize("method", SYMMETRIZATIONS)
def test_symmetrization_equals_the_published_loops(method: str) -> None:
    draw = random.Random(method)
    for _ in range(400):
        words = draw.randrange(1, 9)
        some = [
            {
                (draw.randrange(words), draw.randrange(words))
                for _ in range(draw.randrange(2 * words))
            }
            for _ in range(3)
        ]
        forward, reverse = some[0] | some[2], some[1] | some[2]
        assert symmetrize(forward, reverse, method) == published(forward, reverse, method)


def test_an_order_other_than_the_published_one_would_show() -> None:
    """Which link grows first decides which others still may: so the order is really tested."""
    draw = random.Random(3)
    differ = 0
    for _ in range(300):
        a, b = ({(draw.randrange(6), draw.randrange(6)) for _ in range(10)} for _ in range(2))
        flipped = published({(t, s) for s, t in a}, {(t, s) for s, t in b}, "grow-diag")
        differ += published(a, b, "grow-diag") != {(s, t) for t, s in flipped}
    assert differ > 0


def test_scores_are_the_mean_of_both() -> None:
    a = Links(frozenset({(0, 0), (1, 1)}), scores={(0, 0): 0.5, (1, 1): 1.0})
    b = Links(frozenset({(0, 0)}), scores={(0, 0): 0.25})
    combined = symmetrize_links(a, b, "union")
    assert combined.scores == {(0, 0): 0.375, (1, 1): 0.5}
    assert symmetrize_links(Links.of({(0, 0)}), Links.of({(0, 0)}), "union").scores == {}
    assert math.isclose(sum(b.flipped().scores.values()), 0.25)


def test_scores_of_one_direction_count_half() -> None:
    links = frozenset({(0, 0), (1, 2)})
    scored, silent = Links(links, links, {(0, 0): 0.5, (1, 2): 1.0}), Links(links, links, {})
    for pair in ((scored, silent), (silent, scored)):
        assert symmetrize_links(*pair, "union").scores == {(0, 0): 0.25, (1, 2): 0.5}
    assert symmetrize_links(silent, silent, "union").scores == {}


def test_an_unknown_symmetrization_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown symmetrization 'grow'; valid: intersection"):
        symmetrize((), (), "grow")
