"""Data that change during a run: what is measured is what was hashed, or the run says so."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import normscope
from normscope.corpus import snapshot
from normscope.corpus.memory import sources_of
from normscope.corpus.records import Position
from normscope.corpus.snapshot import open_snapshot, summarise
from normscope.corpus.stream import Selection, Stream
from normscope.corpus.work import CorpusWorker
from normscope.errors import InputError
from tests.helpers.corpora import SETTINGS, Sums, lasting, save_model, sentences

ROWS = 24


def as_text(path: Path, rows: list[str]) -> None:
    path.write_text("".join(f"{row}\n" for row in rows))


def as_json(path: Path, rows: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))


def as_pairs(path: Path, rows: list[str]) -> None:
    path.write_text("".join(f"{row}\t{row}\n" for row in rows))


def as_parquet(path: Path, rows: list[str]) -> None:
    pq.write_table(pa.table({"text": rows}), path, row_group_size=8, compression="none")


def as_tokens(path: Path, rows: list[str]) -> None:
    path.write_bytes(pickle.dumps([{"tokens": row.split()} for row in rows]))


WRITE: dict[str, Callable[[Path, list[str]], None]] = {
    "a.txt": as_text,
    "a.jsonl": as_json,
    "a.tsv": as_pairs,
    "a.parquet": as_parquet,
    "a.pkl": as_tokens,
}
BEFORE = sentences(ROWS, seed=1)
AFTER = [row.replace("a", "e") for row in BEFORE]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("changing") / "model")


def run(model: Path, data: Path, output: Path) -> Any:
    return normscope.corpus(
        model,
        data,
        [Sums()],
        settings=SETTINGS,
        output=output,
        block_rows=4,
        checkpoint_seconds=0.0,
    )


def change_before_block(patch: pytest.MonkeyPatch, block: int, change: Callable[[], None]) -> None:
    """Change something when a block begins to be measured."""
    whole = CorpusWorker.run

    def running(self: Any, begun: Any, *more: Any) -> Any:
        if begun.index == block:
            change()
        return whole(self, begun, *more)

    patch.setattr(CorpusWorker, "run", running)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", WRITE)
def test_a_file_that_changes_during_a_run(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash in the result is that of the bytes that were measured, or there is no result."""
    monkeypatch.setattr(snapshot, "PIECE", 64)
    monkeypatch.setattr("io.DEFAULT_BUFFER_SIZE", 64)
    data, write = tmp_path / name, WRITE[name]
    write(data, BEFORE)
    whole = run(model, data, tmp_path / "whole")
    digest = hashlib.sha256(data.read_bytes()).hexdigest()
    assert whole.identity["data"][0]["sha256"] == digest
    with monkeypatch.context() as patch:
        change_before_block(patch, 1, lambda: write(data, AFTER))
        if name in ("a.pkl", "a.parquet"):  # small files, which were read as a whole before
            run(model, data, tmp_path / "changed")
        else:
            with pytest.raises(InputError, match=r"changed after the run began \(other content"):
                run(model, data, tmp_path / "changed")
            assert not (tmp_path / "changed" / "statistics.json").exists()
            with pytest.raises(InputError, match=r"data\[0\]\.sha256 was .* and is"):
                run(model, data, tmp_path / "changed")  # resumed with other bytes
            write(data, BEFORE)
            run(model, data, tmp_path / "changed")
    assert lasting(tmp_path / "changed") == lasting(tmp_path / "whole")


@pytest.mark.usefixtures("quick")
def test_what_is_appended_during_a_run_is_not_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "a.txt"
    as_text(data, BEFORE)
    run(model, data, tmp_path / "whole")
    change_before_block(monkeypatch, 1, lambda: as_text(data, BEFORE + AFTER))
    assert run(model, data, tmp_path / "changed").counts["sequences"] == ROWS
    assert lasting(tmp_path / "changed") == lasting(tmp_path / "whole")


@pytest.mark.parametrize("name", WRITE)
def test_workers_compare_what_they_read(name: str, tmp_path: Path) -> None:
    """A worker gets the hashes with its part of the work, and opens the file itself."""
    data, write = tmp_path / name, WRITE[name]
    write(data, BEFORE)
    stream = Stream(sources_of(data), Selection(), 4)
    identity = [source.identity() for source in stream.sources]
    sent = pickle.loads(pickle.dumps(stream))
    spans = list(stream.spans(Position(), 0))
    before = [sent.read(span) for span in spans]
    assert sum(len(block.items) for block in before) == ROWS
    assert [source.identity() for source in sent.sources] == identity
    if name != "a.pkl":  # was read as a whole, and its rows are what workers get
        write(data, AFTER)
        with pytest.raises(InputError, match="changed after the run began"):
            pickle.loads(pickle.dumps(stream)).read(spans[-1])
        data.unlink()
        with pytest.raises(InputError, match=r"changed after the run began \(No such file"):
            pickle.loads(pickle.dumps(stream)).read(spans[0])


def test_a_snapshot_is_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "PIECE", 7)
    for content in (b"", b"\n", b"abcdefg", b"abcdefgh\nij", bytes(range(256))):
        path = tmp_path / "data"
        path.write_bytes(content)
        summary = summarise(path)
        lines = content.count(b"\n") + (content[-1:] not in (b"", b"\n"))
        assert (summary.size, summary.lines) == (len(content), lines)
        with open_snapshot(path, summary) as file:
            assert file.read() == content
            for start in range(0, len(content), 5):
                assert file.seek(start) == start
                assert file.read(9) == content[start : start + 9]
            assert file.seek(-1 if content else 0, 2) == max(0, len(content) - 1)
