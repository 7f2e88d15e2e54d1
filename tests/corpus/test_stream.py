"""Blocks, spans and continued streams agree; a sample depends on the rows and the seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.corpus.memory import sources_of
from normscope.corpus.records import Position, Record
from normscope.corpus.stream import Selection, Span, Stream, row_hash, select
from normscope.errors import InputError
from tests.helpers.corpora import PROPERTY


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
    with pytest.raises(InputError, match="shrank while"):
        stream.read(Span(0, Position(), 4, Position()))


@PROPERTY
@given(total=st.integers(1, 300), count=st.integers(1, 300), seed=st.integers(0, 9))
def test_a_number_of_rows_is_the_smallest_hashes(total: int, count: int, seed: int) -> None:
    selection, size = select(total, None, count, seed)
    chosen = [key for key in range(total) if key in selection]
    ordered = sorted(range(total), key=lambda key: row_hash(key, seed))
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
        ((10, 0, None, 0), "limit must be an integer of at least 1, but is 0"),
        ((10, None, 0.0, 0), "share above 0"),
        ((10, None, 1.5, 0), "share above 0"),
        ((10, None, 0, 0), "at least 1 row"),
        ((None, None, 5, 0), "the number of rows in a stream is unknown; give a share"),
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
