"""SplitMix64, a hash that gives 64 pseudo-random bits for 64 bits.

Numbers drawn with it depend on their inputs alone, so the same rows are sampled, masked and
resampled on every machine, in every order and in every release. The functions of Steele, Lea and
Flood (2014) are written out here for integers, numpy arrays and tensors, because no library in the
dependencies has them for all three.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from normscope.foundation.shapes import Int

MASK = 2**64 - 1
INCREMENT = 0x9E3779B97F4A7C15  # between two states of the generator
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Unsigned = TypeVar("Unsigned", int, NDArray[np.uint64])


def mix(state: Unsigned) -> Unsigned:
    """Return the number that the generator gives for a state, an integer below 2**64.

    Takes a Python integer or a uint64 array.
    """
    bits: Any = state  # numpy's types do not tell that an array stays unsigned
    bits = ((bits ^ (bits >> 30)) * _FIRST) & MASK
    bits = ((bits ^ (bits >> 27)) * _SECOND) & MASK
    return bits ^ (bits >> 31)


def mix_tensor(state: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Return the same 64 bits as `mix`, for an int64 tensor on any device."""
    state = (state ^ shift_right(state, 30)) * signed(_FIRST)
    state = (state ^ shift_right(state, 27)) * signed(_SECOND)
    return state ^ shift_right(state, 31)


def fold(state: Int[Tensor, ...], number: Int[Tensor, ...] | int) -> Int[Tensor, ...]:
    """Combine a hash with one more number; tensors are broadcast."""
    number = number if isinstance(number, Tensor) else signed(number)
    return mix_tensor((state ^ number) + signed(INCREMENT))


def shift_right(state: Int[Tensor, "*shape"], bits: int) -> Int[Tensor, "*shape"]:
    """Shift an int64 tensor without regard to its sign; torch's own operator keeps the sign."""
    return (state >> bits) & (2 ** (64 - bits) - 1)


def signed(number: int) -> int:
    """Return the integer whose int64 has the same 64 bits."""
    number &= MASK
    return number - 2**64 if number >= 2**63 else number
