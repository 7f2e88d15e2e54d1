"""Damaged files and requests as in a deep run, a few of each; and the record of deep runs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from normscope.errors import InputError
from tests.deep import record
from tests.deep.damage import LONGEST, Reader, case, damaged, files, problem_of, readers
from tests.deep.slices import TESTS
from tests.deep.web import request, requests

FEW = 300


def test_every_reader_reads_or_refuses_a_few_damaged_files() -> None:
    listed = readers()
    parts, failures = files(1, FEW, listed=listed)
    assert failures == 0
    assert set(parts) == {reader.name for reader in listed}
    assert FEW - len(listed) < parts.total() < FEW + len(listed)


def test_whole_files_are_read(tmp_path: Path) -> None:
    """The contents that are damaged are valid, or nothing behind the first check is tested."""
    for reader in readers():
        if reader.share > 1:
            for whole in reader.whole:
                folder = tmp_path / reader.name.replace("/", " ")
                folder.mkdir(exist_ok=True)
                (folder / reader.file).write_bytes(whole)
                reader.read(folder)


def test_a_case_is_told_by_its_seed_and_number() -> None:
    reader = readers()[0]
    assert case(reader, 1, 2) == case(reader, 1, 2)
    assert len({case(reader, seed, number) for seed in (1, 2) for number in range(20)}) > 30
    assert request(1, 2) == request(1, 2)
    assert request(1, 2) != request(2, 2)


def test_most_damage_changes_the_file() -> None:
    whole = b'{"text": "a"}\n{"text": "b"}'
    changed = [damaged(random.Random(number), [whole], "lines") for number in range(200)]
    assert sum(data != whole for data in changed) > 150
    assert len(set(changed)) > 120


@pytest.mark.parametrize(
    ("name", "seed", "number"),
    [
        ("corpora: Parquet", 3, 199),  # the name of a column is not UTF-8
        ("corpora: Parquet", 3, 4144),  # its number of rows is not that of its parts
        ("corpora: Parquet", 5, 4677),
        ("corpora: pickles", 1, 190),  # a number of thousands of digits was told in full
        ("checkpoints", 1, 214),  # the error repeated the damage in full
        ("checkpoints", 1, 437),  # a method of compression that zipfile does not know
        ("finished runs", 1, 14),  # tables that are no tables
        ("questions: JSONL", 1, 513),  # nested too deeply
        ("normscope.json", 1, 881),  # nested too deeply
    ],
)
def test_damage_that_was_not_refused(tmp_path: Path, name: str, seed: int, number: int) -> None:
    (reader,) = (reader for reader in readers() if reader.name == name)
    assert problem_of(reader, tmp_path, case(reader, seed, number)) is None


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    def read(folder: Path) -> None:
        data = (folder / "it").read_bytes()
        if data == b"long":
            raise InputError("x" * LONGEST)
        if data == b"refused":
            raise InputError("it is refused")
        assert data == b"whole"

    reader = Reader("a reader", "it", [b"whole"], read)
    assert problem_of(reader, tmp_path, b"whole") is None
    assert problem_of(reader, tmp_path, b"refused") is None
    assert problem_of(reader, tmp_path, b"long") == "a message of 1,000 characters"
    found = problem_of(reader, tmp_path, b"other")
    assert found is not None
    assert found.startswith("AssertionError in test_damage.py")
    parts, failures = files(1, 50, listed=[reader])
    assert parts == {"a reader": 50}
    assert 40 < failures <= 50


def test_a_few_damaged_requests() -> None:
    parts, failures = requests(1, FEW)
    assert failures == 0
    assert parts.total() == FEW
    assert {"202", "400", "404", "405"} <= set(parts)


# ---- the record


def test_a_slice_adds_a_line_and_the_table_its_sum(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert record.next_seed("kernels", path) == 1
    record.append("kernels", 4, {"a": 2, "b": 3}, 0, path)
    record.append("kernels", 5, {"a": 1_000}, 1, path, seconds=2)
    record.append("mutants", 9, {"engine": 7}, 0, path)
    assert record.next_seed("kernels", path) == 6
    assert record.next_seed("kills", path) == 1
    lines = record.read(path)
    assert lines[0]["count"] == 5
    assert set(lines[0]["versions"]) == {"python", *record.PACKAGES}
    table = record.table(path)
    assert f"| {record.KINDS['kernels']} | 2 | 1,005 | 1 |\n" in table
    assert f"| {record.KINDS['kills']} | 0 | 0 | 0 |\n" in table
    with pytest.raises(ValueError, match="the kinds are"):
        record.append("kernel", 1, {}, 0, path)
    page = record.with_table(f"before\n{record.BEGIN}old{record.END}after", path)
    assert page == f"before\n{record.BEGIN}\n{table}\n{record.END}after"


def test_the_record_is_whole() -> None:
    """Every slice has its own seed, and its count is that of its parts."""
    runs = record.read()
    assert runs
    assert all(run["kind"] in record.KINDS for run in runs)
    assert all(run["count"] == sum(run["parts"].values()) > 0 for run in runs)
    told = [json.dumps([run["kind"], run["seed"], run["versions"], run["date"]]) for run in runs]
    assert len(set(told)) == len(told)


def test_the_page_has_the_sums_of_the_record() -> None:
    page = record.PAGE.read_text(encoding="utf-8")
    assert page.count(record.BEGIN) == page.count(record.END) == 1
    assert page == record.with_table(page), "run: python -m tests.deep.record"


def test_the_promises_have_the_counts_of_the_record(tmp_path: Path) -> None:
    page = record.PROMISES.read_text(encoding="utf-8")
    assert "| kills: " in page
    assert page == record.with_counts(page), "run: python -m tests.deep.record"
    path = tmp_path / "runs.jsonl"
    record.append("kills", 1, {"a": 1_234}, 0, path)
    assert (
        record.with_counts("| t | kills |\n| t | kills: 9 |\n", path)
        == "| t | kills: 1,234 |\n" * 2
    )


def test_slices_run_tests_that_exist() -> None:
    assert set(TESTS) < set(record.KINDS)
    for paths in TESTS.values():
        assert all((record.ROOT / path).exists() for path in paths)
