"""What a normalisation layer computes, read off a module of any class."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from normscope.decomposition.scopes import HEAD_MAPS
from normscope.errors import UnsupportedModelError
from normscope.foundation.shapes import Float

Vectors = Float[Tensor, "*rows hidden"]
_BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True, eq=False)
class NormParameters:
    """norm(x) = scale ⊙ (x − mean) / σ + bias, without the mean where it is not centred."""

    scale: Float[Tensor, "*shape"] | None  # γ, the unit offset of Gemma's norms included
    bias: Float[Tensor, "*shape"] | None  # β
    centred: bool
    eps: float
    dtype: torch.dtype  # of the computation: many norms round a float64 model's states to float32

    def centre(self, x: Vectors) -> Vectors:
        """``x`` without its mean, if the norm takes that off."""
        return x - x.mean(dim=-1, keepdim=True) if self.centred else x

    def sigma(self, whole: Vectors) -> Float[Tensor, "*rows 1"]:
        """What the norm divides ``whole`` vectors by."""
        return (self.centre(whole).square().mean(dim=-1, keepdim=True) + self.eps).sqrt()

    def apply(self, x: Vectors) -> Vectors:
        """The norm itself, in the dtype of ``x``."""
        made = self.centre(x) / self.sigma(x)
        made = made if self.scale is None else made * self.scale.to(x.dtype)
        return made if self.bias is None else made + self.bias.to(x.dtype)


@torch.no_grad()
def read_norm(
    module: nn.Module, given: Vectors, made: Vectors, name: str = "a norm"
) -> NormParameters:
    """Read the parameters off a LayerNorm or RMSNorm of any class, which made ``made``.

    The forms that norms have (with or without the mean, γ or 1 + γ, rounded to float32 or not) are
    tried on some of what it was given; the one that comes nearest to what it made is taken.
    """
    wide = torch.promote_types(made.dtype, torch.float32)
    own = [getattr(module, which, None) for which in ("weight", "bias")]
    if any(tensor is not None and tensor.device.type == "meta" for tensor in own):
        raise UnsupportedModelError(
            f"{name} ({type(module).__name__}): its parameters are kept off the device it runs on "
            "and cannot be read. Load the model without offloading, or ask for: "
            f"{', '.join(HEAD_MAPS)}."
        )
    weight, bias = (None if tensor is None else tensor.detach().to(wide) for tensor in own)
    named = [getattr(module, which, None) for which in ("eps", "variance_epsilon", "epsilon")]
    # Some have ε in their code, and torch's RMSNorm may take the dtype's.
    usual = [1e-5, 1e-6, 1e-12, torch.finfo(given.dtype).eps, torch.finfo(torch.float32).eps]
    epsilons = [eps for eps in named if eps is not None] or usual
    scales = [None] if weight is None else [weight, 1 + weight]
    axes = 1 if weight is None else weight.dim()
    x, y = (t.reshape(-1, *t.shape[-axes:]) for t in (given, made))
    rows = (x.isfinite() & y.isfinite()).flatten(1).all(dim=1).nonzero().flatten()
    x, y = (t[rows[:: max(1, len(rows) // 64)]] for t in (x, y))
    gaps: dict[NormParameters, float] = {}
    for free in itertools.product(scales, [bias], (True, False), epsilons, {wide, torch.float32}):
        form = NormParameters(*free)
        gap = (form.apply(x.to(form.dtype)) - y).norm()
        if gap <= max(_BOUNDS[form.dtype], _BOUNDS[y.dtype]) * y.norm():
            gaps[form] = float(gap)
    if not gaps:
        raise UnsupportedModelError(
            f"{name} ({type(module).__name__}) is no LayerNorm or RMSNorm: γ(x − mean)/σ + β, with "
            "or without the mean, with γ or 1 + γ, is not what it made of its input"
        )
    return min(gaps, key=gaps.__getitem__)


# What was read off a module, the state it was in, and its parameters then.
_READ: WeakKeyDictionary[nn.Module, tuple[Any, list[Any], NormParameters]] = WeakKeyDictionary()


def norm_of(module: nn.Module, given: Vectors, made: Vectors, name: str) -> NormParameters:
    """The same, remembered for as long as the module holds the same parameters unchanged."""
    own = [getattr(module, which, None) for which in ("weight", "bias")]
    counted = not any(t is not None and t.is_inference() for t in own)
    versions = [t._version for t in own if t is not None] if counted else None
    modes = torch._C._len_torch_function_stack(), torch.is_autocast_enabled(made.device.type)
    state = given.dtype, made.dtype, made.device, versions, modes
    state0, own0, found = _READ.get(module, (None, [], None))
    if found is None or versions is None or state0 != state or any(map(_differ, own, own0)):
        found = read_norm(module, given, made, name)
        _READ[module] = state, own, found
    return found


def _differ(a: Any, b: Any) -> bool:
    return a is not b
