"""Correlations with frequency ranks."""

from __future__ import annotations

from pathlib import Path

from normscope.reproduce import reproduce
from tests.helpers.reproductions import Inputs, rows_of


def test_ranks_of_a_file_next_to_ids(inputs: Inputs, tmp_path: Path) -> None:
    ranks = tmp_path / "ranks.txt"
    ranks.write_text("".join(f"{58 - i} {i} {i}\n" for i in range(57)))
    options = inputs.options(ranks=str(ranks), sequences=4)
    rows = rows_of(reproduce("emnlp2021", options), "Frequency")
    names = [name for name in rows[0] if name.startswith("measured")]
    assert names == ["measured, the file ranks.txt", "measured, tokenizer ids"]
    plain = rows_of(reproduce("emnlp2021", inputs.options(sequences=4)), "Frequency")
    assert [row["measured, tokenizer ids"] for row in rows] == [
        row["measured, tokenizer ids"] for row in plain
    ]
    assert rows[0][names[0]] != rows[0][names[1]]
