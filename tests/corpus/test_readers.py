"""Readers: every format gives the rows that were written, from any place on; bad rows are told."""

from __future__ import annotations

import importlib
import json
import pickle
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from normscope.corpus import readers
from normscope.corpus.memory import Memory, sources_of
from normscope.corpus.readers import ALL, FORMATS, START, Choice, Fields, Mark, Source, open_file
from normscope.corpus.records import Content, Position, Problem, Record
from normscope.corpus.stream import Selection, Span, Stream, mixed, select
from normscope.errors import InputError

PROPERTY = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# Any text that fits on a line: no line ends, no tabs, and no half characters.
LINE = st.text(
    st.characters(codec="utf-8", exclude_characters="\n\r\t\ufeff"), min_size=1, max_size=20
).filter(str.strip)
ROWS = st.lists(st.tuples(LINE, st.none() | LINE), max_size=12)


def write(path: Path, format_name: str, rows: Sequence[tuple[str, str | None]]) -> Source:
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


def read(source: Source, start: Mark = START, choice: Choice = ALL) -> list[Any]:
    return [found.content for found in source.read(start, choice)]


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
    assert read(source) == wanted
    assert source.count() == len(rows)
    choice = Choice(lambda number: number % 2 == odd if odd else True, stop)
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
    assert read(source) == [Content("one"), Content("two\x0b\x85"), Content("three")]
    assert source.count() == 3


BAD_LINES = [
    (b"", "empty", "the text is empty"),
    (b"  \t ", "empty", "the text is empty"),
    (b"caf\xe9 au lait", "encoding", "byte 0xe9 at place 3"),
    (b"\xed\xa0\x80", "encoding", "not UTF-8"),
    (b"{", "json", "broken JSON"),
    (b'{"text": "a"', "json", "broken JSON"),
    (b"[" * 100_000, "json", "nested too deep"),
    (b'{"text": ' + b"9" * 5000 + b"}", "json", "broken JSON"),
    (b'{"other": "a"}', "missing", "no field 'text'; there is: 'other'"),
    (b'{"text": null}', "missing", "no field 'text'"),
    (b'{"text": 3}', "type", "no string but int"),
    (b'{"text": ["a"]}', "type", "no string but list"),
    (b'{"text": " "}', "empty", "the text is empty"),
    (b'{"text": "a", "text_pair": ""}', "empty", "the second text is empty"),
    (b'{"text": "a", "text_pair": 1}', "type", "the second text is no string"),
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
    first, bad, *rest = read(open_file(file))
    assert [first, *rest] == [Content("good"), Content("good too"), Content("a", "b")]
    assert isinstance(bad, Problem)
    assert (bad.where, bad.kind) == ("a.jsonl, line 2", kind)
    assert message in bad.message
    assert len(str(bad)) < 300


def test_bad_pairs(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_bytes(b"a\tb\nalone\na\tb\tc\n\tb\na\t \n\xff\tb\n")
    good, *bad = read(open_file(file))
    assert good == Content("a", "b")
    assert [one.kind for one in bad] == ["missing", "missing", "empty", "empty", "encoding"]


def test_a_line_that_never_ends_is_one_bad_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LONGEST_LINE", 100)
    file = tmp_path / "a.txt"
    file.write_bytes(b"a" * 99 + b"\n" + b"b" * 350 + b"\n" + b"c\n" + b"d" * 100)
    source = open_file(file)
    first, bad, third, last = read(source)
    assert (first, third) == (Content("a" * 99), Content("c"))
    assert bad.kind == last.kind == "line"
    assert source.count() == 4


def test_parquet_nulls_bad_bytes_and_other_columns(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = pa.array([b"good", None, b"\xff", b"", b"last"], pa.binary())
    pq.write_table(pa.table({"n": list(range(5)), "body": texts}), tmp_path / "a.parquet")
    source = open_file(tmp_path / "a.parquet", fields=Fields("body"))
    good, *bad, last = read(source)
    assert (good, last) == (Content("good"), Content("last"))
    assert [one.kind for one in bad] == ["missing", "encoding", "empty"]
    assert bad[0].where == "a.parquet, row 2"
    with pytest.raises(InputError, match="no column 'text'; it has: n, body"):
        open_file(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="holds int64, not strings"):
        open_file(tmp_path / "a.parquet", fields=Fields("n"))
    with pytest.raises(InputError, match=r"no column 'bodi'; it has: n, body; .*--pair-field"):
        open_file(tmp_path / "a.parquet", fields=Fields("body", "bodi"))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(InputError, match="not a whole Parquet file"):
        open_file(tmp_path / "b.parquet")


def test_parquet_columns_that_are_no_text(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "rows.parquet"
    for wrong in ([["a", "b"], ["c"]], [{"a": "x"}, {"a": "y"}], [1, 2], [None, None]):
        pq.write_table(pa.table({"text": wrong}), file)
        with pytest.raises(InputError, match=r"the column 'text' of .* not strings"):
            open_file(file)
    texts = ["one", "two"]
    pq.write_table(pa.table({"text": texts, "text_pair": pa.nulls(2)}), file)
    assert read(open_file(file)) == [Content(one) for one in texts]
    kinds = [pa.large_string(), pa.binary(), pa.dictionary("int8", "string")]
    kinds += [pa.string_view()] if int(pa.__version__.split(".")[0]) >= 21 else []  # can be written
    for kind in kinds:
        pq.write_table(pa.table({"text": pa.array(texts, pa.string()).cast(kind)}), file)
        assert read(open_file(file)) == [Content(o) for o in texts]


def test_a_damaged_parquet_file_is_told(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": [f"text {n}" for n in range(3000)]}), file)
    data = bytearray(file.read_bytes())
    data[200:400] = b"\xff" * 200
    file.write_bytes(data)
    with pytest.raises(InputError, match="is damaged and cannot be read to its end"):
        read(open_file(file))


def test_rows_of_pandas_keep_their_order(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"text": ["a", "b", "c"], "text_pair": ["x", "y", "z"]}, index=[2, 0, 7])
    (whole,) = sources_of(frame)
    assert read(whole) == [
        Content("a", "x"),
        Content("b", "y"),
        Content("c", "z"),
    ]
    (column,) = sources_of(frame["text"])
    assert [one.text for one in read(column)] == ["a", "b", "c"]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"the cat sat on the mat\n" * 200_000)  # 5 MB
    source = open_file(file)
    tracemalloc.start()
    try:
        assert sum(1 for _ in source.read(START, Choice(lambda n: n % 50 == 0))) == 4000
        assert source.count() == 200_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.5e6


# ------------------------------------------------------------------------- rows from Python


def test_rows_in_memory(tmp_path: Path) -> None:
    datasets: Any = importlib.import_module("datasets")

    rows = ["a", ("b", "c"), ["d", "e"], {"text": "f"}, {"text": "g", "text_pair": "h"}]
    wanted = [
        Content("a"), Content("b", "c"), Content("d", "e"), Content("f"), Content("g", "h")
    ]  # fmt: skip
    assert read(sources_of(rows)[0]) == read(sources_of(iter(rows))[0]) == wanted
    bad = read(sources_of([1, None, ("a",), ("a", 2), {}, "", {"text": b"a"}])[0])
    kinds = ["type", "type", "type", "type", "missing", "empty", "type"]
    assert [one.kind for one in bad] == kinds
    dataset = datasets.Dataset.from_dict({"text": ["x", "y"], "text_pair": [None, "z"]})
    (source,) = sources_of(dataset)
    assert read(source) == [Content("x"), Content("y", "z")]
    assert source.identity()["fingerprint"] == dataset._fingerprint
    other = datasets.Dataset.from_dict({"text": ["x", "Y"], "text_pair": [None, "z"]})
    assert sources_of(other)[0].identity() != source.identity()
    streamed = dataset.to_iterable_dataset()
    assert read(sources_of(streamed)[0]) == [Content("x"), Content("y", "z")]


def test_a_stream_that_changed_is_noticed() -> None:
    source = Memory(iter("abcdef"), Fields())
    wanted = list(source.read(START, Choice(stop=3)))
    told = source.seen()
    again = Memory(iter("abcdef"), Fields())
    again.expected = told
    assert [f.content for f in again.read(wanted[-1].after, ALL)] == [
        Content("d"), Content("e"), Content("f")
    ]  # fmt: skip
    for other in ("abXdef", "ab"):
        changed = Memory(iter(other), Fields())
        changed.expected = told
        with pytest.raises(InputError, match="not those that the run in this folder began with"):
            list(changed.read(wanted[-1].after, ALL))


def test_what_data_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("one\n")
    Path("b.data").write_text("two\n")
    assert [source.name for source in sources_of("a.txt")] == ["a.txt"]
    assert [s.name for s in sources_of([Path("a.txt"), Path("b.data")], "text")] == [
        "a.txt",
        "b.data",
    ]
    for wrong, words in [
        ("no.txt", "does not exist"),
        (tmp_path, "is a folder"),
        ("b.data", "cannot tell the format"),
        ([], "no data was given"),
        (["a.txt"], "pathlib.Path objects"),
        ([Path("a.txt"), "text"], "not both"),
        ({"train": ["a"]}, "give one split"),
        (7, "not int"),
    ]:
        with pytest.raises(InputError, match=words):
            sources_of(wrong)
    with pytest.raises(InputError, match="formats are: text, jsonl, tsv, parquet, clark"):
        sources_of("a.txt", "csv")
    with pytest.raises(InputError, match="leave it out for rows in memory"):
        sources_of(["a"], "text")


# ------------------------------------------------------------------------ stream and selection


def stream_of(tmp_path: Path, sizes: Sequence[int], selection: Selection, rows: int) -> Stream:
    files = []
    for at, size in enumerate(sizes):
        file = tmp_path / f"{at}.txt"
        file.write_text("".join(f"row {at} {number}\n" for number in range(size)))
        files.append(file)
    return Stream(sources_of(files), selection, rows)


@PROPERTY
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    rows=st.integers(1, 7),
    limit=st.none() | st.integers(1, 30),
    share=st.none() | st.floats(0.1, 1),
    seed=st.integers(0, 3),
)
def test_blocks_spans_and_continued_streams_agree(
    tmp_path: Path, sizes: list[int], rows: int, limit: int | None, share: float | None, seed: int
) -> None:
    selection, _ = select(sum(sizes), limit, share, seed)
    stream = stream_of(tmp_path, sizes, selection, rows)
    blocks = list(stream.blocks(Position(), 0))
    texts = [f"row {at} {number}" for at, size in enumerate(sizes) for number in range(size)]
    wanted = [(key, texts[key]) for key in range(len(texts)) if key in selection]
    items = [item for block in blocks for item in block.items]
    assert [(one.key, one.content.text) for one in items if isinstance(one, Record)] == wanted
    assert all(len(block.items) == rows for block in blocks[:-1])
    spans = list(stream.spans(Position(), 0))
    assert [stream.read(span) for span in spans] == blocks
    assert [span.after for span in spans] == [block.after for block in blocks]
    for at, block in enumerate(blocks):
        assert list(stream.blocks(block.after, at + 1)) == blocks[at + 1 :]
        assert list(stream.spans(block.after, at + 1)) == spans[at + 1 :]


def test_a_file_that_shrank_is_noticed(tmp_path: Path) -> None:
    stream = stream_of(tmp_path, [3], Selection(), 2)
    with pytest.raises(InputError, match="became shorter"):
        stream.read(Span(0, Position(), 4, Position()))


@PROPERTY
@given(total=st.integers(1, 300), count=st.integers(1, 300), seed=st.integers(0, 9))
def test_a_number_of_rows_is_the_smallest_hashes(total: int, count: int, seed: int) -> None:
    selection, size = select(total, None, count, seed)
    chosen = [key for key in range(total) if key in selection]
    ordered = sorted(range(total), key=lambda key: mixed(key, seed))
    assert chosen == sorted(ordered[:count])
    assert size == len(chosen) == min(count, total)


def test_a_share_is_a_share_and_seeds_choose_others() -> None:
    chosen = [{k for k in range(20_000) if k in select(None, None, 0.1, s)[0]} for s in (0, 1)]
    for one in chosen:
        assert abs(len(one) - 2000) < 5 * (20_000 * 0.1 * 0.9) ** 0.5
    assert len(chosen[0] & chosen[1]) < 300
    assert all(key in select(None, None, 1.0, 0)[0] for key in range(1000))
    larger = select(None, None, 0.2, 0)[0]
    assert all(key in larger for key in chosen[0])  # a larger sample holds the smaller one


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((10, 0, None, 0), "limit is a number"),
        ((10, None, 0.0, 0), "share above 0"),
        ((10, None, 1.5, 0), "share above 0"),
        ((10, None, 0, 0), "at least 1 row"),
        ((None, None, 5, 0), "a stream does not tell"),
    ],
)
def test_selections_that_make_no_sense(arguments: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        select(*arguments)


def test_a_stream_of_rows_is_not_cut_into_parts() -> None:
    def rows() -> Iterator[str]:
        yield "a"

    with pytest.raises(InputError, match="give files, a list or a dataset"):
        list(Stream(sources_of(rows()), Selection(), 2).spans(Position(), 0))
