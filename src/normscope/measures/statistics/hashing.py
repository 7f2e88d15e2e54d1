"""Chance that depends on a sequence's number and a seed alone, never on batches or their order."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.foundation.shapes import Float, Int

# What a hash is drawn for; different purposes never share one.
MASKING, RESAMPLING, CHECKING, SCATTER = range(1, 5)


def _signed(number: int) -> int:
    """The same 64 bits as torch's int64."""
    number &= 2**64 - 1
    return number - 2**64 if number >= 2**63 else number


_STEP, _ONE, _TWO = map(_signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _shifted(x: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; torch's own keeps the sign."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


def mix(x: Tensor) -> Tensor:
    """Splitmix64's finaliser: 64 bits in, 64 well-mixed bits out, overflow and all."""
    x = (x ^ _shifted(x, 30)) * _ONE
    x = (x ^ _shifted(x, 27)) * _TWO
    return x ^ _shifted(x, 31)


def fold(x: Tensor, number: Tensor | int) -> Int[Tensor, "*broadcast"]:
    """Take one more number into a hash."""
    number = number if isinstance(number, Tensor) else _signed(number)
    return mix((x ^ number) + _STEP)


def begin(seed: int, purpose: int, keys: Tensor) -> Int[Tensor, "*keys"]:
    """A hash for each sequence."""
    return fold(fold(torch.full_like(keys, _signed(seed)), purpose), keys)


def nonnegative(x: Tensor) -> Int[Tensor, "*shape"]:
    """63 of the bits, as a number from 0 on."""
    return _shifted(x, 1)


def uniform(x: Tensor) -> Float[Tensor, "*shape"]:
    """A number in [0, 1)."""
    return _shifted(x, 11).double() * 2.0**-53


def resampling_weights(
    keys: NDArray[np.int64], seed: int, replicates: int
) -> Float[np.ndarray, "sample row"]:
    """How often each sequence is counted: once in the sample itself, Poisson(1) in each replicate.

    The first row is the sample; the others are the replicates of a Poisson bootstrap.
    """
    rows = begin(seed, RESAMPLING, torch.from_numpy(keys))
    drawn = uniform(fold(rows, torch.arange(replicates).unsqueeze(1)))
    # P(N ≤ n) of a Poisson(1) variable; no float64 uniform is beyond the last.
    chances = torch.tensor(1.0).double().neg().exp() * torch.cumsum(
        1 / torch.cumprod(torch.arange(20).clamp_min(1).double(), dim=0), dim=0
    )
    times = torch.searchsorted(chances, drawn.contiguous(), right=True)
    return np.concatenate([np.ones((1, len(keys))), times.double().numpy()])


def masked_positions(
    key: int, free: NDArray[np.int64], share: float, seed: int
) -> NDArray[np.int64]:
    """Which of the free positions of a sequence are masked: a share of them, one at least."""
    if not len(free) or share == 0:
        return free[:0]
    chance = fold(begin(seed, MASKING, torch.tensor([key])), torch.from_numpy(free))
    count = max(1, round(share * len(free)))
    return np.sort(free[torch.argsort(chance, stable=True)[:count].numpy()])


def is_checked(keys: NDArray[np.int64], seed: int, every: int) -> NDArray[np.bool_]:
    """Sequences whose numbers are computed a second time: the first, and one in so many."""
    drawn = nonnegative(begin(seed, CHECKING, torch.from_numpy(keys))) % every == 0
    return drawn.numpy() | (keys == 0)
