"""The sequences of the experiments."""

from __future__ import annotations

from pathlib import Path

import pytest

from normscope.errors import InputError
from normscope.reproduce.data import read_paragraphs, read_sequences
from tests.helpers.reproductions import Inputs


def test_pairs_of_paragraphs(inputs: Inputs) -> None:
    text = inputs.text
    paragraphs = read_paragraphs(text)
    assert len(paragraphs) == 13
    assert not any("=" in line or line == "red , mat" for line in paragraphs)
    rows = read_sequences([text]).rows
    assert rows == [(paragraphs[i], paragraphs[i + 1]) for i in range(0, 12, 2)]
    assert read_sequences([text], 2).rows == rows[:2]
    assert read_sequences([text, text]).rows == rows * 2


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    empty, noise, pickled = (tmp_path / name for name in ("a.txt", "b.txt", "c.pkl"))
    empty.write_text("= only a heading of four words =\nshort\n")
    noise.write_bytes(b"\xff\xfe four words of noise\n")
    pickled.touch()
    with pytest.raises(InputError, match=r"no pair of paragraphs in a\.txt"):
        read_sequences([empty])
    with pytest.raises(InputError, match="UTF-8"):
        read_sequences([noise])
    with pytest.raises(InputError, match="cannot be combined"):
        read_sequences([noise, pickled])
