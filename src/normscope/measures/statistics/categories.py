"""Attention to categories of tokens, by weight and norm (Figures 3, 4, 10 to 12 of 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from normscope.measures.statistics.base import StatisticState, Table
from normscope.measures.statistics.batch import Layer, MeasuredBatch
from normscope.measures.statistics.moments import grid, means, sums_by_category, with_interval
from normscope.measures.statistics.settings import StatisticSettings

MEASURES = ("alpha", "weighted_norm", "transformed_norm")
_NOTES = (
    "per sequence: α and ‖αf‖ summed over the category's keys, mean over queries; ‖f‖ mean "
    "over its tokens; then the mean over the sequences that have the category"
)


class Categories:
    """Mean over sequences of α and ‖αf‖ summed over a category's keys, and of ‖f‖ averaged.

    A sequence without a token of a category does not count in that category's means.
    """

    name: ClassVar[str] = "categories"
    conditions: ClassVar[tuple[str, ...]] = ("plain",)

    def __init__(self, settings: StatisticSettings) -> None:
        self.settings = settings

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        return {
            "transformed_norm": layer.transformed_norm,
            "column_weight": layer.column_weight,
        }

    def measure(self, batch: MeasuredBatch) -> StatisticState:
        norm, weight = batch["transformed_norm"], batch["column_weight"].astype(float)
        names = batch.vocabulary.names
        member = (batch.category[..., None] == np.arange(len(names))) & batch.real[..., None]
        tokens = member.sum(axis=1)  # row category
        member = member.astype(float)  # row token category

        def summed(values: Any) -> Any:
            real = np.where(batch.real[:, None, None], values, 0)
            return sums_by_category(real, member)

        mean = summed(norm) / np.maximum(tokens, 1)[:, :, None, None]
        # row category measure layer head
        measures = np.stack([summed(weight), summed(weight * norm), mean], axis=2)
        present = (tokens > 0).astype(float)
        measures *= present[:, :, None, None, None]
        return {
            "names": np.array(names),
            "sequences": batch.weights @ present,  # sample category
            "heads": measures.sum(axis=0),  # category measure layer head
            "layers": np.tensordot(batch.weights, measures.mean(axis=-1), 1),
            "tokens": tokens.sum(axis=0),
        }

    def merge(self, one: StatisticState, other: StatisticState) -> StatisticState:
        return {name: a if name == "names" else a + other[name] for name, a in one.items()}

    def result(self, state: StatisticState) -> dict[str, Table]:
        names, count = state["names"].tolist(), state["sequences"]
        _, _, layers, heads = state["heads"].shape
        by_head = means(state["heads"], count[0][:, None, None, None])
        by_layer = means(state["layers"], count[:, :, None, None])
        confidence = self.settings.confidence
        whole, layered = grid(category=names), grid(category=names, layer=range(layers))
        each = grid(category=names, layer=range(layers), head=range(heads))
        for index, measure in enumerate(MEASURES):
            samples = by_layer[:, :, index]  # sample category layer
            whole |= with_interval(measure, samples.mean(axis=-1), confidence)
            layered |= with_interval(measure, samples, confidence)
            each[measure] = by_head[:, index].ravel()
        whole |= {"sequences": count[0].astype(int), "tokens": state["tokens"]}
        return {
            "categories": Table(whole, "By category", notes=f"{_NOTES}, heads and layers"),
            "layers": Table(layered, "By category and layer", notes=f"{_NOTES} and heads"),
            "heads": Table(each, "By category, layer and head", notes=_NOTES),
        }
