"""The vectors of one attention call, followed through its layer.

A :class:`LayerChain` knows how the layer is wired: it gives the parts at every station, the linear
steps up to it, and the model's own state there, which the parts must add up to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from normscope.capture import AttentionKind, Capture
from normscope.capture.layers import LayerCapture
from normscope.capture.projection import affine
from normscope.decomposition.attention import AttentionDecomposition, Precision
from normscope.decomposition.block import Norm, Parts
from normscope.decomposition.feedforward import FeedForwardSplit, FeedForwardWeights, FFBias
from normscope.decomposition.norms import norm_of
from normscope.decomposition.scopes import SCOPES, Scope, Station
from normscope.foundation.shapes import Float
from normscope.kernels import Kernels, Linear, Scratch
from normscope.models.layouts import (
    Attention,
    FeedForward,
    Layout,
    Opaque,
    activation_of,
    factor_at,
)


def scopes_of(layout: Layout, kind: AttentionKind) -> tuple[str, ...]:
    """List the maps of one attention of a layer, in the order in which they arise."""
    block = layout.cross if kind == "cross" else layout.attention
    assert block is not None
    ff = layout.ff
    last = not isinstance(ff, Opaque) and not (kind == "self" and layout.cross is not None)
    before = ff.before is not None

    def exists(scope: Scope) -> bool:
        if scope.end in ("attention", "residual", "block"):
            return True
        if scope.end == "norm":
            return block.after is not None
        if not last or scope.ff_norm_before != before:
            return False
        if layout.parallel:  # the feed-forward reads the layer's input, not the attention block
            return scope.end == "ff_residual"
        return scope.end != "ff_norm" or ff.after is not None

    return tuple(name for name, scope in SCOPES.items() if exists(scope))


@dataclass(frozen=True)
class DecompositionOptions:
    """Options for decomposing layers."""

    ff_bias: FFBias = "path"
    memory: int = 2**31  # bytes for the largest arrays of scopes behind a feed-forward
    kernels: Kernels = "auto"
    precision: Precision = "model"
    maps: bool = True  # False: only what statistics need, see AttentionDecomposition


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
        self.attention = AttentionDecomposition(
            captured, scratch, how.kernels, precision=how.precision, maps=how.maps
        )
        self._norms: dict[str, Norm] = {}
        self._factors: dict[str | float, Linear] = {}
        self._parts: dict[Station, Parts] = {}

    @property
    def residual(self) -> Float[Tensor, "batch query hidden"]:
        """x_i: what the residual connection carries."""
        residual = self.captured.residual
        if self.layer is not None and (before := self.block.before) is not None:
            layer, normed = self.layer, self.block.normed
            residual = layer.output_of(before) if normed else layer.given(before)
        assert residual is not None
        carry = None if self.layer is None else self._factor(self.block.carry)
        return residual if carry is None else carry(residual)

    @property
    def whole(self) -> LayerCapture:
        """The recorded layer around the attention call."""
        assert self.layer is not None
        return self.layer

    @cached_property
    def block(self) -> Attention:
        """Where the norms and the multiplier of this attention block are in the layer."""
        block = self.whole.layout.cross if self.kind == "cross" else self.whole.layout.attention
        assert block is not None
        return block

    def is_behind(self, name: str) -> bool:
        """Return whether a scope of this layer passes an activation."""
        parallel = self.layer is not None and self.layer.layout.parallel
        return SCOPES[name].behind_feed_forward and not parallel

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
            if (scale := self._factor(self.block.scale)) is not None:
                parts = parts.scaled(scale)
            return parts.residual(self.residual)
        if end == "ff_residual":  # parallel: the feed-forward's output belongs to the query itself
            return self.parts("residual").residual(self._ff_output())
        if end == "ff_input":
            parts, norm = self.parts("block"), self.norm(self.whole.layout.ff.before)
        else:
            parts, norm = self.parts("residual"), self.norm(self.block.after)
        return parts if norm is None else parts.norm(norm)

    def steps(self, end: Station) -> tuple[Linear, ...]:
        """List the linear steps applied to the vectors αf up to a station before any activation."""
        if end == "attention":
            return ()
        steps = [self._linear_of(self.norm(self.block.branch)), self._factor(self.block.scale)]
        if end in ("norm", "block", "ff_input"):
            steps.append(self._linear_of(self.norm(self.block.after)))
        if end == "ff_input":
            steps.append(self._linear_of(self.norm(self.whole.layout.ff.before)))
        return tuple(step for step in steps if step is not None)

    @staticmethod
    def _linear_of(norm: Norm | None) -> Linear | None:
        return None if norm is None else norm.linear

    # ---- the model's own states

    def real(self, end: Station) -> Float[Tensor, "batch query hidden"]:
        """Return the model's own hidden state at a station."""
        if end == "attention":
            return self.captured.output
        layer, ff = self.whole, self.whole.layout.ff
        if end == "residual" or (end == "block" and self.block.after is None):
            return self.residual_sum()
        if end in ("norm", "block"):
            assert self.block.after is not None
            return layer.output_of(self.block.after)
        if end == "ff_input":
            assert ff.before is not None
            return layer.output_of(ff.before)
        if end == "ff":
            return self._ff_output()
        if end == "ff_residual" and ff.after is not None:
            return layer.given(ff.after)
        return layer.output

    def residual_sum(self) -> Tensor:
        """Return the residual sum of the attention block, as the next module receives it."""
        layer, layout = self.whole, self.whole.layout
        if self.block.after is not None:
            return layer.given(self.block.after)
        following = layout.cross if self.kind == "self" and layout.cross is not None else layout.ff
        reader = following.before
        if reader is None and isinstance(following, FeedForward):
            reader = following.gate or following.first
        elif reader is None and isinstance(following, Opaque):
            reader = following.module
        if layout.parallel or reader is None:  # no module receives it
            return self.residual + self._branch_output()
        return layer.given(reader)

    def _branch_output(self) -> Tensor:
        output = self.captured.output
        if self.block.branch is not None:
            output = self.whole.output_of(self.block.branch)
        scale = self._factor(self.block.scale)
        return output if scale is None else scale(output)

    def _ff_output(self) -> Tensor:
        """Return what the feed-forward's branch adds to the residual."""
        ff = self.whole.layout.ff
        assert not isinstance(ff, Opaque)
        output = self.whole.output_of(ff.branch or ff.second)
        scale = self._factor(ff.scale)
        return output if scale is None else scale(output)

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

    def _factor(self, name: str | float | None) -> Linear | None:
        """Return the multiplication by a vector or number of the layer."""
        if name is None:
            return None
        if name not in self._factors:
            multiplier = factor_at(self.whole.module, name)
            if isinstance(multiplier, Tensor):
                factor = multiplier.detach().double()
            else:  # torch.full on the device avoids a copy from the CPU
                like: Any = {"dtype": torch.float64, "device": self.captured.device}
                factor = torch.full((), float(multiplier), **like)
            self._factors[name] = Linear(False, factor)
        return self._factors[name]

    def _affine(self, path: str) -> tuple[Tensor, Tensor | None]:
        layer = self.whole
        module = layer.module.get_submodule(path)
        return affine(module, f"{layer.name}.{path}", layer.given(path))

    def feed_forward(self) -> FeedForwardSplit:
        layer, ff = self.whole, self.whole.layout.ff
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
        carried, carry = self.parts("block"), self._factor(ff.carry)
        return FeedForwardSplit(
            FeedForwardWeights(first, first_bias, gate, gate_bias, second, second_bias, activation),
            self.parts("ff_input"),
            carried if carry is None else carried.scaled(carry),
            branch=self.norm(ff.branch),
            scale=self._factor(ff.scale),
            after=self.norm(ff.after),
            ff_bias=self.how.ff_bias,
            memory=self.how.memory,
            dtype=torch.promote_types(
                self.captured.output.dtype,
                torch.float64 if self.how.precision == "float64" else torch.float32,
            ),
        )
