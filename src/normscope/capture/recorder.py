"""What one open context has seen so far, and the record it makes of each attention call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normscope.capture.layout import Layout
from normscope.capture.projection import Projection, project, projection_of
from normscope.capture.scores import Scores, lowest
from normscope.errors import UnsupportedModelError
from normscope.foundation.shapes import Bool, Float


@dataclass(frozen=True, eq=False)
class Capture:
    """What one attention call did. Tensors are on the model's device, in the model's dtype."""

    name: str  # the attention module's path in the model
    stack: str  # the path of the layer list it belongs to, "" where there is none
    layer: int  # which attention call of its kind this is in its stack, counted from 0
    step: int  # how often the stack had run before (decoding steps, earlier forward passes)
    kind: Literal["self", "cross"]
    path: Literal["interface", "watched", "fused"]  # which way in served
    weights: Float[Tensor, "batch head query key"] | Scores  # α, or what it is made from
    value: Float[Tensor, "batch kv_head key head_size"]
    projection: Projection
    residual: Float[Tensor, "batch query hidden"] | None  # None: the attention is not given it
    output: Float[Tensor, "batch query out"]
    batch_first: bool  # False where the module itself puts the query axis first
    mask: Tensor | None  # the mask given to the attention function, as it was given

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.shape
        size = f"{batch} × {heads} heads × {queries} queries × {keys} keys"
        return f"Capture of {self.name}: {self.kind}-attention, layer {self.layer}, {size}"

    @property
    def shape(self) -> torch.Size:
        """(batch, head, query, key)."""
        return self.weights.shape

    @property
    def device(self) -> torch.device:
        """Where this attention ran."""
        return self.weights.device

    @property
    def alpha(self) -> Float[Tensor, "batch head query key"]:
        """The attention weights as a whole."""
        return self.rows(slice(0, self.shape[2]))

    def blocks(self, *, written: bool = True) -> Iterator[slice]:
        """Queries that are looked at together: all, where their weights are there already.

        ``written``: whether the weights of all heads are, rather than one number for each cell.
        """
        if isinstance(self.weights, Scores):
            return self.weights.blocks(written=written)
        return iter([slice(0, self.shape[2])])

    def rows(self, here: slice) -> Float[Tensor, "batch head rows key"]:
        """The weights of some queries."""
        return (
            self.weights.rows(here)
            if isinstance(self.weights, Scores)
            else self.weights[:, :, here]
        )

    @cached_property
    def surveyed(self) -> tuple[Tensor | None, Tensor] | None:
        """α_ii and Σ_j αv of weights that were never written down, seen in one pass."""
        return self.weights.survey(self.value) if isinstance(self.weights, Scores) else None

    def own_weight(self) -> Float[Tensor, "batch head query"] | None:
        """α_ii; None where no key is the query itself."""
        if self.kind == "cross" or self.shape[2] != self.shape[3]:
            return None
        if self.surveyed is not None:
            return self.surveyed[0]
        assert isinstance(self.weights, Tensor)
        return self.weights.diagonal(dim1=-2, dim2=-1)

    def own_vectors(self) -> Float[Tensor, "batch query out"] | None:
        """Σ_h α_ii f(x_i) as one product, in the dtype of :meth:`reconstruct`."""
        alpha = self.own_weight()
        if alpha is None:
            return None
        wide = torch.promote_types(self.output.dtype, torch.float32)
        value = self.value.to(wide)
        if value.shape[1] != alpha.shape[1]:
            value = value.repeat_interleave(alpha.shape[1] // value.shape[1], dim=1)
        weighted = (value * alpha.to(wide).unsqueeze(-1)).transpose(1, 2).flatten(2)
        return weighted @ self.projection.weight.flatten(0, 1).to(wide)

    def reconstruct(self) -> Float[Tensor, "batch query out"]:
        """Σ_h Σ_j α f(x_j) + b_O, from the recorded parts alone; equal to ``output``."""
        wide = torch.promote_types(self.output.dtype, torch.float32)
        if self.surveyed is not None:
            return project(self.surveyed[1].flatten(2), self.projection, wide)
        assert isinstance(self.weights, Tensor)
        alpha, value = self.weights.to(wide), self.value.to(wide)
        heads, groups = alpha.shape[1], value.shape[1]
        if groups != heads:
            value = value.repeat_interleave(heads // groups, dim=1)
        mixed = torch.matmul(alpha, value)
        return project(mixed.transpose(1, 2).flatten(2), self.projection, wide)

    def blocked(self) -> Bool[Tensor, "batch query"] | None:
        """True where a query's row of the mask admits no key; None if no mask was given."""
        if self.mask is None or self.mask.dim() != 4:
            return None
        mask = self.mask
        admits = mask if mask.dtype == torch.bool else mask > lowest(mask.dtype) / 2
        rows = ~admits.any(dim=-1).any(dim=1)
        return rows.expand(self.shape[0], self.shape[2])


@dataclass
class Pending:
    """An attention call whose output projection has not run yet."""

    module: nn.Module
    path: Literal["interface", "watched", "fused"]
    weights: Tensor | Scores
    value: Tensor
    mixed: Tensor  # αv; (batch, query, head, e) from the interface, (…, query, e) when watched
    mask: Tensor | None
    projection: nn.Module | None = None
    given: Tensor | None = None  # what the projection read
    batch_first: bool = True

    def __post_init__(self) -> None:
        # A gate may be applied in place, and then shares the heads' memory. Tensors of
        # inference_mode count no versions, so for them a copy remembers what they were.
        counted = not self.mixed.is_inference()
        self.mixed = self.mixed if counted else self.mixed.clone()
        self.version = self.mixed._version if counted else None

    def untouched(self) -> bool:
        return self.version is None or self.version == self.mixed._version

    def by_query(self, states: Tensor) -> Tensor:
        """Hidden states as (batch, query, hidden), however the module itself lays them out."""
        batch, _, query, _ = self.weights.shape
        states = states.detach()
        return states.reshape(batch, query, -1) if self.batch_first else states.transpose(0, 1)

    def is_by_query(self, states: Tensor) -> bool:
        """Whether there is a vector for every query, in whatever layout."""
        return states.numel() % (self.weights.shape[0] * self.weights.shape[2]) == 0


class Recorder:
    """The state of one open context: what has been seen so far in this forward pass."""

    def __init__(
        self, layout: Layout, emit: Callable[[Capture], None], *, fused: bool = False
    ) -> None:
        self.emit = emit
        self.fused = fused  # whether known attention runs as the model's own, weights unwritten
        self.layout = layout
        self.open = True
        self.watch: TorchFunctionMode | None = None
        self.pending: Pending | None = None
        self.read: Tensor | None = None  # what the last output projection read: merged heads
        self.running: set[str] = set()  # stacks whose owner is now running
        self.steps: dict[str, int] = {}  # stack -> runs begun
        self.layers: dict[tuple[str, str], int] = {}  # (stack, kind) -> calls in this run
        self.inputs: dict[nn.Module, tuple[Tensor | None, bool]] = {}  # attention in, is it cross
        self.norms: list[tuple[Tensor, Tensor]] = []  # (input, output) since the block began
        self.normed_first: dict[nn.Module | None, bool] = {}  # block -> pre-norm, by its own attn
        self.block: nn.Module | None = None
        self.inside: list[nn.Module] = []  # attention modules now running, outermost first
        self.seen = 0  # attention calls so far
        self.seen_at: dict[nn.Module, int] = {}  # running module -> seen when it began
        self.attended: dict[str, set[str]] = {}  # stack -> its elements that attended
        self.idle: dict[str, set[str]] = {}  # stack -> its elements that ran and did not

    # What the hooks report, in the order in which it happens in a layer.

    def stack_begins(self, stacks: list[str]) -> None:
        self.pending, self.read, self.inside = None, None, []
        self.running.update(stacks)
        for stack in stacks:
            self.steps[stack] = self.steps.get(stack, -1) + 1
            self.attended[stack], self.idle[stack] = set(), set()
            for kind in ("self", "cross"):
                self.layers[stack, kind] = 0

    def stack_ends(self, stacks: list[str]) -> None:
        self._refuse_pending()
        self.running.difference_update(stacks)
        for stack in stacks:
            if self.attended[stack] and self.idle[stack]:
                raise self._unseen(sorted(self.idle[stack])[0])

    def element_begins(self, element: nn.Module, stack: str) -> None:
        if stack not in self.running and self.layout[element].name == f"{stack}.0":
            self.stack_begins([stack])  # the layers are called from outside, one by one
            self.running.discard(stack)
        self.seen_at[element] = self.seen

    def element_ends(self, element: nn.Module, stack: str) -> None:
        seen = self.seen > self.seen_at.pop(element, self.seen)
        told = self.attended if seen else self.idle
        told.setdefault(stack, set()).add(self.layout[element].name)

    def block_begins(self, block: nn.Module) -> None:
        self.norms, self.normed_first, self.block = [], {}, block

    def norm_ran(self, given: Tensor | None, made: Tensor) -> None:
        if given is not None:
            self.norms.append((given, made))

    def attention_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> None:
        self.seen_at[module] = self.seen
        self.inside.append(module)
        parameters = _parameters(module)
        named = {**dict(zip(parameters, args, strict=False)), **kwargs}
        # In the order of the signature: callers may name their arguments in any order.
        ordered = [named.get(parameter) for parameter in parameters]
        given = next((t for t in ordered if isinstance(t, Tensor)), None)
        cross = any(named.get(k) is not None for k in _CROSS_INPUTS) or any(
            getattr(module, flag, False) is True for flag in _CROSS_FLAGS
        )
        self.inputs[module] = given, cross

    def attention_ends(self, module: nn.Module, finished: bool) -> None:
        if module in self.inside:
            del self.inside[self.inside.index(module) :]
        if self.seen == self.seen_at.pop(module, -1) and finished:
            raise self._unseen(self.layout[module].name)

    def attended_by(self, pending: Pending) -> None:
        self._refuse_pending()
        self.seen += 1
        self.pending, self.read = pending, None

    def linear_begins(self, module: nn.Module, given: Tensor | None) -> None:
        if given is None:
            return
        pending = self.pending
        if pending is not None and pending.projection is None and _feeds(pending, given):
            pending.projection, pending.given = module, given
        elif pending is None and self.read is not None and _same(self.read, given):
            raise self._more_than_a_projection(self.layout[module].name)

    def linear_ends(self, module: nn.Module, made: Any) -> None:
        pending = self.pending
        if pending is None or pending.projection is not module or pending.given is None:
            return
        if not isinstance(made, Tensor):
            raise UnsupportedModelError(
                f"{self.layout[module].name} ({type(module).__name__}) makes a "
                f"{type(made).__name__} of the heads' output, not a tensor, so W_O is unknown"
            )
        # From here on this call of a linear map is no longer looked at.
        self.pending, self.read = None, pending.given
        place = self.layout[pending.module]
        around = self.layout[module].name.rpartition(".")[0]
        if around and not f"{place.name}.".startswith(f"{around}."):
            own = self.layout.named[around]._parameters
            if any(parameter is not None for parameter in own.values()):
                raise self._more_than_a_projection(around)
        given, cross = self.inputs.pop(pending.module, (None, False))
        residual = self._residual(given, cross)
        if residual is not None:
            residual = pending.by_query(residual) if pending.is_by_query(residual) else None
        kind: Literal["self", "cross"] = "cross" if cross else "self"
        layer = self.layers.get((place.stack, kind), 0)
        self.layers[place.stack, kind] = layer + 1
        heads = pending.weights.shape[1]
        weights = pending.weights
        projection = projection_of(module, self.layout[module].name, heads, pending.given)
        captured = Capture(
            name=place.name,
            stack=place.stack,
            layer=layer,
            step=self.steps.get(place.stack, 0),
            kind=kind,
            path=pending.path,
            weights=weights.detach() if isinstance(weights, Tensor) else weights,
            value=pending.value.detach(),
            projection=projection,
            residual=residual,
            output=pending.by_query(made),
            batch_first=pending.batch_first,
            mask=pending.mask,
        )
        self.emit(captured)

    def _residual(self, given: Tensor | None, cross: bool) -> Tensor | None:
        """The vector that the residual connection adds to this attention's output.

        A norm of the same block that made the attention's input stands before it (pre-norm), and
        the residual is that norm's input; otherwise it is the attention's input itself. In a
        post-norm decoder layer the cross-attention's input was made by the norm *after* the
        self-attention: there the self-attention's verdict counts.
        """
        if given is None:
            return None
        before = next((a for a, b in reversed(self.norms) if _same(b, given)), None)
        if not cross or self.block not in self.normed_first:
            self.normed_first[self.block] = before is not None
        return before if before is not None and self.normed_first[self.block] else given

    # Refusals.

    def _refuse_pending(self) -> None:
        if self.pending is None:
            return
        name = self.layout[self.pending.module].name
        self.pending = None
        raise UnsupportedModelError(
            f"{name}: the output of its heads does not go into a linear output projection as it "
            "is; something acts in between (a gate, a norm, an activation). α·f(x) is not defined "
            "there, so no map is made."
        )

    def _more_than_a_projection(self, name: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{name} acts on the output of the heads beside their output projection, so that W_O "
            "is more than that projection's weight. If it is an adapter, merge it, or give the "
            "module around it in_features and out_features: then that is taken as the projection."
        )

    def _unseen(self, name: str) -> UnsupportedModelError:
        module = type(self.layout.model.get_submodule(name)).__name__
        return UnsupportedModelError(
            f"{name} ({module}) ran, but normscope did not see it attend: it neither calls "
            "transformers' attention interface nor multiplies a softmax with values in a way "
            "that is recognised. A map without it would be wrong, so none is made. If it has a "
            'plainer form, load the model with attn_implementation="eager".'
        )


_CROSS_INPUTS = ("key_value_states", "encoder_hidden_states")
_CROSS_FLAGS = ("is_cross_attention", "encoder_decoder_attention")


def _parameters(module: nn.Module) -> tuple[str, ...]:
    """The names of a module's forward arguments, by its class."""
    return _parameters_of(type(module).forward)


@functools.cache
def _parameters_of(method: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(method).parameters)[1:]  # without self


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.data_ptr() == b.data_ptr() and a.shape == b.shape)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, so that NaN equals itself: rows of padding may hold it."""
    bits = [t.detach().contiguous().view(torch.uint8) for t in (a, b.to(a.dtype))]
    return torch.equal(*bits)


def _feeds(pending: Pending, given: Tensor) -> bool:
    """Whether a linear layer's input is the merged output of the pending attention's heads."""
    mixed = pending.mixed
    if given.numel() != mixed.numel() or given.device != mixed.device or not pending.untouched():
        return False
    if pending.path != "watched":
        merged = mixed.flatten(2)
        given = given.reshape(merged.shape)
        return _same(given, merged) or _equal(given, merged)
    return _match_watched(pending, given)


def _match_watched(pending: Pending, given: Tensor) -> bool:
    """Find batch and heads of a watched product by comparing its merged heads with ``given``."""
    if given.dim() != 3:
        return False
    for batch_first in (True, False):
        batch, query = (given.shape[0], given.shape[1]) if batch_first else given.shape[1::-1]
        mixed = pending.mixed
        if mixed.shape[-2] != query or mixed.shape[:-2].numel() % batch:
            continue
        heads = mixed.reshape(batch, -1, query, mixed.shape[-1])
        merged = heads.transpose(1, 2).flatten(2)
        if _equal(given, merged if batch_first else merged.transpose(0, 1)):
            pending.batch_first = batch_first
            assert isinstance(pending.weights, Tensor)
            pending.weights = pending.weights.reshape(batch, -1, *pending.weights.shape[-2:])
            pending.value = pending.value.reshape(batch, -1, *pending.value.shape[-2:])
            return True
    return False
