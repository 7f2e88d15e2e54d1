"""Linear maps that stand for the operations of a model between two inputs, exactly.

The operators of the secant network see a batch of pairs: the first half of the rows are the inputs,
the second half their baselines. Cotangents belong to the differences; they are kept in the first
half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from normscope.errors import UnsupportedModelError
from normscope.linearisation.activations import Activation, derivative, recognise
from normscope.linearisation.operators import (
    Cotangents,
    HeldNorm,
    Operator,
    Saved,
    vjp,
    wide,
)


def halves(*tensors: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the rows of the inputs and those of the baselines, of each tensor."""
    return [(t[: len(t) // 2], t[len(t) // 2 :]) for t in tensors]


def first_half(cotangent: Tensor) -> Tensor:
    """Return cotangents of differences as cotangents of pairs."""
    return torch.cat([cotangent, torch.zeros_like(cotangent)])


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
        ((end, start),) = halves(saved[0].double())
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
        ((first, _),) = halves(cotangent)
        return (first_half((first * self.factor(saved)).to(saved[0].dtype)),)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        (component,) = components
        assert component is not None
        ((first, _),) = halves(component)
        return first_half((first * self.factor(saved)).to(saved[1].dtype))


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
        (first, _), *pairs = halves(cotangent, *saved)
        means = tuple((end + start) / 2 for end, start in pairs)
        return tuple(first_half(grad) for grad in vjp(self.product, means, first))

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        self._refuse_mixed_rows(saved)
        means = [(end + start) / 2 for end, start in halves(*saved)]
        total: Tensor | None = None
        for place, component in enumerate(components):
            if component is not None:
                factors = list(means)
                factors[place] = component[: len(component) // 2]
                product = self.product(*factors)
                total = product if total is None else total + product
        assert total is not None
        return first_half(total)


class SecantQuotient(Midpoint):
    """A quotient of two states of pairs: the midpoint rule for a · 1/b, Δ(1/b) = −Δb / (b₀b₁)."""

    def _factors(self, saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
        (a1, a0), (b1, b0) = halves(*saved)
        return (1 / b1 + 1 / b0) / 2, (a1 + a0) / 2, -1 / (b1 * b0)

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        inverse, mean, slope = self._factors(saved)
        ((first, _),) = halves(cotangent)
        (a, _), (b, _) = halves(*saved)
        return (
            first_half((first * inverse).sum_to_size(a.shape)),
            first_half((first * mean * slope).sum_to_size(b.shape)),
        )

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        inverse, mean, slope = self._factors(saved)
        total = torch.zeros((), dtype=inverse.dtype, device=inverse.device)
        for component, factor in zip(components, (inverse, mean * slope), strict=True):
            if component is not None:
                total = total + component[: len(component) // 2] * factor
        return first_half(total)


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
        (c1, c0), (s1, s0) = halves(view, root)
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
        return (first_half(through.reshape(half.shape).to(cotangent.dtype)),)

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
        return first_half(through.to(component.dtype))


def logarithmic_mean(scores: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return p̄, L and w of a softmax of pairs: Δp = L (Δs − Σ w Δs)."""
    masked = (scores == -torch.inf).all(dim, keepdim=True)  # a query of the padding: weights of 0
    logs = torch.log_softmax(scores, dim).masked_fill(masked, -torch.inf)
    (p1, p0), (l1, l0) = halves(logs.exp(), logs)
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
        return logarithmic_mean(scores, self.dim)[1:]

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        mean, weights = self._factors(saved)
        ((first, _),) = halves(cotangent)
        scaled = mean * first
        through = scaled - weights * scaled.sum(self.dim, keepdim=True)
        return (first_half(through.to(saved[0].dtype)),)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        mean, weights = self._factors(saved)
        (component,) = components
        assert component is not None
        ((first, _),) = halves(component)
        return first_half(mean * (first - (weights * first).sum(self.dim, keepdim=True)))


class SecantLogSumExp(SecantSoftmax):
    """The logarithm of a sum of exponentials, of pairs: Δ = Σ w Δs."""

    def __init__(self, function: Callable[[Tensor], Tensor], dim: int, keepdim: bool) -> None:
        super().__init__(function, dim)
        self.keepdim = keepdim

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        _, weights = self._factors(saved)
        ((first, _),) = halves(cotangent)
        through = weights * (first if self.keepdim else first.unsqueeze(self.dim))
        return (first_half(through.to(saved[0].dtype)),)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        _, weights = self._factors(saved)
        (component,) = components
        assert component is not None
        ((first, _),) = halves(component)
        return first_half((weights * first).sum(self.dim, keepdim=self.keepdim))


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
        (p1, p0), (e1, e0), (x1, x0) = halves(places, value, x)
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
        ((first, _),) = halves(cotangent if self.keepdim else cotangent.unsqueeze(self.dim))
        through = torch.zeros_like(like).scatter_add(self.dim, end, first * part)
        return (first_half(through.scatter_add(self.dim, start, first * (1 - part))),)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        part, end, start, _ = saved
        (component,) = components
        assert component is not None
        ((first, _),) = halves(component)
        mean = part * first.gather(self.dim, end) + (1 - part) * first.gather(self.dim, start)
        return first_half(mean if self.keepdim else mean.squeeze(self.dim))
