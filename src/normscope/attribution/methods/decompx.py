"""DecompX: the vectors of every token pushed through the model, biases divided among them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from normscope.attribution.account import RowShares, SourceShares
from normscope.attribution.methods.call import MethodCall, gap_of
from normscope.attribution.methods.gradients import output_positions
from normscope.attribution.passes import Setup, explain
from normscope.engine.judge import judge_shares
from normscope.errors import InputError
from normscope.linearisation.network import Network
from normscope.linearisation.rules import rules_of
from normscope.linearisation.running import dual_level
from normscope.linearisation.spread import Division, SpreadNetwork
from normscope.models.inventory import Inventory

MOST = 512  # tokens; the components of all are in memory at once


class DecompX:
    """Shares of vectors in the logit; the bias-token form is that of the frozen network."""

    def shares(self, call: MethodCall) -> RowShares:
        """Return the shares of all tokens, biases included."""
        if call.chosen["bias"] == "token":
            rules = rules_of("frozen", call.gate)
            return explain(call.model, call.inputs, call.value, rules)
        values, network = pushed(call)
        primal, tangent = forward_parts(values, network)
        shares = SourceShares("", "word", tangent[:-1].permute(1, 2, 0).numpy())
        value, bias = primal.numpy(), tangent[-1].numpy()
        error = gap_of(value, [shares], bias)
        judge_shares(
            type(call.model).__name__,
            error,
            network.dtypes,
            difference=False,
            explain_gap=lambda: "components do not add up to the model's own output",
        )
        return RowShares(value, bias, error, [shares])


class DecompXNorm:
    """‖x_{i⇐k}‖ behind the last layer, at the output position i."""

    def shares(self, call: MethodCall) -> RowShares:
        """Return the lengths of the components; the mean over several output positions."""
        maps = lengths_by_layer(call)[-1]
        value, where = output_positions(call)
        row = np.einsum("rsq,rqk->rsk", where, maps)
        return call.sizes(value, [SourceShares("", "word", row)])


def lengths_by_layer(call: MethodCall) -> list[np.ndarray]:
    """Return ‖x_{i⇐k}‖ behind every layer, (row, query, key)."""
    _, network = pushed(call)
    return [lengths[..., :-1].cpu().numpy() for lengths in network.lengths]


def pushed(call: MethodCall) -> tuple[Tensor, SpreadNetwork]:
    """Run the model once for all components together; return its values, with components."""
    places = call.places()
    if list(places) != [""]:
        raise call.refuse("it has two stacks of layers; use decompx:token, or frozen")
    length = call.inputs[places[""]].shape[1]
    if length > MOST:
        raise InputError(
            f"decompx keeps the vectors of all tokens at once, and this text has {length} tokens; "
            f"the limit is {MOST}. decompx:token, which keeps biases apart, has none"
        )
    options = dict(call.chosen.values)
    division = Division(options.get("bias", "absdot"), options.get("at", "residual") == "residual")
    kind: Any = partial(
        SpreadNetwork, inventory=Inventory(call.model), division=division, positions=length
    )
    inputs = call.repeated(length + 1)
    setup = Setup(call.model, inputs, call.value, rules_of("frozen", call.gate), kind=kind)
    setup.refuse()
    with setup.prepared():
        network: Network = setup.network()
        assert isinstance(network, SpreadNetwork)
        with dual_level(), network.watched(), setup.hooked(network):
            values = setup.run(network)
            primal, tangent = forward_ad.unpack_dual(values)
            if tangent is None:
                tangent = torch.zeros_like(primal)
            return torch.stack([primal.detach(), tangent.detach()]), network


def forward_parts(values: Tensor, network: SpreadNetwork) -> tuple[Tensor, Tensor]:
    """Return the values, (row, step), and their components, (component, row, step)."""
    both = values.double().cpu().unflatten(1, (network.copies, -1))
    return both[0, 0], both[1]
