"""Maps of a plain attention block in float32, by a few fused kernels on a GPU.

A block is plain if nothing but a residual connection and at most one norm follows the attention.
The weights are computed from queries and keys; the vectors f_h(x_j) are never built: their Gram
matrices come from products of W_O with itself, which are computed once per model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normscope.capture.scores import Scores
from normscope.decomposition.cells import Cells
from normscope.decomposition.maps import KEEP_NOTHING, Reduce, ScopeMap
from normscope.decomposition.scopes import NORMS, SCOPES, WEIGHTS, Scope, Station
from normscope.foundation.shapes import Float
from normscope.kernels import (
    CellMap,
    GapInputs,
    Linear,
    RowInputs,
    RowLengths,
    ScoreInputs,
    triton_for,
)
from normscope.kernels.products import KeptProducts, kept_products, scales_of

if TYPE_CHECKING:
    from normscope.decomposition.layer import LayerView

HEADS = 16  # at most: a cell's weights stay in a thread's registers
FEATURES = 1024  # of all heads: the products of W_O take 8 · features² bytes for each map L
CELLS = 2**27  # scores of one layer, at most


@dataclass(frozen=True)
class StationRows:
    """Lengths and gaps of the (query, hidden) vectors at one station, (batch, query) each."""

    own: Tensor  # ‖v_ii‖
    others: Tensor
    ratio: Tensor
    bias: Tensor  # length of what belongs to no token
    difference: Tensor | None  # to the model's own state
    weight: Tensor | None = None  # w_i


def maps_by_kernels(
    view: LayerView, wanted: Sequence[str], reduce: Reduce | None
) -> dict[str, ScopeMap] | None:
    """Compute maps of a plain block, without their gaps; return None where that is not possible."""
    triton = triton_for(view.attention.kernels, view.captured.device)
    names = list(dict.fromkeys([WEIGHTS, NORMS, *wanted]))
    ends = {SCOPES[name].end for name in names}
    if triton is None or not _is_served(view, ends):
        return None
    captured = view.captured
    scores: Any = captured.weights
    inputs = ScoreInputs(
        scores.query, scores.key, scaling=scores.scaling, causal=scores.causal, mask=scores.mask
    )
    attended = triton.attend(inputs, captured.value, scores.context)
    levels, products = _levels(view, names, triton)
    factors, single = triton.gram_factors(captured.value, products.blocks)
    own = triton.own_vectors(captured.value, attended.own, captured.projection.weight)
    stations = _stations(view, ends, triton, own)
    values, sums = triton.cell_norms(
        attended.scores,
        attended.lse,
        factors,
        [_cell_map(SCOPES[name], levels, stations) for name in names],
    )
    of_map = [stations["attention" if SCOPES[n].weight else SCOPES[n].end] for n in names]
    gaps, mixed = triton.row_gaps(
        _gap_inputs(view, products, names),
        attended,
        sums,
        [(rows.difference, rows.bias) for rows in of_map],
        view.positions.queries,
    )
    view.attention.transformed_norm, view.attention.context_checked = single, True
    view.mean_weights = values[0]
    drawn = view.positions.cells(captured.layer)
    maps: dict[str, ScopeMap] = {}
    for number, name in enumerate(names):
        scope_map = _scope_map(view, SCOPES[name], of_map[number])
        scope_map.gaps, scope_map.drawn = gaps[number], drawn
        scope_map.sums = sums[number].sum(dim=1) if drawn is not None else None
        scope_map.reduce = reduce if name in wanted else KEEP_NOTHING
        scope_map.keep(slice(0, captured.shape[2]), values[number])
        if SCOPES[name].weight:
            halved = SCOPES[name].with_residual
            scope_map.mixing_ratio = mixed / 2 if halved else mixed
            scope_map.at_cells = maps[WEIGHTS].at_cells if halved else scope_map.at_cells
        maps[name] = scope_map
    if drawn is not None:
        diagonal = values[names.index(NORMS)].diagonal(dim1=-2, dim2=-1)
        parts = (attended.own.double() * single).sum(dim=1)
        view.compare_own(diagonal, parts, maps[NORMS])
    return maps


def lengths_by_kernel(
    view: LayerView, chosen: Sequence[str], levels: dict[str, int]
) -> dict[str, ScopeMap] | None:
    """Measure the (query, hidden) vectors of a plain block; return None where that is not possible.

    The maps have no rows yet. This needs no further array of (query, hidden) size.
    """
    triton = triton_for(view.attention.kernels, view.captured.device)
    ends = {SCOPES[name].end for name in chosen}
    own = None if triton is None or view.attention.rebuilt else view.attention.own
    if triton is None or own is None or not _is_plain(view, ends):
        return None
    stations = _stations(view, ends, triton, own.flatten(0, 1))
    maps = {}
    for name in chosen:
        rows = stations[SCOPES[name].end]
        maps[name] = _scope_map(view, SCOPES[name], rows)
        maps[name].level = levels[name]
        none = torch.zeros_like(rows.own)
        maps[name].difference = none if rows.difference is None else rows.difference
    return maps


def _gap_inputs(view: LayerView, products: KeptProducts, names: Sequence[str]) -> GapInputs:
    captured = view.captured
    scales = scales_of([max((view.chain.steps(SCOPES[n].end) for n in names), key=len)])
    return GapInputs(
        captured.merged,
        captured.output,
        captured.projection.weight,
        captured.projection.bias,
        view.positions.drawn_queries(captured.layer)[:, :1],
        products.random,
        products.probe,
        products.scale,
        gamma=scales[0] if scales else None,
        known_gamma=products.scales[0] if scales else None,
    )


def _is_served(view: LayerView, ends: set[Station]) -> bool:
    """Return whether the kernels can compute these stations of a layer."""
    captured, projection = view.captured, view.captured.projection
    scores = captured.weights
    if view.attention.rebuilt or not isinstance(scores, Scores) or captured.kind != "self":
        return False
    batch, heads, queries, keys = scores.shape
    served = (
        projection.module is not None
        and queries == keys
        and heads <= HEADS
        and projection.weight.shape[:2].numel() <= FEATURES
        and batch * heads * queries * keys <= CELLS
        and {scores.query.dtype, captured.value.dtype, projection.weight.dtype} == {torch.float32}
        and captured.output.dtype == torch.float32
    )
    return served and _is_plain(view, ends)


def _is_plain(view: LayerView, ends: set[Station]) -> bool:
    """Return whether at most a residual and one norm lie before these stations."""
    if view.captured.held is not None:
        return False
    if view.layer is None or ends == {"attention"}:
        return True
    block = view.chain.block
    if "kept" in ends:
        return False
    plain = block.branch is None and block.scale is None and not view.chain.layout.parallel
    two_norms = block.after is not None and "ff_input" in ends
    return plain and not two_norms and view.captured.residual is not None


def _levels(
    view: LayerView, names: Sequence[str], triton: ModuleType
) -> tuple[dict[Station, int], KeptProducts]:
    """Return the level of each station, and the products of W_O for all levels."""
    steps = {SCOPES[name].end: view.chain.steps(SCOPES[name].end) for name in names}
    linear = sorted({*steps.values(), ()}, key=len)
    projection = view.captured.projection
    assert projection.module is not None
    weight = projection.weight
    products = kept_products(projection.module, weight, linear, triton.padded_products)
    return {end: linear.index(chain) for end, chain in steps.items()}, products


def _stations(
    view: LayerView, ends: set[Station], triton: ModuleType, own: Float[Tensor, "row out"]
) -> dict[Station, StationRows]:
    """Measure the (query, hidden) vectors at every station up to the last of ``ends``."""
    captured = view.captured
    shape = captured.output.shape[:2]
    further, normed = _row_arguments(view, ends)
    inputs = RowInputs(
        captured.output.flatten(0, 1), bias=captured.projection.bias, own=own, **further
    )
    measured: RowLengths = triton.row_lengths(inputs)
    rows: Any = SimpleNamespace(
        **{name: array.view(shape) for name, array in vars(measured).items() if array is not None}
    )
    stations: dict[Station, StationRows] = {
        "attention": StationRows(rows.own, rows.others, rows.ratio, rows.bias, None)
    }
    if further:
        stations["residual"] = stations["block"] = StationRows(
            rows.own_residual, rows.others, rows.ratio_residual, rows.bias, rows.gap_residual
        )
    if normed:
        after = StationRows(
            *(rows.own_norm, rows.others_norm, rows.ratio_norm, rows.bias_norm, rows.gap_norm),
            weight=rows.weight,
        )
        stations["norm"] = stations["ff_input"] = after
        if view.chain.block.after is not None:
            stations["block"] = after
    return stations


def _row_arguments(view: LayerView, ends: set[Station]) -> tuple[dict[str, Any], bool]:
    """Return the arguments of ``row_lengths`` beyond attention, and whether there is a norm."""
    if ends == {"attention"}:
        return {}, False
    before = view.chain.layout.ff.before if "ff_input" in ends else None
    path = view.chain.block.after or before
    further: dict[str, Any] = {
        "residual": view.residual.flatten(0, 1),
        "after_residual": view.chain.residual_sum().flatten(0, 1),
    }
    norm = view.chain.norm(path)
    if norm is None:
        return further, False
    form = norm.parameters
    further |= {"gamma": form.scale, "beta": form.bias, "centred": form.centred, "eps": form.eps}
    further["after_norm"] = view.chain.whole.output_of(path or "").flatten(0, 1)
    return further, True


def _cell_map(
    scope: Scope, levels: dict[Station, int], stations: dict[Station, StationRows]
) -> CellMap:
    """Return what the kernel computes for one scope."""
    if scope.weight:
        return CellMap(-1, halved=scope.with_residual)
    rows = stations[scope.end]
    own = rows.own if scope.with_residual else None
    return CellMap(levels[scope.end], scale=rows.weight, diagonal=own)


def _scope_map(view: LayerView, scope: Scope, rows: StationRows) -> ScopeMap:
    """Return the map of one scope without its cells."""
    steps = view.chain.steps(scope.end)
    weight = 1.0 if rows.weight is None else rows.weight
    return ScopeMap(
        scope,
        view.positions.keys,
        view.captured.shape[2],
        own=rows.own,
        others=rows.others,
        bias=rows.bias,
        weight=weight,
        mixing_ratio=rows.ratio,
        vectors_at=partial(_vectors, view, steps, weight, scope),
        steps=steps,
    )


def _vectors(
    view: LayerView, steps: Sequence[Linear], weight: Tensor | float, scope: Scope, cells: Cells
) -> Float[Tensor, "batch cell hidden"]:
    """Return v_ij = w_i L(Σ_h αf + δ_ij x_i) at some cells, from the definition."""
    vectors = cells.vectors.sum(dim=2)
    if scope.with_residual:
        states = view.residual[cells.row, cells.i].double()
        vectors = vectors + states * (cells.i == cells.j).unsqueeze(-1)
    for step in steps:
        vectors = step(vectors)
    if isinstance(weight, Tensor):
        return vectors * weight[cells.row, cells.i].unsqueeze(-1)
    return vectors
