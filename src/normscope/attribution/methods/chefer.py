"""Chefer's rule: attention weights times their gradients, accumulated over layers."""

from __future__ import annotations

import numpy as np

from normscope.attribution.account import RowShares, SourceShares
from normscope.attribution.methods.call import MethodCall
from normscope.attribution.methods.gradients import gradients_of, output_positions_in
from normscope.linearisation.trace import Trace


class Chefer:
    """The row of the output position of R, R ← R + Ā R, Ā = mean over heads of [α ⊙ ∂y/∂α]₊.

    ∂y/∂α_ij = ⟨∂y/∂o_i, v_j⟩ comes from the values and the gradient of the context o, so the model
    keeps its fused attention. The identity with which R begins is part of the result.
    """

    def shares(self, call: MethodCall) -> RowShares:
        """Return the relevance of every token."""
        if len(call.places()) > 1:
            raise call.refuse("its rule for two stacks is another one; use attn_lrp or frozen")
        result = gradients_of(call, call.inputs, trace=True)
        trace = result.trace
        assert trace is not None
        if not all(trace.attentions):
            raise call.refuse("not all of its layers have attention whose weights are seen")
        value, where = result.values.cpu().numpy(), output_positions_in(trace)
        scores = np.zeros_like(where)
        for row, steps in enumerate(where):
            for step, start in enumerate(steps):
                scores[row, step] = accumulated(trace, row, step, start)
        return call.sizes(value, [SourceShares("", "word", scores)])


def accumulated(trace: Trace, row: int, step: int, start: np.ndarray) -> np.ndarray:
    """Return one row of R, from the last layer down: r ← r + r Ā."""
    relevance = start
    for layer in reversed(range(len(trace.attentions))):
        edges = trace.edges(row, layer, step)
        relevance = relevance + relevance @ np.maximum(edges, 0).mean(axis=0)
    return np.asarray(relevance)
