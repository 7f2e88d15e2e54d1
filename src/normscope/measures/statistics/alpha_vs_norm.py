"""α against ‖f‖: do heads give small weights to large vectors? (2020: Table 2, Figure 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from normscope.kernels import Scratch
from normscope.measures.statistics.base import Settings, State, Table
from normscope.measures.statistics.batch import Layer, MeasuredBatch
from normscope.measures.statistics.hashing import SCATTER, begin, fold, nonnegative
from normscope.measures.statistics.joint import add_up, correlation, count_pairs
from normscope.measures.statistics.ranks import spearman

FEW = 2**18  # pairs of all categories up to which each is kept, and ρ is exact
EVERY = 100  # one pair in so many may be in the scatter sample
_SAMPLE = ("order", "sequence", "layer", "head", "query", "key", "category", "alpha", "norm")


_FEW = ("category", "alpha", "norm")


class AlphaVersusNorm:
    """Spearman ρ over every pair of tokens, layer and head of a category, and a sample of them."""

    name: ClassVar[str] = "alpha_vs_norm"
    conditions: ClassVar[tuple[str, ...]] = ("plain",)

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.scratch = Scratch()

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        category = layer.on_device(layer.inputs.category)
        names = layer.inputs.vocabulary.names
        counted = count_pairs(
            layer.alpha,
            layer.transformed_norm,
            category,
            layer.real,
            layer.admitted,
            len(names),
            self.scratch,
        )
        sample = self._sample(layer, category, len(names))
        made = {f"pairs_{name}": tensor for name, tensor in counted.items()}
        made |= {f"few_{name}": tensor for name, tensor in self._few(layer, category).items()}
        return made | {f"scatter_{name}": tensor for name, tensor in sample.items()}

    def _few(self, layer: Layer, category: Tensor) -> dict[str, Tensor]:
        """Every pair, where they are few."""
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
            "alpha": _steady(layer.alpha[b, h, i, j], layer.alpha.dtype),
            "norm": _steady(layer.transformed_norm[b, h, j], layer.alpha.dtype),
        }

    def _sample(self, layer: Layer, category: Tensor, categories: int) -> dict[str, Tensor]:
        """Of each query one key in EVERY, by a hash; of those the ones with the smallest hashes."""
        rows, heads, queries, keys = layer.alpha.shape
        count: Any = {"device": layer.alpha.device}
        sequence = layer.on_device(layer.inputs.keys)
        line = fold(begin(self.settings.seed, SCATTER, sequence), layer.index)[:, None, None]
        line = fold(line, torch.arange(heads, **count)[:, None])
        line = fold(line, torch.arange(queries, **count))  # row head query
        first = nonnegative(line) % EVERY
        j = first[..., None] + torch.arange(0, keys, EVERY, **count)  # row head query some
        inside = (j < keys) & layer.real[:, None, :, None]
        row = torch.arange(rows, **count)[:, None, None, None]
        inside &= layer.real[row, j.clamp_max(keys - 1)]
        b, h, i, m = inside.nonzero(as_tuple=True)
        j = j[b, h, i, m]
        if layer.admitted is not None:
            kept = layer.admitted.expand(rows, -1, -1, -1)[b, 0, i, j]
            b, h, i, j = b[kept], h[kept], i[kept], j[kept]
        order, of = nonnegative(fold(line[b, h, i], j)), category[b, j]
        chosen = torch.cat([self._smallest(order, of == c) for c in range(categories)])
        b, h, i, j = b[chosen], h[chosen], i[chosen], j[chosen]
        return {
            "order": order[chosen],
            "sequence": sequence[b],
            "layer": torch.full_like(b, layer.index),
            "head": h,
            "query": i,
            "key": j,
            "category": of[chosen],
            "alpha": layer.alpha[b, h, i, j].double(),
            "norm": layer.transformed_norm[b, h, j],
        }

    def _smallest(self, order: Tensor, where: Tensor) -> Tensor:
        places = where.nonzero().squeeze(1)
        if len(places) <= self.settings.scatter:
            return places
        return places[order[places].topk(self.settings.scatter, largest=False).indices]

    def measure(self, batch: MeasuredBatch) -> State:
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

    def _keep(self, sample: State) -> State:
        """The pairs with the smallest hashes of each category, in that order."""
        keys = ("key", "query", "head", "layer", "sequence", "order", "category")
        order = np.lexsort([sample[name] for name in keys])
        category = sample["category"][order]
        place = np.arange(len(order)) - np.searchsorted(category, category)
        kept = order[place < self.settings.scatter]
        return {name: values[kept] for name, values in sample.items()}

    def merge(self, one: State, other: State) -> State:
        total = one["total"] + other["total"]
        a, b = one["few"], other["few"]
        few = {name: np.concatenate([a[name], b[name]]) for name in a}
        made: State = {"names": one["names"], "total": total}
        made["few"] = few if total <= FEW else _none(few)
        for part in ("cells", "alpha", "norm"):
            a, b = one[part], other[part]
            both = {name: np.concatenate([a[name], b[name]]) for name in a}
            made[part] = add_up(both.pop("code"), both)
        a, b = one["scatter"], other["scatter"]
        made["scatter"] = self._keep({name: np.concatenate([a[name], b[name]]) for name in a})
        return made

    def result(self, state: State) -> dict[str, Table]:
        names = state["names"]
        few, exact = state["few"], state["total"] <= FEW
        found = [_exactly(few, c) if exact else correlation(state, c) for c in range(len(names))]
        pairs, rho, bound = zip(*found, strict=True)
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


def _steady(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values without the last bits, which depend on the batch and would break ties at random.

    A token in the same place of two sequences has the same f in the first layer, to rounding.
    """
    if dtype == torch.float64:
        return values.float()
    dropped = 8
    bits = values.float().contiguous().view(torch.int32) + (1 << (dropped - 1))
    return ((bits >> dropped) << dropped).view(torch.float32)


def _none(few: State) -> State:
    """No pair at all."""
    return {name: values[:0] for name, values in few.items()}


def _exactly(few: State, category: int) -> tuple[int, float, float]:
    """Pairs of a category and their ρ, with nothing left to bound."""
    here = few["category"] == category
    rho = spearman(few["alpha"][here], few["norm"][here])
    return int(here.sum()), rho, 0.0 if rho == rho else rho
