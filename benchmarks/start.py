"""Measure how long a command takes to start, in new processes with a warm disk.

python benchmarks/start.py [--repeats 7] [--json start.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

WORKS = {
    "import torch": ["-c", "import torch"],
    "import normscope": ["-c", "import normscope"],
    "import torch, BertModel and its tokenizer": [
        "-c",
        "import torch; from transformers import BertModel, BertTokenizerFast",
    ],
    "normscope analyze --text": ["-m", "normscope", "analyze", "--text", "The cat sat."],
    "normscope --help": ["-m", "normscope", "--help"],
}


def measure(repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each run, the works in turn; the first turn is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in WORKS}
    for turn in range(repeats + 1):
        for name, arguments in WORKS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Print the medians, and write everything to a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    seconds = measure(options.repeats)
    medians = {name: float(np.median(runs)) for name, runs in seconds.items()}
    for name, median in medians.items():
        print(f"{median:6.2f} s  {name}")
    if options.json:
        facts = {"python": platform.python_version(), "seconds": medians, "all_seconds": seconds}
        options.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
