"""Forward replay: the components of a layer's input, pushed through the unmodified layer.

A model runs as a linearised network, with attention weights, norm scales, slopes and routing held,
and with a component beside every state (a dual number). Every layer starts anew, and between layers
there are no components, so one pass of the model pushes one key through all layers.

Inside attention, the component of key j begins with the whole value vector of j, where the held
weights mix the values: the bias of the values and that of the norm before are part of it. Where
values are not mixed one by one (windows in chunks), the component begins as the attention's input
at j, and constants that are added before the mixing belong to the token at their position. The
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
        attention: the path of the attention module, by kind.
        projection: the path of the first linear map that reads what was mixed, by kind.
        through: whether components of this layer begin at the input of its attention.
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
    attention: dict[Kind, str] = field(default_factory=dict)
    projection: dict[Kind, str] = field(default_factory=dict)
    through: bool = False


class Replay(Network):
    """A model as a linearised network in which every layer gets components of its own.

    Args:
        structure: the model's layers and activations.
        inventory: its attention modules.
        rows: the number of rows of the batch, repetitions counted.
        push: what to push.
        watched: the layers.
        looked: the layers as a pass that pushes nothing has seen them, by path and number.
        report: called with every layer when it has run.
    """

    def __init__(
        self,
        structure: Structure,
        inventory: Inventory,
        rows: int,
        push: Push,
        watched: Mapping[nn.Module, Watched],
        looked: Mapping[tuple[str, int], LayerRun],
        report: Callable[[LayerRun], None],
    ) -> None:
        super().__init__(structure, RULES, rows)
        self.inventory, self.pushed, self.watched = inventory, push, watched
        self.looked, self.report = looked, report
        through = any(run.through for run in looked.values())
        self.ledger.counting = push.part in ("residual", "constants") or through
        self.running: list[LayerRun] = []  # the innermost last
        self.attending: list[Kind] = []  # attention modules that are running, the innermost last
        self.runs: dict[str, int] = {}
        self.mixed = False  # whether the function that runs now reads what attention mixed
        attention = {*inventory.attention}
        self.innermost = {m for m in attention if not attention & {*m.modules()} - {m}}

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
        if self.pushed.part == "nothing":
            for module in self.inventory.linear:
                yield module.register_forward_pre_hook(self._linear_begins)

    def _attention_begins(self, module: nn.Module, args: Arguments, kwargs: Keywords) -> Any:
        if not self.active:
            return None
        states, cross = reads_other_states(module, args, kwargs)
        kind: Kind = "cross" if cross else "self"
        self.attending.append(kind)
        run = self.running[-1] if self.running else None
        if run is None or module not in self.innermost or not torch.is_grad_enabled():
            return None
        run.attention.setdefault(kind, self.inventory[module].name)
        if not run.through or kind != "self" or states is None:
            return None
        if self.pushed.part == "nothing":
            return None
        with torch._C.DisableTorchFunction():
            started = self._with_component(run, states, self._of_attention(run, states))
        return (
            tuple(started if a is states else a for a in args),
            {name: started if a is states else a for name, a in kwargs.items()},
        )

    def _attention_ends(self, module: nn.Module, args: Arguments, output: Any) -> None:
        if self.active:
            self.attending.pop()

    def _linear_begins(self, module: nn.Module, args: Arguments) -> None:
        if self.active and self.running and self.attending and any(map(_is_mixed, args)):
            name = self.inventory[module].name
            self.running[-1].projection.setdefault(self.attending[-1], name)

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
        known = self.looked.get((path, number))
        run = LayerRun(path, number, known.kind if known else "self", *shape_of(self, state))
        run.through = known is not None and known.through
        self.running.append(run)
        run.start = self._of_input(run, by_row(run, state))
        started = self._with_component(run, state, run.start)
        # What else a layer is given, such as an embedding of its own, is no part of its input.
        args, kwargs = tuple(map(_held, args)), {name: _held(a) for name, a in kwargs.items()}
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

    def _with_component(self, run: LayerRun, state: Tensor, component: Tensor | None) -> Tensor:
        """Return a state that has a component (row, position, hidden), and no other."""
        state = forward_ad.unpack_dual(state).primal.detach().requires_grad_().clone()
        if component is None:
            return state
        axes = component.transpose(0, 1) if run.positions_first else component
        return forward_ad.make_dual(state, axes.reshape(state.shape))

    def _of_attention(self, run: LayerRun, state: Tensor) -> Tensor | None:
        """Return the component of an attention's input where values are not mixed one by one."""
        if state.shape[:-1].numel() != run.shape[0] * run.shape[1]:
            raise UnsupportedModelError(
                f"{run.path}: the input of its attention is not one vector for each position, so "
                "that it cannot be followed from its tokens"
            )
        states = by_row(run, forward_ad.unpack_dual(state).primal.detach())
        if self.pushed.part == "keys" and run.kind == "self":
            return self._chosen(states, 1)
        if self.pushed.part == "residual" and run.kind == "cross":
            return states.clone()
        return None

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
        return by_row(run, component).clone()

    # ---- constants

    def count(self, state: Tensor, constant: Any, part: str = "position") -> Tensor:
        """Push a constant that is a summand of a state, where this pass pushes constants."""
        of_token = self._belongs_to_token()
        counted = of_token or self._counted()
        if not counted or (not isinstance(constant, Tensor) and constant == 0):
            return state
        if not isinstance(constant, Tensor):
            constant = torch.as_tensor(constant, dtype=state.dtype, device=state.device)
        constant = constant.to(state.dtype).expand_as(state).clone()
        if of_token and self.pushed.part == "keys":
            constant = self._at_keys(self.running[-1], constant)
        return state + forward_ad.make_dual(torch.zeros_like(state), constant)

    def _belongs_to_token(self) -> bool:
        """Return whether constants that are added now belong to tokens, and are pushed."""
        run = self.running[-1] if self.running else None
        if run is None or not run.through or not self.attending or self.mixed:
            return False
        part = "keys" if run.kind == "self" else "residual"
        return self.attending[-1] == "self" and self.pushed.part == part

    def _counted(self) -> bool:
        """Return whether constants that are added now belong to no token, and are pushed."""
        run = self.running[-1] if self.running else None
        if run is None or (run.through and self.attending and not self.mixed):
            return False
        if run.kind == "self":
            return self.pushed.part == "constants"
        behind = "cross" in run.keys
        return self.pushed.part == "constants" if behind else self.pushed.part == "residual"

    def _at_keys(self, run: LayerRun, constant: Tensor) -> Tensor:
        """Return a summand of states with zeros at all positions but the pushed ones."""
        rows, positions = run.shape
        sizes = constant.shape[:-1]
        if sizes == (rows * positions,):
            return self._chosen(by_row(run, constant), 1).reshape(constant.shape)
        row_axes = [axis for axis, size in enumerate(sizes) if size == rows]
        axes = [axis for axis, size in enumerate(sizes) if size == positions]
        if rows == positions and len(axes) == 2 == len(sizes):
            row_axes, axes = ([1], [0]) if run.positions_first else ([0], [1])
        if len(row_axes) != 1 or len(axes) != 1:
            raise UnsupportedModelError(
                f"{run.path}: a constant in its attention is added to states of shape "
                f"{(*constant.shape,)}, of which it is not clear what the positions are"
            )
        moved = constant.movedim((row_axes[0], axes[0]), (0, 1))
        return self._chosen(moved, 1).movedim((0, 1), (row_axes[0], axes[0]))

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
        before, self.mixed = self.mixed, mixed
        try:
            value = super().__torch_function__(func, types, args, kwargs)
        finally:
            self.mixed = before
        if mixed:
            _mark_mixed(args[0] if value is None else value)
        return value

    def _mixing(
        self, name: str, args: Arguments, kwargs: Keywords
    ) -> tuple[Arguments, Keywords, bool]:
        """Let the values start anew where attention weights mix them."""
        if name == "scaled_dot_product_attention":
            place: Any = "value" if "value" in kwargs else 2
            query = kwargs["query"] if "query" in kwargs else args[0]
            values = kwargs[place] if place == "value" else args[place]
            started = self._values(values, query.shape[-2], values.shape[-2])
        elif name in functions.PRODUCTS - functions.ELEMENTWISE_PRODUCTS:
            weights = [i for i, a in enumerate(args) if getattr(a, "_normscope_weights", False)]
            others = [i for i, a in enumerate(args) if isinstance(a, Tensor) and i not in weights]
            if len(weights) != 1 or len(others) != 1:
                return args, kwargs, False
            (place,) = others
            started = self._values(args[place], *args[weights[0]].shape[-2:])
        else:
            return args, kwargs, False
        if place == "value":
            return args, {**kwargs, place: started}, True
        return (*args[:place], started, *args[place + 1 :]), kwargs, True

    def _values(self, values: Tensor, queries: int, keys: int) -> Tensor:
        """Return the values as states, with the components of this pass."""
        run, kind = self.running[-1], self.attending[-1]
        rows, positions = run.shape
        aligned = keys == values.shape[-2] and queries == positions
        aligned = aligned and values.dim() in (3, 4) and values.shape[0] % rows == 0
        if aligned and (kind == "cross" or keys == positions) and not run.through:
            run.keys[kind] = keys
            values = forward_ad.unpack_dual(values).primal.detach()
            component = self._of_values(run, kind, values)
            state = values.requires_grad_().clone()
            return state if component is None else forward_ad.make_dual(state, component)
        if kind == "cross":
            raise UnsupportedModelError(
                f"{run.path}: the values of its cross-attention are not one for each key, so that "
                "they cannot be followed from their tokens"
            )
        run.keys[kind], run.through = positions, True
        return values

    def _of_values(self, run: LayerRun, kind: Kind, values: Tensor) -> Tensor | None:
        if self.pushed.part == "keys" and kind == run.kind:
            by_row = values.reshape(run.shape[0], -1, *values.shape[-2:])
            return self._chosen(by_row, 2).reshape(values.shape)
        if self.pushed.part == "residual" and kind == "self" and run.kind == "cross":
            return values.clone()
        return None


def by_row(run: LayerRun, states: Tensor) -> Tensor:
    """Return hidden states of a layer as (row, position, hidden)."""
    rows, positions = run.shape
    first = run.positions_first
    if rows != positions and states.dim() == 3:  # a module in it may have another layout
        first = (first or states.shape[:2] == (positions, rows)) and states.shape[0] != rows
    if first:
        return states.reshape(positions, rows, -1).transpose(0, 1)
    return states.reshape(rows, positions, -1)


def shape_of(network: Network, states: Tensor) -> tuple[tuple[int, int], bool]:
    """Return the numbers of rows and positions, and whether positions are the first axis."""
    if states.dim() == 2:
        return (1, states.shape[0]), False
    if states.dim() == 3 and network.positions_first(states):
        return (states.shape[1], states.shape[0]), True
    return (states.shape[0], states.shape[1:-1].numel()), False


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
