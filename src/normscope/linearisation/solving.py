"""Triangular systems of equations, as in the chunks of gated delta rules: A X = B or X A = B.

The solution is linear in B. Where attention weights are held, so is A, which takes their place; of
a difference, both have a share.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normscope.linearisation.composites import Arguments, Keywords
from normscope.linearisation.operators import Cotangents, Operator, Saved
from normscope.linearisation.secants import first_half, halves

if TYPE_CHECKING:
    from normscope.linearisation.network import Network


def solve_triangular(network: Network, func: Any, args: Arguments, kwargs: Keywords) -> Tensor:
    """Replace `torch.linalg.solve_triangular` by the rule for attention weights."""
    names = ("A", "B") if "input" not in kwargs else ("input", "B")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    system, right = given.pop(names[0]), given.pop("B")
    solve = functools.partial(func, **given)
    if not system.requires_grad or network.rules.softmax == "held":
        value: Tensor = solve(system.detach(), right)
        return value
    if network.rules.difference:
        upper, left = bool(given["upper"]), bool(given.get("left", True))
        return SecantSolve(solve, upper, left, bool(given.get("unitriangular", False)))(
            system, right
        )
    return network.tangent(solve, (system, right))


class SecantSolve(Operator):
    """The solution of triangular systems of pairs: Ā ΔX = ΔB − ΔA X̄, with means of both points.

    Args:
        solve: returns the solution, of the system and the right-hand side.
        upper: whether the system's upper triangle is used.
        left: whether the system stands left of the solution.
        unit: whether the diagonal counts as ones.
    """

    def __init__(
        self, solve: Callable[[Tensor, Tensor], Tensor], upper: bool, left: bool, unit: bool
    ) -> None:
        self.solve, self.upper, self.left, self.unit = solve, upper, left, unit

    def run(self, a: Tensor, b: Tensor) -> tuple[Tensor, Saved]:
        value = self.solve(a, b)
        return value, (a, value)

    def _triangle(self, matrix: Tensor) -> Tensor:
        """Return what is read of a system."""
        away = int(self.unit)
        return matrix.triu(away) if self.upper else matrix.tril(-away)

    def _means(self, saved: Saved) -> tuple[Tensor, Tensor]:
        (a1, a0), (x1, x0) = halves(*saved)
        return (a1 + a0) / 2, (x1 + x0) / 2

    def pull(self, saved: Saved, cotangent: Tensor) -> Cotangents:
        system, solution = self._means(saved)
        ((first, _),) = halves(cotangent)
        of_right = torch.linalg.solve_triangular(
            system.mT, first, upper=not self.upper, left=self.left, unitriangular=self.unit
        )
        product = of_right @ solution.mT if self.left else solution.mT @ of_right
        return first_half(-self._triangle(product)), first_half(of_right)

    def push(self, saved: Saved, components: Sequence[Tensor | None]) -> Tensor:
        system, solution = self._means(saved)
        of_system, of_right = (None if c is None else c[: len(c) // 2] for c in components)
        change = torch.zeros_like(solution) if of_right is None else of_right
        if of_system is not None:
            triangle = self._triangle(of_system)
            change = change - (triangle @ solution if self.left else solution @ triangle)
        return first_half(
            torch.linalg.solve_triangular(
                system, change, upper=self.upper, left=self.left, unitriangular=self.unit
            )
        )
