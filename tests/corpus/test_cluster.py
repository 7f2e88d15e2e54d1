"""The Ray engine, on a real Ray of two workers: equal tables, also when a worker is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import normscope
from normscope.corpus import cluster
from normscope.corpus.checkpoint import unpack
from normscope.corpus.memory import sources_of
from normscope.corpus.records import Position
from normscope.corpus.stream import RowBlock, Selection, Stream
from normscope.corpus.work import GROUP, Outcome
from normscope.errors import InputError, MissingExtraError
from tests.helpers.corpora import SETTINGS, STATISTICS, Signing, columns, save_model, text_file

ROOT = Path(__file__).parents[2]
pytest.importorskip("ray")

# In a process of its own, so that Ray's threads and settings end with it.
SCRIPT = """
import json, os, signal, sys, threading, time
from pathlib import Path

sys.path[:0] = [{tests!r}]
import torch

torch.set_num_threads(1)
from tests.corpus import test_cluster as tests

home, marks = Path({home!r}), Path({marks!r})


def kill_one():
    # Workers sign in with the number of each block they begin; the first to begin a third dies.
    while True:
        begun = [file.name.split("-") for file in marks.iterdir()]
        for pid in {{pid for pid, _ in begun}}:
            if sum(one == pid for one, _ in begun) >= 3:
                os.kill(int(pid), signal.SIGKILL)
                (marks.parent / "killed").write_text(pid)
                return
        time.sleep(0.01)


local = tests.run(home)
for file in marks.iterdir():
    file.unlink()  # this process has signed in, too
threading.Thread(target=kill_one, daemon=True).start()
spread = tests.run(home, home / "out", engine="ray", workers=2)
killed = (marks.parent / "killed").read_text()
begun = [file.name.split("-") for file in marks.iterdir()]
print(json.dumps({{
    "local": tests.told(local),
    "ray": tests.told(spread),
    "killed": killed,
    "pids": sorted({{pid for pid, _ in begun}}),
    "twice": sorted(int(b) for b in {{b for _, b in begun}} if sum(o == b for _, o in begun) > 1),
}}))
"""


def run(home: Path, output: Path | None = None, **changes: Any) -> Any:
    return normscope.corpus(
        home / "model",
        home / "a.txt",
        [*STATISTICS, Signing(home / "marks")],
        settings=SETTINGS,
        output=output,
        block_rows=4,
        **changes,
    )


def told(result: Any) -> dict[str, Any]:
    return {"tables": repr(columns(result)), "counts": result.counts}


@pytest.mark.slow
def test_ray_with_a_killed_worker_gives_the_local_tables(tmp_path: Path) -> None:
    save_model(tmp_path / "model")
    text = text_file(tmp_path / "a.txt", 4 * (GROUP + 6))
    text.write_text(text.read_text() + "\n")
    marks = tmp_path / "marks"
    marks.mkdir()
    source = str(Path(normscope.__file__).parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), source]),
        "OMP_NUM_THREADS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    code = SCRIPT.format(tests=str(ROOT), home=str(tmp_path), marks=str(marks))
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["killed"] in found["pids"]
    assert len(found["pids"]) >= 3  # two workers, and the one that took the dead one's place
    assert found["twice"]  # the block under way was begun again
    assert found["ray"] == found["local"]  # every number, to the last bit
    counts = found["ray"]["counts"]
    assert (counts["rows"], counts["bad"]) == (4 * (GROUP + 6) + 1, {"empty": 1})


def test_blocks_travel_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a", "text_pair": "é"}\n{\n"b"\n')
    stream = Stream(sources_of(file), Selection(), 2)
    for span in stream.spans(Position(), 0):
        block = stream.read(span)
        assert cluster._block_from(cluster._block_bytes(block)) == block
        assert cluster._span_from(json.dumps(asdict(span)).encode()) == span


def test_whole_groups_are_merged_and_others_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    job = type("", (), {"statistics": []})()
    monkeypatch.setattr(cluster, "_job", lambda _: job)
    outcomes = [Outcome(rows=n, tokens=1).to_dict() for n in range(2 * GROUP)]
    rows = cluster._rows([(n, 1, one) for n, one in enumerate(outcomes)])

    def merged(first: int, last: int) -> list[tuple[int, int, int]]:
        batch = {name: values[first:last] for name, values in rows.items()}
        made = cluster._merge(batch, [None])
        read = [Outcome.from_dict(unpack(one)).rows for one in made["outcome"]]
        return list(zip(made["block"], made["blocks"], read, strict=True))

    assert merged(0, GROUP) == [(0, GROUP, sum(range(GROUP)))]
    assert merged(GROUP, 2 * GROUP) == [(GROUP, GROUP, sum(range(GROUP, 2 * GROUP)))]
    assert merged(3, GROUP) == [(n, 1, n) for n in range(3, GROUP)]
    assert merged(4, GROUP + 4) == [(n, 1, n) for n in range(4, GROUP + 4)]


def test_a_refusal_on_a_worker_is_the_refusal_here(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def run(self, block: RowBlock) -> Outcome:
            if block.index == 5:
                raise InputError("a.txt, line 3: broken")
            return Outcome(rows=1)

    monkeypatch.setattr(cluster, "_job", lambda _: type("", (), {"statistics": []})())
    monkeypatch.setattr(cluster, "_worker", lambda job, weights: Refusing())
    blocks = [cluster._block_bytes(RowBlock(n, (), Position())) for n in range(GROUP)]
    rows = cluster._Actor()({"block": blocks}, [None], "")
    made = cluster._merge(rows, [None])  # the refusal is in it, so the group stays apart
    assert made["block"] == list(range(GROUP))
    assert cluster._outcome_from(unpack(made["outcome"][4])).rows == 1
    with pytest.raises(InputError, match=r"^a.txt, line 3: broken$"):
        cluster._outcome_from(unpack(made["outcome"][5]))


def test_errors_that_are_not_made_from_a_message_come_back_too() -> None:
    data = {"refused": "MissingExtraError", "because": "this needs pyarrow"}
    with pytest.raises(MissingExtraError, match=r"^this needs pyarrow$"):
        cluster._outcome_from(data)
