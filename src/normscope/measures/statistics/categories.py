"""What categories of tokens get, by weight and by norm (Figures 3, 4 and 10 to 12 of 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from normscope.measures.statistics.base import Settings, State, Table
from normscope.measures.statistics.batch import Layer, MeasuredBatch
from normscope.measures.statistics.moments import grid, means, with_interval

MEASURES = ("alpha", "weighted_norm", "transformed_norm")


class Categories:
    """α and ‖αf‖ summed over a category's keys, ‖f‖ its mean; means over queries, then sequences.

    A sequence that has no token of a category does not count in that category's means.
    """

    name: ClassVar[str] = "categories"
    conditions: ClassVar[tuple[str, ...]] = ("plain",)

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        return {
            "transformed_norm": layer.transformed_norm,
            "column_weight": layer.column_weight,
        }

    def measure(self, batch: MeasuredBatch) -> State:
        norm, weight = batch["transformed_norm"], batch["column_weight"].astype(float)
        names = batch.vocabulary.names
        of = (batch.category[..., None] == np.arange(len(names))) & batch.real[..., None]
        there = of.sum(axis=1)  # row category
        of = of.astype(float)

        def summed(values: Any) -> Any:
            return np.einsum("blhk,bkc->bclh", np.where(batch.real[:, None, None], values, 0), of)

        mean = summed(norm) / np.maximum(there, 1)[:, :, None, None]
        found = np.stack([summed(weight), summed(weight * norm), mean], axis=2)  # row cat what l h
        present = (there > 0).astype(float)
        found *= present[:, :, None, None, None]
        return {
            "names": np.array(names),
            "sequences": batch.weights @ present,  # sample category
            "heads": found.sum(axis=0),  # category what layer head
            "layers": np.tensordot(batch.weights, found.mean(axis=-1), 1),
            "tokens": there.sum(axis=0),
        }

    def merge(self, one: State, other: State) -> State:
        return {name: a if name == "names" else a + other[name] for name, a in one.items()}

    def result(self, state: State) -> dict[str, Table]:
        names, count = state["names"].tolist(), state["sequences"]
        _, _, layers, heads = state["heads"].shape
        by_head = means(state["heads"], count[0][:, None, None, None])
        by_layer = means(state["layers"], count[:, :, None, None])
        confidence = self.settings.confidence
        each = grid(category=names, layer=range(layers), head=range(heads))
        notes = (
            "per sequence: α and ‖αf‖ summed over the category's keys, mean over queries; ‖f‖ mean "
            "over its tokens; then the mean over the sequences that have the category"
        )
        single = {what: by_head[:, m].ravel() for m, what in enumerate(MEASURES)}
        some, whole = grid(category=names, layer=range(layers)), grid(category=names)
        for m, what in enumerate(MEASURES):
            some |= with_interval(what, by_layer[:, :, m], confidence)
            whole |= with_interval(what, by_layer[:, :, m].mean(axis=-1), confidence)
        whole |= {"sequences": count[0].astype(int), "tokens": state["tokens"]}
        return {
            "categories": Table(whole, "By category", notes=f"{notes}, heads and layers"),
            "layers": Table(some, "By category and layer", notes=f"{notes} and heads"),
            "heads": Table(each | single, "By category, layer and head", notes=notes),
        }
