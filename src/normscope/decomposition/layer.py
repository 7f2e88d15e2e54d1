"""The view of a layer that measures read: one attention call and everything that follows it.

A :class:`LayerView` computes the lengths of every scope of the layer, the vectors themselves at
chosen cells, and the model's own state at the end of each scope. Maps are compared with the model's
own states: ``maps`` and ``head_maps`` note the gaps, and the engine judges them. A measure that
reads anything else notes its gap with ``note_gap``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from normscope.capture import AttentionKind, Capture
from normscope.capture.layers import LayerCapture
from normscope.decomposition.block import Norm, Parts, length
from normscope.decomposition.cells import NEGLIGIBLE, TINY, Cells, Positions
from normscope.decomposition.chain import DecompositionOptions, LayerChain, by_replay, scopes_of
from normscope.decomposition.closeness import closeness_map
from normscope.decomposition.effective import effective_map
from normscope.decomposition.maps import KEEP_NOTHING, Reduce, ScopeMap
from normscope.decomposition.plain import lengths_by_kernel, maps_by_kernels
from normscope.decomposition.replayed import ANCHOR, ReplayedLayer
from normscope.decomposition.scopes import NORMS, PER_HEAD, SCOPES, WEIGHTS, Station
from normscope.decomposition.zeroing import zeroing_map
from normscope.errors import UnsupportedModelError
from normscope.foundation.shapes import Float
from normscope.kernels import Scratch
from normscope.kernels.backend import without_tf32


class LayerView:
    """One attention call of one layer of a batch, and what follows it up to the next call."""

    def __init__(
        self,
        captured: Capture,
        layer: LayerCapture | None = None,
        positions: Positions | None = None,
        how: DecompositionOptions | None = None,
        *,
        scratch: Scratch | None = None,
        batch: Any = None,
        replayed: ReplayedLayer | None = None,
    ) -> None:
        self.captured, self.layer, self.batch = captured, layer, batch
        self.kind: AttentionKind = captured.kind
        self.how = DecompositionOptions() if how is None else how
        self.positions = (
            Positions.all(captured.shape, captured.device) if positions is None else positions
        )
        self.replayed = None if replayed is None or replayed.kind != captured.kind else replayed
        self.scopes = PER_HEAD if layer is None else self._scopes(layer)
        self.chain = LayerChain(captured, layer, self.how, scratch)
        self.attention, self.dtypes = self.chain.attention, self.chain.dtypes
        self.gaps: dict[str, Tensor] = {}  # name -> (batch,), not judged yet
        self.mean_weights: Tensor | None = None  # (batch, query, key), where a kernel made them
        self._own_gap: Tensor | None = None  # (batch,), see compare_own

    @property
    def name(self) -> str:
        """The path of the layer, or of the attention module if no layer was recorded."""
        return self.captured.name if self.layer is None else self.layer.name

    def recomputed(self) -> LayerView:
        """Return the same layer with sums recomputed from the recorded weights and values."""
        if self.attention.rebuilt:
            return self
        how = replace(self.how, precision="float64", maps=True)
        like: Any = {"batch": self.batch, "replayed": self.replayed}
        return LayerView(self.captured, self.layer, self.positions, how, **like)

    def _scopes(self, layer: LayerCapture) -> tuple[str, ...]:
        """List the maps that this view has: those from replay only if they were replayed."""
        replayed = {} if self.replayed is None else self.replayed.scopes
        return tuple(
            name
            for name in scopes_of(layer.layout, self.kind)
            if name in replayed or not by_replay(layer.layout, name)
        )

    # ---- what measures read

    def maps(self, wanted: Sequence[str], reduce: Reduce | None = None) -> dict[str, ScopeMap]:
        """Compute maps with the heads summed, in one pass over the queries, and note their gaps."""
        related = {name: self._related_map(name) for name in wanted if SCOPES[name].related}
        if related:
            rest = [name for name in wanted if name not in related]
            if reduce is not None:
                for related_map in related.values():
                    related_map.reduce_to(reduce)
            return (self.maps(rest, reduce) if rest else {}) | related
        behind = [name for name in wanted if self.chain.is_behind(name)]
        replayed = [name for name in behind if self.chain.is_replayed(name)]
        unlinked = [n for n in wanted if n == NORMS or SCOPES[n].weight]
        factored = [n for n in wanted if n not in unlinked and not self.chain.is_behind(n)]
        with without_tf32(self.captured.device):
            fused = None if behind else maps_by_kernels(self, wanted, reduce)
            if fused is not None:
                self._note_gaps(fused, wanted)
                return {name: fused[name] for name in wanted}
            maps: dict[str, ScopeMap] = {}
            for names in self._linear_chains(factored):
                maps |= self._fill(self.lengths([NORMS, *names]), [*names, *unlinked], reduce)
        if replayed:
            maps |= self._replayed_maps(replayed)
        if len(behind) > len(replayed):
            maps |= self._feed_forward_maps([name for name in behind if name not in replayed])
        if reduce is not None:
            for name in behind:
                maps[name].reduce_to(reduce)
        return {name: maps[name] for name in wanted if name in maps}

    def _linear_chains(self, names: Sequence[str]) -> list[list[str]]:
        """Divide scopes before any activation so that the linear steps of each extend another's."""
        kept = [name for name in names if SCOPES[name].end == "kept"]
        rest = [name for name in names if name not in kept]
        return [rest, kept] if rest and kept else [list(names)]

    def _related_map(self, name: str, *, each: bool = False) -> ScopeMap:
        """Compute a map that is neither of lengths nor of weights, and note its gap."""
        scope = SCOPES[name]
        with without_tf32(self.captured.device):
            if scope.cell == "projected":
                related = effective_map(self, scope, each=each)
            else:
                compute = zeroing_map if scope.cell == "zeroed" else closeness_map
                related = compute(self, scope)
        assert related.gaps is not None
        self.note_gap(name, related.gaps)
        return related

    def head_maps(self, wanted: Sequence[str]) -> dict[str, ScopeMap]:
        """Compute the maps of attention for every head, and note their gaps."""
        cells, attention = self.cells_to_check(), self.attention
        with without_tf32(self.captured.device):
            alpha, output = self.captured.alpha, self.captured.output
            weighted = attention.head_norms()
        difference = (attention.reconstructed - output).norm(dim=-1, dtype=torch.float64)
        maps = {}
        for name in wanted:
            scope = SCOPES[name]
            if scope.related:
                maps[name] = self._related_map(name, each=True)
                continue
            wide = torch.promote_types(alpha.dtype, torch.float32)
            values = alpha.to(wide) if scope.weight else weighted
            maps[name] = ScopeMap(
                scope,
                self.positions.keys,
                alpha.shape[2],
                bias=attention.bias_length(),
                difference=difference,
                values=values,
                sums=weighted.sum(dim=(1, 3)),
            )
            if cells is not None:
                maps[name].at_cells = cells.of(values)
            self.note_gap_of(maps[name], cells)
        return maps

    def lengths(self, wanted: Sequence[str]) -> dict[str, ScopeMap]:
        """Measure the (query, hidden) vectors of scopes before any activation.

        The maps that are returned have no rows yet.
        """
        chosen = list(dict.fromkeys(wanted))
        # Off the diagonal, scopes with the same L differ only by a factor for each query. Each L
        # extends the shorter one before it.
        steps = {name: self.chain.steps(SCOPES[name].end) for name in chosen}
        linear = sorted(set(steps.values()), key=len)
        if self.how.maps:
            self.attention.measure([after[len(before) :] for before, after in pairwise(linear)])
        levels = {name: linear.index(steps[name]) for name in chosen}
        maps = lengths_by_kernel(self, chosen, levels)
        if maps is not None:
            return maps
        keys = self.positions.keys
        return {
            name: ScopeMap.of_parts(
                SCOPES[name],
                self.parts(SCOPES[name].end),
                self.real(name),
                keys,
                levels[name],
            )
            for name in chosen
        }

    def vectors(
        self, scope: str, queries: Tensor, keys: Tensor
    ) -> Float[Tensor, "batch cell hidden"]:
        """Build v_ij at some cells from the definition; ``queries`` and ``keys``: (batch, cell)."""
        cells = self.attention.at(queries, keys)
        if not self.chain.is_behind(scope):
            return self.parts(SCOPES[scope].end).at(cells)
        if self.chain.is_replayed(scope):
            raise UnsupportedModelError(
                f"{scope} of {self.name} comes from replay, of which lengths are kept and no "
                "vectors"
            )
        vectors_at = self._feed_forward_maps([scope])[scope].vectors_at
        assert vectors_at is not None
        return vectors_at(cells)

    def note_gap(self, name: str, gap: Float[Tensor, " batch"]) -> None:
        """Note a gap to the model's own state, relative to the parts, for the engine to judge."""
        known = self.gaps.get(name)
        self.gaps[name] = gap if known is None else torch.maximum(known, gap)

    def take_gaps(self) -> dict[str, Tensor]:
        """Return the gaps noted so far, and clear them."""
        gaps, self.gaps = self.gaps, {}
        return gaps

    # ---- properties of the layer that statistics read

    @property
    def transformed_norm(self) -> Float[Tensor, "batch head key"]:
        """‖f_h(x_j)‖ of every head and key."""
        return self.attention.transformed_norm

    @property
    def residual(self) -> Float[Tensor, "batch query hidden"]:
        """x_i: what the residual connection carries."""
        return self.chain.residual

    def parts(self, end: Station) -> Parts:
        """Return the parts at a station before any activation."""
        return self.chain.parts(end)

    def real(self, scope: str) -> Float[Tensor, "batch query hidden"]:
        """Return the model's own hidden state at the end of a scope."""
        return self.chain.real(SCOPES[scope].end)

    @property
    def wide(self) -> torch.dtype:
        """The dtype in which vectors are built: the model's, at least float32."""
        own = torch.promote_types(self.captured.output.dtype, torch.float32)
        return torch.float64 if self.attention.rebuilt else own

    @cached_property
    def total_norm(self) -> Float[Tensor, "batch query"]:
        """‖Σ_j s_ij‖, from the model's own output."""
        output, bias = self.captured.output, self.captured.projection.bias
        return length(output if bias is None else output - bias)

    @property
    def norm_after(self) -> Norm | None:
        """The norm after the residual sum of the attention block."""
        return self.chain.norm(self.chain.block.after)

    # ---- filling maps

    def _fill(
        self, scopes: dict[str, ScopeMap], wanted: Sequence[str], reduce: Reduce | None
    ) -> dict[str, ScopeMap]:
        """Add the rows of all maps computed from Gram matrices or weights, and note their gaps."""
        maps = dict(scopes)
        queries, keys = self.captured.shape[2], self.positions.keys
        separate = self.attention.own is None
        weights = [name for name in wanted if SCOPES[name].weight]
        for name in [WEIGHTS, *weights] if weights else []:
            column = separate and SCOPES[name].with_residual
            maps[name] = ScopeMap(SCOPES[name], keys, queries, column=column)
        for name, scope_map in maps.items():
            scope_map.reduce = reduce if name in wanted else KEEP_NOTHING
            scope_map.drawn = self.positions.cells(self.captured.layer)
        diagonal: list[Tensor] = []  # of the mean weights
        own: list[Tensor] = []  # the diagonal of ‖Σ_h αf‖
        for block, alpha, norms in self.attention.rows(bool(weights)):
            if not separate:
                own.append(norms[0].diagonal(offset=block.start, dim1=-2, dim2=-1))
            for name in scopes:
                maps[name].add(block, maps[name].rows(block, norms))
            if weights:
                assert alpha is not None
                wide = torch.promote_types(alpha.dtype, torch.float32)
                mean = alpha.mean(dim=1, dtype=wide)
                for name in dict.fromkeys([WEIGHTS, *weights]):
                    counted = SCOPES[name].with_residual
                    rows = _residual_weights(mean, block, separate=separate) if counted else mean
                    maps[name].add(block, rows)
                if not separate:
                    diagonal.append(mean.diagonal(offset=block.start, dim1=-2, dim2=-1))
        if own:
            self.compare_own(torch.cat(own, dim=1), self.attention.own_parts(), maps[NORMS])
        for name in scopes:
            maps[name].mixing_ratio = maps[name].ratio()
        self._finish_weights(maps, weights, torch.cat(diagonal, dim=1) if diagonal else None)
        self._note_gaps(maps, [name for name in wanted if name in maps])
        return maps

    def _finish_weights(
        self, maps: dict[str, ScopeMap], weights: Sequence[str], diagonal: Tensor | None
    ) -> None:
        """Set the mixing ratio of maps of weights; their gaps are those of the call's norms."""
        if not weights:
            return
        norms, sums, at_cells = maps[NORMS], maps[WEIGHTS].sums, maps[WEIGHTS].at_cells
        assert sums is not None
        mixed = sums if diagonal is None else sums - diagonal
        for name in weights:
            maps[name].mixing_ratio = mixed / (2 if SCOPES[name].with_residual else 1)
            maps[name].difference, maps[name].bias = norms.difference, norms.bias
            # A weight has no vector of its own: use the gap of the call's vectors, and check
            # cells before the residual is added.
            maps[name].sums, maps[name].at_cells = norms.sums, at_cells

    def _feed_forward_maps(self, wanted: Sequence[str]) -> dict[str, ScopeMap]:
        """Compute the maps behind an activation in one pass, and note their gaps."""
        scopes = [SCOPES[n] for n in self.scopes if self.chain.is_behind(n)]
        stages = [scope for scope in scopes if scope.end != "layer"]
        cells = self.cells_to_check()
        measured = self.chain.feed_forward().measure(stages, self.real, self.positions.keys)
        measured += [replace(measured[-1], scope=s) for s in scopes if s not in stages]
        maps = {}
        for scope_map in measured:
            name = scope_map.scope.name
            if name not in wanted:
                continue
            if cells is not None:
                assert scope_map.values is not None
                scope_map.at_cells = cells.of(scope_map.values)
            scope_map.mixing_ratio = scope_map.ratio()
            self.note_gap_of(scope_map, cells)
            maps[name] = scope_map
        return maps

    def _replayed_maps(self, wanted: Sequence[str]) -> dict[str, ScopeMap]:
        """Return maps from replay, and note their gaps."""
        replayed, keys = self.replayed, self.positions.keys
        if replayed is None or any(name not in replayed.scopes for name in wanted):
            raise UnsupportedModelError(
                f"{', '.join(wanted)} of {self.name} has no factored form, and comes from replay, "
                "which this measure does not ask for"
            )
        self.dtypes |= replayed.dtypes
        column = self.attention.own is None
        anchored = self._anchor_gap(replayed)
        maps = {}
        for name in wanted:
            scope = replayed.scopes[name]
            maps[name] = scope.map(
                name, self.real(name), keys, column and not SCOPES[name].per_head
            )
            maps[name].mixing_ratio = maps[name].ratio()
            self.note_gap_of(maps[name], None)
            if anchored is not None:
                self.note_gap(name, anchored)
        return maps

    def _anchor_gap(self, replayed: ReplayedLayer) -> Float[Tensor, " batch"] | None:
        """Return the gap of all replayed cells to the factored form, where the block ends.

        None for a layer whose wiring is not known. It is relative to the cell and its row's mean.
        """
        if ANCHOR not in replayed.scopes or ANCHOR not in self.scopes:
            return None
        view = LayerView(self.captured, self.layer, self.positions, self.how)
        factored = view.maps([ANCHOR])[ANCHOR].values
        assert factored is not None
        if factored.shape != replayed.scopes[ANCHOR].lengths.shape:
            _, _, queries, keys = self.captured.shape
            raise UnsupportedModelError(
                f"{self.captured.name} attends from {queries} positions to {keys}, of which some "
                "are no positions of its layer (a prefix, or states of another stack), so that the "
                "layer cannot be replayed from its own input alone"
            )
        mean = factored.mean(dim=-1, keepdim=True)
        size = (factored + mean).clamp_min(TINY)
        gaps = (replayed.scopes[ANCHOR].lengths - factored).abs() / size
        return gaps.masked_fill(~self.positions.queries.unsqueeze(-1), 0).flatten(1).amax(dim=1)

    def _note_gaps(self, maps: dict[str, ScopeMap], wanted: Sequence[str]) -> None:
        """Note the gaps of several maps, and of their cells to the definition."""
        cells = self.cells_to_check()
        for name in wanted:
            self.note_gap_of(maps[name], cells)
            if cells is not None and self.captured.gate is None:
                self.note_gap(name, cells.gap_of_norms(self.transformed_norm))

    def compare_own(
        self,
        diagonal: Float[Tensor, "batch query"],
        parts: Float[Tensor, "batch query"],
        norms: ScopeMap,
    ) -> None:
        """Compare ‖Σ_h αf‖ where a query meets itself with the lengths of the vectors built there.

        The former come from Gram matrices. The latter are in every mixing ratio, and on the
        diagonal behind a residual; no sum over keys shows whether they are right. The gap is noted
        with those of all maps.

        Args:
            diagonal: the lengths from Gram matrices.
            parts: Σ_h ‖α_ii f(x_i)‖.
            norms: the map of ‖Σ_h αf‖, with its sums over keys.
        """
        assert norms.own is not None
        assert norms.sums is not None
        size = torch.maximum(parts, NEGLIGIBLE * norms.sums).clamp_min(TINY)
        gap = (diagonal - norms.own).abs() / size
        self._own_gap = gap.masked_fill(~self.positions.queries, 0).amax(dim=1)

    @cached_property
    def _attention_gap(self) -> Float[Tensor, " batch"] | None:
        """The gap of the recorded weights, values and W_O to what the model made of them.

        Weights and values are compared for every query, W_O for some. None if sums are recomputed:
        they are then compared as a whole.
        """
        if self.attention.rebuilt:
            return None
        queries = self.positions.queries
        context = self.attention.context_gap.masked_fill(~queries, 0).amax(dim=1)
        drawn = self.positions.drawn_queries(self.captured.layer)
        return torch.maximum(context, self.attention.projection_gap(drawn))

    def note_gap_of(self, scope_map: ScopeMap, cells: Cells | None) -> None:
        """Note the gap of a map to the model's own state, and of its cells to the definition."""
        if scope_map.gaps is not None:
            gap = scope_map.gaps
        else:
            gap = scope_map.gap().masked_fill(~self.positions.queries, 0).amax(dim=1)
            if self._attention_gap is not None:
                gap = torch.maximum(gap, self._attention_gap)
        if self._own_gap is not None:
            gap = torch.maximum(gap, self._own_gap)
        if cells is not None:
            assert scope_map.at_cells is not None
            if scope_map.scope.weight:
                gap = torch.maximum(gap, cells.gap(scope_map.at_cells, weight=True))
            else:
                gap = torch.maximum(gap, scope_map.spot_gap(cells))
        self.note_gap(scope_map.scope.name, gap)

    def cells_to_check(self) -> Cells | None:
        """Build the cells to spot-check in this layer, or return None."""
        drawn = self.positions.cells(self.captured.layer)
        return None if drawn is None else self.attention.at(*drawn)


def _residual_weights(
    weights: Float[Tensor, "batch rows key"], block: slice, *, separate: bool
) -> Float[Tensor, "batch rows keys"]:
    """Return ½ᾱ + ½I: weights with the residual, as the 2021 paper defines them."""
    values = weights / 2
    if separate:
        return torch.cat([values, torch.full_like(values[..., :1], 0.5)], dim=-1)
    values.diagonal(offset=block.start, dim1=-2, dim2=-1).add_(0.5)
    return values
