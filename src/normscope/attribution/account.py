"""The backward passes of one linearised network, and the shares that they add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from normscope.errors import InputError, UnsupportedModelError
from normscope.linearisation.network import Network
from normscope.linearisation.operators import inner
from normscope.linearisation.trace import Trace

Place = tuple[str, str]  # stack and part of a source
Key = tuple[Place, int | torch.Size]  # with a source's number, or the shape of a constant
# Where the rows of a batch are in an array of positions: the outermost part of its first axis; its
# second axis; or anywhere, so that every row has all positions of the array, most of them zero.
Axes = Literal["rows first", "positions first", "unknown"]


@dataclass(frozen=True)
class SourceShares:
    """The shares of one kind of source.

    Attributes:
        stack: "" for a model with one stack of layers, else "encoder", "decoder", ….
        part: "word", "position", "token_type", or "state" for states that enter the first layer;
            "word (4)" for four positions beside those of "word", such as a model's own tokens.
        shares: (row, step, position).
    """

    stack: str
    part: str
    shares: np.ndarray


@dataclass(frozen=True)
class RowShares:
    """The shares of all rows of a batch.

    Attributes:
        value: (row, step): the outputs explained; for differences, y(input) − y(baseline).
        bias: (row, step): the share of biases and other constants.
        error: (row, step): the gap of value, shares and bias, relative to their sizes; NaN for
            scores that are no shares.
        sources: the shares of the sources.
        trace: the shares inside the model, if asked for.
        lens: (row, step, layer): the values of the logit lens, if asked for.
    """

    value: np.ndarray
    bias: np.ndarray
    error: np.ndarray
    sources: list[SourceShares]
    trace: Trace | None = None
    lens: np.ndarray | None = None


class NoSourcesError(UnsupportedModelError):
    """A model in which nothing is met that could have a share."""


def axes_of(shape: Sequence[int], rows: int) -> Axes:
    """Return where the rows of a batch are in an array (…, position), going by its shape."""
    if rows == 1:
        return "rows first"
    if shape[0] % rows == 0:
        return "rows first"  # positions of several choices or images follow each other
    if len(shape) > 1 and shape[1] == rows:
        return "positions first"
    if shape[0] == 1 and int(np.prod(shape)) % rows == 0:
        return "rows first"  # the patches of all images, one after another
    return "unknown"


def by_row(products: Tensor, rows: int, axes: Axes) -> Tensor:
    """Return an array of positions as (row, position)."""
    if axes == "positions first":
        return products.flatten(1).T
    return products.reshape(rows, -1)


class Account:
    """The backward passes of one network, and what they add up to.

    Attributes:
        read: for every step the shares of each source, by its number, with where its rows are.
    """

    def __init__(self, network: Network, values: Tensor) -> None:
        rows = network.rows
        if values.dim() != 2 or len(values) != rows or not values.shape[1]:
            raise InputError(
                f"the function of the output of {network.structure.kind} returned a tensor of "
                f"shape {tuple(values.shape)}; return the numbers that are to be explained as "
                f"(row, number), here ({rows}, 1) or more"
            )
        if not network.sources:
            raise NoSourcesError(
                f"{network.structure.kind} embeds no ids, has no list of layers, and was given no "
                "floating-point numbers, so there is nothing that shares of its output could be "
                "of; explain a part of it that has one of these"
            )
        if not values.requires_grad:
            raise UnsupportedModelError(
                f"this output of {network.structure.kind} depends on its inputs only through what "
                f'the method "{network.rules.name}" holds fixed (attention weights, the scales of '
                "norms, gates, codes, and other choices among entries), or not at all, so nothing "
                "of it has a share; explain an output that comes before these"
            )
        self.network, self.values = network, values
        self.rows = network.explained_rows
        self.leaves = [source.leaf for source in network.sources]
        self.read: list[dict[int, tuple[Axes, Tensor]]] = []
        self._places: dict[tuple[Place, int], Place] = {}

    def shares(self) -> RowShares:
        """Return the shares of all rows, step by step."""
        steps = self.values.shape[1]
        passes = [self._step(step, last=step + 1 == steps) for step in range(steps)]
        values = self.values.detach().double()
        if self.network.rules.difference:
            values = values[: self.rows] - values[self.rows :]
        places = list(dict.fromkeys(place for shares, _ in passes for place in shares))
        stacked = {
            place: torch.stack([self._at(shares, place, passes) for shares, _ in passes], 1)
            for place in places
        }
        biases = [bias for _, bias in passes]
        zeros = torch.zeros(self.rows, dtype=torch.float64, device=values.device)
        bias = torch.stack([sum(by_cut.values(), zeros) for by_cut in biases], 1)
        total = sum((s.sum(-1) for s in stacked.values()), bias)
        size = sum((s.abs().sum(-1) for s in stacked.values()), bias.abs())
        error = (values - total).abs() / torch.where(size > 0, size, 1)
        result = RowShares(
            values.cpu().numpy(),
            bias.cpu().numpy(),
            error.cpu().numpy(),
            [SourceShares(*place, shares.cpu().numpy()) for place, shares in stacked.items()],
        )
        tracer = self.network.tracer
        if tracer is None:
            return result
        return replace(result, trace=tracer.result(values, self._by_stack(stacked), biases))

    def _by_stack(self, stacked: Mapping[Place, Tensor]) -> dict[str, Tensor]:
        by_stack: dict[str, Tensor] = {}
        for (stack, part), shares in stacked.items():
            before = by_stack.get(stack)
            if before is not None and before.shape != shares.shape:
                raise UnsupportedModelError(
                    f"{self.network.structure.kind} joins {before.shape[-1]} positions and "
                    f"{shares.shape[-1]} of another kind ({part}) to one sequence, in which their "
                    "shares have no common place; leave out trace=True"
                )
            by_stack[stack] = shares if before is None else before + shares
        return by_stack

    @staticmethod
    def _at(
        shares: dict[Place, Tensor],
        place: Place,
        passes: Sequence[tuple[dict[Place, Tensor], object]],
    ) -> Tensor:
        if place in shares:
            return shares[place]
        return torch.zeros_like(next(other[place] for other, _ in passes if place in other))

    def _step(self, step: int, last: bool) -> tuple[dict[Place, Tensor], dict[int, Tensor]]:
        ledger = self.network.ledger
        explained = self.values[: self.rows, step]
        if self.network.tracer is not None:
            self.network.tracer.step = step
        if not ledger.unresolved:
            parts = self._back(explained.sum(), keep=not last or self.rows > 1)
            axes = {key: axes_of(products.shape, self.rows) for key, products in parts.items()}
            if not ledger.unresolved and "unknown" not in axes.values():
                arranged = {k: (axes[k], by_row(p, self.rows, axes[k])) for k, p in parts.items()}
                return self._added(arranged), dict(ledger.bias)
            self._forget(step)
        # Rows are mixed somewhere, so that only a pass for each row tells whose a bias is.
        ledger.rows = 1
        passes, biases = [], []
        for row in range(self.rows):
            passes.append(self._back(explained[row], keep=True))
            biases.append(dict(ledger.bias))
        cuts = sorted({cut for by_cut in biases for cut in by_cut})
        zero = torch.zeros(1, dtype=torch.float64, device=self.values.device)
        bias = {cut: torch.cat([b.get(cut, zero) for b in biases]) for cut in cuts}
        return self._added(self._joined(passes)), bias

    def _joined(self, passes: Sequence[Mapping[Key, Tensor]]) -> dict[Key, tuple[Axes, Tensor]]:
        """Join what the passes of all rows read of a source or of a constant."""
        joined = {}
        for key in dict.fromkeys(key for parts in passes for key in parts):
            known = next(parts[key] for parts in passes if key in parts)
            zeros = torch.zeros_like(known)
            joined[key] = self._of_rows([parts.get(key, zeros) for parts in passes])
        return joined

    def _of_rows(self, products: Sequence[Tensor]) -> tuple[Axes, Tensor]:
        """Return (row, position), given one array for each row, and where rows are in each."""
        shape, layouts = products[0].shape, list[Axes]()
        if products[0].numel() % self.rows == 0:
            layouts.append("rows first")
        if len(shape) > 1 and shape[1] == self.rows:
            layouts.append("positions first")
        for axes in layouts:
            arranged = torch.stack([by_row(p, self.rows, axes) for p in products])
            own = arranged.diagonal(dim1=0, dim2=1).T
            if own.count_nonzero() == arranged.count_nonzero():
                return axes, own
        return "unknown", torch.stack([each.flatten() for each in products])

    def _forget(self, step: int) -> None:
        if self.network.tracer is not None:
            self.network.tracer.forget(step)

    def _back(self, scalar: Tensor, keep: bool) -> dict[Key, Tensor]:
        """Return the products of every source, and of constants that belong to positions."""
        ledger = self.network.ledger
        ledger.clear()
        grads = torch.autograd.grad(scalar, self.leaves, retain_graph=keep, allow_unused=True)
        parts: dict[Key, Tensor] = {}
        for number, (source, grad) in enumerate(zip(self.network.sources, grads, strict=True)):
            if grad is not None:
                place = (source.stack, source.part)
                parts[place, number] = self._products(source.leaf.detach(), grad)
        for key, constants in ledger.positions.items():
            parts[key] = constants
        return {key: products.to(self.values.device) for key, products in parts.items()}

    def _products(self, leaf: Tensor, grad: Tensor) -> Tensor:
        """Return the shares of a source's positions, in its own axes."""
        if self.network.rules.difference:
            half = len(leaf) // 2
            leaf, grad = leaf[:half].double() - leaf[half:].double(), grad[:half]
        return torch.atleast_1d(inner(leaf, grad).sum(-1))

    def _added(self, parts: Mapping[Key, tuple[Axes, Tensor]]) -> dict[Place, Tensor]:
        """Add up what has the same stack, part and number of positions."""
        shares: dict[Place, Tensor] = {}
        read: dict[int, tuple[Axes, Tensor]] = {}
        for (place, known), (axes, products) in parts.items():
            if isinstance(known, int):
                read[known] = axes, products
            name = self._named(place, products.shape[1])
            shares[name] = shares[name] + products if name in shares else products
        self.read.append(read)
        return shares

    def _named(self, place: Place, length: int) -> Place:
        """Return a place, with the number of positions if others of that name have another."""
        known = (place, length)
        if known not in self._places:
            taken = place in self._places.values()
            self._places[known] = (place[0], f"{place[1]} ({length})") if taken else place
        return self._places[known]
