"""Linear maps that stand for the operations of a model, at the values of one pass.

An operator computes the value of an operation just as the model does, so that a pass through the
linearised network is bit for bit the model's own. Backwards, `pull` takes a cotangent through the
linear map; forwards, `push` takes component vectors through it.

The operators of the secant network are in `secants.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from normscope.foundation.interrupts import shielded
from normscope.kernels.backend import triton_for
from normscope.linearisation.activations import Activation, derivative, nodes

Cotangents = tuple[Tensor | None, ...]
Saved = tuple[Any, ...]


class Operator:
    """A linear map with the value of an operation.

    Attributes:
        run: returns the value of the operation and the tensors that the map consists of, given
            the states; a method of every operator.
        pull: returns the cotangents of the states, given those tensors and the cotangent of the
            value; a method of every operator.
        push: returns the component of the value, given those tensors and the components of the
            states; a method of every operator that is its own map (`Tangent` is not).
    """

    run: Callable[..., tuple[Tensor, Saved]]
    pull: Callable[[Saved, Tensor], Cotangents]
    push: Callable[[Saved, Sequence[Tensor | None]], Tensor]

    def __call__(self, *states: Tensor) -> Tensor:
        value: Tensor = _Linearized.apply(self, *states)
        return value


class _Linearized(torch.autograd.Function):
    """An operation with an operator's map in place of its derivative."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, *states: Tensor) -> Tensor:
        value, saved = operator.run(*states)
        value = unaliased(value)  # autograd refuses changes in place of a view that is made here
        ctx.operator = operator
        # Saved so that checkpointing can drop them and compute them again.
        ctx.save_for_backward(*saved)
        if forward_ad._current_level >= 0:  # these would be kept in any case
            ctx.save_for_forward(*saved)
        return value

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.operator.pull(ctx.saved_tensors, cotangent))

    @staticmethod
    def jvp(ctx: Any, _: Any, *components: Tensor | None) -> Tensor:
        return ctx.operator.push(ctx.saved_tensors, components)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which factors are computed: float32 for 16-bit types."""
    return torch.promote_types(dtype, torch.float32)


@shielded
def own_graph() -> Iterator[None]:
    """Keep the hooks of checkpointing away from a graph that does not outlast an operation."""
    # An output that its own graph keeps as it is would never be freed.
    with saved_tensors_hooks(Tensor.detach, lambda tensor: tensor):
        yield


def fused(*tensors: Tensor) -> ModuleType | None:
    """Return the kernels that read each tensor once, where they can be used."""
    if any(not t.is_cuda or t.dtype == torch.float64 for t in tensors):
        return None
    return triton_for("auto", tensors[0].device)


# ---- elementwise functions


@dataclass(frozen=True)
class Origin:
    """The value and the derivative of an elementwise function at zero."""

    value: float
    slope: float

    @classmethod
    def of(cls, function: Activation) -> Origin:
        """Evaluate a function at zero."""
        zero = torch.zeros(1, dtype=torch.float64)
        with torch.inference_mode(False), own_graph():
            return cls(float(function(zero)), float(derivative(function, zero)))


class Slope(Operator):
    """An elementwise function as u · θ, θ = (g(u) − g(0)) / u, and its limit at zero."""

    def __init__(self, function: Activation, origin: Origin, value: Tensor | None = None) -> None:
        self.function, self.origin, self.value = function, origin, value

    def run(self, u: Tensor) -> tuple[Tensor, Saved]:
        value = self.function(u) if self.value is None else self.value
        self.value = None  # kept by the graph alone, which frees it
        return value, (u, value)

    def factor(self, saved: Saved) -> Tensor:
        """Return θ."""
        u, value = (t.to(wide(t.dtype)) for t in saved)
        zero = u == 0
        rise = value - self.origin.value if self.origin.value else value
        return torch.where(zero, self.origin.slope, rise / torch.where(zero, 1, u))

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        kernels = fused(*saved, cotangent)
        if kernels is not None:
            origin = self.origin
            return (kernels.slope_cotangents(*saved, cotangent, origin.value, origin.slope),)
        slope = self.factor(saved)
        return ((cotangent * slope).to(saved[0].dtype),)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        (component,) = components
        assert component is not None
        return (component * self.factor(saved)).to(saved[1].dtype)


# ---- products


class LinearMap(Operator):
    """A function that is linear in its state, where torch cannot take components through it."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        self.zeros = x.new_zeros(()).expand(x.shape)
        return self.function(x), ()

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        return vjp(self.function, (self.zeros,), cotangent)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        (component,) = components
        assert component is not None
        return self.function(component)


class Bilinear(Operator):
    """A product of two states; each gets its part of the product as its linear map."""

    def __init__(
        self, product: Callable[[Tensor, Tensor], Tensor], parts: tuple[Any, Any] = (0.5, 0.5)
    ) -> None:
        self.product, self.parts = product, parts

    def run(self, a: Tensor, b: Tensor) -> tuple[Tensor, Saved]:
        return self.product(a, b), (a, b)

    def _factors(self, saved: Saved) -> tuple[Tensor, Tensor]:
        a, b = saved
        return a, b

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        a, b = self._factors(saved)
        grads = vjp(self.product, (a, b), cotangent)
        return tuple(
            (part * grad).to(state.dtype)
            for part, grad, state in zip(self.parts, grads, saved, strict=True)
        )

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        a, b = self._factors(saved)
        total = torch.zeros((), dtype=a.dtype, device=a.device)
        if components[0] is not None:
            total = total + self.product(components[0] * self.parts[0], b)
        if components[1] is not None:
            total = total + self.product(a, components[1] * self.parts[1])
        return total


class ElementwiseProduct(Bilinear):
    """a ⊙ b, with parts that may be tensors."""

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        a, b = saved
        kernels = fused(a, b, cotangent)
        if kernels is not None and a.shape == b.shape and not isinstance(self.parts[0], Tensor):
            grads: tuple[Tensor, Tensor] = kernels.product_cotangents(a, b, cotangent, *self.parts)
            return grads
        grads = (cotangent * b * self.parts[0], cotangent * a * self.parts[1])
        return tuple(
            grad.sum_to_size(state.shape).to(state.dtype)
            for grad, state in zip(grads, saved, strict=True)
        )


class Tangent(Operator):
    """Any function, by its derivative; what that leaves of the value is reported as an offset.

    Args:
        function: the function of the states.
        parts: a factor for the cotangent of each state.
        live: whether each of them is a state; the share of a constant is part of the offset.
        report: called in a backward pass with the offset's inner products, unsummed: tensors whose
            sum is ⟨value, cotangent⟩ − Σ ⟨state, its cotangent⟩.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        parts: Sequence[float],
        live: Sequence[bool],
        report: Callable[[list[Tensor]], None],
    ) -> None:
        self.function, self.parts, self.live, self.report = function, parts, live, report

    def run(self, *states: Tensor) -> tuple[Tensor, Saved]:
        return self.function(*states), states

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        with torch.enable_grad():
            states = [state.detach().requires_grad_() for state in saved]
            value = self.function(*states)
        grads = torch.autograd.grad(value, states, cotangent, allow_unused=True)
        scaled = [
            torch.zeros_like(state) if grad is None else part * grad
            for part, grad, state in zip(self.parts, grads, saved, strict=True)
        ]
        products = [inner(value.detach(), cotangent)]
        products += [
            -inner(state, grad)
            for state, grad, live in zip(saved, scaled, self.live, strict=True)
            if live
        ]
        self.report(products)
        return tuple(scaled)


def unaliased(state: Tensor) -> Tensor:
    """Return a state that is no view of another for autograd, without a copy.

    A view that is changed in place gets a new history, in which hooks on the old one do not run.
    """
    return torch.ops.aten._unsafe_view(state, state.shape) if state._is_view() else state


def inner(values: Tensor, cotangents: Tensor) -> Tensor:
    """Return the products of values and cotangents, in float64; 0 where the cotangent is."""
    # A masked score is −inf and has the cotangent 0.
    return torch.where(cotangents == 0, 0, values.double() * cotangents.double())


def vjp(
    function: Callable[..., Tensor], points: Sequence[Tensor], cotangent: Tensor
) -> tuple[Tensor, ...]:
    """Return the cotangents of a function's arguments."""
    with torch.enable_grad():
        leaves = [point.detach().requires_grad_() for point in points]
        value = function(*leaves)
    return torch.autograd.grad(value, leaves, cotangent.to(value.dtype))


def path_parts(activation: Activation, origin: Origin, u: Tensor) -> Tensor:
    """Return K(u)/θ(u), K(u) = ∫₀¹ t θ(tu) dt: the part of the factor that is not the gate's.

    On the straight path from zero to (u, v), the product g(u)·v changes by this part through v, and
    by the rest through u.
    """
    u = u.double()

    def slope(points: Tensor) -> Tensor:
        zero = points == 0
        return torch.where(zero, origin.slope, activation(points) / torch.where(zero, 1, points))

    whole = slope(u)
    integral = sum((w * t * slope(t * u) for t, w in nodes()), torch.zeros_like(u))
    return torch.where(whole == 0, 0.5, integral / torch.where(whole == 0, 1, whole))


# ---- norms


class HeldNorm(Operator):
    """A norm over the last dimensions, or over groups of channels, with its scale held.

    Args:
        norm: the function, of the state alone.
        scale: the trained factor γ, broadcast against the state, or None.
        grouped: how a state is viewed so that a norm is over its last dimension.
        eps: the constant under the root.
        centred: whether the mean is subtracted (RMS norms do not).
    """

    def __init__(
        self,
        norm: Callable[[Tensor], Tensor],
        scale: Tensor | None,
        grouped: Callable[[Tensor], Tensor],
        eps: float,
        centred: bool,
    ) -> None:
        self.norm, self.scale, self.grouped = norm, scale, grouped
        self.eps, self.centred = eps, centred

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        view = self.grouped(x).to(wide(x.dtype))
        if self.centred:
            variance = view.var(-1, correction=0, keepdim=True)
        else:
            variance = view.square().mean(-1, keepdim=True)
        return self.norm(x), (torch.rsqrt(variance + self.eps),)

    def _through(self, saved: Saved, vectors: Tensor) -> Tensor:
        """Centre and scale; this map is its own transpose."""
        view = self.grouped(vectors).to(saved[0].dtype)
        if self.centred:
            view = view - view.mean(-1, keepdim=True)
        return (view * saved[0]).reshape(vectors.shape)

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        scaled = cotangent if self.scale is None else cotangent * self.scale
        return (self._through(saved, scaled).to(cotangent.dtype),)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        (component,) = components
        assert component is not None
        through = self._through(saved, component)
        return (through if self.scale is None else through * self.scale).to(component.dtype)
