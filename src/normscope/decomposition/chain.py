"""The vectors of one attention call, followed through its layer.

A :class:`LayerChain` knows how the layer is wired: it gives the parts at every station, the linear
steps up to it, and the model's own state there, which the parts must add up to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normscope.capture import AttentionKind, Capture
from normscope.capture.layers import LayerCapture
from normscope.capture.projection import affine
from normscope.decomposition.attention import AttentionDecomposition, Precision
from normscope.decomposition.block import Norm, Parts
from normscope.decomposition.feedforward import FeedForwardSplit, FeedForwardWeights, FFBias
from normscope.decomposition.gated import GatedDecomposition
from normscope.decomposition.norms import norm_of
from normscope.decomposition.scopes import PER_HEAD, SCOPES, Scope, Station
from normscope.decomposition.stations import LayerStates, Stations, factor_of
from normscope.foundation.shapes import Float
from normscope.kernels import Kernels, Linear, Scratch
from normscope.models.layouts import Attention, Layout, Opaque, activation_of


def scopes_of(layout: Layout | None, kind: AttentionKind) -> tuple[str, ...]:
    """List the maps of one attention of a layer, in the order in which they arise.

    ``layout`` is None for a layer whose wiring is not known.
    """
    if layout is None:
        whole = (s.name for s in SCOPES.values() if s.end == "layer" and not s.related)
        return (*PER_HEAD, *whole)
    block = layout.cross if kind == "cross" else layout.attention
    assert block is not None
    ff = layout.ff
    last = not (kind == "self" and layout.cross is not None)
    before = ff.before is not None

    def exists(scope: Scope) -> bool:
        if scope.end in ("attention", "residual", "block"):
            return True
        if scope.end == "norm":
            return block.after is not None
        if scope.cell == "zeroed" and not layout.parallel:
            return last and not (isinstance(ff, Opaque) and ff.module is None)
        if scope.end in ("layer", "kept"):
            return last
        if not last or scope.ff_norm_before != before:
            return False
        if layout.parallel:  # the feed-forward reads the layer's input, not the attention block
            return scope.end == "ff_residual"
        return scope.end != "ff_norm" or ff.after is not None

    return tuple(name for name, scope in SCOPES.items() if exists(scope))


def by_replay(layout: Layout | None, name: str) -> bool:
    """Return whether a map of a layer has no factored form, so that it comes from replay."""
    if not SCOPES[name].behind_feed_forward:
        return False
    return layout is None or (isinstance(layout.ff, Opaque) and not layout.parallel)


@dataclass(frozen=True)
class DecompositionOptions:
    """Options for decomposing layers."""

    ff_bias: FFBias = "path"
    memory: int = 2**31  # bytes for the largest arrays of scopes behind a feed-forward
    kernels: Kernels = "auto"
    precision: Precision = "model"
    maps: bool = True  # False: only what statistics need, see AttentionDecomposition


class _RecordedStates(LayerStates):
    """The model's own states in a layer, as they were recorded."""

    def __init__(self, captured: Capture, layer: LayerCapture) -> None:
        self.captured, self.layer = captured, layer

    @property
    def residual(self) -> Tensor:
        assert self.captured.residual is not None
        return self.captured.residual

    @property
    def attended(self) -> Tensor:
        return self.captured.output

    @property
    def output(self) -> Tensor:
        return self.layer.output

    def given(self, path: str) -> Tensor:
        return self.layer.given(path)

    def output_of(self, path: str) -> Tensor:
        return self.layer.output_of(path)


class LayerChain:
    """The way of the vectors αf of one attention call through the rest of its layer."""

    def __init__(
        self,
        captured: Capture,
        layer: LayerCapture | None,
        how: DecompositionOptions,
        scratch: Scratch | None = None,
    ) -> None:
        self.captured, self.layer, self.how = captured, layer, how
        self.kind: AttentionKind = captured.kind
        self.dtypes = {captured.output.dtype}  # of the model's states to compare with
        decomposition = AttentionDecomposition if captured.gate is None else GatedDecomposition
        self.attention = decomposition(
            captured, scratch, how.kernels, precision=how.precision, maps=how.maps
        )
        if captured.held is not None:
            self.dtypes |= captured.held.dtypes
        self._norms: dict[str, Norm] = {}
        self._factors: dict[str | float, Linear] = {}
        self._parts: dict[Station, Parts] = {}

    @property
    def residual(self) -> Float[Tensor, "batch query hidden"]:
        """x_i: what the residual connection carries."""
        if self.layer is not None:
            return self.stations.residual()
        assert self.captured.residual is not None
        return self.captured.residual

    @property
    def whole(self) -> LayerCapture:
        """The recorded layer around the attention call."""
        assert self.layer is not None
        return self.layer

    @cached_property
    def block(self) -> Attention:
        """Where the norms and the multiplier of this attention block are in the layer."""
        block = self.layout.cross if self.kind == "cross" else self.layout.attention
        assert block is not None
        return block

    @property
    def layout(self) -> Layout:
        """How the layer is wired."""
        assert self.whole.layout is not None
        return self.whole.layout

    def is_behind(self, name: str) -> bool:
        """Return whether a scope of this layer passes an activation."""
        layout = None if self.layer is None else self.layer.layout
        return SCOPES[name].behind_feed_forward and not (layout is not None and layout.parallel)

    def is_replayed(self, name: str) -> bool:
        """Return whether a scope of this layer has no factored form."""
        return self.layer is not None and by_replay(self.layer.layout, name)

    def parts(self, end: Station) -> Parts:
        """Return the parts at a station before any activation."""
        if end not in self._parts:
            self._parts[end] = self._make_parts(end)
        return self._parts[end]

    def _make_parts(self, end: Station) -> Parts:
        if end == "attention":
            return Parts.of_attention(self.attention)
        if end == "residual":
            parts = self.parts("attention")
            if (branch := self.norm(self.block.branch)) is not None:
                parts = parts.norm(branch)
            if (scale := self.factor(self.block.scale)) is not None:
                parts = parts.scaled(scale)
            return parts.residual(self.residual)
        if end in ("ff_residual", "layer"):
            # In a parallel layer, the feed-forward's output belongs to the query itself.
            return self.parts("residual").residual(self.stations.ff_output())
        if end == "kept":
            return self._kept()
        if end == "ff_input":
            parts, norm = self.parts("block"), self.norm(self.layout.ff.before)
        else:
            parts, norm = self.parts("residual"), self.norm(self.block.after)
        return parts if norm is None else parts.norm(norm)

    def _kept(self) -> Parts:
        """Return the parts at the end of the layer, without what its feed-forward adds."""
        ff, parts = self.layout.ff, self.parts("block")
        if self.layout.parallel:
            return parts
        parts = self.parts("ff_input") if ff.normed else parts
        carry, norm = self.factor(ff.carry), self.norm(ff.after)
        parts = parts if carry is None else parts.scaled(carry)
        return parts if norm is None else parts.norm(norm)

    def steps(self, end: Station) -> tuple[Linear, ...]:
        """List the linear steps applied to the vectors αf up to a station before any activation."""
        if end == "attention":
            return ()
        steps = [self._linear_of(self.norm(self.block.branch)), self.factor(self.block.scale)]
        if end in ("norm", "block", "ff_input", "kept"):
            steps.append(self._linear_of(self.norm(self.block.after)))
        ff = self.layout.ff
        if end == "ff_input" or (end == "kept" and ff.normed):
            steps.append(self._linear_of(self.norm(ff.before)))
        if end == "kept" and not self.layout.parallel:
            steps += [self.factor(ff.carry), self._linear_of(self.norm(ff.after))]
        return tuple(step for step in steps if step is not None)

    @staticmethod
    def _linear_of(norm: Norm | None) -> Linear | None:
        return None if norm is None else norm.linear

    # ---- the model's own states

    def real(self, end: Station) -> Float[Tensor, "batch query hidden"]:
        """Return the model's own hidden state at a station."""
        if end == "attention":
            return self.captured.output
        if end == "kept":
            after = None if self.layout.parallel else self.norm(self.layout.ff.after)
            added = self.stations.ff_output()
            return self.stations.at("layer") - (added if after is None else after(added))
        return self.stations.at(end)

    def ff_sum(self) -> Float[Tensor, "batch query hidden"]:
        """Return the residual sum of the feed-forward block."""
        return self.stations.at("ff_residual")

    @cached_property
    def stations(self) -> Stations:
        """The model's own states in the layer."""
        states = _RecordedStates(self.captured, self.whole)
        if self.whole.layout is None:
            return Stations(None, None, states, self.factor)
        return Stations(self.layout, self.block, states, self.factor)

    def residual_sum(self) -> Tensor:
        """Return the residual sum of the attention block, as the next module receives it."""
        return self.stations.residual_sum()

    # ---- the layer's modules

    def norm(self, path: str | None) -> Norm | None:
        """Return the norm at a path with its inputs; always the same object for the same path."""
        if path is None:
            return None
        if path not in self._norms:
            layer = self.whole
            module, inputs = layer.module.get_submodule(path), layer.given(path)
            parameters = norm_of(module, inputs, layer.output_of(path), f"{layer.name}.{path}")
            self.dtypes.add(parameters.dtype)
            self._norms[path] = Norm(parameters, inputs)
        return self._norms[path]

    def factor(self, name: str | float | None) -> Linear | None:
        """Return the multiplication by a vector or number of the layer."""
        if name is None:
            return None
        if name not in self._factors:
            factor = factor_of(self.whole.module, name, self.captured.device)
            assert factor is not None
            self._factors[name] = factor
        return self._factors[name]

    def _affine(self, path: str) -> tuple[Tensor, Tensor | None]:
        layer = self.whole
        module = layer.module.get_submodule(path)
        return affine(module, f"{layer.name}.{path}", layer.given(path))

    def feed_forward_weights(self) -> FeedForwardWeights:
        """Return the linear maps of the feed-forward, and its activation."""
        layer, ff = self.whole, self.layout.ff
        assert not isinstance(ff, Opaque)
        first, first_bias = self._affine(ff.first)
        gate: Tensor | None = None
        gate_bias: Tensor | None = None
        if ff.gate is not None:
            gate, gate_bias = self._affine(ff.gate)
        elif ff.packed is not None:
            halves = first.chunk(2, dim=1)
            biases = (None, None) if first_bias is None else first_bias.chunk(2)
            order = (0, 1) if ff.packed == "gate_first" else (1, 0)
            gate, first = halves[order[0]], halves[order[1]]
            gate_bias, first_bias = biases[order[0]], biases[order[1]]
        second, second_bias = self._affine(ff.second)
        activation = activation_of(layer.module, ff)
        return FeedForwardWeights(
            first, first_bias, gate, gate_bias, second, second_bias, activation
        )

    def feed_forward(self) -> FeedForwardSplit:
        """Return the split of the feed-forward over the keys."""
        ff = self.layout.ff
        assert not isinstance(ff, Opaque)
        carried, carry = self.parts("block"), self.factor(ff.carry)
        return FeedForwardSplit(
            self.feed_forward_weights(),
            self.parts("ff_input"),
            carried if carry is None else carried.scaled(carry),
            branch=self.norm(ff.branch),
            scale=self.factor(ff.scale),
            after=self.norm(ff.after),
            ff_bias=self.how.ff_bias,
            memory=self.how.memory,
            dtype=torch.promote_types(
                self.captured.output.dtype,
                torch.float64 if self.how.precision == "float64" else torch.float32,
            ),
        )
