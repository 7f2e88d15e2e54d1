"""Methods that read the model's plain gradients at its embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.attribution.account import RowShares, SourceShares
from normscope.attribution.methods.call import MethodCall
from normscope.attribution.passes import Setup, pairs
from normscope.capture.layers import layers_of
from normscope.linearisation.network import Network, Source
from normscope.linearisation.plain import Moved, PlainNetwork
from normscope.linearisation.rules import RULES
from normscope.linearisation.trace import Trace, Tracer

PARTS = ("word", "state")  # what is moved, and read where a gradient has no parts


@dataclass(frozen=True)
class Gradients:
    """One forward pass, and one backward pass for each step.

    Attributes:
        values: (row, step).
        sources: the embeddings.
        gradients: for each source the gradients, (step, …), or None.
        trace: the attention calls and their cotangents, if they were watched.
    """

    values: Tensor
    sources: list[Source]
    gradients: list[Tensor | None]
    trace: Trace | None = None


def gradients_of(
    call: MethodCall, inputs: Mapping[str, Any], *, moved: Moved | None = None, trace: bool = False
) -> Gradients:
    """Run the model once, and return the gradients of its values at its sources."""
    setup = Setup(call.model, inputs, call.value, RULES["input_x_gradient"], kind=PlainNetwork)
    setup.refuse()
    with setup.prepared():
        network = setup.network()
        assert isinstance(network, PlainNetwork)
        network.moved = moved
        if trace:
            network.tracer = Tracer(network, layers_of(call.model))
        with setup.hooked(network):
            values = setup.run(network)
            return _backward(network, values)


def _backward(network: Network, values: Tensor) -> Gradients:
    leaves = [source.leaf for source in network.sources]
    steps: list[tuple[Tensor | None, ...]] = []
    for step in range(values.shape[1]):
        if network.tracer is not None:
            network.tracer.step = step
        keep = step + 1 < values.shape[1]
        total = values[:, step].sum()
        steps.append(torch.autograd.grad(total, leaves, retain_graph=keep, allow_unused=True))
    gradients = []
    for leaf, by_step in zip(leaves, zip(*steps, strict=True), strict=True):
        known = [torch.zeros_like(leaf) if g is None else g for g in by_step]
        gradients.append(None if all(g is None for g in by_step) else torch.stack(known))
    trace = None
    if network.tracer is not None:
        trace = network.tracer.result(values.detach().double(), {}, [{} for _ in steps])
    return Gradients(values.detach().double(), network.sources, gradients, trace)


def output_positions(call: MethodCall) -> tuple[np.ndarray, np.ndarray]:
    """Return the values, and at which positions behind the last layer they are read.

    Returns:
        The values, (row, step), and weights (row, step, position) that add up to 1: equal at all
        positions at which the gradient of the value is not zero.
    """
    result = gradients_of(call, call.inputs, trace=True)
    assert result.trace is not None
    return result.values.cpu().numpy(), output_positions_in(result.trace)


def output_positions_in(trace: Trace) -> np.ndarray:
    """Return weights (row, step, position) of the positions at which the value is read."""
    last = trace.cuts[-1]
    read = (last.shares[last.stack] != 0).astype(np.float64)
    count = read.sum(-1, keepdims=True)
    return np.asarray(read / np.where(count > 0, count, 1))


def by_row(products: Tensor, rows: int) -> np.ndarray:
    """Return (step, row …, position) as (row, step, position), in float64 on the CPU."""
    return products.double().reshape(len(products), rows, -1).transpose(0, 1).cpu().numpy()


def lengths(gradient: Tensor, norm: str) -> Tensor:
    """Return a gradient's number at each position: ℓ2, ℓ1, or the size of its sum."""
    wide = gradient.double()
    if norm == "sum":
        return wide.sum(-1).abs()
    return torch.linalg.vector_norm(wide, 2 if norm == "l2" else 1, dim=-1)


def _read_once(sources: list[Source], gradients: list[Tensor | None]) -> dict[str, Tensor]:
    """Return the gradient of each stack's embeddings; all parts that are added share one."""
    found: dict[str, Tensor] = {}
    for source, gradient in zip(sources, gradients, strict=True):
        if source.part in PARTS and gradient is not None:
            known = found.get(source.stack)
            found[source.stack] = gradient if known is None else known + gradient
    return found


class GradientNorm:
    """‖∂y/∂x‖ at every embedding."""

    def shares(self, call: MethodCall) -> RowShares:
        """Return the lengths of the gradients."""
        result = gradients_of(call, call.inputs)
        norm = call.chosen["norm"]
        return call.sizes(
            result.values.cpu().numpy(),
            [
                SourceShares(stack, "word", by_row(lengths(gradient, norm), call.rows))
                for stack, gradient in _read_once(result.sources, result.gradients).items()
            ],
        )


class SmoothGrad:
    """‖mean ∂y/∂x‖ over copies of the text with Gaussian noise on every embedding.

    The noise of a text is the same whatever else is in its batch.
    """

    def shares(self, call: MethodCall) -> RowShares:
        """Return the lengths of the mean gradients."""
        chosen, rows = call.chosen, call.rows
        total: dict[str, Tensor] = {}
        tensors = [t for t in call.inputs.values() if isinstance(t, Tensor) and t.dim() > 1]
        length = max(tensor.shape[1] for tensor in tensors)
        noise = _Noise(call)
        for part in call.chunks(chosen["samples"], length):
            noise.part = part
            result = gradients_of(call, call.repeated(len(part)), moved=noise)
            for stack, gradient in _read_once(result.sources, result.gradients).items():
                copies = gradient.double().unflatten(1, (len(part), rows)).sum(1)
                total[stack] = total[stack] + copies if stack in total else copies
        value = call.plain()
        mean = {stack: gradient / chosen["samples"] for stack, gradient in total.items()}
        return call.sizes(
            value,
            [
                SourceShares(stack, "word", by_row(lengths(gradient, chosen["norm"]), rows))
                for stack, gradient in mean.items()
            ],
        )


class _Noise:
    """Adds noise to the embeddings of several copies of a batch.

    Attributes:
        part: the numbers of the copies.
    """

    def __init__(self, call: MethodCall) -> None:
        self.call, self.part = call, range(0)

    def __call__(self, source: Source) -> Tensor:
        if source.part not in PARTS:
            return source.leaf
        call, leaf = self.call, source.leaf.clone()
        rows = leaf.unflatten(0, (len(self.part), call.rows))
        real = torch.from_numpy(call.real(source.stack, leaf.shape[1])).to(leaf.device)
        for row in range(call.rows):
            own = rows[:, row][:, real[row]]
            scale = call.chosen["noise"] * (own[0].max() - own[0].min())
            for copy, number in enumerate(self.part):
                draw = torch.Generator().manual_seed(call.chosen["seed"] * 100_003 + number)
                drawn = torch.randn(own.shape[1:], generator=draw, dtype=torch.float64)
                rows[copy, row, real[row]] = own[copy] + scale * drawn.to(leaf)
        return leaf


class IntegratedGradients:
    """(x − x′) ⊙ ∫ ∂y/∂x(x′ + t(x − x′)) dt by a Gauss–Legendre rule.

    The error is the gap of the rule: it goes to zero with the number of steps.
    """

    def shares(self, call: MethodCall) -> RowShares:
        """Return the shares of the difference to the baseline."""
        assert call.baseline is not None
        rows = call.rows
        ends = gradients_of(call, pairs(call.inputs, call.baseline))
        values = ends.values[:rows] - ends.values[rows:]
        moving = [s for s in ends.sources if s.part in PARTS and len(s.leaf) == 2 * rows]
        points, weights = np.polynomial.legendre.leggauss(call.chosen["steps"])
        points, weights = (points + 1) / 2, weights / 2
        totals: list[Tensor] = []
        for part in call.chunks(len(points), max(s.leaf.shape[1] for s in moving)):
            path = _Path(moving, points[list(part)], rows)
            result = gradients_of(call, call.repeated(len(part)), moved=path)
            by_copy = torch.from_numpy(weights[list(part)])
            for number, at in enumerate(path.order(result.sources)):
                gradient = result.gradients[at]
                if gradient is None:
                    gradient = torch.zeros(values.shape[1], *result.sources[at].leaf.shape)
                copies = gradient.double().unflatten(1, (len(part), rows))
                shape = (1, -1, *[1] * (copies.dim() - 2))
                mean = (copies * by_copy.to(copies).view(shape)).sum(1)
                if number == len(totals):
                    totals.append(mean)
                else:
                    totals[number] = totals[number] + mean
        sources: dict[tuple[str, str], np.ndarray] = {}
        for source, total in zip(moving, totals, strict=True):
            change = source.leaf.detach()[:rows].double() - source.leaf.detach()[rows:].double()
            shares = by_row((total * change).sum(-1), rows)
            place = source.stack, source.part
            sources[place] = sources[place] + shares if place in sources else shares
        return call.signed(
            values.cpu().numpy(),
            [SourceShares(*place, shares) for place, shares in sources.items()],
        )


class _Path:
    """Replaces the embeddings of copies of a batch by points between two ends."""

    def __init__(self, moving: list[Source], points: Any, rows: int) -> None:
        self.moving, self.points, self.rows = moving, points, rows
        self.seen = 0

    def order(self, sources: list[Source]) -> list[int]:
        """Return which sources of a run are those that move."""
        return [at for at, source in enumerate(sources) if self._moves(source)]

    def _moves(self, source: Source) -> bool:
        return source.part in PARTS and len(source.leaf) == len(self.points) * self.rows

    def __call__(self, source: Source) -> Tensor:
        if not self._moves(source):
            return source.leaf
        ends = self.moving[self.seen].leaf.detach()
        self.seen += 1
        start, change = ends[self.rows :], ends[: self.rows] - ends[self.rows :]
        return torch.cat([start + float(t) * change for t in self.points])
