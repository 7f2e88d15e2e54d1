"""Speed and memory of analyze(), as ratios measured in one run.

Against the model's plain forward pass on the same ids, and against the dense form: the one that
builds every vector αf(x), a (head, query, key, hidden) tensor for each layer, from the same
recorded weights and values.

    python benchmarks/bench.py                    # prints a table
    python benchmarks/bench.py --json FILE        # and writes the figures
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import normscope
from normscope.models import load

LENGTHS = (32, 128, 512)
DENSE_UP_TO = 128  # beyond, the dense form is measured on one layer and multiplied


def text_of(tokenizer: Any, length: int) -> str:
    """A text of exactly ``length`` tokens, special tokens included."""
    sentence = "the cat sat on the mat , and the dog looked at it ."
    return " ".join(itertools.islice(itertools.cycle(sentence.split()), length - 2))


def median_ms(function: Callable[[], Any], repeats: int) -> float:
    """Median wall time, after one call to warm up."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def dense_norm(captured: Any) -> tuple[torch.Tensor, ...]:
    """‖f‖, ‖αf‖ and ‖Σ_h αf‖ by building every αf(x): (head, query, key, hidden)."""
    f = torch.einsum("bhke,heo->bhko", captured.value, captured.projection.weight)
    weighted = captured.alpha.unsqueeze(-1) * f.unsqueeze(2)
    return f.norm(dim=-1), weighted.norm(dim=-1), weighted.sum(dim=1).norm(dim=-1)


def time_length(model: Any, tokenizer: Any, length: int, repeats: int) -> dict[str, float]:
    text = text_of(tokenizer, length)
    inputs = tokenizer(text, return_tensors="pt")
    assert inputs["input_ids"].shape[1] == length

    def plain() -> Any:
        with torch.no_grad():
            return model(**inputs)

    def ours() -> Any:
        return normscope.analyze(model, tokenizer, text)

    # Interleaved, so that a slow moment of the machine falls on both.
    plain(), ours()
    pairs = [(median_ms(plain, 3), median_ms(ours, 3)) for _ in range(repeats)]
    forward, analyze = (statistics.median(column) for column in zip(*pairs, strict=True))
    with torch.no_grad(), normscope.capture(model) as captures:
        model(**inputs)
    layers = len(captures) if length <= DENSE_UP_TO else 1
    with torch.no_grad():
        one = median_ms(lambda: [dense_norm(c) for c in captures[:layers]], 3 if layers > 1 else 1)
    dense = one * len(captures) / layers
    return {
        "tokens": length,
        "forward_ms": forward,
        "analyze_ms": analyze,
        "dense_ms": dense,
        "analyze/forward": analyze / forward,
        "dense/analyze": dense / analyze,
    }


def peak_mb(what: str, length: int) -> float:
    """Peak resident memory of one pass in a fresh process, above the loaded model's."""
    command = [sys.executable, __file__, "--peak", what, "--length", str(length)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def measure_peak(what: str, length: int) -> None:
    """Print the peak of ``what``, in MB above what the process held before it."""
    model, tokenizer = load(None)
    text = text_of(tokenizer, length)
    short = tokenizer(text_of(tokenizer, 8), return_tensors="pt")
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        model(**short)
        normscope.analyze(model, tokenizer, text_of(tokenizer, 8))
        if what == "eager":
            model.set_attn_implementation("eager")
    gc.collect()
    before = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading the model
    if what == "eager":
        with torch.no_grad():
            model(**inputs)
    else:
        normscope.analyze(model, tokenizer, text)
    print(memory_mb("VmHWM") - before)


def memory_mb(field: str) -> float:
    """A field of Linux's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def machine() -> dict[str, Any]:
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            x.split(":", 1)[1].strip()
            for x in cpuinfo.read_text().splitlines()
            if "model name" in x
        ]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "normscope": normscope.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--peak", choices=["eager", "analyze"], help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, default=512, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        return measure_peak(options.peak, options.length)
    model, tokenizer = load(None)
    model.set_attn_implementation("sdpa")  # what a plain forward pass uses
    where = machine()
    print("  ".join(f"{key}: {value}" for key, value in where.items()))
    print("all-MiniLM-L6-v2, one text, attn_w and attn_n, heads summed; median wall times\n")
    print(f"{'tokens':>7}{'forward ms':>12}{'analyze ms':>12}{'dense ms':>11}"
          f"{'analyze/forward':>17}{'dense/analyze':>15}")  # fmt: skip
    rows = []
    for length in LENGTHS:
        row = time_length(model, tokenizer, length, options.repeats)
        rows.append(row)
        print(f"{length:7d}{row['forward_ms']:12.1f}{row['analyze_ms']:12.1f}{row['dense_ms']:11.0f}"
              f"{row['analyze/forward']:16.2f}x{row['dense/analyze']:14.0f}x")  # fmt: skip
    peaks = {what: peak_mb(what, 512) for what in ("eager", "analyze")}
    over = peaks["analyze"] - peaks["eager"]
    print(f"\npeak memory at 512 tokens above the loaded model: eager {peaks['eager']:.0f} MB, "
          f"analyze {peaks['analyze']:.0f} MB, difference {over:.0f} MB")  # fmt: skip
    if options.json:
        figures = {"machine": where, "times": rows, "peak_mb_at_512": peaks}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
