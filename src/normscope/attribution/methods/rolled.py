"""Rollout: a token-to-token map of every layer, multiplied from the last layer down."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from normscope.attribution.account import RowShares, SourceShares
from normscope.attribution.methods.call import MethodCall
from normscope.attribution.methods.gradients import output_positions
from normscope.decomposition.layer import LayerView
from normscope.decomposition.scopes import SCOPES
from normscope.engine.measure import Needs
from normscope.engine.run import CallbackMeasure, PlainBatch, run
from normscope.errors import InputError
from normscope.models.running import evaluating

TINY = 1e-300


class Rollout:
    """The row of the output position of C^L ⋯ C^1, by Horner's scheme: one vector is kept.

    A map that does not pass the residual connection gets the identity added.
    """

    def shares(self, call: MethodCall) -> RowShares:
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

    def _maps(self, call: MethodCall, name: str) -> list[np.ndarray]:
        """Return the map of every layer, (row, query, key)."""
        found: list[Tensor] = []
        normalize = call.chosen["normalize"]
        ((stack, ids),) = call.places().items()
        real = torch.from_numpy(call.real(stack, call.inputs[ids].shape[1]))

        def read(view: LayerView) -> None:
            if name not in view.scopes:
                raise InputError(
                    f"{view.name} has no map {name!r}; valid: {', '.join(view.scopes)}"
                )
            values = view.maps([name])[name].values
            assert values is not None
            found.append(_with_residual(values.double().cpu(), name, normalize, real))

        measure = CallbackMeasure(read, Needs(whole_layers=True, weights=True))
        with torch.no_grad(), evaluating(call.model):
            list(run(call.model, [PlainBatch(call.model, call.inputs)], [measure]))
        return [layer.numpy() for layer in found]


def _with_residual(values: Tensor, name: str, normalize: str, real: Tensor) -> Tensor:
    """Return a map with the identity added where the residual is not in it, rows divided.

    By default ("auto") lengths of vectors with the residual keep the sums of their rows, and each
    map is divided by its largest row sum, one number. ``real``: (row, query).
    """
    scope = SCOPES[name]
    adds = getattr(scope, "adds_residual", not scope.with_residual)
    divides = normalize == "yes"
    if normalize == "auto":
        divides = getattr(scope, "rows_divided", scope.weight or not scope.with_residual)
    if adds:
        values = _divided(values) if divides and not scope.weight else values
        values = values + torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
    if divides:
        return _divided(values)
    sums = values.sum(-1).masked_fill(~real, 0)  # queries of padding have rows too
    return values / sums.amax(-1)[:, None, None].clamp_min(TINY)


def _divided(values: Tensor) -> Tensor:
    """Divide each row by its sum; a row of zeros becomes that of the identity."""
    total = values.sum(-1, keepdim=True)
    own = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
    return torch.where(total > 0, values / total.clamp_min(TINY), own)
