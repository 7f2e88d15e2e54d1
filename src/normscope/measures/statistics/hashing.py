"""Pseudo-random choices that depend on a seed and on a sequence's key, never on batches."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.foundation.hashing import fold, shift_right, signed
from normscope.foundation.shapes import Float, Int

# What a hash is drawn for; numbers for different purposes are independent of each other.
MASKING, RESAMPLING, CHECKING, SCATTER = range(1, 5)


def sequence_hash(seed: int, purpose: int, keys: Int[Tensor, "*keys"]) -> Int[Tensor, "*keys"]:
    """Return a hash for each sequence, by its key."""
    return fold(fold(torch.full_like(keys, signed(seed)), purpose), keys)


def nonnegative(hashes: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Return 63 of the bits of each hash, as a nonnegative integer."""
    return shift_right(hashes, 1)


def uniform(hashes: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return a number in [0, 1) for each hash."""
    return shift_right(hashes, 11).double() * 2.0**-53


def resampling_weights(
    keys: NDArray[np.int64], seed: int, replicates: int
) -> Float[np.ndarray, "sample row"]:
    """Return how often each sequence counts in each sample of a Poisson bootstrap.

    The first sample is the data themselves, with every sequence once; the others are the
    replicates, with Poisson(1) counts.
    """
    rows = sequence_hash(seed, RESAMPLING, torch.from_numpy(keys))
    drawn = uniform(fold(rows, torch.arange(replicates).unsqueeze(1)))
    # P(N ≤ n) of a Poisson(1) variable; no float64 below 1 exceeds the last of these.
    cumulative = torch.tensor(1.0).double().neg().exp() * torch.cumsum(
        1 / torch.cumprod(torch.arange(20).clamp_min(1).double(), dim=0), dim=0
    )
    times = torch.searchsorted(cumulative, drawn.contiguous(), right=True)
    return np.concatenate([np.ones((1, len(keys))), times.double().numpy()])


def masked_positions(
    key: int, free: NDArray[np.int64], share: float, seed: int
) -> NDArray[np.int64]:
    """Choose a share of the free positions of a sequence, rounded but at least one."""
    if not len(free) or share == 0:
        return free[:0]
    hashes = fold(sequence_hash(seed, MASKING, torch.tensor([key])), torch.from_numpy(free))
    count = max(1, round(share * len(free)))
    return np.sort(free[torch.argsort(hashes, stable=True)[:count].numpy()])


def is_checked(keys: NDArray[np.int64], seed: int, every: int) -> NDArray[np.bool_]:
    """Tell which sequences are checked: the first (key 0), and on average one in `every`."""
    drawn = nonnegative(sequence_hash(seed, CHECKING, torch.from_numpy(keys))) % every == 0
    return drawn.numpy() | (keys == 0)
