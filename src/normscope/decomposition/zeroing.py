"""Value zeroing: how far a layer's output turns without a key's values (Mohebbi et al., 2023).

With the values of key j set to zero in all heads and the weights as they are, attention gives
y_i − s_ij. So attention need not run again: only the rest of the layer does, on one vector for
each cell. A cell is 1 − cos to the layer's own output, and a row is divided by its sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normscope.decomposition.blocks import cell_blocks, row_shares, weighted_cells
from normscope.decomposition.cells import Cells
from normscope.decomposition.feedforward import FeedForwardWeights
from normscope.decomposition.maps import ScopeMap
from normscope.decomposition.scopes import Scope
from normscope.errors import UnsupportedModelError
from normscope.foundation.shapes import Float
from normscope.models.layouts import Opaque, Wiring

if TYPE_CHECKING:
    from normscope.decomposition.chain import LayerChain
    from normscope.decomposition.layer import LayerView


def zeroing_map(view: LayerView, scope: Scope) -> ScopeMap:
    """Compute the map of value zeroing, and its gaps to the model's own states."""
    captured, wide = view.captured, view.wide
    parts, tail = view.parts("attention"), Tail(view.chain, wide)
    attended, real = captured.output.to(wide), view.chain.stations.at("layer").to(wide)
    own = tail(attended, slice(None), slice(None))
    gap = (own - real).norm(dim=-1) / tail.size.clamp_min(torch.finfo(wide).tiny)
    values = attended.new_zeros((len(attended), *captured.shape[2:]))
    total = torch.zeros_like(attended)
    size = attended.new_zeros(attended.shape[:2])
    for block in cell_blocks(parts, wide, view.how.memory, tail.growth):
        at, i = block.text, block.queries
        vectors = block.summed()
        total[at, i] += vectors.sum(dim=0)
        size[at, i] += vectors.norm(dim=-1).sum(dim=0)
        changed = tail(attended[at, i] - vectors, at, i)
        values[at, i, block.keys] = _turned(changed, own[at, i]).T
    if parts.bias is not None:
        bias = parts.bias.to(wide)
        total, size = total + bias, size + bias.norm(dim=-1)
    sums = (total - attended).norm(dim=-1) / size.clamp_min(torch.finfo(wide).tiny)
    gap = torch.maximum(gap, sums).double().masked_fill(~view.positions.queries, 0).amax(dim=1)
    values.masked_fill_(~weighted_cells(parts), 0)
    cells = view.cells_to_check()
    if cells is not None:
        gap = torch.maximum(gap, _spot_gap(view, tail, own, cells, values))
    values = row_shares(values, own=None if parts.separate else True)
    return ScopeMap(scope, view.positions.keys, captured.shape[2], values=values, gaps=gap)


def _turned(changed: Tensor, own: Tensor) -> Tensor:
    """Return 1 − cos, as half the squared distance of unit vectors, so that no digits cancel."""
    tiny = torch.finfo(own.dtype).tiny
    units = [v / v.norm(dim=-1, keepdim=True).clamp_min(tiny) for v in (changed, own)]
    return (units[0] - units[1]).square().sum(dim=-1) / 2


def _spot_gap(
    view: LayerView, tail: Tail, own: Tensor, cells: Cells, values: Tensor
) -> Float[Tensor, " batch"]:
    """Return the gap of some cells to the definition: the distance of unit vectors.

    Attention is computed again from the weights and values of all keys but one.
    """
    kept = view.attention.without_keys(cells.i, cells.j).to(view.wide)
    turned = []
    for row in range(len(kept)):
        changed = tail(kept[row].unsqueeze(0), row, cells.i[row])
        turned.append(_turned(changed, own[row, cells.i[row]])[0])
    expected = torch.stack(turned).double()
    found = cells.of(values).double()
    gap: Tensor = ((2 * expected).sqrt() - (2 * found).sqrt()).abs().amax(dim=-1)
    return gap


@dataclass(eq=False)
class Tail:
    """What a layer does after its attention's output projection, for other outputs of it."""

    chain: LayerChain
    dtype: torch.dtype

    def __call__(self, attended: Tensor, text: Any, queries: Any) -> Tensor:
        """Return the layer's output for other outputs of the attention.

        ``text`` and ``queries`` select what the residual connection carries for the last axes of
        ``attended``.
        """
        chain, block, layout = self.chain, self.chain.block, self.chain.layout
        branch = self._multiplied(self._normed(attended, block.branch), block.scale)
        state = branch + chain.residual[text, queries].to(self.dtype)
        if layout.parallel:  # the feed-forward reads what attention does not change
            return state + chain.stations.ff_output()[text, queries].to(self.dtype)
        state = self._normed(state, block.after)
        ff: Wiring = layout.ff
        read = self._normed(state, ff.before)
        branch = self._multiplied(self._normed(self._core(read), ff.branch), ff.scale)
        carried = self._multiplied(read if ff.normed else state, ff.carry)
        return self._normed(branch + carried, ff.after)

    @property
    def growth(self) -> int:
        """How many numbers the feed-forward makes of each number of a state."""
        ff = self.chain.layout.ff
        if isinstance(ff, Opaque) or self.chain.layout.parallel:
            return 4
        first = self._weights.first
        return max(1, first.shape[1] * (1 + (self._weights.gate is not None)) // first.shape[0])

    @cached_property
    def size(self) -> Float[Tensor, "batch query"]:
        """What the rounding of the layer's output is relative to: the length of its terms."""
        chain = self.chain
        output, ff = chain.stations.at("layer"), chain.stations.ff_output()
        after = None if chain.layout.parallel else chain.norm(chain.layout.ff.after)
        ff = ff if after is None else after(ff.to(self.dtype))
        rest = output.to(self.dtype) - ff.to(self.dtype)
        return rest.norm(dim=-1) + ff.to(self.dtype).norm(dim=-1)

    def _normed(self, states: Tensor, path: str | None) -> Tensor:
        norm = self.chain.norm(path)
        return states if norm is None else norm.parameters.apply(states)

    def _multiplied(self, states: Tensor, factor: str | float | None) -> Tensor:
        linear = self.chain.factor(factor)
        return states if linear is None else linear(states)

    @cached_property
    def _weights(self) -> FeedForwardWeights:
        return self.chain.feed_forward_weights()

    def _core(self, states: Tensor) -> Tensor:
        """Return what the feed-forward makes of its inputs, rows of any shape."""
        ff = self.chain.layout.ff
        if isinstance(ff, Opaque):
            return self._run(ff.module, states)
        weights = self._weights
        first = _affine(states, weights.first, weights.first_bias)
        if weights.gate is None:
            inner = weights.activation(first)
        else:
            gate = _affine(states, weights.gate, weights.gate_bias)
            inner = weights.activation(gate) * first
        return _affine(inner, weights.second, weights.second_bias)

    def _run(self, path: str | None, states: Tensor) -> Tensor:
        """Run a module of the layer, such as a mixture of experts, on rows of any shape."""
        assert path is not None
        layer = self.chain.whole
        module, dtype = layer.module.get_submodule(path), layer.given(path).dtype
        rows = states.reshape(1, -1, states.shape[-1]).to(dtype)
        try:
            output: Any = module(rows)
        except Exception as error:
            raise UnsupportedModelError(
                f"value zeroing runs {layer.name}.{path} ({type(module).__name__}) on other "
                f"states, and it does not run on states alone: {error}"
            ) from error
        output = output if isinstance(output, Tensor) else output[0]
        return output.reshape(states.shape).to(states.dtype)


def _affine(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = states @ weight.to(states.dtype)
    return product if bias is None else product + bias.to(states.dtype)
