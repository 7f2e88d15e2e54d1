"""Compute the states of a layer again in the backward pass, instead of keeping them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from normscope.foundation.interrupts import shielded
from normscope.linearisation.network import Network

_ROOM = 0.6  # of the free memory that states may fill before they are computed again


@shielded
def recomputed(network: Network) -> Iterator[None]:
    """Run every layer of the network under checkpointing.

    The forward pass of each layer is replaced on its instance, and put back on leaving.
    """

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), network  # the mode has been left when the backward pass runs

    def wrapped(forward: Callable[..., Any]) -> Callable[..., Any]:
        def aliased(*args: Any, **kwargs: Any) -> Any:
            # Checkpointing gives leaves to the second run, which would pass for parameters.
            with torch._C.DisableTorchFunction():
                args = tuple(map(_alias, args))
                kwargs = {name: _alias(argument) for name, argument in kwargs.items()}
            return forward(*args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> Any:
            if not network.active:  # another thread, which uses the model at the same time
                return forward(*args, **kwargs)
            return checkpoint(
                aliased,
                *args,
                use_reentrant=False,
                preserve_rng_state=False,
                context_fn=contexts,
                **kwargs,
            )

        return run

    own = {layer: vars(layer).get("forward") for layer in network.structure.layers}
    try:
        for layer in own:
            layer.forward = wrapped(layer.forward)
        yield
    finally:
        for layer, forward in own.items():
            if forward is None:
                vars(layer).pop("forward", None)
            else:
                layer.forward = forward


def _alias(argument: Any) -> Any:
    state = isinstance(argument, Tensor) and argument.requires_grad
    return argument.view_as(argument) if state else argument


def worth_recomputing(model: nn.Module, inputs: Mapping[str, Any]) -> bool:
    """Return whether the states of all layers would fill most of a GPU's free memory."""
    tensor = next((t for t in inputs.values() if isinstance(t, Tensor) and t.dim() >= 2), None)
    device = next(model.parameters()).device
    if device.type != "cuda" or tensor is None:
        return False
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    hidden = getattr(text, "hidden_size", 0) or 0
    wide = getattr(text, "intermediate_size", 0) or 4 * hidden
    layers = getattr(text, "num_hidden_layers", 0) or 0
    size = next(model.parameters()).element_size()
    needed = tensor.shape[:2].numel() * layers * (8 * hidden + 4 * wide) * size
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return needed > _ROOM * free
