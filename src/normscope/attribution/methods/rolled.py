"""Rollout: a token-to-token map of every layer, multiplied from the last layer down."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from normscope.attribution.methods.call import Call
from normscope.attribution.methods.gradients import output_positions
from normscope.attribution.passes import RowShares, SourceShares
from normscope.decomposition.layer import LayerView
from normscope.decomposition.scopes import SCOPES
from normscope.engine.measure import Needs
from normscope.engine.run import CallbackMeasure, PlainBatch, run
from normscope.errors import InputError
from normscope.models.running import evaluating


class Rollout:
    """The row of the output position of C^L ⋯ C^1, by Horner's scheme: one vector is kept.

    A map that does not pass the residual connection gets the identity added. Rows are divided by
    their sums, unless that is switched off.
    """

    def shares(self, call: Call) -> RowShares:
        """Return the row of every value, the mean over several output positions."""
        name = call.chosen["map"]
        if name not in SCOPES:
            raise InputError(f"there is no map {name!r}; valid: {', '.join(SCOPES)}")
        if len(call.places()) > 1:
            raise call.refuse("it has two stacks of layers; use frozen or attn_lrp")
        value, row = output_positions(call)
        for layer in reversed(self._maps(call, name)):
            row = np.einsum("rsq,rqk->rsk", row, layer)
        return call.sizes(value, [SourceShares("", "word", row)])

    def _maps(self, call: Call, name: str) -> list[np.ndarray]:
        """Return the map of every layer, (row, query, key)."""
        found: list[Tensor] = []
        normalize = call.chosen["normalize"] == "yes"

        def read(view: LayerView) -> None:
            if name not in view.scopes:
                raise InputError(
                    f"{view.name} has no map {name!r}; valid: {', '.join(view.scopes)}"
                )
            values = view.maps([name])[name].values
            assert values is not None
            found.append(_with_residual(values.double(), name, normalize).cpu())

        measure = CallbackMeasure(read, Needs(whole_layers=True, weights=True))
        with torch.no_grad(), evaluating(call.model):
            list(run(call.model, [PlainBatch(call.model, call.inputs)], [measure]))
        return [layer.numpy() for layer in found]


def _with_residual(values: Tensor, name: str, normalize: bool) -> Tensor:
    """Return a map with the identity added where the residual is not in it, rows divided."""
    if not SCOPES[name].with_residual:
        values = values + torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
    if not normalize:
        return values
    total = values.sum(-1, keepdim=True)
    return values / torch.where(total > 0, total, 1)
