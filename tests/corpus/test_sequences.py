"""Tokens that are ready are used as they are; batches have rows of similar lengths."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

from normscope.corpus.sequences import batches
from normscope.measures.statistics import Row
from tests.helpers.corpora import assert_same, columns
from tests.helpers.corpora import full_run as run


def test_ready_tokens(folder: Path, tmp_path: Path) -> None:
    rows = [
        {"tokens": ["<s>", "the", "cat", "</s>", "a", "dog", "</s>"], "attns": np.zeros(3)},
        {"tokens": ["<s>", "unheard", "</s>"]},
        {"tokens": ["<s>", "</s>"]},
        {"tokens": ["<s>", *["cat"] * 90, "</s>"]},
    ]
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(rows))
    result = run(folder, data=tmp_path / "a.pkl", statistics=["mixing"])
    assert (result.counts["sequences"], result.counts["cut"]) == (2, 1)
    assert result.counts["tokens"] == 7 + 64
    messages = [one.message for one in result.problems]
    assert "'unheard' is not in the tokenizer's vocabulary" in messages[0]
    assert "only special tokens" in messages[1]
    texts = run(folder, data=[("the cat", "a dog"), " ".join(["cat"] * 62)], statistics=["mixing"])
    for name, table in columns(texts).items():
        for column, values in table.items():
            assert_same(columns(result)[name][column], values, 1e-5)


def row(key: int, length: int) -> Row:
    return Row(key, (5,) * length, None, (False,) * length)


def test_batches_have_rows_of_similar_lengths_within_the_budget() -> None:
    rows = [row(key, length) for key, length in enumerate([3, 9, 4, 9, 20, 1, 4])]
    keys = [[item.key for item in batch] for batch in batches(rows, 18)]
    assert keys == [[4], [1, 3], [2, 6, 0, 5]]  # longest first; one length in the order of rows
    assert list(batches([], 18)) == []
    assert [len(batch) for batch in batches(rows, 1)] == [1] * 7
