"""The record of one attention call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from normscope.capture.held import Held
from normscope.capture.projection import Projection, project
from normscope.capture.scores import Context, Scores, lowest
from normscope.foundation.shapes import Bool, Float
from normscope.kernels.gram import wide_matmul

AttentionKind = Literal["self", "cross"]
# interface: by transformers' attention interface. watched: as a product of a softmax with values.
# fused: as queries and keys of the model's own sdpa attention. probed: as the response of the
# module to other values.
CapturePath = Literal["interface", "watched", "fused", "probed"]


@dataclass(frozen=True, eq=False)
class Capture:
    """What one attention call did. Tensors are on the model's device, in the model's dtype."""

    name: str  # the attention module's path in the model
    stack: str  # the path of the layer list it belongs to, "" if there is none
    layer: int  # the number of this call among those of its kind in its stack, from 0
    step: int  # how often the stack had run before (decoding steps, earlier forward passes)
    kind: AttentionKind
    path: CapturePath  # how the call was recorded
    weights: Float[Tensor, "batch head query key"] | Scores  # α, or what it is computed from
    value: Float[Tensor, "batch kv_head key head_size"]
    # Σ_j αv, times what is held, heads merged: what the projection read.
    merged: Float[Tensor, "batch query features"]
    projection: Projection
    residual: Float[Tensor, "batch query hidden"] | None  # None: the attention does not see it
    output: Float[Tensor, "batch query out"]
    batch_first: bool  # False if the module itself puts the query axis first
    mask: Tensor | None  # the mask passed to the attention function, unchanged
    held: Held | None = None  # what acts on the heads' output before the projection
    extra: int = 0  # positions, the last ones, that are no tokens: global tokens of an encoder

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.shape
        size = f"{batch} × {heads} heads × {queries} queries × {keys} keys"
        return f"Capture of {self.name}: {self.kind}-attention, layer {self.layer}, {size}"

    @property
    def shape(self) -> torch.Size:
        """The shape of α: (batch, head, query, key)."""
        return self.weights.shape

    @property
    def device(self) -> torch.device:
        """The device that this attention ran on."""
        return self.weights.device

    @property
    def alpha(self) -> Float[Tensor, "batch head query key"]:
        """The attention weights as a whole."""
        return self.rows(slice(0, self.shape[2]))

    def blocks(self, *, written: bool = True) -> Iterator[slice]:
        """Iterate over blocks of queries; a single one if the weights exist already.

        ``written``: the weights of all heads are stored for a block; otherwise one number per cell.
        """
        if isinstance(self.weights, Scores):
            return self.weights.blocks(written=written)
        return iter([slice(0, self.shape[2])])

    def rows(self, queries: slice) -> Float[Tensor, "batch head rows key"]:
        """Return the weights of some queries."""
        if isinstance(self.weights, Scores):
            return self.weights.rows(queries)
        return self.weights[:, :, queries]

    def scaled_rows(self, queries: slice) -> Float[Tensor, "batch head rows key"]:
        """Return what multiplies the vectors of some queries: α, times a scale that is held."""
        alpha, scale = self.rows(queries), None if self.held is None else self.held.scale
        return alpha if scale is None else alpha * scale[:, :, queries].unsqueeze(-1)

    @property
    def signed(self) -> bool:
        """Whether what multiplies the vectors may be negative."""
        return self.held is not None or self.path == "probed"

    @property
    def gate(self) -> Float[Tensor, "batch query head head_size"] | None:
        """What multiplies the values of each query elementwise; None in most models."""
        return None if self.held is None else self.held.gate

    @cached_property
    def surveyed(self) -> Context | None:
        """α_ii and Σ_j αv of weights that are not stored, computed in one pass; else None."""
        return self.weights.survey(self.value) if isinstance(self.weights, Scores) else None

    def own_weight(self) -> Float[Tensor, "batch head query"] | None:
        """Return α_ii, times a held scale; None if queries and keys are other positions."""
        if self.kind == "cross" or self.shape[2] != self.shape[3]:
            return None
        if self.surveyed is not None:
            own = self.surveyed.own
        else:
            assert isinstance(self.weights, Tensor)
            own = self.weights.diagonal(dim1=-2, dim2=-1)
        if own is None or self.held is None or self.held.scale is None:
            return own
        return own * self.held.scale

    def own_vectors(self, dtype: torch.dtype | None = None) -> Tensor | None:
        """Return Σ_h α_ii f(x_i), (batch, query, out), in the dtype of :meth:`reconstruct`."""
        alpha = self.own_weight()
        if alpha is None:
            return None
        wide = self._wide if dtype is None else dtype
        batch, heads, queries, _ = self.shape
        weight = self.projection.weight.flatten(0, 1)
        vectors = alpha.new_empty((batch, queries, weight.shape[1]), dtype=wide)
        step = max(1, 2**25 // (batch * len(weight)))
        for start in range(0, queries, step):  # in blocks: a long text's vectors are large
            rows = slice(start, start + step)
            value = self.value[:, :, rows].to(wide).transpose(1, 2)  # batch rows group e
            if value.shape[2] != heads:
                value = value.repeat_interleave(heads // value.shape[2], dim=2)
            weighted = value * alpha[:, :, rows].to(wide).transpose(1, 2).unsqueeze(-1)
            weighted = weighted if self.gate is None else weighted * self.gate[:, rows].to(wide)
            vectors[:, rows] = wide_matmul(weighted.flatten(2), weight)
        return vectors

    @property
    def _wide(self) -> torch.dtype:
        return torch.promote_types(self.output.dtype, torch.float32)

    def reconstruct(self, dtype: torch.dtype | None = None) -> Float[Tensor, "batch query out"]:
        """Return Σ_h Σ_j α f(x_j) + b_O, from the recorded parts alone; equals ``output``.

        It is computed in ``dtype``, by default that of the model, at least float32.
        """
        wide = self._wide if dtype is None else dtype
        if self.surveyed is not None and self.surveyed.mixed.dtype == wide:
            mixed = self.surveyed.mixed
        else:
            value = self._value_per_head(wide)
            mixed = torch.cat([self.rows(rows).to(wide) @ value for rows in self.blocks()], dim=2)
            mixed = mixed.transpose(1, 2)
        return project(self._acted_on(mixed).flatten(2), self.projection, wide)

    def _acted_on(self, mixed: Float[Tensor, "batch query head e"]) -> Tensor:
        """Return Σ_j αv times the scale and the gate that are held."""
        if self.held is None:
            return mixed
        if self.held.scale is not None:
            mixed = mixed * self.held.scale.transpose(1, 2).unsqueeze(-1).to(mixed.dtype)
        return mixed if self.gate is None else mixed * self.gate.to(mixed.dtype)

    def context_gap(self) -> Float[Tensor, "batch query"]:
        """Return the gap of Σ_j αv to what the projection read, relative to Σ_j α‖v‖.

        The worst of all heads, for every query. It compares the recorded weights and values with
        what the model itself made of them.
        """
        if self.signed:
            return self._held_gap()
        batch, heads, queries, _ = self.shape
        size: Tensor | None
        if self.surveyed is not None:
            mixed, size = self.surveyed.mixed, self.surveyed.size
            if size is None:
                return mixed.new_zeros((batch, queries), dtype=torch.float64)
        else:
            assert isinstance(self.weights, Tensor)
            wide = self._wide
            value = self._value_per_head(wide)
            size = torch.linalg.vecdot(value, value).sqrt_().unsqueeze(-1)
            both = torch.matmul(self.weights.to(wide), torch.cat([value, size], dim=-1))
            both = both.transpose(1, 2)
            mixed, size = both[..., :-1], both[..., -1]
        gap = mixed - self.merged.unflatten(2, (heads, -1)).to(mixed.dtype)
        lengths = torch.linalg.vecdot(gap, gap).sqrt_()
        return (lengths / size.clamp_min(torch.finfo(size.dtype).tiny)).amax(dim=-1).double()

    def _held_gap(self) -> Float[Tensor, "batch query"]:
        """The same where something acts on the heads, relative to sums of absolute values."""
        wide, size = self._wide, []
        value = self._value_per_head(wide)
        mixed = torch.cat([self.rows(rows).to(wide) @ value for rows in self.blocks()], dim=2)
        size = [self.rows(rows).to(wide).abs() @ value.abs() for rows in self.blocks()]
        both = (self._acted_on(sums.transpose(1, 2)) for sums in (mixed, torch.cat(size, dim=2)))
        mixed, parts = both
        gap = (mixed - self.merged.view_as(mixed).to(wide)).norm(dim=-1)
        return (gap / parts.norm(dim=-1).clamp_min(torch.finfo(wide).tiny)).amax(dim=-1).double()

    def _value_per_head(self, dtype: torch.dtype) -> Float[Tensor, "batch head key head_size"]:
        """The value vectors, repeated where heads share them."""
        value, heads = self.value.to(dtype), self.shape[1]
        groups = value.shape[1]
        return value if groups == heads else value.repeat_interleave(heads // groups, dim=1)

    def blocked(self) -> Bool[Tensor, "batch query"] | None:
        """Return True for queries whose row of the mask admits no key; None without a mask."""
        if self.mask is None or self.mask.dim() != 4:
            return None
        mask = self.mask
        admits = mask if mask.dtype == torch.bool else mask > lowest(mask.dtype) / 2
        rows = ~admits.any(dim=-1).any(dim=1)
        return rows.expand(self.shape[0], self.shape[2])

    def clone(self) -> Capture:
        """Return a copy with memory of its own.

        A model may write into the recorded tensors when it runs on: static caches, residual sums
        in place, the graphs that generate() makes on a GPU.
        """
        return replace(
            self,
            weights=self.weights.clone(),
            value=self.value.clone(),
            residual=None if self.residual is None else self.residual.clone(),
            output=self.output.clone(),
            merged=self.merged.clone(),
            held=None if self.held is None else self.held.clone(),
        )
