"""The account of one backward pass: the shares of biases and other constants, by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from normscope.linearisation.operators import inner


@dataclass(eq=False)
class Ledger:
    """Shares that hooks on states add up while a backward pass runs.

    Attributes:
        rows: the number of rows of the batch.
        counting: False for differences of two inputs, in which constants cancel.
        unresolved: whether a constant was met whose rows cannot be told apart.
        bias: cut -> shares of the constants that enter after that many layers, (row,).
        positions: (stack, part) and shape -> shares of constants that belong to positions,
            (row, position) or the other way round.
    """

    rows: int
    counting: bool = True
    unresolved: bool = False
    bias: dict[int, Tensor] = field(default_factory=dict)
    positions: dict[tuple[tuple[str, str], torch.Size], Tensor] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget all shares, before another backward pass of the same graph."""
        self.bias, self.positions = {}, {}

    def count(self, state: Tensor, constant: Tensor | float, cut: int) -> None:
        """Count the share of a constant that is a summand of a state, as the bias at a cut."""
        if self.counting and state.requires_grad:
            state.register_hook(lambda g: self.add(cut, [self._product(g, constant)]))

    def count_positions(
        self,
        state: Tensor,
        constant: Tensor,
        cut: int,
        place_of: Callable[[], tuple[str, str] | None],
    ) -> None:
        """Count the share of a constant that is a summand of a (row, position, hidden) state.

        Args:
            state: the sum.
            constant: the summand.
            cut: where it is counted as a bias, if it belongs to no position.
            place_of: returns its stack and part, in the backward pass; None for a bias.
        """

        def add(g: Tensor) -> None:
            products, place = inner(constant.expand_as(g), g), place_of()
            if place is None:
                self.add(cut, [products])
            else:
                total = products.sum(-1)
                key = place, total.shape
                self.positions[key] = (
                    self.positions[key] + total if key in self.positions else total
                )

        if self.counting and state.requires_grad:
            state.register_hook(add)

    def _product(self, g: Tensor, constant: Tensor | float) -> Tensor:
        if isinstance(constant, Tensor) and constant.dim() == 1 < g.dim():
            # A bias vector: sum over positions first.
            rows = self.rows if g.shape[0] % self.rows == 0 else 1
            sums = g.reshape(rows, -1, g.shape[-1]).sum(1, dtype=torch.float64)
            return sums * constant.double()
        if not isinstance(constant, Tensor):
            return g.double() * constant
        return inner(constant.expand_as(g), g)

    def add(self, cut: int, products: Sequence[Tensor]) -> None:
        """Add products, to be summed over everything but rows, to the bias at a cut."""
        total = sum((self.by_row(product) for product in products), torch.zeros(()))
        self.bias[cut] = self.bias[cut] + total.to(self.bias[cut]) if cut in self.bias else total

    def by_row(self, products: Tensor) -> Tensor:
        """Return sums over everything but rows; a batch is the outermost part of dimension 0."""
        if products.dim() and products.shape[0] % self.rows == 0:
            return products.reshape(self.rows, -1).sum(1, dtype=torch.float64)
        self.unresolved = self.unresolved or self.rows > 1
        total = products.sum(dtype=torch.float64)
        return torch.cat([total[None], total.new_zeros(self.rows - 1)])
