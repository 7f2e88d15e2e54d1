"""Secant slopes of activations, (g(p) − g(b)) / (p − b), stable where p is close to b.

Integrated gradients along a straight path split g(p) − g(b) among the summands of p − b in
proportion to their size, whatever elementwise g is (Kobayashi et al., ICLR 2024). The factor is the
slope of the secant. For a zero baseline, most activations have a closed form. Otherwise the slope
is the quotient where the two points are far apart, and the mean of the derivative between them
where they are close.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from normscope.foundation.shapes import Float

Activation = Callable[[Tensor], Tensor]
NODES = 32  # of Gauss–Legendre; the error is 1e-15 for |p| ≤ 10 and 6e-12 for |p| ≤ 60 (SiLU)


def _gelu_tanh(p: Tensor) -> Tensor:
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (p + 0.044715 * p**3)))


def _tanh(p: Tensor) -> Tensor:
    series = 1 - p**2 / 3 + 2 * p**4 / 15
    near = p.abs() < 1e-3
    return torch.where(near, series, torch.tanh(p) / torch.where(near, torch.ones_like(p), p))


# g(p) / p in closed form, for activations with g(0) = 0.
CLOSED: dict[str, Activation] = {
    "gelu": lambda p: torch.special.ndtr(p),
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": lambda p: torch.sigmoid(1.702 * p),
    "silu": torch.sigmoid,
    "relu": lambda p: (p > 0).to(p.dtype),
    "tanh": _tanh,
    "linear": torch.ones_like,
}
# The activations themselves; `recognise` compares their values with those of a given function.
KNOWN: dict[str, Activation] = {
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda p: torch.nn.functional.gelu(p, approximate="tanh"),
    "quick_gelu": lambda p: p * torch.sigmoid(1.702 * p),
    "silu": torch.nn.functional.silu,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "linear": lambda p: p,
}


def recognise(activation: Activation) -> str | None:
    """Return the name in KNOWN of an activation, or None; compares values on a grid in float64."""
    with torch.no_grad():
        grid = torch.linspace(-12, 12, 97, dtype=torch.float64)
        outputs = activation(grid.clone())
        if outputs.shape != grid.shape:
            return None
        for name, known in KNOWN.items():
            if torch.allclose(outputs, known(grid), rtol=1e-12, atol=1e-14):
                return name
    return None


def secant(
    activation: Activation, p: Float[Tensor, "*any"], base: Float[Tensor, "*any"] | None = None
) -> Float[Tensor, "*any"]:
    """Return (g(p) − g(base)) / (p − base) in float64; ``base`` is zero by default."""
    p = p.double()
    name = recognise(activation)
    if base is None and name is not None:
        return CLOSED[name](p)
    start = torch.zeros_like(p) if base is None else base.double()
    if name == "relu":
        return _relu_secant(p, start)
    difference = p - start
    # The quotient loses digits where the points are close; there the derivative is nearly constant.
    near = difference.abs() < 1e-2 * (1 + start.abs())
    step = torch.where(near, torch.ones_like(p), difference)
    quotient = (activation(p) - activation(start)) / step
    return torch.where(near, mean_derivative(activation, start, p), quotient)


def _relu_secant(p: Tensor, base: Tensor) -> Tensor:
    same = (p > 0) == (base > 0)
    step = torch.where(same, torch.ones_like(p), p - base)
    return torch.where(same, (p > 0).double(), (p.clamp_min(0) - base.clamp_min(0)) / step)


def mean_derivative(activation: Activation, start: Tensor, end: Tensor) -> Tensor:
    """Return ∫₀¹ g'(start + t(end − start)) dt."""
    total = torch.zeros_like(start)
    for node, weight in nodes():
        total += weight * derivative(activation, start + node * (end - start))
    return total


def derivative(activation: Activation, at: Tensor) -> Tensor:
    """Return g', elementwise, by automatic differentiation."""
    with torch.enable_grad():
        at = at.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(activation(at).sum(), at)
    return slope


def nodes() -> list[tuple[float, float]]:
    """Return Gauss–Legendre nodes and weights on [0, 1]."""
    import numpy as np

    x, w = np.polynomial.legendre.leggauss(NODES)
    return [(float(a + 1) / 2, float(b) / 2) for a, b in zip(x, w, strict=True)]


def gated_shares(
    activation: Activation,
    gate: Float[Tensor, "*any"],
    up: Float[Tensor, "*any"],
    gate_base: Float[Tensor, "*any"] | None = None,
    up_base: Float[Tensor, "*any"] | None = None,
) -> tuple[Float[Tensor, "*any"], Float[Tensor, "*any"]]:
    """Return A and B with c_j = up_j·A + gate_j·B for the product g(gate)·up, in float64.

    Along the straight path from (gate_base, up_base), A = ∫ g(gate(t)) dt and
    B = ∫ g'(gate(t))·up(t) dt. From zero, with θ(u) = g(u)/u, both come from one integral
    K(u) = ∫ t·θ(tu) dt: A = u·K(u) and B = up·(θ(u) − K(u)).
    """
    gate, up = gate.double(), up.double()
    name = recognise(activation)
    if gate_base is None and up_base is None and name is not None:
        slope = CLOSED[name]
        integral = sum((w * t * slope(t * gate) for t, w in nodes()), torch.zeros_like(gate))
        return gate * integral, up * (slope(gate) - integral)
    g0 = torch.zeros_like(gate) if gate_base is None else gate_base.double()
    u0 = torch.zeros_like(up) if up_base is None else up_base.double()
    first, second = torch.zeros_like(gate), torch.zeros_like(gate)
    for node, weight in nodes():
        point = g0 + node * (gate - g0)
        first += weight * activation(point)
        second += weight * derivative(activation, point) * (u0 + node * (up - u0))
    return first, second
