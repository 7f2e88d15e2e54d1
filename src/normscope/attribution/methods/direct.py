"""Direct logit attribution, and ALTI-Logit, which follows it to the input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.attribution.account import RowShares, SourceShares
from normscope.attribution.methods.call import MethodCall, gap_of
from normscope.attribution.methods.streams import (
    ReadDirection,
    ResidualStream,
    direction,
    hooked,
    read_stream,
    state_in,
)
from normscope.capture.layers import layers_of
from normscope.engine.judge import judge_shares


class DirectLogit:
    """Δ_j = Σ_l ⟨what attention of layer l moves from j to the output position, g⟩.

    The state that enters the first layer at the output position belongs to its token. Feed-forwards
    and biases belong to none: they are the bias share.
    """

    def shares(self, call: MethodCall) -> RowShares:
        """Return the shares of the source tokens, and the logit lens."""
        reached = direction(call)
        stream = read_stream(call, reached, alti=False)
        shares = assembled(call, reached, stream, torch.stack(stream.written).sum(0))
        if call.chosen["lens"] == "no":
            return shares
        return replace(shares, lens=logit_lens(call))


class AltiLogit:
    """r_k = Σ_l Σ_j Δ^l_j M^{l−1}_jk by Horner's scheme, with ALTI's maps of the layers below."""

    def shares(self, call: MethodCall) -> RowShares:
        """Return the shares of the input tokens."""
        reached = direction(call)
        stream = read_stream(call, reached, alti=True)
        return assembled(call, reached, stream, followed(stream))


def followed(stream: ResidualStream) -> Tensor:
    """Return what all layers wrote, followed to the input: r ← Δ^l + r C^l, from the last down."""
    rows = [row for row, _, _ in stream.reads]
    total = stream.written[-1]
    for layer in reversed(range(len(stream.written) - 1)):
        maps = stream.mixing[layer][rows].to(total)
        total = stream.written[layer] + torch.einsum("rq,rqk->rk", total, maps)
    return total


def assembled(
    call: MethodCall, reached: ReadDirection, stream: ResidualStream, moved: Tensor
) -> RowShares:
    """Return the shares of tokens: what was moved, and the embedding at the output position."""
    value = reached.values.cpu().numpy()
    attention = np.zeros((*value.shape, moved.shape[1]))
    embedding, bias = np.zeros_like(attention), reached.constants.cpu().numpy().copy()
    assert stream.embedding is not None
    assert stream.rest is not None
    for read, (row, step, position) in enumerate(stream.reads):
        attention[row, step] += moved[read].cpu().numpy()
        embedding[row, step, position] += float(stream.embedding[read])
        bias[row, step] += float(stream.rest[read])
    sources = [SourceShares("", "attention", attention), SourceShares("", "embedding", embedding)]
    error = gap_of(value, sources, bias)
    judge_shares(
        type(call.model).__name__,
        error,
        set(reached.dtypes),
        difference=False,
        explain_gap=lambda: "what the layers wrote does not add up to the last state",
    )
    return RowShares(value, bias, error, sources)


def logit_lens(call: MethodCall) -> np.ndarray:
    """Return the values that the states entering each layer, and the last, would give.

    The states take the place of those behind the last layer, so what follows, the last norm with
    its statistics included, is computed from them: (row, step, layer).
    """
    modules = [module for module, _ in layers_of(call.model).values()]
    states: list[Tensor] = []

    def entering(_: Any, args: Any, kwargs: Any) -> None:
        if not states:
            states.append(args[0] if args else kwargs["hidden_states"])

    def leaving(_: Any, __: Any, output: Any) -> None:
        states.append(state_in(output))

    handle = modules[0].register_forward_pre_hook(entering, with_kwargs=True)
    try:
        with hooked(modules, leaving):
            value = call.plain()
    finally:
        handle.remove()
    lens = np.zeros((*value.shape, len(states)))
    for part in call.chunks(len(states), states[0].shape[1]):
        taken = torch.cat([states[at] for at in part])

        def exchanged(_: Any, __: Any, output: Any, taken: Tensor = taken) -> Any:
            return taken if isinstance(output, Tensor) else type(output)((taken, *output[1:]))

        with hooked(modules[-1:], exchanged):
            values = call.plain(call.repeated(len(part)))
        by_layer = values.reshape(len(part), *value.shape)
        for number, at in enumerate(part):
            lens[:, :, at] = by_layer[number]
    return lens
