"""Linear maps that stand for the operations of a model, at the values of one pass.

An operator computes the value of an operation just as the model does, so that a pass through the
linearised network is bit for bit the model's own. Backwards, `pull` takes a cotangent through the
linear map; forwards, `push` takes component vectors through it.

The operators of the secant network see a batch of pairs: the first half of the rows are the inputs,
the second half their baselines. Cotangents belong to the differences; they are kept in the first
half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from normscope.decomposition.activations import Activation, derivative, nodes, recognise
from normscope.errors import UnsupportedModelError
from normscope.kernels.backend import triton_for

Cotangents = tuple[Tensor | None, ...]
Saved = tuple[Any, ...]


class Operator:
    """A linear map with the value of an operation.

    Attributes:
        run: returns the value of the operation and the tensors that the map consists of, given
            the states; a method of every operator.
    """

    run: Callable[..., tuple[Tensor, Saved]]

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        """Return the cotangents of the states, given that of the value."""
        raise NotImplementedError

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        """Return the component of the value, given those of the states."""
        raise NotImplementedError

    def __call__(self, *states: Tensor) -> Tensor:
        value: Tensor = _Linearized.apply(self, *states)
        return value


class _Linearized(torch.autograd.Function):
    """An operation with an operator's map in place of its derivative."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, *states: Tensor) -> Tensor:
        value, saved = operator.run(*states)
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


@contextmanager
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


def _halves(*tensors: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the rows of the inputs and those of the baselines, of each tensor."""
    return [(t[: len(t) // 2], t[len(t) // 2 :]) for t in tensors]


def _first_half(cotangent: Tensor) -> Tensor:
    """Return cotangents of differences as cotangents of pairs."""
    return torch.cat([cotangent, torch.zeros_like(cotangent)])


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


class SecantSlope(Operator):
    """An elementwise function of pairs: the slope of the line through both points."""

    NEAR = 1e-3  # closer points lose digits in the quotient, and the derivative hardly changes

    def __init__(self, function: Activation, value: Tensor | None = None) -> None:
        self.function, self.value = function, value

    def run(self, u: Tensor) -> tuple[Tensor, Saved]:
        value = self.function(u) if self.value is None else self.value
        self.value = None
        return value, (u, value)

    def factor(self, saved: Saved) -> Tensor:
        """Return the slopes, in float64."""
        ((end, start),) = _halves(saved[0].double())
        step = end - start
        # Between 16- and 32-bit numbers a quotient in float64 loses no digits.
        near = step.abs() < (self.NEAR if saved[0].dtype == torch.float64 else 1e-9)
        quotient = self._difference(end, start) / torch.where(near, 1, step)
        return torch.where(near, self._mean_derivative(start, step), quotient)

    def _difference(self, end: Tensor, start: Tensor) -> Tensor:
        return self.function(end) - self.function(start)

    def _mean_derivative(self, start: Tensor, step: Tensor) -> Tensor:
        if recognise(self.function) == "relu":  # not smooth: the quotient is exact at any distance
            quotient = self._difference(start + step, start) / torch.where(step == 0, 1, step)
            return torch.where(step == 0, (start > 0).double(), quotient)
        # Three points of Gauss: the error is of order six in the step.
        away = math.sqrt(3 / 5) / 2
        points = ((0.5 - away, 5 / 18), (0.5, 8 / 18), (0.5 + away, 5 / 18))
        return sum(
            (weight * derivative(self.function, start + at * step) for at, weight in points),
            torch.zeros_like(start),
        )

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        ((first, _),) = _halves(cotangent)
        return (_first_half((first * self.factor(saved)).to(saved[0].dtype)),)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        (component,) = components
        assert component is not None
        ((first, _),) = _halves(component)
        return _first_half((first * self.factor(saved)).to(saved[1].dtype))


# ---- products


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


class Midpoint(Operator):
    """A product of two states of pairs: Δ(ab) = b̄·Δa + ā·Δb with the means of both points."""

    def __init__(self, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.product = product

    def run(self, a: Tensor, b: Tensor) -> tuple[Tensor, Saved]:
        return self.product(a, b), (a, b)

    def _refuse_mixed_rows(self, saved: Saved) -> None:
        a, b = saved
        if a.dim() == b.dim() and len(a) != len(b) and 1 not in (len(a), len(b)):
            raise UnsupportedModelError(
                "the model multiplies rows of the batch with each other (as contrastive models of "
                'images and texts do), so pairs cannot be told apart; use method="frozen"'
            )

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        self._refuse_mixed_rows(saved)
        (first, _), *pairs = _halves(cotangent, *saved)
        means = tuple((end + start) / 2 for end, start in pairs)
        return tuple(_first_half(grad) for grad in vjp(self.product, means, first))

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        self._refuse_mixed_rows(saved)
        means = [(end + start) / 2 for end, start in _halves(*saved)]
        total: Tensor | None = None
        for place, component in enumerate(components):
            if component is not None:
                factors = list(means)
                factors[place] = component[: len(component) // 2]
                product = self.product(*factors)
                total = product if total is None else total + product
        assert total is not None
        return _first_half(total)


class SecantQuotient(Midpoint):
    """A quotient of two states of pairs: the midpoint rule for a · 1/b, Δ(1/b) = −Δb / (b₀b₁)."""

    def _factors(self, saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
        (a1, a0), (b1, b0) = _halves(*saved)
        return (1 / b1 + 1 / b0) / 2, (a1 + a0) / 2, -1 / (b1 * b0)

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        inverse, mean, slope = self._factors(saved)
        ((first, _),) = _halves(cotangent)
        (a, _), (b, _) = _halves(*saved)
        return (
            _first_half((first * inverse).sum_to_size(a.shape)),
            _first_half((first * mean * slope).sum_to_size(b.shape)),
        )

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        inverse, mean, slope = self._factors(saved)
        total = torch.zeros((), dtype=inverse.dtype, device=inverse.device)
        for component, factor in zip(components, (inverse, mean * slope), strict=True):
            if component is not None:
                total = total + component[: len(component) // 2] * factor
        return _first_half(total)


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


class SecantNorm(HeldNorm):
    """A norm of pairs: Δ(cr) = r̄·Δc + c̄·Δr, where r is the inverse of the scale."""

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        return self.norm(x), (x,)

    def _factors(self, saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
        """Return r̄, c₀ + c₁, and the slope of r over the variance."""
        view = self.grouped(saved[0]).to(wide(saved[0].dtype))
        if self.centred:
            view = view - view.mean(-1, keepdim=True)
        root = (view.square().mean(-1, keepdim=True) + self.eps).sqrt()
        (c1, c0), (s1, s0) = _halves(view, root)
        return (1 / s1 + 1 / s0) / 2, c1 + c0, -1 / (s1 * s0 * (s1 + s0))

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        inverse, both, slope = self._factors(saved)
        scaled = cotangent if self.scale is None else cotangent * self.scale
        view = self.grouped(scaled).to(both.dtype)
        view = view[: len(view) // 2]
        along = (both / 2 * view).sum(-1, keepdim=True)
        through = inverse * view + both * slope * along / both.shape[-1]
        if self.centred:
            through = through - through.mean(-1, keepdim=True)
        half = cotangent[: len(cotangent) // 2]
        return (_first_half(through.reshape(half.shape).to(cotangent.dtype)),)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        inverse, both, slope = self._factors(saved)
        (component,) = components
        assert component is not None
        half = component[: len(component) // 2]
        view = self.grouped(component).to(both.dtype)
        view = view[: len(view) // 2]
        if self.centred:
            view = view - view.mean(-1, keepdim=True)
        variance = (both * view).mean(-1, keepdim=True)
        through = (inverse * view + both / 2 * slope * variance).reshape(half.shape)
        if self.scale is not None:
            through = through * self.scale
        return _first_half(through.to(component.dtype))


# ---- softmax and attention of pairs


def _logarithmic_mean(scores: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return p̄, L and w of a softmax of pairs: Δp = L (Δs − Σ w Δs)."""
    masked = (scores == -torch.inf).all(dim, keepdim=True)  # a query of the padding: weights of 0
    logs = torch.log_softmax(scores, dim).masked_fill(masked, -torch.inf)
    (p1, p0), (l1, l0) = _halves(logs.exp(), logs)
    ratio = torch.nan_to_num(l1 - l0, nan=0.0, posinf=0.0, neginf=0.0)  # both masked: −inf − −inf
    small = ratio.abs() < 1e-3
    series = (p0 * p1).sqrt() * (1 + ratio.square() / 24)
    mean = torch.where(small, series, (p1 - p0) / torch.where(small, 1, ratio))
    total = mean.sum(dim, keepdim=True)
    return (p1 + p0) / 2, mean, mean / torch.where(total == 0, 1, total)


class SecantSoftmax(Operator):
    """A softmax of pairs, by the logarithmic mean of both points."""

    def __init__(self, softmax: Callable[[Tensor], Tensor], dim: int) -> None:
        self.softmax, self.dim = softmax, dim

    def run(self, scores: Tensor) -> tuple[Tensor, Saved]:
        return self.softmax(scores), (scores,)

    def _factors(self, saved: Saved) -> tuple[Tensor, Tensor]:
        scores = saved[0].to(wide(saved[0].dtype))
        return _logarithmic_mean(scores, self.dim)[1:]

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        mean, weights = self._factors(saved)
        ((first, _),) = _halves(cotangent)
        scaled = mean * first
        through = scaled - weights * scaled.sum(self.dim, keepdim=True)
        return (_first_half(through.to(saved[0].dtype)),)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        mean, weights = self._factors(saved)
        (component,) = components
        assert component is not None
        ((first, _),) = _halves(component)
        return _first_half(mean * (first - (weights * first).sum(self.dim, keepdim=True)))


class SecantLogSumExp(SecantSoftmax):
    """The logarithm of a sum of exponentials, of pairs: Δ = Σ w Δs."""

    def __init__(self, function: Callable[[Tensor], Tensor], dim: int, keepdim: bool) -> None:
        super().__init__(function, dim)
        self.keepdim = keepdim

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        _, weights = self._factors(saved)
        ((first, _),) = _halves(cotangent)
        through = weights * (first if self.keepdim else first.unsqueeze(self.dim))
        return (_first_half(through.to(saved[0].dtype)),)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        _, weights = self._factors(saved)
        (component,) = components
        assert component is not None
        ((first, _),) = _halves(component)
        return _first_half((weights * first).sum(self.dim, keepdim=self.keepdim))


class SecantExtreme(Operator):
    """The largest or smallest entry along a dimension, of pairs.

    If both points have it at another place, the difference of the extremes lies between the
    differences at these two places, and is a weighted mean of them.
    """

    def __init__(self, dim: int, keepdim: bool, largest: bool) -> None:
        self.dim, self.keepdim, self.largest = dim, keepdim, largest

    def run(self, x: Tensor) -> tuple[Tensor, Saved]:
        extreme = x.max if self.largest else x.min
        value, places = extreme(self.dim, keepdim=True)
        (p1, p0), (e1, e0), (x1, x0) = _halves(places, value, x)
        step = x1 - x0
        at_end, at_start = step.gather(self.dim, p1), step.gather(self.dim, p0)
        apart = at_end != at_start
        part = torch.where(
            apart, (e1 - e0 - at_start) / torch.where(apart, at_end - at_start, 1), 0.5
        )
        like = x1.new_zeros(()).expand(x1.shape)
        return value if self.keepdim else value.squeeze(self.dim), (part, p1, p0, like)

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        part, end, start, like = saved
        ((first, _),) = _halves(cotangent if self.keepdim else cotangent.unsqueeze(self.dim))
        through = torch.zeros_like(like).scatter_add(self.dim, end, first * part)
        return (_first_half(through.scatter_add(self.dim, start, first * (1 - part))),)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        part, end, start, _ = saved
        (component,) = components
        assert component is not None
        ((first, _),) = _halves(component)
        mean = part * first.gather(self.dim, end) + (1 - part) * first.gather(self.dim, start)
        return _first_half(mean if self.keepdim else mean.squeeze(self.dim))
