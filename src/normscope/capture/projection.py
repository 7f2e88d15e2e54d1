"""The output projection W_O, b_O of an attention, read from the module that applies it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import UnsupportedModelError
from normscope.foundation.shapes import Float
from normscope.foundation.torch_settings import without_grad
from normscope.kernels.gram import wide_product
from normscope.models.inventory import is_conv1d, is_pointwise


@dataclass(frozen=True, eq=False)
class Projection:
    """The map y = merged heads · W_O + b_O, with W_O cut into heads."""

    name: str  # the module's path in the model
    weight: Float[Tensor, "head head_size out"]
    bias: Float[Tensor, " out"] | None
    module: nn.Module | None = None  # the module that applies it


def project(
    merged: Float[Tensor, "batch query features"], projection: Projection, dtype: torch.dtype
) -> Float[Tensor, "batch query out"]:
    """Apply the projection, bias included, in ``dtype``."""
    weight = projection.weight.flatten(0, 1)
    bias = None if projection.bias is None else projection.bias.to(dtype)
    rows = merged.flatten(0, 1)
    if merged.is_cuda and merged.element_size() == 2 and merged.dtype == weight.dtype:
        output = wide_product(rows[None], weight[None])[0]
        output = output if bias is None else output + bias
    elif bias is None:
        output = rows.to(dtype) @ weight.to(dtype)
    else:
        output = torch.addmm(bias, rows.to(dtype), weight.to(dtype))
    return output.view(*merged.shape[:2], -1)


def projection_of(module: nn.Module, name: str, heads: int, read: Tensor) -> Projection:
    """Return weight and bias of a linear module that has just read ``read``, cut into heads."""
    weight, bias = affine(module, name, read)
    return Projection(name, weight.unflatten(0, (heads, -1)), bias, module)


@without_grad
def affine(module: nn.Module, name: str, read: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the (in, out) weight and the (out,) bias of a module.

    They are the module's own attributes if it is an ordinary linear layer, or if it maps a random
    row as these would. Otherwise (adapters, quantised weights, weights kept elsewhere) they are
    computed from what the module does to zero and to the identity matrix.

    Args:
        module: an affine map of its last axis.
        name: its path, for error messages.
        read: an input of the module; its size, dtype and device are used.

    Raises:
        UnsupportedModelError: the module is not an affine map.
    """
    if is_pointwise(module):
        return _convolution(module)
    own = _own(module)
    if own is not None and (
        _is_ordinary(module)
        or not bool(own[0].isfinite().all())  # reported later, for the whole model
        or _agrees(module, *own, read)
    ):
        return own
    like = next((p for p in module.parameters() if p.is_floating_point()), read)
    options: Any = {"dtype": like.dtype, "device": read.device}
    with torch.autocast(read.device.type, enabled=False):
        bias = _applied(module, torch.zeros(1, 1, read.shape[-1], **options))[0, 0]
        weight = _applied(module, torch.eye(read.shape[-1], **options)[None])[0] - bias
    if _agrees(module, weight, bias, read):
        return weight, bias
    raise UnsupportedModelError(
        f"{name} ({type(module).__name__}) is not a linear map, or changes from call to call "
        "(dropout in an adapter, quantised activations), so each token's share of its output is "
        "not defined. Use model.eval(), merge the adapter, or load the model unquantised."
    )


def _applied(module: nn.Module, states: Tensor) -> Tensor:
    """Return what a module makes of some states; a scale of its output beside it is None."""
    output: Any = module(states)
    made: Tensor = output[0] if isinstance(output, tuple) else output
    return made


def _convolution(module: Any) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a convolution of one position; each group has its own features."""
    blocks = module.weight.detach()[..., 0].chunk(module.groups, dim=0)
    weight = torch.block_diag(*blocks).T
    return weight, None if module.bias is None else module.bias.detach()


def _own(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """The weight and bias attributes of a module; None if they cannot be read as plain tensors."""
    weight: Any = getattr(module, "weight", None)
    bias: Any = getattr(module, "bias", None)
    if type(weight) not in (Tensor, nn.Parameter) or not (bias is None or isinstance(bias, Tensor)):
        return None
    if not weight.is_floating_point() or weight.dim() != 2 or weight.device.type == "meta":
        return None
    if is_conv1d(module):
        weight = weight.T
    return weight.detach().T, None if bias is None else bias.detach()


def _is_ordinary(module: nn.Module) -> bool:
    """Whether weight and bias alone determine what a module does."""
    unpatched = "forward" not in vars(module)
    return unpatched and (type(module).forward is nn.Linear.forward or is_conv1d(module))


def _agrees(module: nn.Module, weight: Tensor, bias: Tensor | None, read: Tensor) -> bool:
    """Whether a module maps a random row as a weight and a bias do, up to rounding."""
    if weight.shape[0] != read.shape[-1]:
        return False
    row = torch.randn(1, weight.shape[0], generator=torch.Generator().manual_seed(0)).to(weight)
    bias = torch.zeros_like(weight[0]) if bias is None else bias.to(weight)
    with torch.autocast(read.device.type, enabled=False):
        output = _applied(module, row[None].to(read.device))[0].to(weight)
    size = row.abs() @ (weight.abs() + bias.abs()) + bias.abs()
    gap = (output - (row @ weight + bias)).abs()
    return bool((gap <= 16 * torch.finfo(weight.dtype).eps * size).all())
