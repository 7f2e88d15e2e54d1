"""Forward replay: the components of a layer's input, pushed through the unmodified layer.

A model runs as a linearised network, with attention weights, norm scales, slopes and routing held,
and with a component beside every state (a dual number). Every layer starts anew, and between layers
there are no components, so one pass of the model pushes one key through all layers.

Inside attention, the component of key j begins with the whole value vector of j, where the held
weights mix the values: the bias of the values and that of the norm before are part of it. The
residual connection carries x_j. Constants that are added later belong to no token; they are pushed
in a pass of their own. In cross-attention the keys are the source's positions, and the state that
the decoder's layer brings along is pushed in one more pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from normscope.errors import UnsupportedModelError
from normscope.foundation.interrupts import shielded
from normscope.linearisation import functions
from normscope.linearisation.composites import Arguments, Keywords
from normscope.linearisation.network import Network
from normscope.linearisation.rules import rules_of
from normscope.linearisation.structure import Structure
from normscope.models.inventory import Inventory, reads_other_states

# The rule of products is that of the feed-forward's factored form.
RULES = rules_of("frozen", "ig")
Kind = Literal["self", "cross"]


@dataclass(frozen=True)
class Push:
    """What one pass pushes.

    Attributes:
        part: "nothing" only looks at the layers; "keys" pushes a key of each row; "residual" the
            state at which a cross-attention begins; "constants" what belongs to no token.
        keys: for "keys", one for each repetition of a row: rows of the batch are repeated one by
            one, as by ``repeat_interleave``.
    """

    part: Literal["nothing", "keys", "residual", "constants"]
    keys: tuple[int, ...] = ()


@dataclass(frozen=True)
class Watched:
    """A layer whose components are read: its path, and those of modules in it."""

    path: str
    modules: tuple[str, ...] = ()


@dataclass(eq=False)
class LayerRun:
    """One layer in one run of the model, and the components at its modules.

    Components are (row, position, hidden), whatever the layout of the model's states is.

    Attributes:
        path: of the layer.
        number: how often the layer ran before.
        kind: the attention whose keys are pushed.
        shape: of the layer's input, as (row, position).
        positions_first: whether the model has positions before rows.
        keys: the number of keys of each kind of attention that ran.
        start: what the residual connection brings along, at the layer's beginning.
        ran: for modules, by path in the layer, the components of input and output.
        output: the component of the layer's output.
    """

    path: str
    number: int
    kind: Kind
    shape: tuple[int, int]
    positions_first: bool
    keys: dict[Kind, int] = field(default_factory=dict)
    start: Tensor | None = None
    ran: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    output: Tensor | None = None


class Replay(Network):
    """A model as a linearised network in which every layer gets components of its own.

    Args:
        structure: the model's layers and activations.
        inventory: its attention modules.
        rows: the number of rows of the batch, repetitions counted.
        push: what to push.
        watched: the layers.
        kinds: the attention whose keys are pushed, by path and number; self-attention by default.
        report: called with every layer when it has run.
    """

    def __init__(
        self,
        structure: Structure,
        inventory: Inventory,
        rows: int,
        push: Push,
        watched: Mapping[nn.Module, Watched],
        kinds: Mapping[tuple[str, int], Kind],
        report: Callable[[LayerRun], None],
    ) -> None:
        super().__init__(structure, RULES, rows)
        self.inventory, self.pushed, self.watched = inventory, push, watched
        self.kinds, self.report = kinds, report
        self.ledger.counting = push.part in ("residual", "constants")
        self.running: list[LayerRun] = []  # the innermost last
        self.attending: list[Kind] = []  # attention modules that are running, the innermost last
        self.runs: dict[str, int] = {}

    @property
    def pushes(self) -> bool:
        """Whether components are pushed forwards."""
        return True

    # ---- hooks

    @shielded
    def hooked(self) -> Iterator[None]:
        """See layers, attention modules, activations and the modules to read."""
        with ExitStack() as stack:
            stack.enter_context(self.structure.watched(self))
            for handle in self._hooks():
                stack.callback(handle.remove)
            yield

    def _hooks(self) -> Iterator[Any]:
        for module in self.inventory.attention:
            yield module.register_forward_pre_hook(self._attention_begins, with_kwargs=True)
            yield module.register_forward_hook(self._attention_ends, always_call=True)
        for layer, place in self.watched.items():
            yield from self._layer_hooks(layer, place)
            for path in place.modules:
                yield layer.get_submodule(path).register_forward_hook(
                    self._reader(path), with_kwargs=True
                )

    def _attention_begins(self, module: nn.Module, args: Arguments, kwargs: Keywords) -> None:
        if self.active:
            _, cross = reads_other_states(module, args, kwargs)
            self.attending.append("cross" if cross else "self")

    def _attention_ends(self, module: nn.Module, args: Arguments, output: Any) -> None:
        if self.active:
            self.attending.pop()

    def _layer_hooks(self, layer: nn.Module, place: Watched) -> Iterator[Any]:
        def begin(_: nn.Module, args: Arguments, kwargs: Keywords) -> Any:
            if not self.active or not torch.is_grad_enabled():
                return None
            with torch._C.DisableTorchFunction():
                return self._begin(place.path, args, kwargs)

        def end(_: nn.Module, args: Arguments, output: Any) -> Any:
            if not self.active or not torch.is_grad_enabled():
                return None
            with torch._C.DisableTorchFunction():
                return self._end(output)

        yield layer.register_forward_pre_hook(begin, with_kwargs=True)
        yield layer.register_forward_hook(end)

    def _reader(self, path: str) -> Callable[..., None]:
        def note(_: nn.Module, args: Arguments, kwargs: Keywords, output: Any) -> None:
            if self.active and self.running and self.pushed.part != "nothing":
                with torch._C.DisableTorchFunction():
                    given = next(a for a in (*args, *kwargs.values()) if isinstance(a, Tensor))
                    self.running[-1].ran[path] = self._read(given), self._read(output)

        return note

    def _begin(self, path: str, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
        """Start a layer: drop the components of its input, and push those of its own."""
        place = next((i for i, a in enumerate(args) if isinstance(a, Tensor)), None)
        hidden = kwargs.get("hidden_states") if place is None else args[place]
        if not isinstance(hidden, Tensor):
            raise UnsupportedModelError(f"{path} was called without a tensor of hidden states")
        number = self.runs[path] = self.runs.get(path, -1) + 1
        state = forward_ad.unpack_dual(hidden).primal.detach()
        kind = self.kinds.get((path, number), "self")
        run = LayerRun(path, number, kind, *self._shape_of(state))
        self.running.append(run)
        started = state.requires_grad_().clone()
        run.start = self._of_input(run, self._by_row(run, state))
        if run.start is not None:
            axes = run.start.transpose(0, 1) if run.positions_first else run.start
            started = forward_ad.make_dual(started, axes.reshape(state.shape))
        if place is None:
            return args, {**kwargs, "hidden_states": started}
        return (*args[:place], started, *args[place + 1 :]), kwargs

    def _end(self, output: Any) -> Any:
        """Report a layer, and return its output as a constant, up to where the next one begins."""
        run = self.running[-1]
        if self.pushed.part != "nothing":
            run.output = self._read(output)
        self.running.pop()
        self.report(run)
        if isinstance(output, Tensor):
            return _held(output)
        if type(output) in (tuple, list):
            return type(output)((_held(output[0]), *output[1:]))
        return output

    def _of_input(self, run: LayerRun, states: Tensor) -> Tensor | None:
        """Return the component of a layer's input, (row, position, hidden); None for zero."""
        if self.pushed.part == "keys" and run.kind == "self":
            return self._chosen(states, 1)
        if self.pushed.part == "residual" and run.kind == "cross":
            return states.clone()
        return None

    def _chosen(self, states: Tensor, axis: int) -> Tensor:
        """Return states (row, …) with zeros at all but one position of each row, along an axis."""
        keys = torch.tensor(self.pushed.keys, device=states.device)
        choices = max(1, len(states) // self.rows)  # a multiple choice has several texts in a row
        rows = torch.arange(len(states), device=states.device)
        index = keys[rows // choices % len(keys)]
        at = torch.arange(states.shape[axis], device=states.device)
        sizes = [n if d in (0, axis) else 1 for d, n in enumerate(states.shape)]
        return torch.where((index.unsqueeze(1) == at).view(sizes), states, 0)

    # ---- layouts of states

    def _by_row(self, run: LayerRun, states: Tensor) -> Tensor:
        """Return hidden states as (row, position, hidden)."""
        rows, positions = run.shape
        if run.positions_first:
            return states.reshape(positions, rows, -1).transpose(0, 1)
        return states.reshape(rows, positions, -1)

    def _shape_of(self, states: Tensor) -> tuple[tuple[int, int], bool]:
        """Return the numbers of rows and positions, and whether positions are the first axis."""
        if states.dim() == 2:
            return (1, states.shape[0]), False
        if states.dim() == 3 and self.positions_first(states):
            return (states.shape[1], states.shape[0]), True
        return (states.shape[0], states.shape[1:-1].numel()), False

    def _read(self, output: Any) -> Tensor:
        """Return a copy of the component of a module's input or output."""
        state = output if isinstance(output, Tensor) else output[0]
        primal, component = forward_ad.unpack_dual(state)
        component = torch.zeros_like(primal) if component is None else component.detach()
        run, hidden = self.running[-1], component.shape[-1]
        rows, positions = run.shape
        if component.numel() != rows * positions * hidden:
            raise UnsupportedModelError(
                f"{run.path} has {rows * positions} positions, but a module in it ran on "
                f"{component.numel() // hidden} at a time. If the model's configuration has "
                "chunk_size_feed_forward, load it with 0"
            )
        return self._by_row(run, component).clone()

    # ---- constants

    def count(self, state: Tensor, constant: Any, part: str = "position") -> Tensor:
        """Push a constant that is a summand of a state, where this pass pushes constants."""
        if not self._counted() or (not isinstance(constant, Tensor) and constant == 0):
            return state
        if not isinstance(constant, Tensor):
            constant = torch.as_tensor(constant, dtype=state.dtype, device=state.device)
        zero = torch.zeros_like(state)
        added = forward_ad.make_dual(zero, constant.to(state.dtype).expand_as(state).clone())
        return state + added

    def _counted(self) -> bool:
        """Return whether constants that are added now are pushed in this pass."""
        if not self.running:
            return False
        run = self.running[-1]
        if run.kind == "self":
            return self.pushed.part == "constants"
        behind = "cross" in run.keys
        return self.pushed.part == "constants" if behind else self.pushed.part == "residual"

    # ---- attention

    def __torch_function__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: Keywords | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, func.__name__
        if not self.running or not self.attending:
            return super().__torch_function__(func, types, args, kwargs)
        args, kwargs, mixing = self._mixing(name, args, kwargs)
        mixed = mixing or any(map(_is_mixed, (*args, *kwargs.values())))
        if mixed and not mixing and name in functions.PRODUCTS:
            args = tuple(a if _is_mixed(a) else _held(a) for a in args)  # a gate of the heads
        value = super().__torch_function__(func, types, args, kwargs)
        return _mark_mixed(value) if mixed else value

    def _mixing(
        self, name: str, args: Arguments, kwargs: Keywords
    ) -> tuple[Arguments, Keywords, bool]:
        """Let the values start anew where attention weights mix them."""
        if name == "scaled_dot_product_attention":
            if "value" in kwargs:
                return args, {**kwargs, "value": self._values(kwargs["value"])}, True
            return (*args[:2], self._values(args[2]), *args[3:]), kwargs, True
        if name in functions.PRODUCTS - functions.ELEMENTWISE_PRODUCTS:
            weights = [i for i, a in enumerate(args) if getattr(a, "_normscope_weights", False)]
            others = [i for i, a in enumerate(args) if isinstance(a, Tensor) and i not in weights]
            if len(weights) == len(others) == 1:
                (place,) = others
                started = self._values(args[place])
                return (*args[:place], started, *args[place + 1 :]), kwargs, True
        return args, kwargs, False

    def _values(self, values: Tensor) -> Tensor:
        """Return the values as states, with the components of this pass."""
        run, kind = self.running[-1], self.attending[-1]
        keys = values.shape[-2]
        if values.shape[:-2].numel() % run.shape[0] or (kind == "self" and keys != run.shape[1]):
            raise UnsupportedModelError(
                f"{run.path}: the values of its attention are not one for each position, so that "
                "they cannot be followed from their tokens"
            )
        run.keys[kind] = keys
        values = forward_ad.unpack_dual(values).primal.detach()
        component = self._of_values(run, kind, values)
        state = values.requires_grad_().clone()
        return state if component is None else forward_ad.make_dual(state, component)

    def _of_values(self, run: LayerRun, kind: Kind, values: Tensor) -> Tensor | None:
        if self.pushed.part == "keys" and kind == run.kind:
            by_row = values.reshape(run.shape[0], -1, *values.shape[-2:])
            return self._chosen(by_row, 2).reshape(values.shape)
        if self.pushed.part == "residual" and kind == "self" and run.kind == "cross":
            return values.clone()
        return None


def _is_mixed(argument: Any) -> bool:
    """Return whether a state depends on what attention mixed in this layer."""
    if isinstance(argument, list | tuple):
        return any(map(_is_mixed, argument))
    return getattr(argument, "_normscope_mixed", False)


def _mark_mixed(value: Any) -> Any:
    if isinstance(value, Tensor):
        value._normscope_mixed = True  # type: ignore[attr-defined]
    elif isinstance(value, list | tuple):
        for tensor in value:
            _mark_mixed(tensor)
    return value


def _held(argument: Any) -> Any:
    """Return a state as a constant."""
    if isinstance(argument, Tensor) and argument.requires_grad:
        return forward_ad.unpack_dual(argument).primal.detach()
    return argument
