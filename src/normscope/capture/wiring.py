"""Read the layout of layers from one pass of the unmodified model.

A :class:`~normscope.capture.expressions.LayerFollower` gives the output of every layer as an
expression in its input. :class:`Reading` takes that apart by the grammar of
`normscope.models.layouts`, from the layer's end to its begin.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.capture import AttentionKind, Capture, capture
from normscope.capture.expressions import (
    Expression,
    LayerFollower,
    applies_to_numbers,
    factor_of,
    first_tensor,
)
from normscope.foundation.interrupts import shielded
from normscope.models.inventory import Inventory
from normscope.models.layouts import Attention, FeedForward, Layout, Opaque, paths_of
from normscope.models.running import evaluating

# Norms and scale of a block, its core, and what the residual carries.
Ending = tuple[dict[str, Any], Expression, Expression]


class Reading:
    """The layout of one layer that has run.

    Args:
        follower: has followed the layer.
        cores: attention module and kind, by output projection.
        layer: the layer.
        start: the term of its input.
        end: the term of its output.
    """

    def __init__(
        self,
        follower: LayerFollower,
        cores: Mapping[nn.Module, tuple[nn.Module, AttentionKind]],
        layer: nn.Module,
        start: Expression,
        end: Expression,
    ) -> None:
        self.layer, self.start, self.end = layer, start, end
        self.cores, self.calls, self.names = cores, list(follower.calls), follower.names
        self.paths = {module: path for path, module in layer.named_modules()}
        tensors = [*layer.named_parameters(), *layer.named_buffers()]
        self.tensors = {id(tensor): path for path, tensor in tensors}

    def layout(self) -> Layout | None:
        """Return the layout of the whole layer."""
        for ff, rest in self._feed_forwards():
            if (before := self._attentions_before(rest)) is not None:
                return self._unless_ambiguous(Layout(before[0], ff, before[1]))
        return self._unless_ambiguous(self._parallel())

    def partial(self) -> Layout | None:
        """Return the layout of the attention blocks; whatever follows them is opaque.

        What follows reads no attention's output but as part of the last block's.
        """
        terms = self.end.below()
        for end in terms:
            if any(map(self._is_attention, self.end.below(end))):
                continue
            if (before := self._attentions_before(end)) is not None:
                # A norm after the sum belongs to the block if nothing else reads the sum.
                if (norm := self._only_norm(end, terms)) is not None:
                    before = self._attentions_before(norm) or before
                return self._unless_ambiguous(Layout(before[0], Opaque(), before[1]))
        return None

    def _unless_ambiguous(self, layout: Layout | None) -> Layout | None:
        """The layout, unless a module that it names runs more than once, on different states."""
        for path in () if layout is None else paths_of(layout):
            results = {c.result for c in self.calls if self.paths.get(c.module) == path}
            if len(results) > 1:
                return None
        return layout

    @staticmethod
    def _only_norm(state: Expression, terms: list[Expression]) -> Expression | None:
        readers = [term for term in terms if state in term.of]
        return readers[0] if [r.kind for r in readers] == ["norm"] else None

    # ---- blocks

    def _ends(self, state: Expression) -> Iterator[Ending]:
        """Every way to read a state as after(carry · rest + scale · branch(core))."""
        after, total = self._without_norm(state)
        if total.kind == "sum":
            for branch, rest in (total.of, total.of[::-1]):
                carry, rest = self._without_factor(rest)
                names, core = self._branch(branch)
                yield {"after": after, "carry": carry, **names}, core, rest

    def _branch(self, term: Expression) -> tuple[dict[str, Any], Expression]:
        scale, normed = self._without_factor(term)
        branch, core = self._without_norm(normed)
        return {"scale": scale, "branch": branch}, core

    def _without_factor(self, term: Expression) -> tuple[str | float | None, Expression]:
        if term.kind == "scaled" and id(term.by.by) in self.tensors:
            return self.tensors[id(term.by.by)], term.of[0]
        if term.kind == "function" and (factor := factor_of(term.by)) is not None:
            return self._number(factor), term.of[0]
        return None, term

    def _without_norm(self, term: Expression) -> tuple[str | None, Expression]:
        if term.kind == "norm" and term.by in self.paths:
            return self.paths[term.by], term.of[0]
        return None, term

    def _number(self, factor: float) -> str | float:
        """The name of the layer's attribute with this value, or the value."""
        own = [n for n, v in vars(self.layer).items() if isinstance(v, float) and v == factor]
        return own[0] if own else factor

    def _before(self, read: Expression, rest: Expression) -> tuple[str | None] | None:
        """The norm between the residual and what a core reads, in a tuple; None for no such."""
        if read is rest:
            return (None,)
        norm, inner = self._without_norm(read)
        return (norm,) if norm is not None and inner is rest else None

    # ---- attention

    def _attentions_before(self, end: Expression) -> tuple[Attention, Attention | None] | None:
        """The attention blocks between the layer's input and a state: self, and cross if any."""
        for last, kind, rest in self._attentions(end):
            if kind == "self" and (first := self._first(last, rest)) is not None:
                return first, None
            for first, kind_before, begin in self._attentions(rest) if kind == "cross" else ():
                if kind_before == "self" and (own := self._first(first, begin)) is not None:
                    return own, last
        return None

    def _first(self, block: Attention, rest: Expression) -> Attention | None:
        """The block, if its residual is the layer's input, or a norm of it."""
        norm, inner = self._without_norm(rest)
        if rest is self.start or block.before is not None or norm is None:
            return block if rest is self.start else None
        return replace(block, before=norm, normed=True) if inner is self.start else None

    def _attentions(self, end: Expression) -> Iterator[tuple[Attention, AttentionKind, Expression]]:
        for wiring, core, rest in self._ends(end):
            if (block := self._attention(wiring, core, rest)) is not None:
                yield *block, rest

    def _is_attention(self, term: Expression) -> bool:
        return term.kind == "linear" and term.by in self.cores

    def _attention(
        self, wiring: dict[str, Any], core: Expression, rest: Expression
    ) -> tuple[Attention, AttentionKind] | None:
        if not self._is_attention(core):
            return None
        module, kind = self.cores[core.by]
        given = next((c.given for c in self.calls if c.module is module), ())
        for read in given if core.by in self.paths and module in self.paths else ():
            if (before := self._before(read, rest)) is not None:
                return Attention(
                    module=self.paths[module],
                    output=self.paths[core.by],
                    before=before[0],
                    **wiring,
                ), kind
        return None

    # ---- feed-forward

    def _feed_forwards(self) -> Iterator[tuple[FeedForward | Opaque, Expression]]:
        for wiring, core, rest in self._ends(self.end):
            if (block := self._feed_forward(wiring, core, rest)) is not None:
                yield block, rest

    def _feed_forward(
        self, wiring: dict[str, Any], core: Expression, rest: Expression
    ) -> FeedForward | Opaque | None:
        if core.kind == "linear" and not self._is_attention(core) and core.of:
            for names, read in self._inner(core.of[0]):
                if (before := self._before(read, rest)) is not None:
                    second = self.paths[core.by]
                    return FeedForward(second=second, before=before[0], **names, **wiring)
        return self._opaque(wiring, core, rest)

    def _inner(self, term: Expression) -> Iterator[tuple[dict[str, Any], Expression]]:
        """What the second linear map may read: names of a feed-forward's parts, and its input."""
        factors = [term.of, term.of[::-1]] if term.kind == "product" else []
        for activated, first in factors:
            gate, act = activated.base, self._activation(activated)
            if act is None or first.kind != gate.kind:
                continue
            if first.kind == "slice" and first.of == gate.of:
                width = first.by[2] // 2
                halves = {(0, width): "gate_first", (width, 2 * width): "gate_last"}
                packed, up = halves.get(gate.by[:2]), first.of[0]
                if packed and up.kind == "linear" and first.by[:2] in halves and first is not gate:
                    yield {"first": self.paths[up.by], "packed": packed, **act}, up.of[0]
            elif first.kind == "linear" and first.of == gate.of and first.of:
                names = {"first": self.paths[first.by], "gate": self.paths[gate.by]}
                yield {**names, **act}, first.of[0]
        if term.base.kind == "linear" and term.base.of and (act := self._activation(term)):
            yield {"first": self.paths[term.base.by], **act}, term.base.of[0]

    def _activation(self, term: Expression) -> dict[str, Any] | None:
        """The activation by its path, else by transformers' name, else the function itself."""
        if term.kind != "function":
            return {"activation": "linear"}
        if not applies_to_numbers(term.by):
            return None
        module = self.names.get(term)
        return {"activation": self.paths[module] if module in self.paths else named(term.by)}

    def _opaque(self, wiring: dict[str, Any], core: Expression, rest: Expression) -> Opaque | None:
        """Any other core that reads the residual, or one norm of it, and nothing else."""
        norms = [t for t in core.below(rest) if t.kind == "norm" and t.of == (rest,)]
        for read in (*norms, rest):
            below = core.below(read)
            alone = read in below and (read is rest or rest not in below)
            others = [t for t in below if t is self.start or self._is_attention(t)]
            before = self._before(read, rest)
            if core is not read and alone and before and others in ([], [read]):
                # The outermost module that makes the core of what it reads.
                made = [c.module for c in self.calls if c.result is core and read in c.given]
                module = self.paths[made[-1]] if made else None
                return Opaque(module=module, before=before[0], **wiring)
        return None

    def _parallel(self) -> Layout | None:
        """Out = x + attention + feed-forward, in any order."""
        sums = [self.end.of] if self.end.kind == "sum" else []
        for first, second in sums:
            for pair, third in ((first, second), (second, first)):
                terms = [*pair.of, third] if pair.kind == "sum" else []
                for at in terms if self.start in terms else ():
                    others = [t for t in terms if t is not at and t is not self.start]
                    attention = self._attention(*self._branch(at), self.start)
                    if attention is None or attention[1] == "cross" or len(others) != 1:
                        continue
                    ff = self._feed_forward(*self._branch(others[0]), self.start)
                    if ff is not None:
                        return Layout(attention[0], ff, parallel=True)
        return None

    # ---- words

    def formula(self, term: Expression | None = None, depth: int = 8) -> str:
        """Write the layer's output as an expression in its input x."""
        term = self.end if term is None else term
        if term is self.start:
            return "x"
        if depth == 0:
            return "…"
        of = [self.formula(t, depth - 1) for t in term.of]
        if term.kind in ("sum", "product"):
            return (" + " if term.kind == "sum" else " · ").join(of)
        by = self.names.get(term, term.by)
        name = self.paths.get(by, by) if isinstance(by, nn.Module | str) else term.kind
        if self._is_attention(term):
            name = self.paths.get(self.cores[by][0], name)
        return f"{name}({', '.join(of)})"


def named(activation: Callable[[Tensor], Tensor]) -> str | Callable[[Tensor], Tensor]:
    """Return transformers' name of an activation with these values, or the function itself."""
    from transformers.activations import ACT2FN

    grid = torch.linspace(-6, 6, 25, dtype=torch.float64)
    for name in ("gelu", "silu", "relu", "gelu_new", "quick_gelu", "relu2", "tanh", "sigmoid"):
        if torch.allclose(ACT2FN[name](grid), activation(grid), rtol=1e-12, atol=1e-14):
            return name
    return activation


@dataclass(frozen=True)
class Seen:
    """What a layer was seen to be in one call."""

    layout: Layout | None
    whole: bool  # whether the layout is of the whole layer, not of its attention blocks alone
    formula: str  # of its output


class Sighting:
    """One pass in which the layers of a model are followed.

    Attributes:
        layers: what was seen, by path; the paths are those of elements of module lists.
        attended: the attention modules whose calls were captured.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.inventory = model, Inventory(model)
        self.follower = LayerFollower(model)
        self.layers: dict[str, Seen] = {}
        self.attended: set[nn.Module] = set()
        self._cores: dict[nn.Module, tuple[nn.Module, AttentionKind]] = {}

    def run(self, inputs: Mapping[str, Any]) -> None:
        """Run the model, as it is, in evaluation mode and without gradients."""
        with (
            evaluating(self.model),
            torch.no_grad(),
            self._hooks(),
            capture(self.model, self._captured, attention="auto"),
            self.follower,
        ):
            self.model(**inputs)

    def unseen(self) -> bool:
        """Return whether there is an attention module that did not attend, nor a part of it."""
        modules = self.inventory.attention
        return any(self.attended.isdisjoint(module.modules()) for module in modules)

    def _captured(self, captured: Capture) -> None:
        named = self.inventory.named
        module, projection = named[captured.name], named.get(captured.projection.name)
        self.attended.add(module)
        if projection is None:  # a bare parameter
            return
        self._cores[projection] = module, captured.kind
        self.follower.count_linear(projection)

    @shielded
    def _hooks(self) -> Iterator[None]:
        """Have the follower see all modules in layers; before capture's own hooks."""
        follower = self.follower

        def begin(layer: nn.Module, args: Any, kwargs: Any) -> None:
            if follower.is_own_thread():
                follower.begin(layer, state_given(layer, args, kwargs))

        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            if follower.follows():
                follower.enter(args, kwargs)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if follower.follows():
                follower.leave(module, output, linear=module in self._cores)

        def end(layer: nn.Module, args: Any, output: Any) -> None:
            if follower.follows():
                self._ended(*follower.running.pop(), first_tensor(output))

        layers = layer_elements(self.inventory)
        inside = dict.fromkeys(m for layer in layers.values() for m in layer.modules())
        with ExitStack() as hooks:
            for layer in layers.values():
                hooks.callback(layer.register_forward_pre_hook(begin, with_kwargs=True).remove)
            for module in inside:
                hooks.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(leave).remove)
            for layer in layers.values():
                hooks.callback(layer.register_forward_hook(end).remove)
            yield

    def _ended(self, layer: nn.Module, start: Expression | None, state: Tensor | None) -> None:
        end = None if state is None else self.follower.of(state)
        if start is None or end is None:
            seen = Seen(None, False, "something that does not come from its input")
        else:
            reading = Reading(self.follower, self._cores, layer, start, end)
            layout = reading.layout()
            whole, layout = layout is not None, layout or reading.partial()
            seen = Seen(layout, whole, reading.formula())
        path = self.inventory[layer].name
        before = self.layers.get(path, seen)
        self.layers[path] = seen if before == seen else replace(seen, layout=None)


def layer_elements(inventory: Inventory) -> dict[str, nn.Module]:
    """Return the elements of module lists that contain an attention module, by path."""
    elements: dict[str, nn.Module] = {}
    for attention in inventory.attention:
        names = inventory[attention].name.split(".")
        for at in range(1, len(names)):
            path = ".".join(names[:at])
            if isinstance(inventory.named[path.rpartition(".")[0]], nn.ModuleList):
                elements.setdefault(inventory[inventory.named[path]].name, inventory.named[path])
    return elements


def state_given(layer: nn.Module, args: Any, kwargs: Any) -> Tensor | None:
    """Return the hidden states among a layer's arguments: the first in order of its signature."""
    names = _parameters(type(layer).forward)
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    ordered = [*(named.pop(name) for name in names if name in named), *args, *named.values()]
    states = (t for t in ordered if isinstance(t, Tensor) and t.is_floating_point())
    return next((t for t in states if t.dim() > 1), None)


@functools.cache
def _parameters(method: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(method).parameters)[1:]  # without self
