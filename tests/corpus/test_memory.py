"""Rows from Python: lists, pandas, datasets, streams; and what data may be."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from normscope.corpus.memory import Memory, sources_of
from normscope.corpus.readers import ALL, START, RowFields, RowFilter
from normscope.corpus.records import Content
from normscope.errors import InputError
from tests.helpers.corpora import contents_of


def test_rows_of_pandas_keep_their_order(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"text": ["a", "b", "c"], "text_pair": ["x", "y", "z"]}, index=[2, 0, 7])
    (whole,) = sources_of(frame)
    assert contents_of(whole) == [
        Content("a", "x"),
        Content("b", "y"),
        Content("c", "z"),
    ]
    (column,) = sources_of(frame["text"])
    assert [one.text for one in contents_of(column)] == ["a", "b", "c"]


def test_rows_in_memory(tmp_path: Path) -> None:
    datasets: Any = importlib.import_module("datasets")

    rows = ["a", ("b", "c"), ["d", "e"], {"text": "f"}, {"text": "g", "text_pair": "h"}]
    wanted = [
        Content("a"), Content("b", "c"), Content("d", "e"), Content("f"), Content("g", "h")
    ]  # fmt: skip
    assert contents_of(sources_of(rows)[0]) == contents_of(sources_of(iter(rows))[0]) == wanted
    bad = contents_of(sources_of([1, None, ("a",), ("a", 2), {}, "", {"text": b"a"}])[0])
    kinds = ["type", "type", "type", "type", "missing", "empty", "type"]
    assert [one.kind for one in bad] == kinds
    dataset = datasets.Dataset.from_dict({"text": ["x", "y"], "text_pair": [None, "z"]})
    (source,) = sources_of(dataset)
    assert contents_of(source) == [Content("x"), Content("y", "z")]
    assert source.identity()["fingerprint"] == dataset._fingerprint
    other = datasets.Dataset.from_dict({"text": ["x", "Y"], "text_pair": [None, "z"]})
    assert sources_of(other)[0].identity() != source.identity()
    streamed = dataset.to_iterable_dataset()
    assert contents_of(sources_of(streamed)[0]) == [Content("x"), Content("y", "z")]


def test_a_stream_that_changed_is_noticed() -> None:
    source = Memory(iter("abcdef"), RowFields())
    wanted = list(source.read(START, RowFilter(stop=3)))
    told = source.seen()
    again = Memory(iter("abcdef"), RowFields())
    again.expected = told
    assert [f.content for f in again.read(wanted[-1].after, ALL)] == [
        Content("d"), Content("e"), Content("f")
    ]  # fmt: skip
    for other in ("abXdef", "ab"):
        changed = Memory(iter(other), RowFields())
        changed.expected = told
        with pytest.raises(
            InputError, match="differ from those that the run in this folder started with"
        ):
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
    with pytest.raises(InputError, match="the format 'text' is for files, but the data are rows"):
        sources_of(["a"], "text")
