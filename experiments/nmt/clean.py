"""Which sentence pairs are translations of each other? Brown et al.'s (1993) first model says.

Proceedings aligned by sentence length hold pairs that do not belong together. A table of
translation probabilities between pieces is estimated on the corpus itself and scores its pairs.
On a GPU a million pairs take seconds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.nmt.pack import Side


def _batches(
    source: Side, target: Side, device: torch.device, cells: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Pairs of about one size: their numbers, and ids padded by -1 on both sides."""
    sides = []
    for side in (source, target):
        ids = torch.from_numpy(side.ids.astype(np.int32)).to(device)
        counts = torch.from_numpy(side.lengths.astype(np.int64)).to(device)
        sides.append((ids, torch.from_numpy(side.starts()).to(device), counts))
    lengths = source.lengths.astype(np.int64), target.lengths.astype(np.int64)
    order = np.lexsort((lengths[1], lengths[0]))
    done = 0
    while done < len(order):
        # Sorted by source length; of targets, a look ahead at what may come is enough.
        ahead = order[done : done + max(1, cells // 64)]
        width = (int(lengths[0][ahead[0]]) + 2) * int(lengths[1][ahead].max())
        chosen = ahead[: max(1, cells // width)]
        done += len(chosen)
        index = torch.from_numpy(chosen).to(device)
        found = []
        for (ids, starts, counts), each in zip(sides, lengths, strict=True):
            steps = torch.arange(int(each[chosen].max()), device=device)
            places = (starts[index][:, None] + steps).clamp(max=len(ids) - 1)
            found.append(torch.where(steps < counts[index][:, None], ids[places], -1))
        yield index, found[0], found[1]


def _cells(table: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """For each (pair, target piece): where its cells lie in the table, and their values."""
    null = table.shape[0] - 1
    source = torch.cat([torch.full_like(source[:, :1], null), source], 1)
    places = source.clamp(min=0)[:, None, :] * table.shape[1] + target.clamp(min=0)[:, :, None]
    real = (source >= 0)[:, None, :] & (target >= 0)[:, :, None]
    return places, table.view(-1)[places] * real


def translation_table(
    source: Side,
    target: Side,
    sizes: tuple[int, int],
    *,
    rounds: int = 4,
    device: torch.device | str = "cpu",
    cells: int = 1 << 22,
) -> Tensor:
    """t(target piece | source piece) by expectation maximisation; the last row is NULL's."""
    device = torch.device(device)
    table = torch.full((sizes[0] + 1, sizes[1]), 1.0 / sizes[1], device=device)
    for _ in range(rounds):
        counts = torch.zeros_like(table)
        for _, ones, others in _batches(source, target, device, cells):
            places, values = _cells(table, ones, others)
            values = values / values.sum(2, keepdim=True).clamp(min=1e-30)
            counts.view(-1).index_add_(0, places.flatten(), values.flatten())
        table = counts / counts.sum(1, keepdim=True).clamp(min=1e-30)
    return table


def log_likelihood(
    table: Tensor, source: Side, target: Side, *, cells: int = 1 << 22
) -> NDArray[np.float64]:
    """How likely a target piece is by the source piece that explains it best, its logarithm,
    averaged over the pieces of each pair; unseen ones count as 1e-7.
    """
    scores = torch.zeros(len(source), dtype=torch.float64, device=table.device)
    for index, ones, others in _batches(source, target, table.device, cells):
        best = _cells(table, ones, others)[1].amax(2)
        real = others >= 0
        logs = best.clamp(min=1e-7).log() * real
        scores[index] = (logs.sum(1) / real.sum(1).clamp(min=1)).double()
    return scores.cpu().numpy()


def pair_scores(
    source: Side,
    target: Side,
    sizes: tuple[int, int],
    *,
    device: torch.device | str = "cpu",
    cells: int = 1 << 22,
) -> NDArray[np.float64]:
    """How well the two sentences of each pair explain each other; higher is better.

    It is the distance from the median of pairs of about the same length: long sentences would
    explain anything better.
    """
    total = np.zeros(len(source))
    for one, other, shape in ((source, target, sizes), (target, source, sizes[::-1])):
        table = translation_table(one, other, shape, device=device, cells=cells)
        total += log_likelihood(table, one, other, cells=cells)
    size = (source.lengths.astype(np.int64) + target.lengths) // 10
    for group in np.unique(size):
        total[size == group] -= np.median(total[size == group])
    return total
