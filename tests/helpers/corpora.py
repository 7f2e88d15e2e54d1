"""A tiny model in a folder and small corpora for it."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck
from numpy.testing import assert_allclose

import normscope
from normscope.corpus import work
from normscope.corpus.readers import ALL, START, Mark, RowFilter, RowSource
from normscope.measures.statistics import StatisticSettings, Table
from normscope.models.architectures import tiny_model
from tests.helpers.tiny import TEXT, tokenizer

WORDS = [word for word in TEXT.split() if not word.startswith("##")][:50]
STATISTICS = ("dispersion", "categories", "mixing", "preserve_mix")
SETTINGS = StatisticSettings(masking=0.0, replicates=20)  # the tiny tokenizer has no mask token


# Few examples, since each of them writes files.
PROPERTY = hypothesis.settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def save_model(folder: Path, *, seed: int = 0) -> Path:
    """A random BERT and its tokenizer, as a user has them."""
    tiny_model("bert", seed=seed, dtype=torch.float32).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def sentences(count: int, *, seed: int = 0, longest: int = 14) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, longest))) for _ in range(count)]


def text_file(path: Path, count: int, *, seed: int = 0) -> Path:
    path.write_text("".join(f"{one}\n" for one in sentences(count, seed=seed)))
    return path


def mixed_corpus(home: Path) -> Path:
    """A model and a corpus of 60 sequences and three bad rows."""
    save_model(home / "model")
    text_file(home / "a.txt", 40)
    lines = [json.dumps({"text": a, "text_pair": b}) for a, b in pairwise(sentences(20, seed=1))]
    lines[3:3] = ["{broken", '{"text": ""}']
    (home / "b.jsonl").write_text("\n".join(lines) + '\n{"text": 1}\n')
    return home


def quick_run(folder: Path, output: Path | None = None, **changes: Any) -> Any:
    """A run over the mixed corpus with a cheap statistic, for `quick_measuring`."""
    return _run(
        folder, output, {"statistics": [Sums()], "block_rows": 8, "batch_tokens": 64}, changes
    )


def full_run(folder: Path, output: Path | None = None, **changes: Any) -> Any:
    """A run over the mixed corpus with real statistics."""
    size = {"block_rows": 31, "batch_tokens": 10_000}
    return _run(folder, output, {"statistics": STATISTICS, **size}, changes)


def _run(folder: Path, output: Path | None, usual: dict[str, Any], changes: dict[str, Any]) -> Any:
    arguments: dict[str, Any] = {
        "model": folder / "model",
        "data": [folder / "a.txt", folder / "b.jsonl"],
        "settings": SETTINGS,
        "output": output,
    }
    return normscope.corpus(**{**arguments, **usual, **changes})


class Stop(BaseException):
    """The process ends here."""


def interrupt(folder: Path, output: Path, after: int, **changes: Any) -> None:
    """A quick run that stops dead after some blocks."""
    with pytest.MonkeyPatch.context() as patch:
        done, whole = [0], work.CorpusWorker.run

        def stopping(self: Any, block: Any, *more: Any) -> Any:
            if done[0] == after:
                raise Stop
            done[0] += 1
            return whole(self, block, *more)

        patch.setattr(work.CorpusWorker, "run", stopping)
        with pytest.raises(Stop):
            quick_run(folder, output, checkpoint_seconds=0.0, **changes)


def contents_of(source: RowSource, start: Mark = START, chosen: RowFilter = ALL) -> list[Any]:
    """The contents and problems of the rows of a source."""
    return [row.content for row in source.read(start, chosen)]


@contextmanager
def quick_measuring() -> Iterator[None]:
    """For tests of a run, not of the statistics, whose numbers take time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "Measurer", QuickMeasurer)
        yield


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, the lock aside."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".normscope.lock"
    }


def lasting(folder: Path) -> dict[str, bytes]:
    """The files that must not differ between equal runs: all but the times."""
    return {name: data for name, data in contents(folder).items() if name != "run.json"}


def columns(result: Any) -> dict[str, dict[str, list[Any]]]:
    return {name: table.lists() for name, table in result.tables.items()}


def assert_same(found: list[Any], wanted: list[Any], rtol: float = 0.0) -> None:
    """Columns of a table: numbers to rounding, all else exactly."""
    if any(isinstance(value, float) for value in wanted):
        assert_allclose(found, wanted, rtol=rtol, atol=rtol * 1e-3)  # NaN equals NaN here
    else:
        assert found == wanted


class Sums:
    """A statistic of the embeddings: cheap, of the model and the text, and never exact in order."""

    name = "sums"
    conditions = ("plain",)

    def observe(self, layer: Any) -> dict[str, Any]:
        return {}

    def measure(self, batch: Any) -> dict[str, Any]:
        model, rows = batch
        vectors = model.get_input_embeddings().weight.detach().numpy()
        parts = [vectors[list(row.ids)].astype(np.float64) / (row.key + 0.7) for row in rows]
        return {
            "sum": sum(part.sum(axis=0) for part in parts),
            "rows": len(rows),
            "lengths": np.bincount([len(row.ids) for row in rows], minlength=65),
            "deep": {"first": min(row.key for row in rows), "empty": {}},
        }

    def merge(self, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        first = min(one["deep"]["first"], other["deep"]["first"])
        added = {name: one[name] + other[name] for name in ("sum", "rows", "lengths")}
        return {**added, "deep": {"first": first, "empty": {}}}

    def result(self, state: dict[str, Any]) -> dict[str, Table]:
        used = np.flatnonzero(state["lengths"])
        return {
            "sums": Table({"at": list(range(len(state["sum"]))), "sum": state["sum"]}, "Sums"),
            "lengths": Table({"tokens": used, "sequences": state["lengths"][used]}),
        }


class OtherSums(Sums):
    """The same under another name, with one table."""

    name = "other"

    def result(self, state: dict[str, Any]) -> dict[str, Table]:
        return {"other": Table({"rows": [state["rows"]]})}


class QuickMeasurer:
    """Stands for the real one where only the running of a corpus is tested."""

    def __init__(self, model: Any, tokenizer: Any, statistics: Any, settings: Any = None) -> None:
        self.model, self.statistics = model, statistics

    def measure(self, rows: Any) -> dict[str, Any]:
        return {one.name: one.measure((self.model, rows)) for one in self.statistics}


class Signing(Sums):
    """Leaves a file for each block that is begun, with the number of the process."""

    name = "signing"

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def measure(self, batch: Any) -> dict[str, Any]:
        keys = [row.key for row in batch.rows]
        (self.marks / f"{os.getpid()}-{min(keys) // 4}").touch()
        time.sleep(0.05)  # or it is all done before anybody can be killed
        return {"rows": len(keys)}

    def merge(self, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        return {"rows": one["rows"] + other["rows"]}

    def result(self, state: dict[str, Any]) -> dict[str, Table]:
        return {"signing": Table({"rows": [state["rows"]]})}
