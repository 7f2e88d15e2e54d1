"""What each layer's attention writes into one direction of the residual stream, by source token.

In a pre-norm model the last state is a sum, x^L = x^0 + Σ_l (attention + feed-forward), and the
value is affine in it once the last norm's scale is held: y = ⟨x^L_i, g_i⟩ + constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normscope.attribution.methods.call import MethodCall
from normscope.attribution.passes import Setup
from normscope.capture.layers import layers_of
from normscope.decomposition.block import Parts
from normscope.decomposition.chain import DecompositionOptions
from normscope.decomposition.layer import LayerView
from normscope.engine.measure import Needs
from normscope.engine.run import CallbackMeasure, PlainBatch, run
from normscope.errors import UnsupportedModelError
from normscope.foundation.interrupts import shielded
from normscope.foundation.shapes import Float
from normscope.linearisation.rules import rules_of
from normscope.models.layouts import Layout
from normscope.models.running import evaluating

CELLS = 2**24  # numbers in the largest array of a block


@dataclass(frozen=True)
class ReadDirection:
    """The direction in which a value reads the states behind the last layer.

    Attributes:
        values: (row, step).
        vectors: (row, step, position, hidden).
        constants: (row, step): the biases behind the last layer.
        dtypes: those that the model computes in.
    """

    values: Tensor
    vectors: Tensor
    constants: Tensor
    dtypes: frozenset[torch.dtype]

    def reads(self) -> list[tuple[int, int, int]]:
        """Return where the value is read, as (row, step, position)."""
        return [tuple(place) for place in (self.vectors != 0).any(-1).nonzero().tolist()]


@shielded
def hooked(modules: Any, hook: Callable[..., Any]) -> Iterator[None]:
    """Call a function behind each of some modules."""
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def state_in(output: Any) -> Tensor:
    """Return the states in a layer's output."""
    state: Tensor = output[0] if isinstance(output, tuple | list) else output
    return state


def direction(call: MethodCall) -> ReadDirection:
    """Return the gradient of the values at the states behind the last layer, norm scales held."""
    setup = Setup(call.model, call.inputs, call.value, rules_of("frozen", call.gate))
    setup.refuse()
    last: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        last[:] = [state_in(output)]

    modules = [module for module, _ in layers_of(call.model).values()]
    with setup.prepared(), hooked(modules, keep):
        network = setup.network()
        with setup.hooked(network):
            values = setup.run(network)
            (state,) = last
            if state.dim() != 3 or len(state) != call.rows:
                raise call.refuse(f"its states are {tuple(state.shape)}, not (row, position, …)")
            vectors, constants = [], []
            for step in range(values.shape[1]):
                network.ledger.clear()
                (g,) = torch.autograd.grad(
                    values[:, step].sum(), [state], retain_graph=True, allow_unused=True
                )
                vectors.append(torch.zeros_like(state) if g is None else g)
                none = torch.zeros(call.rows, dtype=torch.float64, device=values.device)
                constants.append(sum(network.ledger.bias.values(), none))
    return ReadDirection(
        values.detach().double(),
        torch.stack(vectors, 1).double(),
        torch.stack(constants, 1),
        frozenset(network.dtypes),
    )


@dataclass(eq=False)
class ResidualStream:
    """What was written into a direction, by layer.

    Attributes:
        written: for each layer the attention's part by source, (read, key).
        rest: (read,): feed-forwards and the biases of attention, of all layers.
        embedding: (read,): the part of the states that enter the first layer.
        mixing: ALTI's map of each layer, (row, query, key), where it is asked for.
    """

    reads: list[tuple[int, int, int]]
    vectors: Float[Tensor, "read hidden"]
    alti: bool
    written: list[Tensor] = field(default_factory=list)
    rest: Tensor | None = None
    embedding: Tensor | None = None
    mixing: list[Tensor] = field(default_factory=list)

    def observe(self, view: LayerView) -> None:
        """Read one attention call."""
        _check_layout(view)
        row, _, query = (torch.tensor(places) for places in zip(*self.reads, strict=True))
        parts, captured = view.parts("residual"), view.captured
        entering, leaving = view.residual.double(), view.chain.real("layer").double()
        attended = view.chain.real("residual").double()
        pulled = torch.einsum("hed,rd->rhe", parts.output.double(), self.vectors)
        shares = []
        for read, (at, _, position) in enumerate(self.reads):
            alpha = captured.scaled_rows(slice(position, position + 1))[at, :, 0].double()
            value = _by_head(captured.value[at], len(alpha)).double()
            shares.append(torch.einsum("hk,hke,he->k", alpha, value, pulled[read]))
        weight = parts.weight
        written = torch.stack(shares)
        if isinstance(weight, Tensor):
            written = written * weight[row, query].double()[:, None]
        self.written.append(written)
        if self.embedding is None:
            self.embedding = (entering[row, query] * self.vectors).sum(-1)
            self.rest = torch.zeros_like(self.embedding)
        block = (leaving - attended)[row, query]
        assert self.rest is not None
        self.rest = self.rest + (block * self.vectors).sum(-1)
        if parts.bias is not None:
            bias = parts.bias.double().expand_as(attended)[row, query]
            self.rest = self.rest + (bias * self.vectors).sum(-1)
        if self.alti:
            self.mixing.append(alti_map(view))


def read_stream(call: MethodCall, reached: ReadDirection, *, alti: bool) -> ResidualStream:
    """Run the model once more, and read what its layers write into the direction."""
    reads = reached.reads()
    vectors = torch.stack([reached.vectors[place] for place in reads])
    stream = ResidualStream(reads, vectors, alti)
    needs = Needs(whole_layers=True, how=DecompositionOptions(maps=False))
    measure = CallbackMeasure(stream.observe, needs)
    batch = PlainBatch(call.model, call.inputs)
    # With the attention of the pass that gave the direction, which may round in another way.
    own = getattr(getattr(call.model, "config", None), "_attn_implementation", None)
    with torch.no_grad(), evaluating(call.model):
        list(run(call.model, [batch], [measure], attention="fused" if own == "sdpa" else "eager"))
    return stream


def _check_layout(view: LayerView) -> None:
    """Raise an error for layers that do not just add to a stream."""
    layout = None if view.layer is None else view.layer.layout
    why = "its layers are wired in a way that is not known" if layout is None else _why(layout)
    if view.kind == "cross":
        why = "it has cross-attention"
    if view.captured.gate is not None:
        why = "what its attention mixed is gated"
    if why:
        raise UnsupportedModelError(
            f"the states of {view.name} are not a sum of what its layers wrote: {why}. "
            'Use method="frozen", whose trace has the shares of heads and layers in any model'
        )


def _why(layout: Layout) -> str:
    blocks = [layout.attention, layout.ff]
    if any(block.after is not None for block in blocks):
        return "a norm follows the residual sum (post-norm)"
    if any(block.carry is not None or block.normed for block in blocks):
        return "its residual is scaled or normalised"
    return ""


def _by_head(value: Float[Tensor, "group key e"], heads: int) -> Float[Tensor, "head key e"]:
    return value if len(value) == heads else value.repeat_interleave(heads // len(value), dim=0)


def alti_map(view: LayerView) -> Float[Tensor, "row query key"]:
    """Return ALTI's map of a pre-norm layer, C_ij ∝ [‖Y_i‖₁ − ‖Y_i − t_ij‖₁]₊.

    t_ij is the part of key j in the residual sum Y_i. No (query, key, hidden) array is built.
    """
    parts, whole = view.parts("residual"), view.chain.real("residual")
    wide = torch.promote_types(whole.dtype, torch.float32)
    whole = whole.to(wide)
    output, entering = parts.output.to(wide), view.residual.to(wide)
    captured, (rows, heads, queries, keys) = view.captured, view.captured.shape
    closeness = whole.new_zeros(rows, queries, keys)
    size = whole.abs().sum(-1)
    for key in _ranges(keys, output.shape[0] * output.shape[2]):
        for row in range(rows):
            value = _by_head(captured.value[row, :, key].to(wide), heads)
            vectors = torch.einsum("hke,hed->hkd", value, output).flatten(1)
            for query in _ranges(queries, vectors.shape[1]):
                alpha = captured.scaled_rows(query)[row, :, :, key].to(wide)
                moved = torch.einsum(
                    "hqk,hkd->qkd", alpha, vectors.unflatten(1, (-1, whole.shape[2]))
                )
                moved = _weighted(moved, parts, row, query)
                _add_own(moved, entering[row, query], query, key)
                left = (whole[row, query, None] - moved).abs().sum(-1)
                closeness[row, query, key] = (size[row, query, None] - left).clamp_min(0)
    total = closeness.sum(-1, keepdim=True)
    own = torch.eye(queries, keys, dtype=wide, device=whole.device)
    return torch.where(total > 0, closeness / torch.where(total > 0, total, 1), own)


def _weighted(moved: Tensor, parts: Parts, row: int, query: slice) -> Tensor:
    weight = parts.weight
    return moved * weight[row, query, None, None] if isinstance(weight, Tensor) else moved


def _add_own(moved: Tensor, own: Tensor, query: slice, key: slice) -> None:
    """Add the state that the residual connection carries, where a query meets itself."""
    for position in range(max(query.start, key.start), min(query.stop, key.stop)):
        moved[position - query.start, position - key.start] += own[position - query.start]


def _ranges(count: int, width: int) -> Iterator[slice]:
    size = max(1, CELLS // max(1, width))
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
