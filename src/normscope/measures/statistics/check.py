"""Some sequences measured a second time, through the full decomposition of their layers."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.decomposition.attention import TINY
from normscope.decomposition.layer import LayerDecomposition
from normscope.decomposition.maps import bound_of
from normscope.foundation.shapes import Float
from normscope.measures.statistics.batch import Layer

CHECKED = 256  # one sequence in so many, and the first


def worst_gap(layer: Layer) -> Float[Tensor, " row"]:
    """How far a layer's numbers are from its decomposition, in units of what rounding explains.

    The decomposition makes α·f from the recorded weights and values, and has been shown equal to
    the model's own output; here the output stands for it, and lengths take another way.
    """
    taken = LayerDecomposition(layer.whole, "self")
    scopes = taken.factored(layer.scopes)
    real = layer.real
    exact = taken.alone.transformed_norm
    size = exact.amax(dim=(1, 2), keepdim=True).clamp_min(TINY)
    away = (layer.transformed_norm - exact).abs() / size
    gaps = [away.amax(dim=1).masked_fill(~real, 0).amax(dim=1)]
    for name, (own, others) in layer.lengths.items():
        known = scopes[name].known
        # Lengths in the units of the sum's own parts: where they cancel, rounding is theirs.
        parts = (known.own + known.others + known.bias).clamp_min(TINY)
        wrong = (known.own - own).abs() + (known.others - others).abs() + known.difference
        gaps.append((wrong / parts).masked_fill(~real, 0).amax(dim=1))
        ratio = (layer.mixing_ratio[name] - scopes[name].mixing_ratio()).abs()
        scale = (known.own + known.others) / parts
        gaps.append((ratio * scale).masked_fill(~real, 0).amax(dim=1))
    return torch.stack(gaps).amax(dim=0) / bound_of(taken.dtypes)
