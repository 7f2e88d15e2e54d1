"""The output projection W_O, b_O of an attention, read off whatever linear module applies it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import UnsupportedModelError
from normscope.foundation.shapes import Float
from normscope.kernels.gram import wide_product
from normscope.models.walk import has


@dataclass(frozen=True, eq=False)
class Projection:
    """y = merged heads · W_O + b_O, cut into heads."""

    name: str  # the module's path in the model
    weight: Float[Tensor, "head head_size out"]
    bias: Float[Tensor, " out"] | None
    module: nn.Module | None = None  # which applies it


def project(
    merged: Float[Tensor, "batch query features"], projection: Projection, dtype: torch.dtype
) -> Float[Tensor, "batch query out"]:
    """Apply the projection, bias included, in ``dtype``."""
    weight = projection.weight.flatten(0, 1)
    if merged.is_cuda and merged.element_size() == 2 and merged.dtype == weight.dtype:
        made = wide_product(merged.flatten(0, 1)[None], weight[None])[0].view(*merged.shape[:2], -1)
    elif projection.bias is not None:
        rows = merged.to(dtype).flatten(0, 1)
        made = torch.addmm(projection.bias.to(dtype), rows, weight.to(dtype))
        return made.view(*merged.shape[:2], -1)
    else:
        made = merged.to(dtype) @ weight.to(dtype)
    return made if projection.bias is None else made + projection.bias.to(dtype)


def is_linear(module: nn.Module) -> bool:
    """Whether a module maps its last axis linearly, judged by its interface.

    Covers torch's Linear, transformers' Conv1D and what adapters and quantisers put in their
    place; that the map is in fact linear is proved when its weight is read.
    """
    sized = has(module, "in_features") and has(module, "out_features")
    return sized or _is_conv1d(module)


def projection_of(module: nn.Module, name: str, heads: int, given: Tensor) -> Projection:
    """Weight and bias of a linear module that has just read ``given``, cut into ``heads``."""
    weight, bias = affine(module, name, given)
    return Projection(name, weight.unflatten(0, (heads, -1)), bias, module)


def _is_conv1d(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


@torch.no_grad()
def affine(module: nn.Module, name: str, given: Tensor) -> tuple[Tensor, Tensor | None]:
    """(in, out) weight and (out,) bias.

    They are the module's own where it is an ordinary linear layer, or does to a random row what
    its own weight and bias would do; otherwise (adapters, quantised weights, weights kept
    elsewhere) what it does to zero and to the identity tells them.
    """
    own = _own(module)
    if own is not None and (
        _is_ordinary(module)
        or not bool(own[0].isfinite().all())  # for others to complain of
        or _does(module, *own, given)
    ):
        return own
    like = next((p for p in module.parameters() if p.is_floating_point()), given)
    options: Any = {"dtype": like.dtype, "device": given.device}
    with torch.autocast(given.device.type, enabled=False):
        bias = module(torch.zeros(1, 1, given.shape[-1], **options))[0, 0]
        weight = module(torch.eye(given.shape[-1], **options)[None])[0] - bias
    if _does(module, weight, bias, given):
        return weight, bias
    raise UnsupportedModelError(
        f"{name} ({type(module).__name__}) is not a linear map, or not the same one twice (dropout "
        "in an adapter, quantised activations), so its share in each token's contribution is not "
        "defined. Use model.eval(), merge the adapter, or load the model unquantised."
    )


def _own(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """The weight and bias that a module holds, if it holds them in a form that can be read."""
    weight: Any = getattr(module, "weight", None)
    bias: Any = getattr(module, "bias", None)
    if type(weight) not in (Tensor, nn.Parameter) or not (bias is None or isinstance(bias, Tensor)):
        return None
    if not weight.is_floating_point() or weight.dim() != 2 or weight.device.type == "meta":
        return None
    if _is_conv1d(module):
        weight = weight.T
    return weight.detach().T, None if bias is None else bias.detach()


def _is_ordinary(module: nn.Module) -> bool:
    """Whether nothing but the weight and the bias decides what a module does."""
    unpatched = "forward" not in vars(module)
    return unpatched and (type(module).forward is nn.Linear.forward or _is_conv1d(module))


def _does(module: nn.Module, weight: Tensor, bias: Tensor | None, given: Tensor) -> bool:
    """Whether a module does to a random row what a weight and a bias do, to rounding."""
    if weight.shape[0] != given.shape[-1]:
        return False
    row = torch.randn(1, weight.shape[0], generator=torch.Generator().manual_seed(0)).to(weight)
    bias = torch.zeros_like(weight[0]) if bias is None else bias.to(weight)
    with torch.autocast(given.device.type, enabled=False):
        made = module(row[None].to(given.device))[0].to(weight)
    size = row.abs() @ (weight.abs() + bias.abs()) + bias.abs()
    gap = (made - (row @ weight + bias)).abs()
    return bool((gap <= 16 * torch.finfo(weight.dtype).eps * size).all())
