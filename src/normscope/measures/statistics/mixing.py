"""How much of a token's new vector comes from other tokens (2021: Table 1, Figure 3), and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from normscope.decomposition.scopes import ANALYSES
from normscope.measures.statistics.base import Settings, State, Table
from normscope.measures.statistics.batch import Layer, MeasuredBatch
from normscope.measures.statistics.moments import add, grid, means, with_interval
from normscope.measures.statistics.ranks import spearman
from normscope.measures.statistics.vocabulary import OTHERS


class Mixing:
    """Mixing ratios in percent: tokens and layers pooled; by layer and category of sequences."""

    name: ClassVar[str] = "mixing"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.conditions = ("masked",) if settings.masking else ("plain",)

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        return {"ratios": layer.ratios}

    def measure(self, batch: MeasuredBatch) -> State:
        ratios = 100 * batch["ratios"]  # row layer analysis query
        real = batch.real[:, None, None]
        names, of = self._categories(batch)
        there = of.sum(axis=1)  # row category
        summed = np.einsum("blaq,bqc->bcla", np.where(real, ratios, 0), of.astype(float))
        mean = summed / np.maximum(there, 1)[:, :, None, None]
        present = (there > 0).astype(float)
        whole = summed[:, -1].sum(axis=1)  # row analysis, over all tokens and layers
        cells = there[:, -1] * ratios.shape[1]
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
        """Names, and which token is in which, (row, token, category); the last is all tokens."""
        vocabulary, real, masked = batch.vocabulary, batch.real, batch.masked
        if vocabulary.given:
            names = [*vocabulary.names[:-1], OTHERS]
            which = [(batch.category == c) & ~masked for c in range(len(names))]
        else:
            frame = [(batch.ids == i) & batch.special for i in vocabulary.framing]
            names = ["normal", *vocabulary.framing_names()]
            which = [~batch.special & ~masked, *frame]
        if batch.settings.masking:
            names, which = [*names, vocabulary.mask_token], [*which, masked]
        which = [*which, np.ones_like(real)]
        return [*names, "all"], np.stack([one & real for one in which], axis=-1)

    def merge(self, one: State, other: State) -> State:
        labels = {"names": one["names"], "analyses": one["analyses"]}
        extremes = {
            "max": np.maximum(one["max"], other["max"]),
            "min": np.minimum(one["min"], other["min"]),
        }
        rest = [name for name in one if name not in (*labels, *extremes)]
        return labels | extremes | add({n: one[n] for n in rest}, {n: other[n] for n in rest})

    def result(self, state: State) -> dict[str, Table]:
        confidence, analyses = self.settings.confidence, state["analyses"].tolist()
        pooled = means(state["pooled"], state["cells"][:, None])
        by_layer = means(state["layers"], state["sequences"][:, :, None, None])
        share = self.settings.masking
        said = f"{share:.0%} of the tokens that are not special are masked" if share else "no masks"
        table = {"analysis": analyses, **with_interval("mean", pooled, confidence)}
        table |= {"max": state["max"], "min": state["min"]}
        labels = grid(
            category=state["names"].tolist(), layer=range(by_layer.shape[2]), analysis=analyses
        )
        whole = by_layer[:, -1]  # sample layer analysis
        depth = np.array(
            [
                [spearman(np.arange(len(one)) * 1.0, one[:, a]) for a in range(len(analyses))]
                for one in whole
            ]
        )
        return {
            "mixing": Table(
                table, "Mixing ratio, percent", notes=f"all tokens × layers pooled; {said}"
            ),
            "layers": Table(
                labels | with_interval("mean", by_layer, confidence),
                "Mixing ratio by category and layer, percent",
                notes=f"mean within a sequence, then over the sequences that have it; {said}",
            ),
            "depth": Table(
                {"analysis": analyses, **with_interval("spearman", depth, confidence)},
                "Mixing ratio against depth",
                notes="Spearman ρ of the layer's number and its mean ratio over sequences",
            ),
        }


class PreserveMix:
    """Why preserving wins: the lengths of what is preserved and mixed in, means over tokens."""

    name: ClassVar[str] = "preserve_mix"
    conditions: ClassVar[tuple[str, ...]] = ("plain",)

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        made = {"input_norm": layer.input_norm, "total_norm": layer.total_norm}
        for name, (own, others) in layer.lengths.items():
            made |= {f"{name}_preserved": own, f"{name}_mixed": others}
        if (scale := layer.norm_scale) is not None:
            made["norm_scale"] = scale
        return made

    def measure(self, batch: MeasuredBatch) -> State:
        first = batch.names
        scopes = [name for name in ANALYSES if f"{name}_mixed" in first]
        kept = [f"{name}_{part}" for name in scopes for part in ("preserved", "mixed")]
        columns = ["input_norm", "total_norm", *kept, *(n for n in ("norm_scale",) if n in first)]
        made = {}
        for name in columns:
            by_row = np.where(batch.real[:, None], batch[name], 0).sum(axis=-1)
            made[name] = batch.weights @ by_row
        return {"sums": made, "tokens": batch.weights @ batch.real.sum(axis=1)}

    def merge(self, one: State, other: State) -> State:
        return {
            "sums": add(one["sums"], other["sums"]),
            "tokens": one["tokens"] + other["tokens"],
        }

    def result(self, state: State) -> dict[str, Table]:
        layers = next(iter(state["sums"].values())).shape[1]
        columns = grid(layer=range(layers))
        for name, sums in state["sums"].items():
            samples = means(sums, state["tokens"][:, None])
            columns |= with_interval(name, samples, self.settings.confidence)
        return {
            "preserve_mix": Table(
                columns,
                "What the residual preserves and what attention mixes in",
                notes="means over tokens of ‖x_i‖ (input_norm), ‖Σ_j s_ij‖ (total_norm), ‖v_ii‖ "
                "(preserved) and ‖Σ_{j≠i} v_ij‖ (mixed): of attention (attn_n), with the residual "
                "(attn_res_n, before the norm) and after it (attn_res_ln_n); norm_scale is "
                "mean |γ| / σ_i of that norm",
            )
        }
