"""The inputs of a statistic: a batch of a corpus, its layers in turn, then all observations.

Nothing here is of (query, key, hidden) size, and only ``Layer.block_maps`` builds maps. The
lengths ‖f_h(x_j)‖ come from the values and a small triangular factor of W_O; Σ_j s_ij is the
attention's own output without b_O; s_ii is one product of the weighted values with W_O; and the
difference of the two is the sum over all other keys. Residual and norms act on s_ii and on this
difference alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.capture.scores import lowest
from normscope.decomposition.block import length
from normscope.decomposition.cells import TINY
from normscope.decomposition.layer import LayerView
from normscope.decomposition.scopes import ANALYSES, BLOCK_MAPS, SCOPES
from normscope.engine.batch import Batch
from normscope.engine.measure import Observed
from normscope.errors import InputError
from normscope.foundation.shapes import Bool, Float, Int
from normscope.measures.statistics.base import Row
from normscope.measures.statistics.hashing import masked_positions, resampling_weights
from normscope.measures.statistics.settings import StatisticSettings
from normscope.measures.statistics.vocabulary import Vocabulary
from normscope.models.running import accepted_by


class CorpusBatch(Batch):
    """Rows of a corpus as one forward pass reads them: padded, in one condition."""

    def __init__(
        self,
        model: nn.Module,
        rows: Sequence[Row],
        condition: str,
        settings: StatisticSettings,
        vocabulary: Vocabulary,
    ) -> None:
        self.rows, self.condition = tuple(rows), condition
        self.settings, self.vocabulary = settings, vocabulary
        shape = len(rows), max(len(row.ids) for row in rows)
        self.ids = np.full(shape, vocabulary.pad_id, dtype=np.int64)
        # `real_tokens`, not `real`, which the engine asks for each attention call.
        self.real_tokens, self.special, self.masked = (np.zeros(shape, dtype=bool) for _ in "123")
        for b, row in enumerate(rows):
            count = len(row.ids)
            self.ids[b, :count], self.special[b, :count] = row.ids, row.special
            self.real_tokens[b, :count] = True
            if condition == "masked":
                free = np.flatnonzero(~np.array(row.special))
                chosen = masked_positions(row.key, free, settings.masking, settings.seed)
                self.masked[b, chosen] = True
        if vocabulary.mask_id is not None:
            self.ids[self.masked] = vocabulary.mask_id
        super().__init__(model, self._tensors(model))

    def _tensors(self, model: nn.Module) -> dict[str, Tensor]:
        device = next(model.parameters()).device
        arrays = {"input_ids": self.ids, "attention_mask": self.real_tokens.astype(np.int64)}
        accepted = accepted_by(model)
        if "token_type_ids" in accepted and any(row.types is not None for row in self.rows):
            types = np.zeros_like(self.ids)
            for b, row in enumerate(self.rows):
                types[b, : len(row.ids)] = 0 if row.types is None else row.types
            arrays["token_type_ids"] = types
        return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}

    def row_name(self, row: int) -> str:
        """Name a row by its number in the corpus."""
        return f"row {self.rows[row].key}"

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
        return resampling_weights(self.keys, self.settings.seed, self.settings.replicates)


class MeasuredBatch:
    """One batch after its forward pass: ``batch["name"]`` has the observations of all layers."""

    def __init__(self, batch: CorpusBatch, observed: Observed) -> None:
        self.inputs, self.observed = batch, observed
        self.rows, self.settings, self.vocabulary = batch.rows, batch.settings, batch.vocabulary
        self.ids, self.real, self.special = batch.ids, batch.real_tokens, batch.special
        self.masked, self.category, self.weights = batch.masked, batch.category, batch.weights

    @property
    def names(self) -> list[str]:
        """The names of the observations."""
        return list(self.observed.arrays)

    def __getitem__(self, name: str) -> Float[np.ndarray, "row layer *rest"]:
        """Return the observations of this name, for all layers."""
        return self.observed[name]

    def lists(self, name: str) -> list[NDArray[Any]]:
        """Return the same by layer, where layers differ in size."""
        return self.observed.lists(name)


class Layer:
    """One layer of a batch. Each quantity is computed when first used, on the layer's device."""

    def __init__(self, view: LayerView) -> None:
        self.view, self.captured = view, view.captured
        self.inputs: CorpusBatch = view.batch
        self.index, self.name = view.captured.layer, view.name

    def on_device(self, array: NDArray[Any]) -> Tensor:
        """Return an array that goes with the batch on the device where this layer runs."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.captured.device)

    @property
    def real(self) -> Bool[Tensor, "row token"]:
        """Which tokens are real, not padding."""
        return self.view.positions.queries

    # ---- weights

    @cached_property
    def alpha(self) -> Float[Tensor, "row head query key"]:
        """The attention weights."""
        return self.captured.alpha

    @cached_property
    def admitted(self) -> Bool[Tensor, "#row 1 query key"] | None:
        """The pairs that no mask separates; None where all pairs are admitted.

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

    # ---- lengths

    @property
    def transformed_norm(self) -> Float[Tensor, "row head key"]:
        """‖f_h(x_j)‖."""
        return self.view.transformed_norm

    @cached_property
    def input_norm(self) -> Float[Tensor, "row query"]:
        """‖x_i‖ of what the residual connection carries: the layer's input."""
        return length(self.view.residual)

    @property
    def total_norm(self) -> Float[Tensor, "row query"]:
        """‖Σ_j s_ij‖."""
        return self.view.total_norm

    @property
    def scopes(self) -> tuple[str, ...]:
        """The analyses by norms that this layer has."""
        names = [name for name in ANALYSES if name in self.view.scopes]
        return tuple(name for name in names if not SCOPES[name].weight)

    @cached_property
    def lengths(self) -> dict[str, tuple[Tensor, Tensor]]:
        """‖v_ii‖ and ‖Σ_{j≠i} v_ij‖ of each query, by analysis."""
        lengths = {}
        for name in self.scopes:
            parts = self.view.parts(SCOPES[name].end)
            assert parts.own is not None
            lengths[name] = length(parts.own), length(parts.others)
        return lengths

    @cached_property
    def norm_scale(self) -> Float[Tensor, "row query"] | None:
        """Mean |γ| / σ_i of the norm after the residual sum; None where there is none."""
        norm = self.view.norm_after
        if norm is None:
            return None
        gamma = norm.parameters.scale
        return (1.0 if gamma is None else gamma.double().abs().mean()) / norm.sigma.double()

    @cached_property
    def mixing_ratio(self) -> dict[str, Float[Tensor, "row query"]]:
        """The mixing ratio of each analysis that this layer has."""
        mixed = (self.alpha.sum(dim=-1) - self.own_weight).double().mean(dim=1)
        ratios = {}
        for name in ANALYSES:
            if SCOPES[name].weight:
                ratios[name] = mixed / 2 if SCOPES[name].with_residual else mixed
            elif name in self.lengths:
                own, others = self.lengths[name]
                ratios[name] = others / (others + own).clamp_min(TINY)
        return ratios

    @cached_property
    def ratios(self) -> Float[Tensor, "row analysis query"]:
        """The same in one array."""
        return torch.stack(list(self.mixing_ratio.values()), dim=1)

    # ---- maps

    @cached_property
    def block_maps(self) -> Mapping[str, Float[Tensor, "row query key"]]:
        """The maps of the 2024 paper, proved; far more expensive than everything above."""
        view = self.view.recomputed()
        names = [name for name in view.scopes if name in BLOCK_MAPS]
        if not any(SCOPES[name].behind_feed_forward for name in names):
            raise InputError(
                f"{self.name} has no feed-forward that can be decomposed, so change and "
                f"amplification are not available for this model. Its maps: "
                f"{', '.join(view.scopes)}"
            )
        maps = view.maps(names)
        for name, gap in view.take_gaps().items():
            self.view.note_gap(name, gap)
        self.view.dtypes |= view.dtypes
        return {name: scope_map.values for name, scope_map in maps.items()
                if scope_map.values is not None}  # fmt: skip
