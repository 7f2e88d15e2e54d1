"""Parameters of normalisation layers, read from modules of any class."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.decomposition.scopes import PER_HEAD
from normscope.errors import UnsupportedModelError
from normscope.foundation.caching import ModuleCache, tensor_state
from normscope.foundation.shapes import Float
from normscope.foundation.torch_settings import without_grad

Vectors = Float[Tensor, "*rows hidden"]
_EPSILONS = ("eps", "variance_epsilon", "epsilon")  # names of ε in modules
_BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True, eq=False)
class NormParameters:
    """norm(x) = scale ⊙ (x − mean) / σ + bias, without the mean where it is not centred."""

    scale: Float[Tensor, "*shape"] | None  # γ, the unit offset of Gemma's norms included
    bias: Float[Tensor, "*shape"] | None  # β
    centred: bool
    eps: float
    dtype: torch.dtype  # of the computation: many norms round a float64 model's states to float32
    offset: float = 0.0  # what is added to the weight, which gives the scale

    def renewed(self, module: nn.Module) -> NormParameters:
        """Return the same form with the weight and bias that the module has now.

        Copies (of 16-bit weights, or with an offset) would not follow writes through ``.data``.
        """
        weight, bias = _weight_and_bias(module)
        scale = weight
        if weight is not None and self.scale is not None:
            scale = _scale(_widened(weight, self.scale.dtype), self.offset)
        if bias is not None and self.bias is not None:
            bias = _widened(bias, self.bias.dtype)
        return replace(self, scale=scale, bias=bias)

    def centre(self, x: Vectors) -> Vectors:
        """Return ``x`` without its mean if the norm is centred, else ``x``."""
        return x - x.mean(dim=-1, keepdim=True) if self.centred else x

    def sigma(self, whole: Vectors) -> Float[Tensor, "*rows 1"]:
        """Return σ, by which the norm divides the vectors ``whole``."""
        return (self.centre(whole).square().mean(dim=-1, keepdim=True) + self.eps).sqrt()

    def apply(self, x: Vectors) -> Vectors:
        """Return norm(x), in the dtype of ``x``."""
        normed = self.centre(x) / self.sigma(x)
        normed = normed if self.scale is None else normed * self.scale.to(x.dtype)
        return normed if self.bias is None else normed + self.bias.to(x.dtype)


@without_grad
def read_norm(
    module: nn.Module, inputs: Vectors, outputs: Vectors, name: str = "a norm"
) -> NormParameters:
    """Read the parameters of a LayerNorm or RMSNorm of any class.

    Every known form (with or without the mean, γ or 1 + γ, rounded to float32 or not) is applied to
    some rows of ``inputs``; the form whose result is closest to the module's own ``outputs`` is
    returned.
    """
    wide = torch.promote_types(outputs.dtype, torch.float32)
    own = _weight_and_bias(module)
    if any(tensor is not None and tensor.device.type == "meta" for tensor in own):
        raise UnsupportedModelError(
            f"{name} ({type(module).__name__}): its parameters are kept off the device it runs on "
            "and cannot be read. Load the model without offloading, or ask for: "
            f"{', '.join(PER_HEAD)}."
        )
    weight, bias = (_widened(tensor, wide) for tensor in own)
    # Some classes have ε in their code; torch's RMSNorm may use the ε of the dtype.
    usual = [1e-5, 1e-6, 1e-12, torch.finfo(inputs.dtype).eps, torch.finfo(torch.float32).eps]
    epsilons = _named_epsilons(module) or usual
    offsets = [0.0] if weight is None else [0.0, 1.0]
    axes = 1 if weight is None else weight.dim()
    x, y = (t.reshape(-1, *t.shape[-axes:]) for t in (inputs, outputs))
    rows = (x.isfinite() & y.isfinite()).flatten(1).all(dim=1).nonzero().flatten()
    x, y = (t[rows[:: max(1, len(rows) // 64)]] for t in (x, y))
    gaps: dict[NormParameters, float] = {}
    forms = itertools.product(offsets, (True, False), epsilons, {wide, torch.float32})
    for offset, centred, eps, dtype in forms:
        form = NormParameters(_scale(weight, offset), bias, centred, eps, dtype, offset)
        gap = (form.apply(x.to(form.dtype)) - y).norm()
        if gap <= max(_BOUNDS[form.dtype], _BOUNDS[y.dtype]) * y.norm():
            gaps[form] = float(gap)
    if not gaps:
        raise UnsupportedModelError(
            f"{name} ({type(module).__name__}) is not a LayerNorm or RMSNorm: its output is not "
            "γ(x − mean)/σ + β of its input, with or without the mean, with γ or 1 + γ"
        )
    return min(gaps, key=gaps.__getitem__)


_PARAMETERS: ModuleCache[NormParameters] = ModuleCache()


def norm_of(module: nn.Module, inputs: Vectors, outputs: Vectors, name: str) -> NormParameters:
    """Return `read_norm` of a module; its form is kept until weight, bias or ε change."""
    modes = torch._C._len_torch_function_stack(), torch.is_autocast_enabled(outputs.device.type)
    own = [tensor_state(tensor, contents=False) for tensor in _weight_and_bias(module)]
    state = inputs.dtype, outputs.dtype, outputs.device, modes, own, _named_epsilons(module)
    kept = _PARAMETERS.get(module, state, lambda: read_norm(module, inputs, outputs, name))
    return kept.renewed(module)


def _scale(weight: Tensor | None, offset: float) -> Tensor | None:
    return weight + offset if offset and weight is not None else weight


def _widened(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else tensor.detach().to(dtype)


def _named_epsilons(module: nn.Module) -> list[float]:
    named = [getattr(module, name, None) for name in ("eps", "variance_epsilon", "epsilon")]
    return [eps for eps in named if eps is not None]


def _weight_and_bias(module: nn.Module) -> list[Any]:
    return [getattr(module, name, None) for name in ("weight", "bias")]
