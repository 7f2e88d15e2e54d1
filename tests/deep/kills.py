"""Kill corpus runs with SIGKILL at random moments, start them again, and compare every byte.

    python -m tests.deep.kills [--kills 200] [--seed 1]

Runs over a text file, a JSONL file with bad rows and a Parquet file write a checkpoint after every
block. Each is killed several times, at moments drawn from the seed, and then goes on to its end.
Its folder must then have the files of an undisturbed run, byte for byte, and no other. After each
kill the checkpoint must be readable, and a finished file must be whole.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

import normscope
from normscope.corpus.checkpoint import FINISHED, OWN_FOLDERS, Folder
from normscope.foundation.files import PARTIAL
from tests.deep import record
from tests.helpers.corpora import SETTINGS, lasting, save_model, sentences, text_file

ROWS, BLOCK = 202, 4  # 51 blocks: three whole groups of 16, and a part of the next
MOST = 5  # kills of one run
FORMATS = ("text", "jsonl", "parquet")


def corpora(home: Path) -> dict[str, Path]:
    """Write a model and a file of each format."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    save_model(home / "model")
    rows = [json.dumps({"text": text}) for text in sentences(ROWS - 3, seed=1)]
    rows[5:5], rows[40:40] = ["{broken", '{"text": ""}'], ['{"text": 1}']
    (home / "b.jsonl").write_text("\n".join(rows) + "\n")
    pq.write_table(pa.table({"text": sentences(ROWS, seed=2)}), home / "c.parquet")
    files = (text_file(home / "a.txt", ROWS), home / "b.jsonl", home / "c.parquet")
    return dict(zip(FORMATS, files, strict=True))


def run(home: Path, data: Path, output: Path) -> Any:
    """Begin or continue a run."""
    return normscope.corpus(
        home / "model",
        data,
        ["mixing", "dispersion"],
        settings=SETTINGS,
        output=output,
        block_rows=BLOCK,
        checkpoint_seconds=0.0,
        progress=False,
    )


def start(*arguments: Any) -> int:
    """Run in a process of its own, which has all imports already; return its number."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run(*arguments)
            status = 0
        finally:
            os._exit(status)
    return child


def standing(output: Path, whole: dict[str, bytes]) -> str:
    """Say how far a killed run is; fail if a file is neither absent nor complete."""
    if not output.exists():
        return "before"
    for name, data in whole.items():
        file = output / name
        assert not file.exists() or file.read_bytes() == data, f"{name} is half written"
    if (output / FINISHED).exists():
        return "closing"
    saved = Folder(output).load()
    if saved is None:
        return "before"
    return "writing" if (output / "tables").exists() else f"block {saved.progress.blocks}"


def partial_files(output: Path) -> int:
    """Return how many incomplete files a killed run has left, for its next start to remove."""
    folders = (output, *(output / name for name in OWN_FOLDERS))
    return sum(len(list(folder.glob(PARTIAL))) for folder in folders)


def main(kills: int, seed: int, home: Path) -> dict[str, Any]:
    """Kill so many runs; return what was seen."""
    chance, files = random.Random(seed), corpora(home)
    wholes: dict[str, dict[str, bytes]] = {}
    seconds: dict[str, float] = {}
    for name, data in files.items():
        run(home, data, home / "warm" / name)  # all that is imported on the way is there now
        began = time.monotonic()
        assert os.waitpid(start(home, data, home / "whole" / name), 0)[1] == 0
        seconds[name] = time.monotonic() - began
        wholes[name] = lasting(home / "whole" / name)
    done, ends, left = 0, 0, 0
    standings: dict[str, int] = {}
    for number, name in enumerate(cycle(files)):
        if done >= kills:
            break
        output = home / "killed" / str(number)
        last = min(kills, done + chance.randint(1, MOST))
        while True:
            child = start(home, files[name], output)
            if done < last:  # then it may go on to its end
                time.sleep(chance.uniform(0.0, 1.0) * seconds[name])
                os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            if status == 0:
                break
            assert os.WIFSIGNALED(status), "the run failed by itself; its traceback is above"
            assert os.WTERMSIG(status) == signal.SIGKILL
            done += 1
            left += partial_files(output)
            where = standing(output, wholes[name])
            standings[where] = standings.get(where, 0) + 1
        assert lasting(output) == wholes[name], f"{name}: other files after kills (seed {seed})"
        ends += 1
    return {"kills": done, "runs": ends, "partial files": left, "killed at": standings}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, help="default: one that was not used before")
    parser.add_argument("--record", action="store_true", help="add what was done to runs.jsonl")
    chosen = parser.parse_args()
    start_seed = record.next_seed("kills") if chosen.seed is None else chosen.seed
    torch.set_num_threads(1)  # a process with threads is not forked
    with tempfile.TemporaryDirectory() as folder:
        seen = main(chosen.kills, start_seed, Path(folder))
        json.dump(seen, sys.stdout)
        print()
    if chosen.record:
        record.append("kills", start_seed, seen["killed at"], 0)
