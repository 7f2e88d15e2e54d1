"""α against ‖f‖: do heads give small weights to long vectors? (2020: Table 2, Figure 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from normscope.foundation.hashing import fold
from normscope.foundation.ranks import spearman
from normscope.kernels import Scratch
from normscope.measures.statistics.base import StatisticState, Table
from normscope.measures.statistics.batch import Layer, MeasuredBatch
from normscope.measures.statistics.hashing import SCATTER, nonnegative, sequence_hash
from normscope.measures.statistics.joint import add_up, correlation, count_pairs
from normscope.measures.statistics.settings import StatisticSettings

FEW = 2**18  # pairs of all categories up to which every pair is kept, and ρ is exact
EVERY = 100  # one pair in so many is a candidate for the scatter sample
_FEW = ("category", "alpha", "norm")
_SAMPLE = ("order", "sequence", "layer", "head", "query", "key", "category", "alpha", "norm")


class AlphaVersusNorm:
    """Spearman ρ of α and ‖f‖ over all pairs of a category, layers and heads; and a sample.

    A pair is a query and a key that no mask keeps apart.
    """

    name: ClassVar[str] = "alpha_vs_norm"
    conditions: ClassVar[tuple[str, ...]] = ("plain",)

    def __init__(self, settings: StatisticSettings) -> None:
        self.settings = settings
        self.scratch = Scratch()

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        category = layer.on_device(layer.inputs.category)
        categories = len(layer.inputs.vocabulary.names)
        parts = {
            "pairs": count_pairs(
                layer.alpha,
                layer.transformed_norm,
                category,
                layer.real,
                layer.admitted,
                categories,
                self.scratch,
            ),
            "few": self._few(layer, category),
            "scatter": self._sample(layer, category, categories),
        }
        return {
            f"{part}_{name}": tensor
            for part, tensors in parts.items()
            for name, tensor in tensors.items()
        }

    def _few(self, layer: Layer, category: Tensor) -> dict[str, Tensor]:
        """Return every pair of the layer if there are at most `FEW`, and none otherwise."""
        together = layer.admitted
        if together is None:
            together = torch.ones_like(layer.real)[:, None, :, None] & layer.real[:, None, None]
        rows, heads, queries, keys = layer.alpha.shape
        pairs = int(together.sum()) * heads * (rows // len(together))
        together = together.expand(rows, heads, queries, keys)
        together = together[:0] if pairs > FEW else together
        b, h, i, j = together.nonzero(as_tuple=True)
        return {
            "category": category[b, j].to(torch.int32),
            "alpha": _rounded(layer.alpha[b, h, i, j], layer.alpha.dtype),
            "norm": _rounded(layer.transformed_norm[b, h, j], layer.alpha.dtype),
        }

    def _sample(self, layer: Layer, category: Tensor, categories: int) -> dict[str, Tensor]:
        """Return the candidates of the layer with the smallest hashes, for each category."""
        sequence = layer.on_device(layer.inputs.keys)
        hashes, (b, h, i, j) = self._candidates(layer, sequence)
        order, candidate_category = nonnegative(fold(hashes[b, h, i], j)), category[b, j]
        chosen = torch.cat(
            [self._smallest(order, candidate_category == c) for c in range(categories)]
        )
        b, h, i, j = b[chosen], h[chosen], i[chosen], j[chosen]
        return {
            "order": order[chosen],
            "sequence": sequence[b],
            "layer": torch.full_like(b, layer.index),
            "head": h,
            "query": i,
            "key": j,
            "category": candidate_category[chosen],
            "alpha": layer.alpha[b, h, i, j].double(),
            "norm": layer.transformed_norm[b, h, j],
        }

    def _candidates(
        self, layer: Layer, sequence: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Choose one key in `EVERY` for each query, the first of them by a hash.

        Returns the hashes, (row, head, query), and row, head, query and key of each candidate.
        """
        rows, heads, queries, keys = layer.alpha.shape
        on_device: Any = {"device": layer.alpha.device}
        hashes = sequence_hash(self.settings.seed, SCATTER, sequence)
        hashes = fold(hashes, layer.index)[:, None, None]
        hashes = fold(hashes, torch.arange(heads, **on_device)[:, None])
        hashes = fold(hashes, torch.arange(queries, **on_device))  # row head query
        first = nonnegative(hashes) % EVERY
        key = first[..., None] + torch.arange(0, keys, EVERY, **on_device)  # row head query some
        valid = (key < keys) & layer.real[:, None, :, None]
        row = torch.arange(rows, **on_device)[:, None, None, None]
        valid &= layer.real[row, key.clamp_max(keys - 1)]
        b, h, i, m = valid.nonzero(as_tuple=True)
        j = key[b, h, i, m]
        if layer.admitted is not None:
            kept = layer.admitted.expand(rows, -1, -1, -1)[b, 0, i, j]
            b, h, i, j = b[kept], h[kept], i[kept], j[kept]
        return hashes, (b, h, i, j)

    def _smallest(self, order: Tensor, member: Tensor) -> Tensor:
        places = member.nonzero().squeeze(1)
        if len(places) <= self.settings.scatter:
            return places
        return places[order[places].topk(self.settings.scatter, largest=False).indices]

    def measure(self, batch: MeasuredBatch) -> StatisticState:
        def joined(name: str) -> Any:
            return np.concatenate(batch.lists(name))

        sums = {name: joined(f"pairs_{name}") for name in ("n", "alpha", "norm")}
        few = {name: joined(f"few_{name}") for name in _FEW}
        total = int(sums["n"].sum())
        return {
            "names": np.array(batch.vocabulary.names),
            "total": total,
            "few": few if total <= FEW else _none(few),
            "cells": add_up(joined("pairs_code"), sums),
            "alpha": add_up(joined("pairs_alpha_code"), {"n": joined("pairs_alpha_n")}),
            "norm": add_up(joined("pairs_norm_code"), {"n": joined("pairs_norm_n")}),
            "scatter": self._keep({name: joined(f"scatter_{name}") for name in _SAMPLE}),
        }

    def _keep(self, sample: StatisticState) -> StatisticState:
        """Return the pairs of each category with the smallest hashes, in the order of these."""
        sample = self._near(sample)
        keys = ("key", "query", "head", "layer", "sequence", "order", "category")
        order = np.lexsort([sample[name] for name in keys])
        category = sample["category"][order]
        place = np.arange(len(order)) - np.searchsorted(category, category)
        kept = order[place < self.settings.scatter]
        return {name: values[kept] for name, values in sample.items()}

    def _near(self, sample: StatisticState) -> StatisticState:
        """Return the pairs whose hash is at most the last one of their category that is kept."""
        order, category, most = sample["order"], sample["category"], self.settings.scatter
        near = np.zeros(len(order), dtype=bool)
        for c in np.unique(category):
            places = np.flatnonzero(category == c)
            hashes = order[places]
            if len(places) > most > 0:
                places = places[hashes <= np.partition(hashes, most - 1)[most - 1]]
            near[places] = True
        return {name: values[near] for name, values in sample.items()}

    def merge(self, one: StatisticState, other: StatisticState) -> StatisticState:
        def joined(part: str) -> dict[str, Any]:
            a, b = one[part], other[part]
            return {name: np.concatenate([a[name], b[name]]) for name in a}

        few, total = joined("few"), one["total"] + other["total"]
        state: StatisticState = {"names": one["names"], "total": total}
        state["few"] = few if total <= FEW else _none(few)
        for part in ("cells", "alpha", "norm"):
            sums = joined(part)
            state[part] = add_up(sums.pop("code"), sums)
        state["scatter"] = self._keep(joined("scatter"))
        return state

    def result(self, state: StatisticState) -> dict[str, Table]:
        names, few = state["names"], state["few"]
        exact = state["total"] <= FEW
        correlations = [
            _exact(few, category) if exact else correlation(state, category)
            for category in range(len(names))
        ]
        pairs, rho, bound = zip(*correlations, strict=True)
        sample = {name: state["scatter"][name] for name in _SAMPLE[1:]}
        sample["category"] = names[sample["category"]]
        sample["transformed_norm"] = sample.pop("norm")
        return {
            "spearman": Table(
                {"category": names, "pairs": pairs, "spearman": rho, "bound": bound},
                "α against ‖f‖",
                notes="every pair (query, key) of every layer and head, by the key's category; "
                f"from a sketch, beyond {FEW} pairs: the exact ρ is at most `bound` away",
            ),
            "scatter": Table(
                sample,
                "A sample of the pairs",
                notes=f"one pair in {EVERY}, at most {self.settings.scatter} of each category: "
                "those with the smallest hash of seed, sequence, layer, head, query and key",
            ),
        }


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to 16 significant bits; round numbers of a float64 model to float32.

    The last bits of a number depend on its batch. Without rounding they would order numbers that
    are equal, such as ‖f‖ of the same token at the same position in the first layer.
    """
    if dtype == torch.float64:
        return values.float()
    dropped = 8
    bits = values.float().contiguous().view(torch.int32) + (1 << (dropped - 1))
    return ((bits >> dropped) << dropped).view(torch.float32)


def _none(few: StatisticState) -> StatisticState:
    """Return the same columns without any pair."""
    return {name: values[:0] for name, values in few.items()}


def _exact(few: StatisticState, category: int) -> tuple[int, float, float]:
    """Return the number of pairs of a category, their ρ, and its error, which is 0."""
    member = few["category"] == category
    rho = spearman(few["alpha"][member], few["norm"][member])
    return int(member.sum()), rho, 0.0 if rho == rho else rho
