"""Readers: every format gives the rows that were written, from any mark; bad rows are told."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.corpus import readers
from normscope.corpus.readers import FORMATS, START, RowFilter, RowSource, open_file
from normscope.corpus.records import Content, Problem
from tests.helpers.corpora import PROPERTY, contents_of

# Any text that fits on a line: no line ends, no tabs, and no half characters.
LINE = st.text(
    st.characters(codec="utf-8", exclude_characters="\n\r\t\ufeff"), min_size=1, max_size=20
).filter(str.strip)
ROWS = st.lists(st.tuples(LINE, st.none() | LINE), max_size=12)


def write(path: Path, format_name: str, rows: Sequence[tuple[str, str | None]]) -> RowSource:
    file = path / f"rows.{format_name}"
    if format_name == "text":
        file.write_bytes("".join(f"{text}\n" for text, _ in rows).encode())
    elif format_name == "tsv":
        file.write_bytes("".join(f"{text}\t{pair or text}\n" for text, pair in rows).encode())
    elif format_name == "jsonl":
        made = [{"text": t} if p is None else {"text": t, "text_pair": p} for t, p in rows]
        file.write_text("".join(json.dumps(one) + "\n" for one in made))
    elif format_name == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = ("text", "text_pair")
        table = pa.table(
            {
                name: pa.array([row[at] for row in rows], pa.string())
                for at, name in enumerate(names)
            }
        )
        pq.write_table(table, file, row_group_size=3)
    else:
        attns = np.zeros((2, 2, 3, 3), dtype=np.float16)
        made_rows = [{"tokens": text.split(), "attns": attns} for text, _ in rows]
        file.write_bytes(pickle.dumps(made_rows))
    return open_file(file, format_name)


def expected(format_name: str, rows: Sequence[tuple[str, str | None]]) -> list[Content]:
    if format_name == "text":
        return [Content(text) for text, _ in rows]
    if format_name == "tsv":
        return [Content(text, pair or text) for text, pair in rows]
    if format_name == "clark":
        return [Content(tokens=tuple(text.split())) for text, _ in rows]
    return [Content(text, pair) for text, pair in rows]


@pytest.mark.parametrize("format_name", FORMATS)
@PROPERTY
@given(rows=ROWS, stop=st.none() | st.integers(0, 14), odd=st.booleans())
def test_rows_come_back_from_any_mark(
    tmp_path: Path,
    format_name: str,
    rows: list[tuple[str, str | None]],
    stop: int | None,
    odd: bool,
) -> None:
    source = write(tmp_path, format_name, rows)
    wanted = expected(format_name, rows)
    assert contents_of(source) == wanted
    assert source.count() == len(rows)
    choice = RowFilter(lambda number: number % 2 == odd if odd else True, stop)
    chosen = [number for number in range(len(rows))[:stop] if number % 2 == 1 or not odd]
    found = list(source.read(START, choice))
    assert [one.number for one in found] == chosen
    assert [one.content for one in found] == [wanted[number] for number in chosen]
    assert list(source.marks(START, choice)) == [one.after for one in found]
    for at, one in enumerate(found):
        assert list(source.read(one.after, choice)) == found[at + 1 :]


def test_line_ends_byte_order_mark_and_a_last_line_without_end(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(
        b"\xef\xbb\xbfone\r\ntwo\x0b\x85".replace(b"\x85", "\x85".encode()) + b"\nthree"
    )
    source = open_file(file)
    assert contents_of(source) == [Content("one"), Content("two\x0b\x85"), Content("three")]
    assert source.count() == 3


BAD_LINES = [
    (b"", "empty", "the text is empty"),
    (b"  \t ", "empty", "the text is empty"),
    (b"caf\xe9 au lait", "encoding", "byte 0xe9 at position 3"),
    (b"\xed\xa0\x80", "encoding", "not UTF-8"),
    (b"{", "json", "broken JSON"),
    (b'{"text": "a"', "json", "broken JSON"),
    (b"[" * 100_000, "json", "nested too deeply"),
    (b'{"text": ' + b"9" * 5000 + b"}", "json", "broken JSON"),
    (b'{"other": "a"}', "missing", "no field 'text'; there is: 'other'"),
    (b'{"text": null}', "missing", "no field 'text'"),
    (b'{"text": 3}', "type", "not a string but int"),
    (b'{"text": ["a"]}', "type", "not a string but list"),
    (b'{"text": " "}', "empty", "the text is empty"),
    (b'{"text": "a", "text_pair": ""}', "empty", "the second text is empty"),
    (b'{"text": "a", "text_pair": 1}', "type", "the second text is not a string"),
    (b'{"text": "\\ud83d"}', "encoding", "half of a surrogate pair"),
    (b"7", "type", "a row is a string, two strings or a dictionary"),
    (b'["a", "b", "c"]', "type", "a row is a string"),
]


@pytest.mark.parametrize(("line", "kind", "message"), BAD_LINES)
def test_every_kind_of_bad_line_is_told_with_its_place(
    tmp_path: Path, line: bytes, kind: str, message: str
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"text": "good"}\n' + line + b'\n"good too"\n["a", "b"]\n')
    first, bad, *rest = contents_of(open_file(file))
    assert [first, *rest] == [Content("good"), Content("good too"), Content("a", "b")]
    assert isinstance(bad, Problem)
    assert (bad.where, bad.kind) == ("a.jsonl, line 2", kind)
    assert message in bad.message
    assert len(str(bad)) < 300


def test_bad_pairs(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_bytes(b"a\tb\nalone\na\tb\tc\n\tb\na\t \n\xff\tb\n")
    good, *bad = contents_of(open_file(file))
    assert good == Content("a", "b")
    assert [one.kind for one in bad] == ["missing", "missing", "empty", "empty", "encoding"]


def test_a_line_that_never_ends_is_one_bad_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LONGEST_LINE", 100)
    file = tmp_path / "a.txt"
    file.write_bytes(b"a" * 99 + b"\n" + b"b" * 350 + b"\n" + b"c\n" + b"d" * 100)
    source = open_file(file)
    first, bad, third, last = contents_of(source)
    assert (first, third) == (Content("a" * 99), Content("c"))
    assert bad.kind == last.kind == "line"
    assert source.count() == 4


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"the cat sat on the mat\n" * 200_000)  # 5 MB
    source = open_file(file)
    tracemalloc.start()
    try:
        assert sum(1 for _ in source.read(START, RowFilter(lambda n: n % 50 == 0))) == 4000
        assert source.count() == 200_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.5e6
