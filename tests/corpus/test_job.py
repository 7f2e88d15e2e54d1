"""Measured block by block, a corpus has the numbers of its batches merged by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normscope.measures.statistics import Measurer, Row, Table, choose, merge
from normscope.models import load
from normscope.text.tokens import encode
from tests.helpers.corpora import SETTINGS, STATISTICS, assert_same, columns
from tests.helpers.corpora import full_run as run


def test_the_tables_are_those_of_one_batch_after_the_other(folder: Path) -> None:
    result = run(folder)
    model, reader = load(folder / "model")
    assert reader is not None
    texts: list[Sequence[str]] = [(t,) for t in (folder / "a.txt").read_text().splitlines()]
    for line in (folder / "b.jsonl").read_text().splitlines():
        if '"text_pair"' in line:
            told = json.loads(line)
            texts.append((told["text"], told["text_pair"]))
    keys = [*range(43), *range(45, 61)]  # rows 43, 44 and 61 are bad
    chosen = choose(STATISTICS, SETTINGS)
    measurer = Measurer(model, reader, chosen, SETTINGS)
    rows = []
    for key, text in zip(keys, texts, strict=True):
        one = encode(reader, *text, max_length=None, truncate=False)
        types = tuple(one.extra["token_type_ids"])
        rows.append(Row(key, tuple(one.ids), types, one.tokens.special))
    states: dict[str, Any] = {}
    for start in range(0, len(rows), 12):
        states = merge(chosen, states, measurer.measure(rows[start : start + 12]))
    for statistic in chosen:
        for name, table in statistic.result(states[statistic.name]).items():
            full = name if name.startswith(statistic.name) else f"{statistic.name}_{name}"
            for column, values in table.lists().items():
                assert_same(result[full].lists()[column], values, 1e-5)
    assert result.counts["sequences"] == len(texts) == 59


@pytest.mark.parametrize("changes", [{"block_rows": 1000}, {"batch_tokens": 300}])
def test_batches_and_blocks_do_not_matter(folder: Path, changes: dict[str, Any]) -> None:
    one, other = columns(run(folder)), columns(run(folder, **changes))
    assert one.keys() == other.keys()
    for name, table in one.items():
        for column, values in table.items():
            assert_same(other[name][column], values, 1e-5)


class Lengths:
    """A user's own statistic: how long sequences are."""

    name = "lengths"
    conditions = ("plain",)

    def observe(self, layer: Any) -> dict[str, Any]:
        return {}

    def measure(self, batch: Any) -> dict[str, Any]:
        return {"counts": np.bincount([len(row.ids) for row in batch.rows], minlength=65)}

    def merge(self, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        return {"counts": one["counts"] + other["counts"]}

    def result(self, state: dict[str, Any]) -> dict[str, Table]:
        used = np.flatnonzero(state["counts"])
        return {"lengths": Table({"tokens": used, "sequences": state["counts"][used]})}


def test_a_statistic_of_your_own(folder: Path) -> None:
    result = run(folder, statistics=["mixing", Lengths()])
    table = result["lengths"].lists()
    assert sum(table["sequences"]) == 59
    assert np.dot(table["tokens"], table["sequences"]) == result.counts["tokens"]
    assert "lengths (tests.corpus.test_job.Lengths/" in result.signature  # and its code's hash
