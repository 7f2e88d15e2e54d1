"""Shares inside a model: of the states at every cut, of heads and feed-forwards, of single edges.

The network is linear, so at every cut between two layers the shares of the states, ⟨x, g⟩, and of
the biases above it add up to the output. A head's share is ⟨Σ_j α f(x_j), g⟩, and that of one edge
⟨α f(x_j), g⟩ = α ⟨v_j, ḡ⟩, where ḡ is the cotangent of the head's context vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.linearisation.edges import EdgeFactors
from normscope.linearisation.operators import inner, unaliased
from normscope.models.layouts import Attention, FeedForward, Layout, blocks_of, part

if TYPE_CHECKING:
    from normscope.linearisation.network import Network


@dataclass(frozen=True)
class CutShares:
    """The shares of all states at one cut.

    Attributes:
        stack: the stack that the cut goes through.
        layer: the layer that the states enter; the number of layers after the last.
        shares: by stack, (row, step, position).
        bias: (row, step), of the constants above the cut.
        error: (row, step), the gap, relative to the shares here or to those of the sources,
            whichever are larger.
    """

    stack: str
    layer: int
    shares: dict[str, np.ndarray]
    bias: np.ndarray
    error: np.ndarray


@dataclass(frozen=True)
class LayerShares:
    """The shares of the parts of one layer.

    Attributes:
        stack: the stack of the layer.
        layer: its number in the stack.
        heads: (row, step, head); heads of cross-attention follow those of self-attention.
        heads_error: (row, step), the gap to the share of the attention's output.
        feed_forward: (row, step, position), or None if it is not known which module it is.
        feed_forward_error: (row, step), the gap between its hidden and its output vectors.
    """

    stack: str
    layer: int
    heads: np.ndarray
    heads_error: np.ndarray | None
    feed_forward: np.ndarray | None
    feed_forward_error: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Trace:
    """What happened inside the model, for all rows of a batch."""

    cuts: list[CutShares]
    layers: list[LayerShares]
    attentions: list[list[EdgeFactors]]  # by layer: self-attention, cross-attention

    def edges(self, row: int, layer: int, step: int = 0) -> np.ndarray:
        """Return (head, query, key): the share of each edge of a layer's attention."""
        calls = self._calls(layer)
        return np.concatenate([call.whole(row, step) for call in calls])

    def top_edges(
        self, row: int, layer: int, count: int, step: int = 0
    ) -> list[tuple[int, int, int, float]]:
        """Return the largest edges by size, as (head, query, key, share)."""
        first, edges = 0, []
        for call in self._calls(layer):
            edges += [(h + first, q, k, s) for h, q, k, s in call.largest(row, step, count)]
            first += call.heads
        return sorted(edges, key=lambda edge: -abs(edge[3]))[:count]

    def _calls(self, layer: int) -> list[EdgeFactors]:
        if not 0 <= layer < len(self.attentions):
            raise InputError(f"there is no layer {layer}: layers go to {len(self.attentions) - 1}")
        return self.attentions[layer]


@dataclass(eq=False)
class _Watched:
    """A state whose share is read in every backward pass."""

    stack: str
    layer: int
    kind: str
    value: Tensor | None = None
    shares: dict[int, Tensor] = field(default_factory=dict)  # step -> (row, position)
    sizes: dict[int, Tensor] = field(default_factory=dict)  # step -> (row,): Σ|products|


class Tracer:
    """Watches the layers of a network, and reads the shares of their states.

    Attributes:
        step: the backward pass that runs.
    """

    def __init__(self, network: Network, layers: Mapping[str, tuple[nn.Module, Layout]]) -> None:
        self.network, self.step = network, 0
        self._watched: list[_Watched] = []
        self._calls: list[list[EdgeFactors]] = []
        self._order: list[tuple[str, int]] = []  # (stack, layer in it), as they ran
        self._last: dict[str, tuple[int, Tensor]] = {}
        self._apart: dict[str, list[str]] = {}  # stack -> earlier ones that it does not read
        self._positions_first = False  # whether states are (position, row, hidden)
        self._parts = _parts_of_layers(layers)

    # ---- forward

    def enter_layer(
        self, stack: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Watch the states that enter a layer: its own, and the encoder's that it reads."""
        name = self.network.structure.name(stack)
        layer = sum(1 for other, _ in self._order if other == name)
        self._order.append((name, layer))
        self._calls.append([])
        kinds = iter(["state"])
        first = "hidden_states"
        hidden = kwargs[first] if first in kwargs else next(filter(torch.is_tensor, args), None)
        if isinstance(hidden, Tensor) and hidden.requires_grad and hidden.dim() == 3:
            self._positions_first = self.network.positions_first(hidden)
            if not layer:
                self._apart[name] = self._not_read_by(hidden, name)

        def watched(argument: Any) -> Any:
            if not (
                isinstance(argument, Tensor) and argument.requires_grad and argument.dim() == 3
            ):
                return argument
            alias = unaliased(argument.view_as(argument))
            self._watch(alias, _Watched(name, layer, next(kinds, "memory")))
            return alias

        if first in kwargs:
            kwargs = {first: kwargs[first], **kwargs}
        args = tuple(map(watched, args))
        return args, {key: watched(argument) for key, argument in kwargs.items()}

    def _not_read_by(self, state: Tensor, name: str) -> list[str]:
        """Return the stacks that have run and on whose sources a state does not depend."""
        earlier = {stack for stack, _ in self._order} - {name}
        if not earlier or self.network.structure.two_sided:
            return []
        read = _leaves_of(state)
        reached = {source.stack for source in self.network.sources if id(source.leaf) in read}
        return sorted(earlier - reached)

    def leave_layer(self, output: Any) -> None:
        """Remember the states that leave a layer; those of the last layer are watched."""
        state = output[0] if isinstance(output, tuple | list) else output
        if isinstance(state, Tensor) and state.requires_grad:
            name, layer = self._order[-1]
            self._last[name] = layer + 1, state

    def attention(self, context: Tensor, values: Tensor, **weights: Any) -> None:
        """Watch a context vector, the output of an attention before its output projection."""
        if not self._calls or not self.network.depth or not context.requires_grad:
            return
        factors = EdgeFactors(
            values.detach(),
            context.detach(),
            self.network.rows,
            self.network.rules.difference,
            **weights,
        )
        self._calls[-1].append(factors)

        def read(g: Tensor) -> None:
            _add(factors.cotangents, self.step, g)

        context.register_hook(read)

    def _watch(self, state: Tensor, watched: _Watched, value: Tensor | None = None) -> None:
        self._watched.append(watched)
        watched.value = state.detach() if value is None else value
        transposed = self._positions_first and state.dim() == 3
        rows = self.network.explained_rows

        def read(g: Tensor) -> None:
            assert watched.value is not None
            values, half = watched.value, len(g) // 2
            if transposed:
                values, g = values.transpose(0, 1), g.transpose(0, 1)
            if self.network.rules.difference:
                values, g = values[:half].double() - values[half:].double(), g[:half]
            products = inner(values, g)
            _add(watched.shares, self.step, products.sum(-1))
            _add(watched.sizes, self.step, products.abs().sum(-1).reshape(rows, -1).sum(-1))

        state.register_hook(read)

    def preserve(self, state: Tensor) -> None:
        """Keep the values of a watched state that is about to be changed in place."""
        for watched in self._watched:
            if watched.value is not None and watched.value.data_ptr() == state.data_ptr():
                watched.value = watched.value.clone()

    def hooks(self) -> list[Any]:
        """Watch what the parts of layers read and write, by hooks on the model's modules."""
        return [
            module.register_forward_hook(partial(self._part_ran, kind))
            for module, kind in self._parts.items()
        ]

    def _part_ran(self, kind: str, module: nn.Module, args: Any, output: Any) -> None:
        state = output[0] if isinstance(output, tuple) else output
        if not self.network.active or not self.network.depth or not isinstance(state, Tensor):
            return
        with torch._C.DisableTorchFunction():
            if not state.requires_grad or not torch.is_grad_enabled():
                return
            place, value = self._order[-1], state.detach()
            bias = getattr(module, "bias", None)
            if isinstance(bias, Tensor) and bias.shape == value.shape[-1:]:
                value = value - bias.detach()
            self._watch(state, _Watched(*place, f"{kind}_linear"), value)
            self._watch(state, _Watched(*place, kind))
            if args and isinstance(args[0], Tensor) and args[0].requires_grad:
                self._watch(args[0], _Watched(*place, f"{kind}_input"))

    def finish_forward(self) -> None:
        """Watch the states that left the last layers."""
        for name, (layer, state) in self._last.items():
            self._watch(state, _Watched(name, layer, "state"))
        # The graph holds hooks, and they hold this: a state kept here would keep all of them.
        self._last.clear()

    def forget(self, step: int) -> None:
        """Forget a backward pass that is run again."""
        for watched in self._watched:
            watched.shares.pop(step, None)
            watched.sizes.pop(step, None)
        for factors in (factors for calls in self._calls for factors in calls):
            factors.cotangents.pop(step, None)

    # ---- after the backward passes

    def result(
        self, values: Tensor, sources: dict[str, Tensor], biases: list[dict[int, Tensor]]
    ) -> Trace:
        """Return everything that was read.

        Args:
            values: (row, step).
            sources: the shares of each stack's sources, (row, step, position).
            biases: for every step the share of the constants that enter at each cut.
        """
        steps = len(biases)
        cuts = [
            self._cut(watched, values, sources, biases)
            for watched in sorted(self._watched, key=self._place)
            if watched.kind == "state" and watched.shares
        ]
        layers = [self._layer(at, steps) for at in range(len(self._order))]
        return Trace(cuts, layers, self._calls)

    def _place(self, watched: _Watched) -> tuple[int, int]:
        stacks = list(dict.fromkeys(name for name, _ in self._order))
        return stacks.index(watched.stack), watched.layer

    def _stacked(self, watched: _Watched, steps: int, rows: int) -> Tensor:
        """Return the shares of a state, (row, step, position)."""
        known = next(iter(watched.shares.values()))
        missing = torch.zeros_like(known)
        by_step = [watched.shares.get(step, missing) for step in range(steps)]
        return torch.stack([shares.reshape(rows, -1) for shares in by_step], 1)

    def _cut(
        self,
        cut: _Watched,
        values: Tensor,
        sources: dict[str, Tensor],
        biases: list[dict[int, Tensor]],
    ) -> CutShares:
        rows, steps = values.shape
        place = self._place(cut)
        ran = [self._place(_Watched(*layer, "")) for layer in self._order]
        # The number that constants have which enter above this cut.
        above = 2 * sum(1 for other in ran if other < place) + (place in ran)
        shares = {cut.stack: self._stacked(cut, steps, rows)}
        for watched in self._watched:
            above_cut = watched.stack == cut.stack and watched.layer >= cut.layer
            if watched.kind == "memory" and above_cut and watched.shares:
                read = self._stacked(watched, steps, rows)
                shares["encoder"] = shares["encoder"] + read if "encoder" in shares else read
        later = [name for name, _ in self._order if self._place(_Watched(name, 0, "")) > place]
        apart = self._apart.get(cut.stack, [])
        for name in dict.fromkeys([*later, *apart]):
            if name != cut.stack and name in sources:
                shares[name] = sources[name]
        counted = {
            2 * at + inside
            for at, (name, _) in enumerate(self._order)
            if name in apart
            for inside in (0, 1, 2)
        }
        bias = torch.stack(
            [
                sum(
                    (share for at, share in step.items() if at >= above or at in counted),
                    torch.zeros(rows, dtype=torch.float64, device=values.device),
                )
                for step in biases
            ],
            1,
        )
        total = sum((s.sum(-1) for s in shares.values()), bias)
        size = sum((s.abs().sum(-1) for s in shares.values()), bias.abs())
        # Above the last layer there may be one share alone, as small as an answer that is nearly
        # tied with its foil; what rounding leaves has the size of the sources' shares.
        whole = sum((s.abs().sum(-1) for s in sources.values()), torch.zeros_like(size))
        size = torch.maximum(size, whole)
        error = (values - total).abs() / torch.where(size > 0, size, 1)
        arrays = {name: s.cpu().numpy() for name, s in shares.items()}
        return CutShares(cut.stack, cut.layer, arrays, bias.cpu().numpy(), error.cpu().numpy())

    def _layer(self, at: int, steps: int) -> LayerShares:
        name, layer = self._order[at]
        parts: dict[str, list[Tensor]] = {}
        sizes: dict[str, list[Tensor]] = {}
        rows = self.network.explained_rows
        for watched in self._watched:
            if (watched.stack, watched.layer) == (name, layer) and watched.shares:
                shares = self._stacked(watched, steps, rows)
                parts.setdefault(watched.kind, []).append(shares)
                none = torch.zeros_like(next(iter(watched.sizes.values())))
                by_step = [watched.sizes.get(step, none) for step in range(steps)]
                sizes.setdefault(watched.kind, []).append(torch.stack(by_step, 1))
        calls = [call for call in self._calls[at] if call.cotangents]
        heads = (
            torch.cat(
                [torch.stack([call.shares(step) for step in range(steps)], 1) for call in calls], -1
            )
            if calls
            else torch.zeros(rows, steps, 0)
        )
        ff = parts.get("feed_forward", [])
        return LayerShares(
            name,
            layer,
            heads.cpu().numpy(),
            _gap([heads], parts.get("attention_linear"), sizes.get("attention_linear")),
            ff[0].cpu().numpy() if len(ff) == 1 else None,
            _gap(
                parts.get("feed_forward_input"),
                parts.get("feed_forward_linear"),
                sizes.get("feed_forward_linear"),
            ),
        )


def _leaves_of(state: Tensor) -> set[int]:
    """Return the ids of the leaves that a state was computed from."""
    waiting, seen, leaves = [state.grad_fn], set(), set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        waiting += [following for following, _ in node.next_functions]
    return leaves


def _gap(
    shares: list[Tensor] | None, whole: list[Tensor] | None, sizes: list[Tensor] | None
) -> np.ndarray | None:
    """Return the gap between two ways to compute the same total, (row, step).

    It is relative to the sizes of the products that were summed: before a norm, whose derivative is
    zero along its input, they may cancel altogether.
    """
    if not shares or not whole or not sizes:
        return None
    total = torch.stack([s.sum(-1) for s in shares]).sum(0)
    expected = torch.stack([w.sum(-1) for w in whole]).sum(0)
    size = torch.stack(sizes).sum(0)
    gap = (total - expected).abs() / torch.where(size > 0, size, 1)
    return gap.cpu().numpy()


def _add(sums: dict[int, Tensor], step: int, summand: Tensor) -> None:
    sums[step] = sums[step] + summand if step in sums else summand


def _parts_of_layers(layers: Mapping[str, tuple[nn.Module, Layout]]) -> dict[nn.Module, str]:
    """Return the output projections of attentions and feed-forwards, where they are known."""
    parts: dict[nn.Module, str] = {}
    for layer, layout in layers.values():
        for block in blocks_of(layout):
            if isinstance(block, Attention):
                parts[part(layer, block.output)] = "attention"
            elif isinstance(block, FeedForward):
                parts[part(layer, block.second)] = "feed_forward"
    return parts
