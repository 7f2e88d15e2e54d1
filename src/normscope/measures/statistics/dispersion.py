"""How much ‖f‖ and ‖x‖ vary between tokens (Tables 1 and 4 of the 2020 paper)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from normscope.measures.statistics.base import Settings, State, Table
from normscope.measures.statistics.batch import Layer, MeasuredBatch
from normscope.measures.statistics.moments import (
    grid,
    merge_moments,
    moments,
    spread,
    with_interval,
)


class Dispersion:
    """Tokens pooled for each layer and head (‖f‖), for each layer (‖x‖); then averages."""

    name: ClassVar[str] = "dispersion"
    conditions: ClassVar[tuple[str, ...]] = ("plain",)

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def observe(self, layer: Layer) -> Mapping[str, Any]:
        return {"transformed_norm": layer.transformed_norm, "input_norm": layer.input_norm}

    def measure(self, batch: MeasuredBatch) -> State:
        made = {}
        for name in ("transformed_norm", "input_norm"):
            values = np.moveaxis(batch[name], -1, 1)  # row token layer (head)
            there = batch.real.reshape(*batch.real.shape, *(1,) * (values.ndim - 2))
            made[name] = {
                **moments(values, batch.real.astype(float), batch.weights),
                "max": np.where(there, values, -np.inf).max(axis=(0, 1)),
                "min": np.where(there, values, np.inf).min(axis=(0, 1)),
            }
        return made

    def merge(self, one: State, other: State) -> State:
        return {
            name: {
                **merge_moments(a, b := other[name]),
                "max": np.maximum(a["max"], b["max"]),
                "min": np.minimum(a["min"], b["min"]),
            }
            for name, a in one.items()
        }

    def result(self, state: State) -> dict[str, Table]:
        layers, heads = state["transformed_norm"]["max"].shape
        labels = {
            "transformed_norm": grid(layer=range(layers), head=range(heads)),
            "input_norm": grid(layer=range(layers)),
        }
        titles = {"transformed_norm": "‖f(x)‖ of each head", "input_norm": "‖x‖ of each layer"}
        tables: dict[str, Table] = {}
        averages: list[dict[str, Any]] = []
        for name, part in state.items():
            measured = dict(zip(("mean", "std", "cv"), spread(part), strict=True))
            columns = dict(labels[name])
            average: dict[str, Any] = {"of": [name]}
            for what, samples in measured.items():
                columns |= with_interval(what, samples, self.settings.confidence)
                whole = samples.reshape(len(samples), -1).mean(axis=1)
                average |= with_interval(what, whole, self.settings.confidence)
            extremes = {"max": part["max"].ravel(), "min": part["min"].ravel()}
            tables[name] = Table(
                columns | extremes,
                titles[name],
                notes=f"{int(part['count'][0])} tokens pooled; σ of the population; layers and "
                "heads count from 0",
            )
            averages.append(average)
        merged = {what: np.concatenate([one[what] for one in averages]) for what in averages[0]}
        tables["average"] = Table(
            merged, "Averages", notes="means over all layers and heads of the other tables' columns"
        )
        return tables
