"""Tables for a terminal: their first rows, without intervals, and the width that they need."""

from __future__ import annotations

from rich.console import Console

from normscope.corpus.listing import SHOWN, listing
from normscope.measures.statistics import Table


def test_a_table_shows_its_first_rows_without_intervals() -> None:
    table = Table(
        {
            "token": [f"t{n}" for n in range(SHOWN + 5)],
            "weighted_norm": [n / 3 for n in range(SHOWN + 5)],
            "weighted_norm_low": [0.0] * (SHOWN + 5),
            "weighted_norm_high": [1.0] * (SHOWN + 5),
            "y_low": [7] * (SHOWN + 5),  # no bound, since there is no column y
        },
        "Title",
    )
    ((shown, width),) = listing({"name": table})
    assert shown.row_count == SHOWN
    assert [column.header for column in shown.columns] == ["token", "weighted_\nnorm", "y_low"]
    assert [column.justify for column in shown.columns] == ["left", "right", "right"]
    assert str(shown.title) == "Title (name)"
    assert str(shown.caption) == (
        f"the first {SHOWN} of {SHOWN + 5} rows; intervals are in the files of --output"
    )
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(shown, crop=False)
    assert "…" not in capture.get()
    assert "0.3333" in capture.get()


def test_control_characters_are_not_printed() -> None:
    ((shown, _),) = listing({"name": Table({"token": ["a\x1b[31m"]})})
    (cell,) = shown.columns[0].cells
    assert "\x1b" not in str(cell)
    assert shown.caption is None
