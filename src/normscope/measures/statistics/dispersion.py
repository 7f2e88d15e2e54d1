"""How much ‖f‖ and ‖x‖ vary between tokens (Tables 1 and 4 of the 2020 paper)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from normscope.measures.statistics.base import StatisticState, Table
from normscope.measures.statistics.batch import Layer, MeasuredBatch
from normscope.measures.statistics.moments import (
    grid,
    merge_moments,
    moments,
    spread,
    with_interval,
)
from normscope.measures.statistics.settings import StatisticSettings

TITLES = {"transformed_norm": "‖f(x)‖ of each head", "input_norm": "‖x‖ of each layer"}


class Dispersion:
    """Moments of ‖f‖ for each layer and head, and of ‖x‖ for each layer, over all tokens."""

    name: ClassVar[str] = "dispersion"
    conditions: ClassVar[tuple[str, ...]] = ("plain",)

    def __init__(self, settings: StatisticSettings) -> None:
        self.settings = settings

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        return {"transformed_norm": layer.transformed_norm, "input_norm": layer.input_norm}

    def measure(self, batch: MeasuredBatch) -> StatisticState:
        state = {}
        for name in TITLES:
            values = np.moveaxis(batch[name], -1, 1)  # row token layer (head)
            real = batch.real.reshape(*batch.real.shape, *(1,) * (values.ndim - 2))
            state[name] = {
                **moments(values, batch.real.astype(float), batch.weights),
                "max": np.where(real, values, -np.inf).max(axis=(0, 1)),
                "min": np.where(real, values, np.inf).min(axis=(0, 1)),
            }
        return state

    def merge(self, one: StatisticState, other: StatisticState) -> StatisticState:
        return {
            name: {
                **merge_moments(a, b := other[name]),
                "max": np.maximum(a["max"], b["max"]),
                "min": np.minimum(a["min"], b["min"]),
            }
            for name, a in one.items()
        }

    def result(self, state: StatisticState) -> dict[str, Table]:
        layers, heads = state["transformed_norm"]["max"].shape
        labels = {
            "transformed_norm": grid(layer=range(layers), head=range(heads)),
            "input_norm": grid(layer=range(layers)),
        }
        tables: dict[str, Table] = {}
        averages: list[dict[str, Any]] = []
        for name, part in state.items():
            columns, average = dict(labels[name]), {"of": [name]}
            for measure, samples in zip(("mean", "std", "cv"), spread(part), strict=True):
                columns |= with_interval(measure, samples, self.settings.confidence)
                whole = samples.reshape(len(samples), -1).mean(axis=1)
                average |= with_interval(measure, whole, self.settings.confidence)
            extremes = {"max": part["max"].ravel(), "min": part["min"].ravel()}
            tables[name] = Table(
                columns | extremes,
                TITLES[name],
                notes=f"{int(part['count'][0])} tokens pooled; σ of the population; layers and "
                "heads count from 0",
            )
            averages.append(average)
        joined = {name: np.concatenate([row[name] for row in averages]) for name in averages[0]}
        tables["average"] = Table(
            joined, "Averages", notes="means over all layers and heads of the other tables' columns"
        )
        return tables
