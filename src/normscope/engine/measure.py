"""The protocol of a measure, and the observations that the engine returns to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.decomposition.chain import DecompositionOptions
from normscope.decomposition.layer import LayerView
from normscope.engine.batch import Batch
from normscope.errors import UnsupportedModelError

Part = tuple[str, str]  # the path of a stack of layers, and the kind of attention


@dataclass(frozen=True)
class Needs:
    """What a measure needs from the engine."""

    whole_layers: bool = False  # record norms and feed-forwards too, not attention alone
    weights: bool = False  # whole arrays of attention weights, so eager attention
    masks: bool = False  # check that padding is masked and that no query is blocked
    spot_check: int = 1  # check random cells of one layer in this many
    recordable: bool = False  # observe() does not synchronise, so a CUDA graph can record it
    slow: bool = False  # show progress over the layers
    replay: tuple[str, ...] = ()  # scopes to replay in layers that have no factored form of them
    how: DecompositionOptions = field(default_factory=DecompositionOptions)


@dataclass(frozen=True, eq=False)
class Observed:
    """The observations of one measure in one part of a model and one judged pass, on the CPU."""

    arrays: Mapping[str, Tensor | list[Tensor]]  # (row, layer, …), or by layer where shapes differ
    gaps: Mapping[str, NDArray[np.float64]]  # (layer, row), judged
    layers: list[str]  # their names
    dtypes: list[set[torch.dtype]]
    queries: NDArray[np.bool_]  # (row, position): which are real
    keys: NDArray[np.bool_]

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return the observations of all layers in one array, (row, layer, …)."""
        array = self.arrays[name]
        if isinstance(array, list):
            sizes = {by_row.shape: layer for by_row, layer in zip(array, self.layers, strict=False)}
            if len(sizes) > 1:
                (first, layer), (other, another) = list(sizes.items())[:2]
                raise UnsupportedModelError(
                    f"{layer} and {another} have results of different sizes, {(*first,)} and "
                    f"{(*other,)}: the layers of this list attend over different positions "
                    "(windows, stages of an image), so there is no single array of them. Use "
                    "capture() and read the layers one by one"
                )
            return np.stack([by_row.numpy() for by_row in array], axis=1)
        return array.numpy()

    def tensor(self, name: str) -> Tensor:
        """Return the observations of all layers in one tensor, (row, layer, …), without a copy.

        It belongs to this pass alone. On a machine with a GPU its memory is pinned.
        """
        array = self.arrays[name]
        return torch.from_numpy(self[name]) if isinstance(array, list) else array

    def lists(self, name: str) -> list[NDArray[Any]]:
        """Return the observations by layer; layers may differ in size."""
        array = self.arrays[name]
        return [a.numpy() for a in (array if isinstance(array, list) else array.unbind(1))]


@runtime_checkable
class Measure(Protocol):
    """A quantity measured in the layers of a model: maps, statistics, soft alignments."""

    @property
    def needs(self) -> Needs:
        """What the engine has to provide."""

    def observe(self, view: LayerView) -> Mapping[str, Tensor]:
        """Return the observations of one attention call: tensors whose first axis is the row.

        The view notes the gaps of the maps that it computes; call its ``note_gap`` for numbers that
        are read in another way. The engine judges all gaps when the pass is over.
        """

    def finish(self, batch: Batch, parts: Mapping[Part, Observed], paths: frozenset[str]) -> Any:
        """Return the result of a judged pass, from the observations of all its layers.

        ``paths`` are the ways in which attention was captured ("interface", "watched", …).
        """


class StopPass(Exception):
    """Raised by a measure that needs no further layer of this pass.

    The measure is not called again, and the pass ends when all measures have raised it.
    """
