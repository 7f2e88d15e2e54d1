"""The state of one open capture: what the hooks report, put together into records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normscope.capture.follow import HeadFollower, NotFollowed, Trail
from normscope.capture.held import Held, HeldHeads, hold
from normscope.capture.joined import in_a_row
from normscope.capture.probing import first_tensor, probe
from normscope.capture.projection import Projection, affine, projection_of
from normscope.capture.record import AttentionKind, Capture, CapturePath
from normscope.capture.scores import Scores
from normscope.errors import UnsupportedModelError
from normscope.models.inventory import Inventory, reads_other_states, uses_interface
from normscope.models.walk import modules


@dataclass
class Pending:
    """An attention call whose output projection has not run yet."""

    module: nn.Module
    path: CapturePath
    weights: Tensor | Scores
    value: Tensor
    mixed: Tensor  # αv; (batch, query, head, e) from the interface, (…, query, e) when watched
    mask: Tensor | None
    projection: nn.Module | None = None
    merged: Tensor | None = None  # the input of the projection
    trail: Trail | None = None  # how that was made, if not of the heads alone
    scale: Tensor | None = None  # of the output of the heads, (batch, head, query); not in α
    extra: int = 0  # positions, the last ones, that are no tokens
    kind: Tensor | None = None  # where values are of several kinds: which one a query reads
    delivered: bool = False  # the module has ended with the heads' output as its own
    batch_first: bool = True

    def __post_init__(self) -> None:
        self.returned = self.mixed  # the tensor that the model goes on with
        # A gate applied in place would share the memory of the heads. torch counts no versions in
        # inference mode, so a copy is kept there.
        counted = not self.mixed.is_inference()
        self.mixed = self.mixed if counted else self.mixed.clone()
        self.version = self.mixed._version if counted else None

    def keep(self) -> None:
        """Keep a copy of the heads' output: what acts on it may write into it."""
        if self.mixed is self.returned:
            self.mixed = self.mixed.clone()
            self.version = None if self.mixed.is_inference() else self.mixed._version

    def untouched(self) -> bool:
        """Return whether nothing has written into the output of the heads."""
        return self.version is None or self.version == self.mixed._version

    def by_query(self, states: Tensor) -> Tensor:
        """Return hidden states as (batch, query, hidden), however the module lays them out.

        Its output projection may run on another layout than the module around it.
        """
        batch, _, query, _ = self.weights.shape
        states, first = states.detach(), self.batch_first
        layouts = (batch, query), (query, batch)
        if batch != query and states.dim() == 3 and states.shape[:2] in layouts:
            first = states.shape[0] == batch
        return states.reshape(batch, query, -1) if first else states.transpose(0, 1)

    def is_by_query(self, states: Tensor) -> bool:
        """Return whether there is a vector for every query, in whatever layout."""
        return states.numel() % (self.weights.shape[0] * self.weights.shape[2]) == 0


@dataclass(frozen=True)
class Begun:
    """A running attention module."""

    seen: int  # attention calls before it
    arguments: tuple[Any, Any] | None  # what it was called with, if it computes attention by hand


class Recorder:
    """What one open capture has seen so far in this forward pass."""

    def __init__(
        self, inventory: Inventory, emit: Callable[[Capture], None], *, fused: bool = False
    ) -> None:
        self.emit = emit
        self.emitting = False  # whether what is computed now is made of a record, not by the model
        self.fused = fused  # whether plain attention is left to the model's sdpa function
        self.inventory = inventory
        self.open = True
        self.watch: TorchFunctionMode | None = None
        self.pending: Pending | None = None
        self.earlier: list[Pending] = []  # calls of the same module whose heads are joined with it
        self.follower: HeadFollower | None = None  # of what acts on the output of the pending heads
        self.merged: Tensor | None = None  # the input of the last output projection
        self.running: set[str] = set()  # stacks whose owner is running
        self.steps: dict[str, int] = {}  # stack -> number of runs begun, less one
        self.layers: dict[tuple[str, str], int] = {}  # (stack, kind) -> calls in this run
        self.inputs: dict[nn.Module, tuple[Tensor | None, bool]] = {}  # attention: input, is cross
        self.norms: list[tuple[Tensor, Tensor]] = []  # (input, output) since the block began
        self.normed_first: dict[nn.Module | None, bool] = {}  # block -> is its self-attn pre-norm
        self.block: nn.Module | None = None
        self.inside: list[nn.Module] = []  # attention modules that are running, outermost first
        self.seen = 0  # attention calls so far
        # ``seen`` when a running element of a list began.
        self.seen_before: dict[nn.Module, int] = {}
        self.begun: dict[nn.Module, Begun] = {}  # running attention modules
        self.attended: dict[str, set[str]] = {}  # stack -> its elements that attended
        self.idle: dict[str, set[str]] = {}  # stack -> its elements that ran and did not
        self.without: set[str] = set()  # elements whose attention has no weights
        self.bare: nn.Module | None = None  # a running element of a list that has no attention
        self.by_hand = False  # whether attention was seen in it, or a softmax in ``inside``

    # What the hooks report, in the order in which it happens in a layer.

    def stack_begins(self, stacks: list[str]) -> None:
        """Reset the counters of layer lists whose owner begins to run."""
        self._forget_pending()
        self.merged, self.inside = None, []
        self.running.update(stacks)
        for stack in stacks:
            self.steps[stack] = self.steps.get(stack, -1) + 1
            self.attended[stack], self.idle[stack] = set(), set()
            for kind in ("self", "cross"):
                self.layers[stack, kind] = 0

    def stack_ends(self, stacks: list[str]) -> None:
        """Raise UnsupportedModelError if only some layers of a list were seen to attend."""
        self._refuse_pending()
        self.running.difference_update(stacks)
        for stack in stacks:
            unseen = self.idle[stack] - self.without
            if self.attended[stack] and unseen:
                raise self._unseen(sorted(unseen)[0])

    def element_begins(self, element: nn.Module, stack: str) -> None:
        """Note that an element of a layer list begins to run."""
        if stack not in self.running and self.inventory[element].name == f"{stack}.0":
            self.stack_begins([stack])  # the layers are called from outside, one by one
            self.running.discard(stack)
        self.seen_before[element] = self.seen
        if element in self.inventory.bare:
            self.bare, self.by_hand = element, False

    def element_ends(self, element: nn.Module, stack: str) -> None:
        """Note whether an element of a layer list attended."""
        attended = self.seen > self.seen_before.pop(element, self.seen)
        name = self.inventory[element].name
        if self.bare is element:
            self.bare = None
            if self.by_hand:
                raise self._unseen(name)
            return
        elements = self.attended if attended else self.idle
        elements.setdefault(stack, set()).add(name)

    def block_begins(self, block: nn.Module) -> None:
        """Forget the norms of the block before."""
        self.norms, self.normed_first, self.block = [], {}, block

    def norm_ran(self, read: Tensor | None, output: Tensor) -> None:
        """Note the input and the output of a norm."""
        if read is not None:
            self.norms.append((read, output))

    def attention_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> None:
        """Note the input of an attention module, and whether it is a cross-attention."""
        self.inside.append(module)
        by_hand = not uses_interface(type(module))
        self.begun[module] = Begun(self.seen, (args, kwargs) if by_hand else None)
        self.by_hand = False
        self.inputs[module] = reads_other_states(module, args, kwargs)

    def attention_ends(self, module: nn.Module, output: Any) -> None:
        """Read a module's attention by probes if it was not seen to attend in a plain form.

        Raises UnsupportedModelError if that is not possible. ``output`` is None after an exception.
        """
        if module in self.inside:
            del self.inside[self.inside.index(module) :]
        begun = self.begun.pop(module, None)
        if begun is None or output is None:
            return
        pending, seen = self.pending, self.seen > begun.seen
        if begun.arguments is None or pending is None:  # it calls transformers' attention interface
            read = seen
        else:
            read = seen and self._delivers(pending, output)
        if read:
            return
        watched = self.watch is not None and begun.arguments is not None
        if not seen and not self.by_hand and watched:
            # Without any softmax there are no attention weights: a linear attention.
            self.without.add(self.inventory[module].element)
            return
        self._probe(module, begun, output)

    def _delivers(self, pending: Pending, output: Any) -> bool:
        """Return whether a module's output is that of its heads, whose projection follows it."""
        if pending.delivered:
            return True
        states = first_tensor(output)
        if states is None or self.earlier:
            return False
        followed = self.follower is not None and self.follower.trail(states) is not None
        pending.delivered = followed or _feeds(pending, states)
        return pending.delivered

    def _probe(self, module: nn.Module, begun: Begun, output: Any) -> None:
        """Read the attention of a module that has just run by running it again."""
        try:
            if begun.arguments is None:
                raise NotFollowed
            probed = probe(module, *begun.arguments, output)
        except NotFollowed:
            if any(not uses_interface(type(around)) for around in self.inside):
                return  # the module around it is tried
            if self.pending is not None:
                self._refuse_pending()
            raise self._unseen(self.inventory[module].name) from None
        self._forget_pending()
        self.seen += 1
        pending = Pending(module, "probed", probed.weights, probed.value, probed.mixed, None)
        pending.kind, pending.extra = probed.kind, probed.extra
        pending.batch_first = probed.is_batch_first(self.inputs[module][0])
        if probed.output is None or probed.weight is None:
            self.pending, self.merged, pending.delivered = pending, None, True
            return
        output = probed.output if pending.batch_first else probed.output.transpose(0, 1)
        path = f"{self.inventory[module].name}.{probed.projection}"
        weight = probed.weight.unflatten(0, (probed.weights.shape[1], -1))
        projection = Projection(path, weight, probed.bias)
        self._emit(self._probed_capture(pending, projection, probed.mixed.flatten(2), output))

    def mixed_by_hand(self) -> None:
        """Note a softmax inside an attention module, or attention in an element without one."""
        self.by_hand = True

    def attended_by(self, pending: Pending) -> None:
        """Note an attention call, whose output projection follows."""
        first = self.pending
        joins = self.follower is not None or pending.module in self.inside
        if first is not None and joins and first.module is pending.module:
            self.earlier.append(first)  # its heads may be joined with these
        else:
            self._refuse_pending()
            straight = pending.module in self.inventory.straight
            self.follower = None if straight or self.watch is None else HeadFollower()
        if self.follower is not None:
            pending.keep()
            self.follower.begin(pending.returned)
        self.seen += 1
        self.pending, self.merged = pending, None

    def linear_begins(self, module: nn.Module, read: Tensor | None) -> None:
        """Recognise the output projection by what it reads: the merged heads."""
        if read is None:
            return
        pending = self.pending
        if pending is not None and pending.projection is None:
            if self.earlier and (joined := self._in_a_row(read)) is not None:
                self.pending, self.earlier = joined, []
                joined.projection, joined.merged = module, read
                return
            trail = None if self.follower is None else self.follower.trail(read)
            if not self.earlier and _feeds(pending, read):
                pending.projection, pending.merged = module, read
            elif trail is not None:
                pending.projection, pending.merged, pending.trail = module, read, trail
        elif pending is None and self.merged is not None and _same(self.merged, read):
            raise self._more_than_a_projection(self.inventory[module].name)

    def _in_a_row(self, read: Tensor) -> Pending | None:
        """Return the calls of a module as one if a linear layer reads their outputs in a row."""
        assert self.pending is not None
        calls = [*self.earlier, self.pending]
        if read.numel() != sum(call.mixed.numel() for call in calls):
            return None
        joined = in_a_row(calls)
        return joined if joined is not None and _feeds(joined, read) else None

    def linear_ends(self, module: nn.Module, output: Any) -> None:
        """Emit the record of the pending call, if this module is its output projection."""
        pending = self.pending
        if pending is None or pending.projection is not module or pending.merged is None:
            return
        if isinstance(output, tuple) and all(part is None for part in output[1:]):
            output = output[0]  # I-BERT's: no scale, because nothing is quantised
        if not isinstance(output, Tensor):
            raise UnsupportedModelError(
                f"{self.inventory.described(module)} makes a {type(output).__name__} of the heads' "
                "output, not a tensor, so W_O is unknown"
            )
        calls = [*self.earlier, pending]
        # Cleared first: reading the projection may call it again.
        self._forget_pending()
        self.merged = pending.merged
        self._refuse_parameters_around(pending.module, module)
        if pending.trail is None:
            if pending.scale is None:
                self.inventory.note_straight(pending.module)
            self._emit(self._capture(pending, module, pending.merged, output))
            return
        name = self.inventory[module].name
        weight, bias = affine(module, name, pending.merged)
        try:
            attention = hold(pending.trail, calls, pending.merged, weight, bias)
        except NotFollowed:
            raise self._acted_on(pending.module) from None
        self._emit(self._held_capture(pending, attention, name, output))

    def _capture(
        self, pending: Pending, module: nn.Module, merged: Tensor, output: Tensor
    ) -> Capture:
        """The record of an attention call whose output projection has just run."""
        name, weights = self.inventory[module].name, pending.weights
        projection = projection_of(module, name, weights.shape[1], merged)
        if pending.kind is not None:
            return self._probed_capture(pending, projection, pending.by_query(merged), output)
        return self._record(
            pending,
            weights=weights.detach() if isinstance(weights, Tensor) else weights,
            value=pending.value.detach(),
            merged=pending.by_query(merged),
            projection=projection,
            output=output,
            held=_scaled(pending.scale),
        )

    def _probed_capture(
        self, pending: Pending, projection: Projection, merged: Tensor, output: Tensor
    ) -> Capture:
        """The record of a call that was read by probes."""
        kind, held = pending.kind, None
        if kind is not None:  # values of several kinds, side by side
            copies = pending.value.shape[-1] // projection.weight.shape[1]
            weight = projection.weight.repeat(1, copies, 1)
            projection = Projection(projection.name, weight, projection.bias)
            by_head = merged.unflatten(2, (len(weight), -1)).repeat(1, 1, 1, copies)
            merged = (by_head * kind).flatten(2)
            held = Held(None, kind, False, frozenset({kind.dtype}))
        return self._record(
            pending,
            weights=pending.weights,
            value=pending.value,
            merged=merged,
            projection=projection,
            output=output,
            held=held,
            extra=pending.extra,
        )

    def _held_capture(
        self, pending: Pending, attention: HeldHeads, name: str, output: Tensor
    ) -> Capture:
        """The record of a call on whose heads something acted before the projection."""
        pending.weights, pending.batch_first = attention.weights, attention.batch_first
        return self._record(
            pending,
            weights=attention.weights,
            value=attention.value,
            merged=attention.merged,
            projection=Projection(name, attention.weight, attention.bias),
            output=output,
            held=attention.held,
        )

    def _emit(self, captured: Capture) -> None:
        self.emitting = True
        try:
            self.emit(captured)
        finally:
            self.emitting = False

    def _record(self, pending: Pending, *, output: Tensor, **recorded: Any) -> Capture:
        """Add to the record where the call was made and what the residual connection carries."""
        location = self.inventory[pending.module]
        states, cross = self.inputs.pop(pending.module, (None, False))
        residual = self._residual(states, cross)
        if residual is not None:
            residual = pending.by_query(residual) if pending.is_by_query(residual) else None
        kind: AttentionKind = "cross" if cross else "self"
        layer = self.layers.get((location.stack, kind), 0)
        self.layers[location.stack, kind] = layer + 1
        return Capture(
            name=location.name,
            stack=location.stack,
            layer=layer,
            step=self.steps.get(location.stack, 0),
            kind=kind,
            path=pending.path,
            residual=residual,
            output=pending.by_query(output),
            batch_first=pending.batch_first,
            mask=pending.mask,
            **recorded,
        )

    def _residual(self, states: Tensor | None, cross: bool) -> Tensor | None:
        """The vector that the residual connection adds to this attention's output.

        If a norm of the same block produced the attention's input (pre-norm), the residual is
        that norm's input; otherwise it is the attention's input. In a post-norm decoder layer,
        the input of the cross-attention comes from the norm *after* the self-attention, so there
        the block counts as pre-norm only if its self-attention does.
        """
        if states is None:
            return None
        before = next((read for read, out in reversed(self.norms) if _same(out, states)), None)
        if not cross or self.block not in self.normed_first:
            self.normed_first[self.block] = before is not None
        return before if before is not None and self.normed_first[self.block] else states

    # Refusals.

    def _forget_pending(self) -> None:
        self.pending, self.earlier, self.follower = None, [], None

    def _refuse_pending(self) -> None:
        """Raise UnsupportedModelError if the last attention call met no output projection."""
        if self.pending is None:
            return
        module = self.pending.module
        self._forget_pending()
        self.inventory.straight.discard(module)  # followed the next time
        raise self._acted_on(module)

    def _acted_on(self, module: nn.Module) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.inventory[module].name}: the output of its heads does not go straight into a "
            "linear output projection, and what acts in between is not a gate, a scale, a norm "
            "or a difference of heads, whose factors could be held. α·f(x) is not defined for "
            "such a model, so there are no maps of it."
        )

    def _refuse_parameters_around(self, attention: nn.Module, projection: nn.Module) -> None:
        """Raise UnsupportedModelError if a wrapper of the projection has parameters of its own."""
        name, around = self.inventory[attention].name, self.inventory[projection].name
        around = around.rpartition(".")[0]
        if around and not f"{name}.".startswith(f"{around}."):
            parameters = self.inventory.named[around]._parameters
            if any(parameter is not None for parameter in parameters.values()):
                raise self._more_than_a_projection(around)

    def _more_than_a_projection(self, name: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{name} acts on the output of the heads beside their output projection, so W_O is "
            "more than that projection's weight. If it is an adapter, merge it, or give the "
            "module around it the attributes in_features and out_features: it is then read as "
            "one projection."
        )

    def _unseen(self, name: str) -> UnsupportedModelError:
        module = self.inventory.model.get_submodule(name)
        kind = type(module).__name__
        if not any(part in self.inventory.attention for part in modules(module)):
            return UnsupportedModelError(
                f"{name} ({kind}) has no attention, unlike other layers of the same list: it mixes "
                "positions in a way of its own (a convolution, a state space) or not at all. Maps "
                "of some layers would not show how the model mixes its input, so there are none."
            )
        return UnsupportedModelError(
            f"{name} ({kind}) ran, but normscope did not see it attend: it neither calls "
            "transformers' attention interface nor multiplies a softmax with values in a form "
            "that is recognised. Maps without it would be wrong, so there are none. If the model "
            'has a plainer form, load it with attn_implementation="eager".'
        )


def _scaled(scale: Tensor | None) -> Held | None:
    return None if scale is None else Held(scale, None, False, frozenset({scale.dtype}))


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same memory."""
    return a is b or (a.data_ptr() == b.data_ptr() and a.shape == b.shape)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal bit for bit; rows of padding may hold NaN, which is equal."""
    bits = [t.detach().contiguous().view(torch.uint8) for t in (a, b.to(a.dtype))]
    return torch.equal(*bits)


def _feeds(pending: Pending, read: Tensor) -> bool:
    """Whether a linear layer's input is the merged output of the pending attention's heads."""
    mixed = pending.mixed
    if read.numel() != mixed.numel() or read.device != mixed.device or not pending.untouched():
        return False
    if pending.path != "watched":
        merged = mixed.flatten(2)
        read = read.reshape(merged.shape)
        return _same(read, merged) or _equal(read, merged)
    return _match_watched(pending, read)


def _match_watched(pending: Pending, read: Tensor) -> bool:
    """Find batch and heads of a watched product by comparing its merged heads with ``read``."""
    if read.dim() > 3:  # the positions of an image are a table
        read = read.flatten(1, -2)
    if read.dim() != 3:
        return False
    for batch_first in (True, False):
        batch, query = (read.shape[0], read.shape[1]) if batch_first else read.shape[1::-1]
        mixed = pending.mixed
        if mixed.shape[-2] != query or mixed.shape[:-2].numel() % batch:
            continue
        heads = mixed.reshape(batch, -1, query, mixed.shape[-1])
        merged = heads.transpose(1, 2).flatten(2)
        if _equal(read, merged if batch_first else merged.transpose(0, 1)):
            pending.batch_first = batch_first
            assert isinstance(pending.weights, Tensor)
            pending.weights = pending.weights.reshape(batch, -1, *pending.weights.shape[-2:])
            pending.value = pending.value.reshape(batch, -1, *pending.value.shape[-2:])
            return True
    return False
