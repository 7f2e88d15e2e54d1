"""SplitMix64: the published numbers, and the same bits for integers, arrays and tensors."""

from __future__ import annotations

import numpy as np
import torch

from normscope.foundation.hashing import INCREMENT, MASK, fold, mix, mix_tensor, shift_right, signed

NUMBERS = [0, 1, 5, 2**31, 2**62 + 12345, 2**63 - 1, 2**63, MASK]


def test_the_generator_gives_the_published_numbers() -> None:
    """The first numbers of Vigna's splitmix64.c from the seed 1234567."""
    state, numbers = 1234567, []
    for _ in range(5):
        state = (state + INCREMENT) & MASK
        numbers.append(mix(state))
    assert numbers == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_integers_arrays_and_tensors_have_the_same_bits() -> None:
    expected = [mix(number) for number in NUMBERS]
    assert mix(np.array(NUMBERS, dtype=np.uint64)).tolist() == expected
    mixed = mix_tensor(torch.tensor([signed(number) for number in NUMBERS]))
    assert [number & MASK for number in mixed.tolist()] == expected


def test_a_fold_is_one_step_from_the_combined_state() -> None:
    states = torch.tensor([signed(number) for number in NUMBERS])
    for number in (0, 7, 2**63 + 9, -3):
        expected = [mix(((state ^ (number & MASK)) + INCREMENT) & MASK) for state in NUMBERS]
        assert [hashed & MASK for hashed in fold(states, number).tolist()] == expected
    pairs = fold(states[:, None], torch.tensor([1, 2]))
    assert pairs.shape == (len(NUMBERS), 2)
    assert pairs[:, 1].tolist() == fold(states, 2).tolist()


def test_shifts_disregard_the_sign() -> None:
    states = torch.tensor([signed(number) for number in NUMBERS])
    assert shift_right(states, 11).tolist() == [number >> 11 for number in NUMBERS]


def test_signed_has_the_same_bits() -> None:
    assert [signed(number) for number in (0, 2**63 - 1, 2**63, MASK, 2**64, -1)] == [
        *(0, 2**63 - 1, -(2**63), -1, 0, -1)
    ]
