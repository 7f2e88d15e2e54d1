"""Wrong numbers are noticed by a second computation, which names the row."""

from __future__ import annotations

from typing import Any

import pytest

from normscope.errors import ExactnessError
from normscope.measures.statistics import Measurer, StatisticSettings, choose
from tests.helpers.slow_statistics import bert, corpus, measured, tokenizer

ROWS = corpus()


@pytest.mark.parametrize("what", ["transformed_norm", "lengths"])
def test_a_wrong_number_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sequence, numbered 0, is always computed a second time."""
    from normscope.measures.statistics import batch

    member = vars(batch.Layer)[what]
    right = member.fget if isinstance(member, property) else member.func

    def wrong(layer: Any) -> Any:
        made = right(layer)
        if what == "transformed_norm":
            return made * (1 + 1e-9)
        return {name: (own, others * (1 + 1e-9)) for name, (own, others) in made.items()}

    monkeypatch.setattr(batch.Layer, what, property(wrong))
    with pytest.raises(ExactnessError, match=r"row \d+: the statistics of .*layer\.0.*differ"):
        measured("mixing", ROWS)
    measured("mixing", [row for row in ROWS if row.key != 0])  # drawn by its key: here none


def test_the_row_of_a_wrong_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from normscope.measures.statistics import batch

    right = vars(batch.Layer)["transformed_norm"].fget

    def wrong(layer: Any) -> Any:
        made = right(layer).clone()
        made[2] *= 1 + 1e-9
        return made

    monkeypatch.setattr(batch.Layer, "transformed_norm", property(wrong))
    rows = sorted(ROWS, key=lambda row: row.key)[:4]
    assert rows[0].key == 0  # which has the whole batch computed a second time
    with pytest.raises(ExactnessError, match=rf"^row {rows[2].key}: the statistics of .*layer.0"):
        Measurer(bert(), tokenizer(), choose("mixing"), StatisticSettings()).measure(rows)
