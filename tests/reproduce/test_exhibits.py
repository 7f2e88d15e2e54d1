"""Tables and numbers of a report."""

from __future__ import annotations

from normscope.measures.statistics import Table
from normscope.reproduce.exhibits import (
    Exhibit,
    count_from_one,
    format_value,
    rows_with,
    table_of,
)


def test_numbers_have_about_the_digits_of_the_papers() -> None:
    values = [0.34, 96.41, -0.4997724, 12.3456, 1944928224, None, float("nan"), True, 123.456789]
    texts = ["0.34", "96.41", "-0.500", "12.35", "1,944,928,224", "–", "–", "yes", "123.5"]
    assert [format_value(value) for value in values] == texts


def test_tables() -> None:
    table = table_of([{"layer": 0, "mean": 0.5}, {"layer": 1, "head": 3}])
    assert table.lists() == {"layer": [0, 1], "mean": [0.5, None], "head": [None, 3]}
    assert rows_with(table, layer=1) == [{"layer": 1, "mean": None, "head": 3}]
    counted = count_from_one(
        Table({"layer": [0, 1], "x": [0, 1]}, "T", notes="n; layers and heads count from 0")
    )
    assert counted.lists() == {"layer": [1, 2], "x": [0, 1]}
    assert (counted.title, counted.notes) == ("T", "n")


def test_file_names() -> None:
    assert Exhibit("Figures 10–12", "", "").file == "figures-10-12"
