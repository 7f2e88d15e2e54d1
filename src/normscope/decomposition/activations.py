"""The share of an activation: (g(p) − g(b)) / (p − b), without dividing where it would hurt.

Integrated gradients along a straight path split g(p) − g(b) among the summands of p − b in
proportion to their size, whatever elementwise g is (Kobayashi et al., ICLR 2024). The factor is the
slope of the secant. From a zero baseline most activations have it in closed form; elsewhere it is a
quotient where the two points are well apart and the mean of the derivative where they are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from normscope.foundation.shapes import Float

Activation = Callable[[Tensor], Tensor]
NODES = 32  # Gauss–Legendre; 1e-15 for |p| ≤ 10 and 6e-12 for |p| ≤ 60 (SiLU)


def _gelu_tanh(p: Tensor) -> Tensor:
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (p + 0.044715 * p**3)))


def _tanh(p: Tensor) -> Tensor:
    series = 1 - p**2 / 3 + 2 * p**4 / 15
    near = p.abs() < 1e-3
    return torch.where(near, series, torch.tanh(p) / torch.where(near, torch.ones_like(p), p))


# g(p) / p for the activations with g(0) = 0 that have it without a division.
CLOSED: dict[str, Activation] = {
    "gelu": lambda p: torch.special.ndtr(p),
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": lambda p: torch.sigmoid(1.702 * p),
    "silu": torch.sigmoid,
    "relu": lambda p: (p > 0).to(p.dtype),
    "tanh": _tanh,
    "linear": torch.ones_like,
}
# What each of them is, to recognise an activation by what it does.
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
    """The name in KNOWN of an activation, by its values on a grid in float64; None if new."""
    with torch.no_grad():
        grid = torch.linspace(-12, 12, 97, dtype=torch.float64)
        made = activation(grid.clone())
        if made.shape != grid.shape:
            return None
        for name, known in KNOWN.items():
            if torch.allclose(made, known(grid), rtol=1e-12, atol=1e-14):
                return name
    return None


def secant(
    activation: Activation, p: Float[Tensor, "*any"], base: Float[Tensor, "*any"] | None = None
) -> Float[Tensor, "*any"]:
    """(g(p) − g(base)) / (p − base), in float64; ``base`` None is zero."""
    p = p.double()
    name = recognise(activation)
    if base is None and name is not None:
        return CLOSED[name](p)
    start = torch.zeros_like(p) if base is None else base.double()
    if name == "relu":
        return _relu_secant(p, start)
    difference = p - start
    # Far apart, the quotient loses few digits; near, the derivative is nearly constant.
    near = difference.abs() < 1e-2 * (1 + start.abs())
    step = torch.where(near, torch.ones_like(p), difference)
    quotient = (activation(p) - activation(start)) / step
    return torch.where(near, mean_derivative(activation, start, p), quotient)


def _relu_secant(p: Tensor, base: Tensor) -> Tensor:
    same = (p > 0) == (base > 0)
    step = torch.where(same, torch.ones_like(p), p - base)
    return torch.where(same, (p > 0).double(), (p.clamp_min(0) - base.clamp_min(0)) / step)


def mean_derivative(activation: Activation, start: Tensor, end: Tensor) -> Tensor:
    """∫₀¹ g'(start + t(end − start)) dt."""
    total = torch.zeros_like(start)
    for node, weight in nodes():
        total += weight * derivative(activation, start + node * (end - start))
    return total


def derivative(activation: Activation, at: Tensor) -> Tensor:
    """g', elementwise, by automatic differentiation."""
    with torch.enable_grad():
        at = at.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(activation(at).sum(), at)
    return slope


def nodes() -> list[tuple[float, float]]:
    """Gauss–Legendre nodes and weights on [0, 1]."""
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
    """Factors A, B with c_j = up_j·A + gate_j·B for the product g(gate)·up, in float64.

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
        here = g0 + node * (gate - g0)
        first += weight * activation(here)
        second += weight * derivative(activation, here) * (u0 + node * (up - u0))
    return first, second
