"""Masking, resampling and checking depend on the seed and the sequence alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import poisson

from normscope.foundation.hashing import fold
from normscope.measures.statistics import hashing

BITS = 2**64 - 1
NUMBERS = [0, 1, 5, 2**31, 2**62 + 12345, -1, -(2**63), 2**63 - 1]
DRAW = np.random.default_rng(0)


def folded(x: int, number: int) -> int:
    """One step of splitmix64 from the state x ⊕ number, in whole numbers without a sign."""
    x = (((x ^ number) & BITS) + 0x9E3779B97F4A7C15) & BITS
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & BITS
    x = (x ^ x >> 27) * 0x94D049BB133111EB & BITS
    return x ^ x >> 31


def begun(seed: int, purpose: int, key: int) -> int:
    return folded(folded(seed & BITS, purpose), key)


def test_hashes_are_splitmix64() -> None:
    assert folded(0, 0) == 0xE220A8397B1DCDAF  # the first number it gives from a seed of 0
    keys = torch.tensor(NUMBERS)
    for seed in (0, 3, 2**64 - 2):
        made = hashing.sequence_hash(seed, hashing.MASKING, keys)
        expected = [begun(seed, 1, key) for key in NUMBERS]
        assert [one & BITS for one in made.tolist()] == expected
        assert hashing.nonnegative(made).tolist() == [one >> 1 for one in expected]
        assert hashing.uniform(made).tolist() == [(one >> 11) / 2**53 for one in expected]
        again = fold(made, 2**63 + 9)
        assert [one & BITS for one in again.tolist()] == [folded(x, 2**63 + 9) for x in expected]


def test_resampling_is_by_the_quantiles_of_a_poisson_variable() -> None:
    keys = np.arange(40)
    drawn = hashing.resampling_weights(keys, 7, 30)
    assert drawn.shape == (31, 40)
    for sample in range(30):
        for key in range(40):
            chance = (folded(begun(7, hashing.RESAMPLING, key), sample) >> 11) / 2**53
            assert drawn[sample + 1, key] == poisson.ppf(chance, 1)
    assert drawn.max() >= 4


@pytest.mark.parametrize(("count", "share", "wanted"), [(50, 0.12, 6), (3, 0.1, 1), (8, 0.5, 4)])
def test_masked_are_those_with_the_smallest_hashes(count: int, share: float, wanted: int) -> None:
    free = np.sort(DRAW.choice(100, count, replace=False))
    hashes = [folded(begun(2, hashing.MASKING, 11), int(place)) for place in free]
    signed = [one - 2**64 if one >= 2**63 else one for one in hashes]
    expected = sorted(free[np.argsort(signed)[:wanted]].tolist())
    assert hashing.masked_positions(11, free, share, 2).tolist() == expected
    assert hashing.masked_positions(11, free, 0.0, 2).tolist() == []


def test_the_first_sequence_and_one_in_so_many_is_checked() -> None:
    keys = np.arange(200)
    expected = [key == 0 or (begun(5, hashing.CHECKING, key) >> 1) % 8 == 0 for key in range(200)]
    assert hashing.is_checked(keys, 5, 8).tolist() == expected
    assert 10 < sum(expected) < 50


def test_replicates_are_poisson_and_depend_on_the_sequence_alone() -> None:
    keys = np.arange(2000)
    drawn = hashing.resampling_weights(keys, 0, 50)
    assert (drawn[0] == 1).all()
    for times in range(5):
        share = (drawn[1:] == times).mean()
        assert abs(share - poisson.pmf(times, 1)) < 0.005
    assert abs(np.corrcoef(drawn[1:])[np.triu_indices(50, 1)]).max() < 0.12
    some = keys[[17, 3, 1999]]
    assert (hashing.resampling_weights(some, 0, 50) == drawn[:, [17, 3, 1999]]).all()
    assert (hashing.resampling_weights(keys, 1, 50) != drawn).any()
    # The same on every machine and in every release: interrupted runs go on with them.
    assert hashing.resampling_weights(np.arange(6), 0, 3)[1:].astype(int).tolist() == PINNED


PINNED = [[0, 1, 3, 1, 0, 1], [0, 1, 0, 1, 0, 3], [1, 1, 1, 1, 3, 0]]


def test_masking_takes_a_share_of_what_is_not_special() -> None:
    free = np.arange(1, 101)
    chosen = hashing.masked_positions(5, free, 0.12, 0)
    assert len(chosen) == 12
    assert set(chosen) <= set(free)
    assert (hashing.masked_positions(5, free, 0.12, 0) == chosen).all()
    others = [hashing.masked_positions(key, free, 0.12, 0) for key in range(200)]
    often = np.bincount(np.concatenate(others), minlength=101)[1:]
    assert often.min() > 8  # of 24 expected
    assert often.max() < 45
    assert len(hashing.masked_positions(5, np.array([3, 4]), 0.12, 0)) == 1
    assert len(hashing.masked_positions(5, free[:0], 0.12, 0)) == 0
    assert (hashing.masked_positions(5, free, 0.12, 1) != chosen).any()
