"""What a measure is, and what the engine hands back to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.decomposition.layer import Decomposing, LayerView
from normscope.engine.batch import Batch

Part = tuple[str, str]  # the path of a stack of layers, and the kind of attention


@dataclass(frozen=True)
class Needs:
    """What a measure asks of the engine."""

    whole_layers: bool = False  # record norms and feed-forwards too, not attention alone
    weights: bool = False  # attention weights as a whole, so eager attention
    masks: bool = False  # check that padding is masked and that no query is blocked
    spot_check: int = 1  # check random cells of one layer in this many
    recordable: bool = False  # observing reads nothing back, so a CUDA graph can hold it
    slow: bool = False  # show progress over the layers
    how: Decomposing = field(default_factory=Decomposing)


@dataclass(frozen=True, eq=False)
class Observed:
    """What a measure noted of one part of a model in one judged pass, on the CPU."""

    arrays: Mapping[str, Tensor | list[Tensor]]  # (row, layer, …), or by layer where shapes differ
    gaps: Mapping[str, NDArray[np.float64]]  # (layer, row), judged
    layers: list[str]  # their names
    dtypes: list[set[torch.dtype]]
    queries: NDArray[np.bool_]  # (row, position): which are real
    keys: NDArray[np.bool_]
    pinned: bool  # whether the arrays lie in pinned memory, which is scarce

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return what was noted of every layer, (row, layer, …)."""
        array = self.arrays[name]
        return (
            np.stack([a.numpy() for a in array], axis=1)
            if isinstance(array, list)
            else (array.numpy())
        )

    def lists(self, name: str) -> list[NDArray[Any]]:
        """Return what was noted, by layer, where layers may differ in size."""
        array = self.arrays[name]
        return [a.numpy() for a in (array if isinstance(array, list) else array.unbind(1))]


@runtime_checkable
class Measure(Protocol):
    """Something that is measured of the layers of a model: maps, statistics, soft alignments."""

    @property
    def needs(self) -> Needs:
        """What the engine has to provide."""

    def observe(self, view: LayerView) -> Mapping[str, Tensor]:
        """Note what is needed of one attention call: tensors with a row axis first.

        Everything that is read from the view is proved, and judged when the pass is over.
        """

    def finish(self, batch: Batch, parts: Mapping[Part, Observed], paths: frozenset[str]) -> Any:
        """Return the result of a judged pass, from what was noted of all its layers.

        ``paths`` are the ways into the model's attention that were taken.
        """


class Enough(Exception):
    """Raised by a measure that needs nothing more of this forward pass."""
