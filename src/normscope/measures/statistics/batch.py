"""One batch as statistics see it: its layers as they come, then what was noted of all of them.

Nothing here is of (query, key, hidden) size, and no map is built. With M = W_O^h the lengths
‖f_h(x_j)‖ come from the values and a small triangular factor of M; Σ_j s_ij is the attention's own
output without b_O; s_ii is one product of the weighted values with W_O; the rest of a row is the
difference. What follows (residual, norms) acts on these two vectors alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.capture import Capture
from normscope.capture.layers import LayerCapture
from normscope.capture.scores import lowest
from normscope.decomposition.attention import TINY, AttentionDecomposition
from normscope.decomposition.block import length
from normscope.decomposition.layer import LayerDecomposition
from normscope.foundation.shapes import Bool, Float, Int
from normscope.measures.statistics.base import Row
from normscope.measures.statistics.settings import StatisticSettings as Settings
from normscope.measures.statistics.vocabulary import Vocabulary

ANALYSES = ("attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n")


@dataclass(frozen=True, eq=False)
class Inputs:
    """What one forward pass reads, and what is known of it beforehand."""

    rows: tuple[Row, ...]
    condition: str  # "plain" or "masked"
    settings: Settings
    vocabulary: Vocabulary
    ids: Int[np.ndarray, "row token"]  # as the model reads them: padded, masked
    real: Bool[np.ndarray, "row token"]
    special: Bool[np.ndarray, "row token"]
    masked: Bool[np.ndarray, "row token"]

    @cached_property
    def keys(self) -> Int[np.ndarray, " row"]:
        """The numbers of the sequences in the corpus."""
        return np.array([row.key for row in self.rows], dtype=np.int64)

    @cached_property
    def category(self) -> Int[np.ndarray, "row token"]:
        """The number of each token's category in ``vocabulary.names``."""
        return self.vocabulary.categories_of(self.ids)

    @cached_property
    def weights(self) -> Float[np.ndarray, "sample row"]:
        """How often each row counts: once, then in each bootstrap replicate."""
        from normscope.measures.statistics.hashing import resampling_weights

        return resampling_weights(self.keys, self.settings.seed, self.settings.replicates)


class Batch:
    """One batch after its forward pass: ``batch["name"]`` is what was noted, by layer."""

    def __init__(self, inputs: Inputs, noted: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        self.inputs, self.noted = inputs, noted
        self.rows, self.settings, self.vocabulary = inputs.rows, inputs.settings, inputs.vocabulary
        self.ids, self.real, self.special = inputs.ids, inputs.real, inputs.special
        self.masked, self.category, self.weights = inputs.masked, inputs.category, inputs.weights

    def __getitem__(self, name: str) -> Float[np.ndarray, "row layer *rest"]:
        """One thing that was noted of every layer."""
        return np.stack([layer[name] for layer in self.noted], axis=1)

    def lists(self, name: str) -> list[NDArray[Any]]:
        """The same where layers differ in size."""
        return [layer[name] for layer in self.noted]


class Layer:
    """One layer of a batch as it comes. What is asked for is computed once, on its device."""

    def __init__(self, whole: LayerCapture, index: int, inputs: Inputs) -> None:
        assert whole.attention is not None
        self.whole, self.index, self.inputs = whole, index, inputs
        self.captured: Capture = whole.attention

    def on_device(self, array: NDArray[Any]) -> Tensor:
        """An array that goes with the batch, where this layer runs."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.captured.device)

    @cached_property
    def real(self) -> Bool[Tensor, "row token"]:
        """Which tokens are real, not padding."""
        return self.on_device(self.inputs.real)

    @cached_property
    def alpha(self) -> Float[Tensor, "row head query key"]:
        """The attention weights."""
        return self.captured.alpha

    @cached_property
    def admitted(self) -> Bool[Tensor, "#row 1 query key"] | None:
        """The pairs that no mask keeps apart; None where all are together.

        Padding and, in decoders, later tokens are masked.
        """
        mask = self.captured.mask
        keys = self.real[:, None, None, :] & self.real[:, None, :, None]
        if mask is not None and mask.dim() == 4:
            seen = mask if mask.dtype == torch.bool else mask > lowest(mask.dtype) / 2
            keys = keys & seen.any(dim=1, keepdim=True)
        elif self.alpha.shape[3] > 1 and not bool(self.alpha[:, :, 0, 1:].any()):
            keys = keys & torch.ones_like(keys[:1]).tril()
        return None if bool(keys.all()) else keys

    # ---- lengths of f and of x

    @cached_property
    def transformed_norm(self) -> Float[Tensor, "row head key"]:
        """‖f_h(x_j)‖."""
        value, factor = self.captured.value, _factor(self.captured)
        groups, heads = value.shape[1], len(factor)
        rows = value.to(factor.dtype).transpose(0, 1).flatten(1, 2)
        rows = rows.repeat_interleave(heads // groups, dim=0) if groups < heads else rows
        made = torch.bmm(rows, factor).norm(dim=-1).double()
        return made.unflatten(1, (value.shape[0], value.shape[2])).transpose(0, 1)

    @cached_property
    def input_norm(self) -> Float[Tensor, "row query"]:
        """‖x_i‖ of what the residual connection carries: the layer's input."""
        return length(self.residual)

    @property
    def residual(self) -> Float[Tensor, "row query hidden"]:
        """x_i."""
        assert self.captured.residual is not None
        return self.captured.residual

    # ---- weights

    @cached_property
    def column_weight(self) -> Float[Tensor, "row head key"]:
        """α of each key, its mean over the queries."""
        real = self.real.to(self.alpha.dtype)
        share = (real / real.sum(dim=1, keepdim=True))[:, None, None, :]
        return torch.matmul(share, self.alpha).squeeze(2)

    @cached_property
    def own_weight(self) -> Float[Tensor, "row head query"]:
        """α_ii."""
        return self.alpha.diagonal(dim1=-2, dim2=-1)

    # ---- the block

    @cached_property
    def taken(self) -> LayerDecomposition:
        """The layer's wiring, with vectors that come from the model's own output."""
        made = LayerDecomposition(self.whole, "self")
        made.alone = _FromOutput(self.captured)
        return made

    @property
    def scopes(self) -> tuple[str, ...]:
        """The analyses by norms that this layer has."""
        after = ("attn_res_ln_n",) if self.taken.block.after is not None else ()
        return ("attn_n", "attn_res_n", *after)

    @cached_property
    def lengths(self) -> dict[str, tuple[Tensor, Tensor]]:
        """‖v_ii‖ and ‖Σ_{j≠i} v_ij‖ of each query, by analysis."""
        taken = self.taken
        if taken.block.branch is None and taken.block.scale is None:
            return self._plain_lengths()
        parts = (taken.attention, taken.with_residual, taken.whole_block)
        made = {}
        for name, one in zip(self.scopes, parts, strict=False):  # the last only with a norm after
            assert one.own is not None
            made[name] = length(one.own), length(one.others)
        return made

    def _plain_lengths(self) -> dict[str, tuple[Tensor, Tensor]]:
        """The same where nothing but a residual, and maybe a norm, follows: in few passes."""
        alone = self.taken.alone
        assert alone.own is not None
        both = torch.stack([alone.own, alone.others])
        own, others = both.norm(dim=-1).double()
        made = {"attn_n": (own, others)}
        both[0] += self.residual
        made["attn_res_n"] = length(both[0]), others
        norm = self.taken._norm(self.taken.block.after)
        if norm is not None:
            own, others = norm.linear(both, out=both).norm(dim=-1).double() / self.sigma
            made["attn_res_ln_n"] = own, others
        return made

    @cached_property
    def sigma(self) -> Float[Tensor, "row query"]:
        """What the norm after the residual sum divides by."""
        norm = self.taken._norm(self.taken.block.after)
        assert norm is not None
        form = norm.parameters
        given = norm.given.to(torch.promote_types(norm.given.dtype, torch.float32))
        squares = given.var(dim=-1, correction=0) if form.centred else given.square().mean(dim=-1)
        return (squares.double() + form.eps).sqrt()

    @cached_property
    def total_norm(self) -> Float[Tensor, "row query"]:
        """‖Σ_j s_ij‖."""
        output, bias = self.captured.output, self.captured.projection.bias
        return length(output if bias is None else output - bias)

    @cached_property
    def norm_scale(self) -> Float[Tensor, "row query"] | None:
        """Mean |γ| / σ_i of the norm after the residual sum; None where there is none."""
        norm = self.taken._norm(self.taken.block.after)
        if norm is None:
            return None
        gamma = norm.parameters.scale
        return (1.0 if gamma is None else gamma.double().abs().mean()) / self.sigma

    @cached_property
    def mixing_ratio(self) -> dict[str, Float[Tensor, "row query"]]:
        """The mixing ratio of each analysis that this layer has."""
        weights = self.alpha.sum(dim=-1) - self.own_weight
        mixed = weights.double().mean(dim=1)
        made = {"attn_w": mixed, "attn_res_w": mixed / 2}
        for name, (own, others) in self.lengths.items():
            made[name] = others / (others + own).clamp_min(TINY)
        return {name: made[name] for name in ANALYSES if name in made}

    @cached_property
    def ratios(self) -> Float[Tensor, "row analysis query"]:
        """The same in one array."""
        return torch.stack(list(self.mixing_ratio.values()), dim=1)


class _FromOutput(AttentionDecomposition):
    """An attention call whose sum over keys is the model's own output, not made again."""

    @cached_property
    def reconstructed(self) -> Float[Tensor, "batch query out"]:
        """Σ αf + b_O as the model has it."""
        output = self.captured.output
        return output.to(torch.promote_types(output.dtype, torch.float32))

    @cached_property
    def own(self) -> Float[Tensor, "batch query out"] | None:
        """Σ_h αf of the query itself: one product."""
        return self.captured.own_vectors()


# Triangular factors by module, and the state of the weight that they were made from.
_FACTORS: WeakKeyDictionary[nn.Module, tuple[Any, Tensor]] = WeakKeyDictionary()


def _factor(captured: Capture) -> Float[Tensor, "head e e"]:
    """Rᵀ with W_O^h = Rᵀ Qᵀ, so that ‖v W_O^h‖ = ‖v Rᵀ‖; made in float64."""
    module, weight = captured.projection.module, captured.projection.weight
    held = getattr(module, "weight", None)
    known = isinstance(held, Tensor) and held.data_ptr() == weight.data_ptr()
    # What an adapter or a quantised layer makes anew each time has no version to go by.
    counted = known and not weight.is_inference()
    state = (weight.data_ptr(), weight._version, weight.shape, weight.dtype) if counted else None
    if module is None or state is None or _FACTORS.get(module, (None,))[0] != state:
        made = torch.linalg.qr(weight.double().transpose(1, 2), mode="r").R.transpose(1, 2)
        made = made.contiguous().to(torch.promote_types(weight.dtype, torch.float32))
        if module is None or state is None:
            return made
        _FACTORS[module] = state, made
    return _FACTORS[module][1]
