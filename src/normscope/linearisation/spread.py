"""Components of every token pushed forwards together, with biases divided among them.

The rows of a batch are there once for every component, and once more for what waits to be divided.
So at every place where a constant is added to a state, all components of the state are known, and
the constant can be divided among them by a rule that depends on all of them (DecompX's AbsDot).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from normscope.errors import UnsupportedModelError
from normscope.foundation.interrupts import shielded
from normscope.linearisation import functions
from normscope.linearisation.composites import Arguments, Keywords
from normscope.linearisation.network import Network, Source
from normscope.linearisation.rules import Rules
from normscope.linearisation.structure import Structure
from normscope.models.inventory import Inventory

Weights = Callable[[Tensor, Tensor], Tensor]  # components (k, …, d), constant (…, d) -> (k, …)


def _cosine(components: Tensor, constant: Tensor) -> Tensor:
    return torch.cosine_similarity(components, constant.expand_as(components), dim=-1).abs()


def _dot(components: Tensor, constant: Tensor) -> Tensor:
    return torch.linalg.vecdot(components, constant.expand_as(components))


def _first(components: Tensor, constant: Tensor) -> Tensor:
    weights = torch.zeros_like(components[..., 0])
    weights[0] = 1
    return weights


BIAS_WEIGHTS: dict[str, Weights] = {
    "absdot": lambda u, b: _dot(u, b).abs(),
    "abssim": _cosine,
    "norm": lambda u, _: torch.linalg.vector_norm(u, dim=-1),
    "equal": lambda u, _: (u != 0).any(-1).to(u.dtype),
    "cls": _first,
    "dot": _dot,
}


@dataclass(frozen=True)
class Division:
    """How constants are divided among components.

    Attributes:
        rule: a name in ``BIAS_WEIGHTS``.
        behind_residual: whether the constants of attention wait for its residual sum.
    """

    rule: str
    behind_residual: bool = True


@dataclass(eq=False)
class _Place:
    """Where in the model a run is."""

    attending: int = 0  # how many attention modules are running
    apart: bool = True  # whether no attention has mixed values yet: components are single
    mixed: bool = False  # whether what attention mixed has not met the residual yet
    waiting: bool = False  # whether constants wait to be divided


class SpreadNetwork(Network):
    """A linearised network that pushes the components of all positions at once.

    Args:
        structure: the model's layers, activations and embeddings.
        rules: how each operation is replaced.
        rows: the number of rows, copies counted.
        inventory: the model's attention modules.
        division: how constants are divided.
        positions: the number of positions of a row, which is the number of components.
    """

    def __init__(
        self,
        structure: Structure,
        rules: Rules,
        rows: int,
        inventory: Inventory,
        division: Division,
        positions: int,
    ) -> None:
        super().__init__(structure, rules, rows)
        self.inventory, self.division, self.positions = inventory, division, positions
        self.copies = positions + 1
        self.components = self._own
        self.place = _Place()
        # ‖x_{i⇐k}‖ behind every layer: (row, query, component), the waiting constants last.
        self.lengths: list[Tensor] = []
        attention = {*inventory.attention}
        self.innermost = [m for m in attention if not attention & {*m.modules()} - {m}]

    @shielded
    def watched(self) -> Iterator[None]:
        """See attention modules begin and end; keep no graph."""
        handles = []
        try:
            for module in self.innermost:
                handles.append(module.register_forward_pre_hook(self._begins))
                handles.append(module.register_forward_hook(self._ends, always_call=True))
            with saved_tensors_hooks(lambda _: None, _no_backward):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _begins(self, *_: Any) -> None:
        self.place.attending += int(self.active)

    def _ends(self, *_: Any) -> None:
        self.place.attending -= int(self.active)

    def __torch_function__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: Keywords | None = None
    ) -> Any:
        name = func.__name__
        mixes = name == "scaled_dot_product_attention" or (
            name in ("matmul", "bmm") and getattr(args[0], "_normscope_weights", False)
        )
        value = super().__torch_function__(func, types, args, kwargs)
        place = self.place
        if mixes and place.attending:
            place.mixed, place.apart = True, False
        elif name in functions.SUMS and place.mixed and not place.attending and _both(args):
            place.mixed = False
            if place.waiting:
                place.waiting = False
                value = self._divided(value, None)
        return value

    def enter_layer(
        self, stack: str, args: Arguments, kwargs: Keywords
    ) -> tuple[Arguments, Keywords]:
        """Note that a layer begins."""
        self.place.mixed = False
        return super().enter_layer(stack, args, kwargs)

    def leave_layer(self, output: Any) -> None:
        """Keep the lengths of the components behind a layer."""
        super().leave_layer(output)
        state = output[0] if isinstance(output, tuple | list) else output
        tangent = forward_ad.unpack_dual(state).tangent
        if tangent is not None:
            by_copy = tangent.detach().double().unflatten(0, (self.copies, -1))
            self.lengths.append(by_copy.norm(dim=-1).permute(1, 2, 0))

    # ---- components

    def _own(self, source: Source) -> Tensor:
        """Return each position's own embedding as its component."""
        leaf = source.leaf.detach()
        if len(leaf) != self.rows or leaf.dim() != 3 or leaf.shape[1] != self.positions:
            raise UnsupportedModelError(
                f"the embeddings of {self.structure.kind} are {tuple(leaf.shape)}, not one vector "
                'for every position of a row, so they have no components; use "decompx:token"'
            )
        tangent = torch.zeros_like(leaf)
        by_copy = tangent.unflatten(0, (self.copies, -1))
        values = leaf.unflatten(0, (self.copies, -1))
        for at in range(self.positions):
            by_copy[at, :, at] = values[at, :, at]
        return tangent

    def count(self, state: Tensor, constant: Any, part: str = "position") -> Tensor:
        """Divide a constant that was added to a state; return the state with its components."""
        if not isinstance(constant, Tensor):
            if constant == 0:
                return state
            constant = torch.full((), float(constant), dtype=state.dtype, device=state.device)
        place = self.place
        if place.apart:
            return self._given_to_own(state, constant)
        in_values = place.attending > 0 and not place.mixed
        behind = place.mixed and self.division.behind_residual
        if in_values or behind:
            place.waiting = True
            return self._changed(state, lambda u: _add(u, -1, constant.to(u)))
        divided = self._divided(state, constant)
        if place.mixed:  # what waited was in the same state
            place.waiting = False
        return divided

    def _given_to_own(self, state: Tensor, constant: Tensor) -> Tensor:
        """Add a constant to the component of each position itself."""

        def give(u: Tensor) -> Tensor:
            rows = self.rows // self.copies
            if u[0].numel() % (rows * self.positions):
                raise self._refused(state)
            by_place = u.reshape(self.copies, rows, self.positions, -1).clone()
            whole = constant.to(u).expand(state.shape).reshape(by_place.shape)
            for at in range(self.positions):
                by_place[at, :, at] += whole[at, :, at]
            return by_place.reshape(u.shape)

        return self._changed(state, give)

    def _divided(self, state: Tensor, constant: Tensor | None) -> Tensor:
        """Divide a constant, and what waits, among the components."""
        rule = BIAS_WEIGHTS[self.division.rule]

        def divide(u: Tensor) -> Tensor:
            components, rest = u[:-1], u[-1]
            if constant is not None:
                whole = constant.to(u).expand(state.shape).unflatten(0, (self.copies, -1))
                rest = rest + whole[0]
            weights = rule(components, rest)
            total = weights.sum(0)
            known = total != 0
            weights = torch.where(known, weights / torch.where(known, total, 1), 0)
            left = torch.where(known[..., None], 0, rest)
            return torch.cat([components + weights[..., None] * rest, left[None]])

        return self._changed(state, divide)

    def _changed(self, state: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Return a state with other components, given and returned as (component, …)."""
        primal, tangent = forward_ad.unpack_dual(state)
        if (
            state.dim() < 2
            or len(state) % self.rows
            or (state.dim() == 3 and self.positions_first(state))
        ):
            raise self._refused(state)
        tangent = torch.zeros_like(primal) if tangent is None else tangent.detach()
        changed = change(tangent.unflatten(0, (self.copies, -1)))
        return forward_ad.make_dual(primal, changed.reshape(tangent.shape).to(primal.dtype))

    def _refused(self, state: Tensor) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.structure.kind} adds a constant to a state of shape {tuple(state.shape)}, whose"
            ' rows and positions cannot be told apart; use "decompx:token", which keeps biases '
            "apart"
        )


def _both(summands: Arguments) -> bool:
    """Return whether two states are added."""
    return len(summands) > 1 and all(
        isinstance(summand, Tensor) and summand.requires_grad for summand in summands[:2]
    )


def _add(components: Tensor, at: int, constant: Tensor) -> Tensor:
    changed = components.clone()
    whole = constant.expand(components.shape[1] * components.shape[0], *components.shape[2:])
    changed[at] += whole.unflatten(0, components.shape[:2])[0]
    return changed


def _no_backward(_: Any) -> Any:
    raise RuntimeError("components are pushed forwards, and there is no backward pass")
