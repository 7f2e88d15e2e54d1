"""Sampling of feature maps at places that a model computes, as in deformable attention."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch import Tensor

from normscope.errors import UnsupportedModelError
from normscope.linearisation.composites import Arguments, Keywords
from normscope.linearisation.operators import LinearMap

if TYPE_CHECKING:
    from normscope.linearisation.network import Network


def grid_sample(network: Network, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
    """Replace `grid_sample`, linear in the map; the places are held as attention weights are."""
    given = {**dict(zip(("input", "grid"), args, strict=False)), **kwargs}
    args, features, grid = args[2:], given.pop("input"), given.pop("grid")

    def sample(features: Tensor, grid: Tensor) -> Tensor:
        value: Tensor = func(features, grid, *args, **given)
        return value

    moves = grid.requires_grad and network.rules.softmax != "held"
    if moves and network.rules.difference:
        raise UnsupportedModelError(
            f"{network.structure.kind} samples a map of features at places that it computes from "
            "its inputs (deformable attention), which are others for the baseline, so that their "
            'difference is no sum over positions; use method="frozen", without a baseline'
        )
    if moves:
        return network.tangent(sample, (features, grid))
    if not features.requires_grad:
        return sample(features, grid.detach())
    return LinearMap(functools.partial(sample, grid=grid.detach()))(features)
