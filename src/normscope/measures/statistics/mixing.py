"""How much of a token's new vector comes from other tokens (2021: Table 1, Figure 3), and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from normscope.decomposition.scopes import ANALYSES, by_vectors
from normscope.foundation.ranks import spearman
from normscope.measures.statistics.base import StatisticState, Table
from normscope.measures.statistics.batch import Layer, MeasuredBatch
from normscope.measures.statistics.moments import add, grid, means, sums_by_category, with_interval
from normscope.measures.statistics.settings import StatisticSettings
from normscope.measures.statistics.vocabulary import OTHERS


class Mixing:
    """Mixing ratios in percent: over all tokens and layers, and by layer and category."""

    name: ClassVar[str] = "mixing"

    def __init__(self, settings: StatisticSettings) -> None:
        self.settings = settings
        self.conditions = ("masked",) if settings.masking else ("plain",)

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        return {"ratios": layer.ratios}

    def measure(self, batch: MeasuredBatch) -> StatisticState:
        ratios = 100 * batch["ratios"]  # row layer analysis query
        real = batch.real[:, None, None]
        names, member = self._categories(batch)
        tokens = member.sum(axis=1)  # row category
        summed = sums_by_category(np.where(real, ratios, 0), member.astype(float))
        mean = summed / np.maximum(tokens, 1)[:, :, None, None]
        present = (tokens > 0).astype(float)
        whole = summed[:, -1].sum(axis=1)  # row analysis, over all tokens and layers
        cells = tokens[:, -1] * ratios.shape[1]
        return {
            "names": np.array(names),
            "analyses": np.array(ANALYSES[: ratios.shape[2]]),
            "cells": batch.weights @ cells,
            "pooled": batch.weights @ whole,
            "max": np.where(real, ratios, -np.inf).max(axis=(0, 1, 3)),
            "min": np.where(real, ratios, np.inf).min(axis=(0, 1, 3)),
            "sequences": batch.weights @ present,
            "layers": np.tensordot(batch.weights, mean * present[:, :, None, None], 1),
        }

    def _categories(self, batch: MeasuredBatch) -> tuple[list[str], Any]:
        """Return the categories' names, and for each (row, token, category) whether it belongs.

        The last category is all tokens.
        """
        vocabulary, real, masked = batch.vocabulary, batch.real, batch.masked
        if vocabulary.custom:
            names = [*vocabulary.names[:-1], OTHERS]
            members = [(batch.category == c) & ~masked for c in range(len(names))]
        else:
            framing = [(batch.ids == i) & batch.special for i in vocabulary.framing]
            names = ["normal", *vocabulary.framing_names()]
            members = [~batch.special & ~masked, *framing]
        if batch.settings.masking:
            names, members = [*names, vocabulary.mask_token], [*members, masked]
        members = [*members, np.ones_like(real)]
        return [*names, "all"], np.stack([member & real for member in members], axis=-1)

    def merge(self, one: StatisticState, other: StatisticState) -> StatisticState:
        labels = {"names": one["names"], "analyses": one["analyses"]}
        extremes = {
            "max": np.maximum(one["max"], other["max"]),
            "min": np.minimum(one["min"], other["min"]),
        }
        rest = [name for name in one if name not in (*labels, *extremes)]
        return labels | extremes | add({n: one[n] for n in rest}, {n: other[n] for n in rest})

    def result(self, state: StatisticState) -> dict[str, Table]:
        confidence, analyses = self.settings.confidence, state["analyses"].tolist()
        pooled = means(state["pooled"], state["cells"][:, None])
        by_layer = means(state["layers"], state["sequences"][:, :, None, None])
        share = self.settings.masking
        masks = (
            f"{share:.0%} of the tokens that are not special are masked" if share else "no masks"
        )
        table = {"analysis": analyses, **with_interval("mean", pooled, confidence)}
        table |= {"max": state["max"], "min": state["min"]}
        labels = grid(
            category=state["names"].tolist(), layer=range(by_layer.shape[2]), analysis=analyses
        )
        depth = _against_depth(by_layer[:, -1])
        return {
            "mixing": Table(
                table, "Mixing ratio, percent", notes=f"all tokens × layers pooled; {masks}"
            ),
            "layers": Table(
                labels | with_interval("mean", by_layer, confidence),
                "Mixing ratio by category and layer, percent",
                notes=f"mean within a sequence, then over the sequences that have it; {masks}",
            ),
            "depth": Table(
                {"analysis": analyses, **with_interval("spearman", depth, confidence)},
                "Mixing ratio against depth",
                notes="Spearman ρ of the layer's number and its mean ratio over sequences",
            ),
        }


def _against_depth(ratios: Any) -> Any:
    """Return ρ of the layer's number and the ratio, (sample, analysis), for each sample."""
    samples, layers, analyses = ratios.shape
    numbers = np.arange(layers) * 1.0
    rho = [
        [spearman(numbers, ratios[sample, :, a]) for a in range(analyses)]
        for sample in range(samples)
    ]
    return np.array(rho)


class PreserveMix:
    """Lengths of the vectors that are preserved and mixed in, means over tokens by layer."""

    name: ClassVar[str] = "preserve_mix"
    conditions: ClassVar[tuple[str, ...]] = ("plain",)

    def __init__(self, settings: StatisticSettings) -> None:
        self.settings = settings

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        observed = {"input_norm": layer.input_norm, "total_norm": layer.total_norm}
        for name, (own, others) in layer.lengths.items():
            observed |= {f"{name}_preserved": own, f"{name}_mixed": others}
        if (scale := layer.norm_scale) is not None:
            observed["norm_scale"] = scale
        return observed

    def measure(self, batch: MeasuredBatch) -> StatisticState:
        first = batch.names
        scopes = [name for name in ANALYSES if f"{name}_mixed" in first]
        lengths = [f"{name}_{part}" for name in scopes for part in ("preserved", "mixed")]
        scale = [name for name in ("norm_scale",) if name in first]
        sums = {}
        for name in ("input_norm", "total_norm", *lengths, *scale):
            by_row = np.where(batch.real[:, None], batch[name], 0).sum(axis=-1)
            sums[name] = batch.weights @ by_row
        return {"sums": sums, "tokens": batch.weights @ batch.real.sum(axis=1)}

    def merge(self, one: StatisticState, other: StatisticState) -> StatisticState:
        return {
            "sums": add(one["sums"], other["sums"]),
            "tokens": one["tokens"] + other["tokens"],
        }

    def result(self, state: StatisticState) -> dict[str, Table]:
        layers = next(iter(state["sums"].values())).shape[1]
        columns = grid(layer=range(layers))
        for name, sums in state["sums"].items():
            samples = means(sums, state["tokens"][:, None])
            columns |= with_interval(name, samples, self.settings.confidence)
        attention, residual, norm = (scope.name for scope in by_vectors(ANALYSES))
        return {
            "preserve_mix": Table(
                columns,
                "What the residual preserves and what attention mixes in",
                notes="means over tokens of ‖x_i‖ (input_norm), ‖Σ_j s_ij‖ (total_norm), ‖v_ii‖ "
                f"(preserved) and ‖Σ_{{j≠i}} v_ij‖ (mixed): of attention ({attention}), with the "
                f"residual ({residual}, before the norm) and after it ({norm}); norm_scale is "
                "mean |γ| / σ_i of that norm",
            )
        }
