"""How much closer a part comes to the whole (Ferrando et al., 2022; Ferrando and Voita, 2024).

Of a part v of a whole Y, the closeness is

    [‖Y‖ − ‖Y − v‖]₊

in the ℓ1 or the ℓ2 norm. Y is the model's own state, biases included. A row is divided by its sum.
ALTI compares the vectors v_ij at the end of the attention block, with heads summed; information
flow routes those of every head, αf, and the residual, at the residual sum.

In ℓ2 no vector is needed: ‖Y − v‖² = ‖Y‖² − 2⟨Y, v⟩ + ‖v‖², where ‖v‖ comes from Gram matrices and
⟨Y_i, Σ_h αf_h(j)⟩ = Σ_h α_ij^h ⟨Y_i W_O^hᵀ, v_h(j)⟩.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normscope.decomposition.block import Parts
from normscope.decomposition.blocks import cell_blocks, row_shares
from normscope.decomposition.cells import TINY, Cells
from normscope.decomposition.maps import ScopeMap
from normscope.decomposition.scopes import NORMS, SCOPES, Scope
from normscope.foundation.shapes import Float
from normscope.kernels import Linear

if TYPE_CHECKING:
    from normscope.decomposition.layer import LayerView


def closeness(
    whole: Float[Tensor, "*states hidden"], parts: Float[Tensor, "*cells hidden"], order: int
) -> Float[Tensor, "*cells"]:
    """Return [‖Y‖ − ‖Y − v‖]₊, in the ℓ1 or the ℓ2 norm."""
    if order == 1:
        return (whole.abs() - (whole - parts).abs()).sum(dim=-1).clamp_min(0)
    inner = 2 * (whole * parts).sum(dim=-1) - parts.square().sum(dim=-1)
    size = whole.norm(dim=-1) + (whole - parts).norm(dim=-1)
    return (inner / size.clamp_min(torch.finfo(size.dtype).tiny)).clamp_min(0)


def closeness_map(view: LayerView, scope: Scope) -> ScopeMap:
    """Compute ALTI's map or that of flow routes, and its gaps to the model's own states."""
    parts, whole = view.parts(scope.end), view.real(scope.name).to(view.wide)
    cells = view.cells_to_check()
    if scope.cell == "closeness_2":
        values, gap = _by_grams(view, scope, parts, whole, cells)
    else:
        values, gap = _by_vectors(view, scope, parts, whole)
    if cells is not None:
        gap = torch.maximum(gap, _spot_gap(scope, parts, whole, cells, values))
    values = row_shares(values, own=not parts.separate)
    queries = view.captured.shape[2]
    return ScopeMap(scope, view.positions.keys, queries, values=values, gaps=gap)


def _by_vectors(
    view: LayerView, scope: Scope, parts: Parts, whole: Tensor
) -> tuple[Float[Tensor, "batch query keys"], Float[Tensor, " batch"]]:
    """Return the closeness of every cell in ℓ1, and the gap of the cells' sum to the whole."""
    batch, queries, keys = (view.captured.shape[axis] for axis in (0, 2, 3))
    values = whole.new_zeros((batch, queries, keys + parts.separate))
    total, size = torch.zeros_like(whole), whole.new_zeros((batch, queries))
    residual = parts.residual_alone.to(whole)
    for block in cell_blocks(parts, view.wide, view.how.memory):
        at, i = block.text, block.queries
        vectors = block.summed()
        total[at, i] += vectors.sum(dim=0)
        size[at, i] += vectors.norm(dim=-1).sum(dim=0)
        itself = not parts.separate
        if scope.cell == "routed":
            heads = (closeness(whole[at, i], vector, 1) for vector in block.by_head())
            values[at, i, block.keys] = sum(heads, torch.zeros_like(vectors[..., 0])).T
        elif itself:
            j, q, position = block.meeting()
            vectors[j, q] += residual[at, position]
        if scope.cell != "routed":
            values[at, i, block.keys] = closeness(whole[at, i], vectors, 1).T
    if parts.separate:
        values[..., -1] = closeness(whole, residual, 1)
    elif scope.cell == "routed":
        values.diagonal(dim1=1, dim2=2).add_(closeness(whole, residual, 1))
    total += residual
    size += residual.norm(dim=-1)
    if parts.bias is not None:
        bias = parts.bias.to(whole)
        total, size = total + bias, size + bias.norm(dim=-1)
    gap = (total - whole).norm(dim=-1) / size.clamp_min(torch.finfo(size.dtype).tiny)
    return values, _worst_query(view, gap)


def _by_grams(
    view: LayerView, scope: Scope, parts: Parts, whole: Tensor, cells: Cells | None
) -> tuple[Float[Tensor, "batch query keys"], Float[Tensor, " batch"]]:
    """Return the closeness of every cell in ℓ2, and the gaps of lengths and inner products."""
    maps = view.lengths([NORMS, scope.name])
    lengths, norms = maps[scope.name], maps[NORMS]
    lengths.drawn = None if cells is None else (cells.i, cells.j)
    size, projected = whole.norm(dim=-1), _projected(view, parts, whole)
    own = None if parts.own is None else (whole * parts.own).sum(dim=-1)
    heads = projected.shape[1]
    value = view.attention.value.to(whole).repeat_interleave(
        heads // view.attention.value.shape[1], dim=1
    )
    blocks, inner_sums, diagonal = [], [], []
    for block, _, squares in view.attention.rows(False):
        rows = lengths.rows(block, squares)
        lengths.add(block, rows)
        norms.add(block, squares[0])
        diagonal.append(squares[0].diagonal(offset=block.start, dim1=-2, dim2=-1))
        alpha = view.captured.scaled_rows(block).to(whole)
        inner = (alpha * (projected[:, :, block] @ value.mT)).sum(dim=1)
        if own is not None and parts.separate:
            inner = torch.cat([inner, own[:, block].unsqueeze(-1)], dim=-1)
        elif own is not None:
            inner.diagonal(offset=block.start, dim1=-2, dim2=-1).copy_(own[:, block])
        inner_sums.append(inner.sum(dim=-1))
        blocks.append(_closeness_2(size[:, block].unsqueeze(-1), inner, rows.to(whole)))
    if not parts.separate:
        own_parts = view.attention.own_parts()
        view.compare_own(torch.cat(diagonal, dim=1), own_parts, norms)
    view.note_gap_of(lengths, cells)
    assert lengths.sums is not None
    total, parts_size = torch.cat(inner_sums, dim=1), lengths.sums.to(whole)
    if parts.bias is not None:
        bias = parts.bias.to(whole)
        total, parts_size = total + (whole * bias).sum(dim=-1), parts_size + bias.norm(dim=-1)
    tiny = torch.finfo(whole.dtype).tiny
    gap = (total - size.square()).abs() / (size * parts_size).clamp_min(tiny)
    return torch.cat(blocks, dim=1), _worst_query(view, gap)


def _closeness_2(size: Tensor, inner: Tensor, lengths: Tensor) -> Tensor:
    """Return [‖Y‖ − ‖Y − v‖]₊ from ‖Y‖, ⟨Y, v⟩ and ‖v‖."""
    gained = 2 * inner - lengths.square()
    rest = (size.square() - gained).clamp_min(0).sqrt()
    return (gained / (size + rest).clamp_min(torch.finfo(size.dtype).tiny)).clamp_min(0)


def _projected(
    view: LayerView, parts: Parts, whole: Tensor
) -> Float[Tensor, "batch head query head_size"]:
    """Return w_i Lᵀ(Y_i) W_O^hᵀ, whose product with a key's values is ⟨Y_i, w_i L f_h(j)⟩."""
    turned = whole
    for step in reversed(parts.linear):
        turned = _transposed(step, turned)
    if isinstance(parts.weight, Tensor):
        turned = turned * parts.weight.unsqueeze(-1).to(whole)
    weight = view.captured.projection.weight.to(whole)
    projected = torch.einsum("bqd,hed->bhqe", turned, weight)
    gate = view.captured.gate
    return projected if gate is None else projected * gate.transpose(1, 2).to(whole)


def _transposed(step: Linear, vectors: Tensor) -> Tensor:
    """Apply the transpose of v ↦ scale ⊙ (v − mean v)."""
    vectors = vectors if step.scale is None else vectors * step.scale.to(vectors)
    return vectors - vectors.mean(dim=-1, keepdim=True) if step.centred else vectors


def _spot_gap(
    scope: Scope, parts: Parts, whole: Tensor, cells: Cells, values: Tensor
) -> Float[Tensor, " batch"]:
    """Return the gap of some cells to the definition, relative to the length of the whole."""
    states = whole[cells.row, cells.i].double()
    order = 2 if scope.cell == "closeness_2" else 1
    if scope.cell == "routed":
        weight = parts.weight
        vectors = parts.transform(cells.vectors)
        if isinstance(weight, Tensor):
            vectors = vectors * weight[cells.row, cells.i, None, None].double()
        expected = closeness(states.unsqueeze(2), vectors, 1).sum(dim=-1)
        if not parts.separate:
            own = closeness(states, parts.residual_alone[cells.row, cells.i].double(), 1)
            expected = expected + own * (cells.i == cells.j)
    else:
        expected = closeness(states, parts.at(cells).double(), order)
    size = torch.linalg.vector_norm(states, order, dim=-1).clamp_min(TINY)
    return ((cells.of(values) - expected).abs() / size).amax(dim=-1)


def _worst_query(view: LayerView, gap: Float[Tensor, "batch query"]) -> Float[Tensor, " batch"]:
    return gap.double().masked_fill(~view.positions.queries, 0).amax(dim=1)


def feed_forward_share(view: LayerView) -> Float[Tensor, "batch query"] | None:
    """Return the share of the feed-forward in the sum of its branch and what it is added to.

    None where another attention follows this one.
    """
    if not any(SCOPES[name].end == "layer" for name in view.scopes):
        return None
    whole, branch = view.chain.ff_sum(), view.chain.stations.ff_output().to(view.wide)
    whole = whole.to(view.wide)
    both = torch.stack([branch, whole - branch], dim=-2)
    values = closeness(whole.unsqueeze(-2), both, 1)
    return values[..., 0] / values.sum(dim=-1).clamp_min(torch.finfo(values.dtype).tiny)
