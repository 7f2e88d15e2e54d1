"""Batches of one exact source length: no source padding, so attention needs no mask.

The corpus lies on the device as two flat rows of ids; a batch is gathered there. An epoch's plan
depends on the seed and the epoch alone, so that training resumes by two numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.nmt.pack import Side
from experiments.nmt.subwords import EOS, PAD

IGNORED = -100


@dataclass(frozen=True)
class Batch:
    source: Tensor  # batch × source position, ending in </s>
    target: Tensor  # batch × target position, beginning with </s>
    labels: Tensor  # the same, one step on; IGNORED where the target has ended


class Corpus:
    """Sentence pairs on a device."""

    def __init__(self, source: Side, target: Side, device: torch.device) -> None:
        self.lengths = source.lengths.astype(np.int64), target.lengths.astype(np.int64)
        self.device = device
        self._ids = [
            torch.from_numpy(side.ids.astype(np.int32)).to(device) for side in (source, target)
        ]
        self._starts = [torch.from_numpy(side.starts()).to(device) for side in (source, target)]
        self._lengths = [torch.from_numpy(lengths).to(device) for lengths in self.lengths]

    def __len__(self) -> int:
        return len(self.lengths[0])

    def plan(
        self, tokens: int, seed: tuple[int, ...] | None, *, smallest: float = 0.25
    ) -> list[NDArray[np.int64]]:
        """Batches of at most ``tokens`` padded tokens a side, as numbers of pairs.

        Args:
            tokens: The most tokens in source or target.
            seed: Shuffles the pairs of one length and the batches; None keeps every pair, in order.
            smallest: A batch with less than this share of ``tokens`` is left out: its gradient
                would count as much as a full one's.
        """
        source, target = self.lengths
        generator = np.random.default_rng(seed)
        if seed is None:
            order, smallest = np.arange(len(self)), 0.0
        else:
            order = generator.permutation(len(self))
        order = order[np.lexsort((target[order], source[order]))]
        edges = np.flatnonzero(np.diff(source[order], prepend=-1, append=-1))
        batches = []
        for start, end in pairwise(edges):
            group = order[start:end]
            done = 0
            while done < len(group):
                # Sorted by target length, so the last pair taken is the longest.
                width = max(int(source[group[done]]), int(target[group[done]])) + 1
                size = max(1, tokens // width)
                while (
                    size > 1
                    and (int(target[group[min(done + size, len(group)) - 1]]) + 1) * size > tokens
                ):
                    size -= max(1, size // 16)
                chosen = group[done : done + size]
                done += size
                longest = max(int(source[chosen[0]]), int(target[chosen[-1]])) + 1
                if len(chosen) * longest >= smallest * tokens:
                    batches.append(chosen)
        if seed is not None:
            batches = [batches[i] for i in generator.permutation(len(batches))]
        return batches

    def sources(self, chosen: NDArray[np.int64]) -> Tensor:
        """The source sentences ``chosen``, of any length, each with its ``</s>`` and padded."""
        index = torch.from_numpy(chosen).to(self.device)
        steps = torch.arange(int(self.lengths[0][chosen].max()) + 1, device=self.device)
        places = (self._starts[0][index][:, None] + steps).clamp(max=len(self._ids[0]) - 1)
        ends = self._lengths[0][index][:, None]
        ids = self._ids[0][places].long()
        return torch.where(steps < ends, ids, torch.where(steps == ends, EOS, PAD))

    def batch(self, chosen: NDArray[np.int64]) -> Batch:
        """The pairs ``chosen``, which have one source length."""
        index = torch.from_numpy(chosen)
        if self.device.type == "cuda":
            index = index.pin_memory().to(self.device, non_blocking=True)
        length = int(self.lengths[0][chosen[0]])
        steps = torch.arange(length, device=self.device)
        source = self._ids[0][self._starts[0][index][:, None] + steps].long()
        source = torch.nn.functional.pad(source, (0, 1), value=EOS)
        longest = int(self.lengths[1][chosen].max())
        steps = torch.arange(longest + 1, device=self.device)
        ends = self._lengths[1][index][:, None]
        places = (self._starts[1][index][:, None] + steps).clamp(max=len(self._ids[1]) - 1)
        ids = self._ids[1][places].long()
        labels = torch.where(steps < ends, ids, torch.where(steps == ends, EOS, IGNORED))
        target = torch.nn.functional.pad(labels[:, :-1], (1, 0), value=EOS)
        return Batch(source, torch.where(target < 0, PAD, target), labels)
