"""Parquet: nulls, bytes that are not UTF-8, columns that are no text, damaged files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normscope.corpus.readers import RowFields, open_file
from normscope.corpus.records import Content
from normscope.errors import InputError
from tests.helpers.corpora import contents_of


def test_parquet_nulls_bad_bytes_and_other_columns(tmp_path: Path) -> None:
    texts = pa.array([b"good", None, b"\xff", b"", b"last"], pa.binary())
    pq.write_table(pa.table({"n": list(range(5)), "body": texts}), tmp_path / "a.parquet")
    source = open_file(tmp_path / "a.parquet", fields=RowFields("body"))
    good, *bad, last = contents_of(source)
    assert (good, last) == (Content("good"), Content("last"))
    assert [one.kind for one in bad] == ["missing", "encoding", "empty"]
    assert bad[0].where == "a.parquet, row 2"
    with pytest.raises(InputError, match="no column 'text'; it has: n, body"):
        open_file(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="holds int64, not strings"):
        open_file(tmp_path / "a.parquet", fields=RowFields("n"))
    with pytest.raises(InputError, match=r"no column 'bodi'; it has: n, body; .*--pair-field"):
        open_file(tmp_path / "a.parquet", fields=RowFields("body", "bodi"))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(InputError, match="not a whole Parquet file"):
        open_file(tmp_path / "b.parquet")


def test_parquet_columns_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    for wrong in ([["a", "b"], ["c"]], [{"a": "x"}, {"a": "y"}], [1, 2], [None, None]):
        pq.write_table(pa.table({"text": wrong}), file)
        with pytest.raises(InputError, match=r"the column 'text' of .* not strings"):
            open_file(file)
    texts = ["one", "two"]
    pq.write_table(pa.table({"text": texts, "text_pair": pa.nulls(2)}), file)
    assert contents_of(open_file(file)) == [Content(one) for one in texts]
    kinds = [pa.large_string(), pa.binary(), pa.dictionary("int8", "string")]
    kinds += [pa.string_view()] if int(pa.__version__.split(".")[0]) >= 21 else []  # can be written
    for kind in kinds:
        pq.write_table(pa.table({"text": pa.array(texts, pa.string()).cast(kind)}), file)
        assert contents_of(open_file(file)) == [Content(o) for o in texts]


def test_a_damaged_parquet_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": [f"text {n}" for n in range(3000)]}), file)
    data = bytearray(file.read_bytes())
    data[200:400] = b"\xff" * 200
    file.write_bytes(data)
    with pytest.raises(InputError, match="is damaged and cannot be read to its end"):
        contents_of(open_file(file))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    column = pa.array(["a", "b"])
    pq.write_table(pa.Table.from_arrays([column, column], ["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"has 2 columns 'text'; .*rename all but one"):
        open_file(tmp_path / "a.parquet")
