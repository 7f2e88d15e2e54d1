"""Bad rows are skipped, counted and listed, or fatal; a failing batch costs its bad row alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from normscope.corpus.work import CorpusWorker
from normscope.errors import ExactnessError, InputError
from normscope.measures.statistics import Row
from tests.helpers.corpora import QuickMeasurer
from tests.helpers.corpora import quick_run as run

pytestmark = pytest.mark.usefixtures("quick")


def test_bad_rows_can_be_fatal(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"b\.jsonl, line 4: broken JSON.*bad_rows=\"skip\""):
        run(folder, tmp_path / "out", bad_rows="error")
    assert not (tmp_path / "out" / "statistics.json").exists()


def test_a_row_the_model_cannot_take_costs_that_row_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = QuickMeasurer.measure

    def failing(self: Any, rows: Sequence[Row]) -> Any:
        if any(row.key in (5, 17) for row in rows):
            raise ExactnessError("row 5: NaN")
        return whole(self, rows)

    monkeypatch.setattr(QuickMeasurer, "measure", failing)
    result = run(folder, data=folder / "a.txt")
    assert result.counts["bad"] == {"measure": 2}
    assert result.counts["sequences"] == sum(result["sums_lengths"].lists()["sequences"]) == 38
    assert {one.where for one in result.problems} == {"a.txt, line 6", "a.txt, line 18"}
    with pytest.raises(InputError, match="row 5: NaN"):
        run(folder, data=folder / "a.txt", bad_rows="error")


def test_many_bad_rows_are_counted_and_the_first_listed(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("\n" * 50 + "the cat sat\n" + "\n" * 50)
    result = run(folder, data=file)
    assert result.counts["bad"] == {"empty": 100}
    assert [one.where for one in result.problems] == [f"a.txt, line {n + 1}" for n in range(20)]
    file.write_text("\n" * 50)
    with pytest.raises(
        InputError, match=r"none of the 50 rows could be used; the first: a.txt, line 1"
    ):
        run(folder, data=file)


def test_progress_is_reported_after_every_batch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    whole = CorpusWorker.run

    def counted(self: Any, block: Any, done: Any = int) -> Any:
        return whole(self, block, steps.append)

    monkeypatch.setattr(CorpusWorker, "run", counted)
    result = run(folder, block_rows=1000, batch_tokens=64)
    assert sum(steps) == result.counts["rows"]  # bad rows count as well
    assert max(steps) < result.counts["rows"] / 3
