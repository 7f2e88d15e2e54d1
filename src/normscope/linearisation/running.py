"""Contexts in which an unmodified model runs as a linearised network."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from normscope.errors import InputError, UnsupportedModelError
from normscope.foundation.interrupts import shielded
from normscope.models.inventory import configs_of

_EXPERTS = "_experts_implementation_internal"


@shielded
def dual_level() -> Iterator[None]:
    """Differentiate forwards inside the context."""
    with forward_ad.dual_level():
        yield


@shielded
def copies_saved() -> Iterator[None]:
    """Keep copies of what a backward pass needs, for models that change their states in place."""

    def copy(tensor: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            return tensor.detach().clone()

    with saved_tensors_hooks(copy, lambda tensor: tensor):
        yield


@shielded
def visible_attention(model: nn.Module) -> Iterator[None]:
    """Let a model whose attention calls other kernels use torch's own."""
    before = [(c, c._attn_implementation_internal) for c in configs_of(model).values()]
    supported = "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"
    try:
        for config, name in before:
            if name not in (None, "sdpa", "eager"):
                config._attn_implementation_internal = supported
        yield
    finally:
        for config, name in before:
            config._attn_implementation_internal = name


@shielded
def plain_experts(model: nn.Module) -> Iterator[None]:
    """Let a mixture of experts call one expert after another, in operations that are visible."""
    configs = [c for c in configs_of(model).values() if getattr(c, _EXPERTS, None) is not None]
    before = [getattr(config, _EXPERTS) for config in configs]
    try:
        for config in configs:
            setattr(config, _EXPERTS, "eager")
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            setattr(config, _EXPERTS, name)


def refuse_without_gradients(model: nn.Module) -> None:
    """Raise an error for models through which no gradient can be computed."""
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise InputError(
            "the model was made inside torch.inference_mode(), so gradients cannot be computed "
            "through it; load it outside of that context"
        )
    for path, module in model.named_modules():
        if type(module).__module__.startswith("torch.ao.nn.") and "quantized" in str(type(module)):
            raise UnsupportedModelError(
                f"{path} is a quantised {type(module).__name__}, which rounds its inputs and has no"
                " backward pass; load the model without torch's quantisation"
            )
