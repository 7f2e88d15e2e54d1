"""Measure some batches a second time, through the full decomposition of their layers."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.decomposition.cells import TINY
from normscope.foundation.shapes import Float
from normscope.measures.statistics.batch import Layer

CHECKED = 256  # check the batches of one sequence in this many, and of the first


def worst_gap(layer: Layer) -> Float[Tensor, " row"]:
    """Return how far a layer's numbers are from its decomposition, relative to the parts.

    The decomposition computes α·f from the recorded weights and values, and is equal to the model's
    own output; the statistics read that output and measure lengths in another way.
    """
    view = layer.view.recomputed()
    scopes = view.lengths(layer.scopes)
    layer.view.dtypes |= view.dtypes
    real = layer.real
    exact = view.transformed_norm
    size = exact.amax(dim=(1, 2), keepdim=True).clamp_min(TINY)
    difference = (layer.transformed_norm - exact).abs() / size
    gaps = [difference.amax(dim=1).masked_fill(~real, 0).amax(dim=1)]
    for name, (own, others) in layer.lengths.items():
        known = scopes[name]
        assert known.own is not None
        assert known.others is not None
        assert known.bias is not None
        assert known.difference is not None
        # Relative to the sum's own parts: where they cancel, the rounding is theirs.
        parts = (known.own + known.others + known.bias).clamp_min(TINY)
        wrong = (known.own - own).abs() + (known.others - others).abs() + known.difference
        gaps.append((wrong / parts).masked_fill(~real, 0).amax(dim=1))
        ratio = (layer.mixing_ratio[name] - known.ratio()).abs()
        scale = (known.own + known.others) / parts
        gaps.append((ratio * scale).masked_fill(~real, 0).amax(dim=1))
    return torch.stack(gaps).amax(dim=0)
