"""What the feed-forward changes: changes that are not defined, and the order of pairs."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np

from normscope.measures.statistics import StatisticSettings
from normscope.measures.statistics.feedforward import AmplifiedPairs, Change


def test_a_change_that_is_not_defined_counts_for_nothing() -> None:
    class Noted(SimpleNamespace):
        def __getitem__(self, name: str) -> Any:
            return self.noted[name]

    found = np.array([[0.5, 0.25], [-1.0, 0.75], [0.125, -1.0]])  # row layer; −1: not defined
    noted, weights = {"change_a → b": found}, np.array([[1.0, 1, 1], [2, 5, 0]])
    batch: Any = Noted(noted=noted, names=list(noted), weights=weights)
    change = Change(StatisticSettings())
    state = inspect.unwrap(Change.measure)(change, batch)  # without the check of types
    assert state["steps"].tolist() == ["a → b"]
    assert state["sum"][..., 0].tolist() == [[0.625, 1.0], [1.0, 4.25]]
    assert state["sequences"][..., 0].tolist() == [[2, 2], [2, 7]]


def test_amplified_pairs_stand_in_order() -> None:
    """By layer; the more frequent first, then the larger, then by the query's and the key's id."""
    cells = [  # layer, difference, query id, key id
        *((0, 0.5, 9, 1), (0, 0.25, 9, 1)),  # twice
        *((0, 4.0, 3, 8), (0, 2.0, 3, 6), (0, 2.0, 2, 7), (0, 2.0, 3, 5)),
        (1, 9.0, 1, 1),
    ]
    layer, difference, query, key = (np.array(one) for one in zip(*cells, strict=True))
    places = np.zeros_like(layer)
    state = {
        "cells": {
            "layer": layer,
            "difference": difference,
            "query_id": query,
            "key_id": key,
            **dict.fromkeys(("sequence", "query", "key"), places),
        },
        "tokens": {str(i): f"t{i}" for i in range(10)},
    }
    table = AmplifiedPairs(StatisticSettings()).result(state)["pairs"].columns
    names = ("layer", "query_token", "key_token", "count")
    assert list(zip(*(list(table[name]) for name in names), strict=True)) == [
        (0, "t9", "t1", 2),
        (0, "t3", "t8", 1),
        (0, "t2", "t7", 1),
        (0, "t3", "t5", 1),
        (0, "t3", "t6", 1),
        (1, "t1", "t1", 1),
    ]
    assert table["mean_difference"][0] == 0.375
    assert table["max_difference"][0] == 0.5
