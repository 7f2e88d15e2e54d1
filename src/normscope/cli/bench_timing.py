"""Measure the time and memory of the works of `normscope bench`."""

from __future__ import annotations

import gc
import os
import platform
import re
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import transformers

import normscope
from normscope.attribution.methods.table import TABLE
from normscope.cli import bench_texts
from normscope.cli.bench_methods import GRADIENT
from normscope.cli.bench_profile import profiles
from normscope.cli.bench_works import SHAPES, BenchSettings, Work, model_of, plan, shape_of
from normscope.errors import ExactnessError, InputError, UnsupportedModelError
from normscope.foundation.files import write_file
from normscope.foundation.progress import progress_bar, stage
from normscope.models import identity
from normscope.text.limits import max_length_of

MEASURED_MEMORY = ("eager", "2020")  # works whose peak memory is measured on a CPU

# Errors of one work that hide no other.
FAILURES = (torch.OutOfMemoryError, ExactnessError, UnsupportedModelError, InputError)

BenchRow = dict[str, Any]  # the figures of one work at one length, ready for JSON


def run(settings: BenchSettings) -> dict[str, Any]:
    """Measure all works at all lengths; return machine, model and rows as plain data."""
    model = model_of(settings)
    limit = min(max_length_of(model.config, as_target=side) or 2**20 for side in (False, True))
    lengths = settings.lengths if settings.by_length else ()
    if wrong := [tokens for tokens in lengths if not 2 <= tokens <= limit]:
        raise InputError(f"unknown length: {wrong[0]}; valid for this model: 2 to {limit}")
    rows: list[BenchRow] = []
    texts: list[BenchRow] = []
    tables: list[str] = []
    with torch.no_grad(), _tf32(settings.tf32):
        for tokens in lengths:
            works = list(plan(settings, model, tokens))
            rows += _measure(settings, model, works, f"{tokens} tokens", tokens=tokens)
            if settings.profile is not None:
                tables += profiles(works, model, f"{settings.batch} × {tokens} tokens")
        if settings.texts:
            works, sizes = bench_texts.text_works(settings, model), bench_texts.sizes()
            title = f"{sizes['texts']} texts"
            texts = _measure(settings, model, works, title, **sizes)
            if settings.profile is not None:
                tables += profiles(works, model, title)
    if settings.profile is not None:
        write_file(settings.profile, "\n".join(tables))
    if settings.device == "cpu":
        for row in rows:
            if row["tokens"] == max(lengths) and row["work"] in MEASURED_MEMORY:
                stage(f"measuring the memory of {row['work']}")
                row["peak_mb"] = _peak_of_child(settings, row["work"], row["tokens"])
    name = settings.model if settings.model in SHAPES else identity(model)["name"]
    dtype = settings.dtype + " (tf32)" * settings.tf32
    return {
        "machine": machine(settings.device),
        "model": {"name": name, **shape_of(model), "dtype": dtype},
        "rows": rows,
        **({"texts": texts} if settings.texts else {}),
    }


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    products = torch.backends.cuda.matmul
    before, products.allow_tf32 = products.allow_tf32, allowed
    try:
        yield
    finally:
        products.allow_tf32 = before


def _measure(
    settings: BenchSettings, model: Any, works: list[Work], description: str, **sizes: int
) -> list[BenchRow]:
    """Time the works in turn; return their rows, with the sizes of what they read."""
    rows: dict[str, BenchRow] = {}
    for work in works:
        rows[work.name] = {"work": work.name, "batch": settings.batch, **sizes}
        rows[work.name] |= {"ms": None, "ratio": None, "peak_mb": None, "accuracy": None}
        rows[work.name] |= {"in_hand": work.in_hand, "note": work.note}
    runs: dict[Work, list[tuple[float, float | None]]] = {
        work: [] for work in works if work.call is not None
    }
    total = (settings.repeats + 1) * len(runs)
    with progress_bar(total, unit="run", description=description) as bar:
        for _ in range(settings.repeats + 1):
            for work in list(runs):  # interleaved: a slow moment of the machine affects all
                try:
                    runs[work].append(_measure_once(work, model, settings.device))
                except FAILURES as error:
                    rows[work.name]["note"] = _reason(error)
                    del runs[work]
                bar.update()
    for work, measurements in runs.items():
        row = rows[work.name]
        row["all_ms"] = [ms for ms, _ in measurements[1:]]  # the first run is the warm-up
        row["ms"] = statistics.median(row["all_ms"])
        # The warm-up counts here: replaying a CUDA graph does not count the memory it holds.
        row["peak_mb"] = max((peak for _, peak in measurements if peak is not None), default=None)
        if work.operations:
            row["gflops"] = work.operations / row["ms"] / 1e6
        _add_accuracy(row, work, model)
    _compare_with_forward(rows)
    _compare_with_matmul(rows)
    _compare_with_dense(rows)
    _compare_with_pairs(rows)
    _compare_with_gradient(rows)
    return list(rows.values())


def _reason(error: Exception) -> str:
    """Return why a work could not be measured, in one sentence."""
    return f"{type(error).__name__}: {str(error).split('. ')[0]}"


def _add_accuracy(row: BenchRow, work: Work, model: Any) -> None:
    """Add the error of the work's lengths against a dense float64 computation."""
    if work.accuracy is None:
        return
    stage(f"comparing {work.name} with float64")
    model.set_attn_implementation(work.attention)
    try:
        row["accuracy"] = work.accuracy()
    except FAILURES as error:
        row["note"] = _joined(row["note"], f"no accuracy: {_reason(error)}")


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def _compare_with_forward(rows: dict[str, BenchRow]) -> None:
    """Add each work's time in units of the plain forward pass."""
    forward = rows["forward"]["ms"]
    for row in rows.values():
        row["ratio"] = row["ms"] / forward if row["ms"] and forward else None


def _compare_with_matmul(rows: dict[str, BenchRow]) -> None:
    """Add the speed of the feed-forward scopes as a share of that of a plain product."""
    if "gflops" in rows.get("2024", {}) and "gflops" in rows.get("matmul", {}):
        row = rows["2024"]
        row["of_matmul"] = row["gflops"] / rows["matmul"]["gflops"]
        row["note"] = _joined(row["note"], f"{row['of_matmul']:.0%} of the speed of matmul")


def _compare_with_dense(rows: dict[str, BenchRow]) -> None:
    """Add how much longer the dense form takes, with and without the model's forward pass.

    The dense form computes maps from captures and does not run the model itself.
    """
    forward, ours = (rows.get(name, {}).get("ms") for name in ("forward", "2020"))
    for name, row in rows.items():
        if name.startswith("dense") and row["ms"] and ours and forward and ours > forward:
            row["to_2020"] = (forward + row["ms"]) / ours
            row["to_2020_maps"] = row["ms"] / (ours - forward)
            ratios = (
                f"{row['to_2020_maps']:.0f}× the 2020 maps, {row['to_2020']:.0f}× with the pass"
            )
            row["note"] = _joined(row["note"], ratios)


def _compare_with_pairs(rows: dict[str, BenchRow]) -> None:
    """Add the time of a difference in units of the forward pass of both inputs."""
    both, row = rows.get("pairs", {}).get("ms"), rows.get("secant", {})
    if both and row.get("ms"):
        row["to_pairs"] = row["ms"] / both
        row["note"] = f"{row['to_pairs']:.2f}× the forward pass of both inputs"


def _compare_with_gradient(rows: dict[str, BenchRow]) -> None:
    """Add the time of each method in units of input × gradient by plain autograd."""
    unit = rows.get(GRADIENT, {}).get("ms")
    for name, row in rows.items():
        if unit and row["ms"] and name.partition(":")[0] in TABLE:
            row["to_gradient"] = row["ms"] / unit
            row["note"] = _joined(row["note"], f"{row['to_gradient']:.2f}× {GRADIENT}")


def _measure_once(work: Work, model: Any, device: str) -> tuple[float, float | None]:
    """Return the milliseconds and, on a GPU, the megabytes beyond those held before."""
    assert work.call is not None
    model.set_attn_implementation(work.attention)
    if cuda := device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    start = time.perf_counter()
    work.call()
    if cuda:
        torch.cuda.synchronize()
    ms = 1e3 * (time.perf_counter() - start) * work.times
    return ms, (torch.cuda.max_memory_allocated() - before) / 1e6 if cuda else None


def _peak_of_child(settings: BenchSettings, work: str, tokens: int) -> float | None:
    """Return the peak memory of one pass in a fresh process; None if the system hides it."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        try:
            return process.submit(_peak, settings, work, tokens).result()
        except (OSError, BrokenExecutor):
            return None


def _peak(settings: BenchSettings, name: str, tokens: int) -> float:
    """Run one work in this process; return its peak memory in MB beyond that held before."""
    settings, status = replace(settings, dense=False, groups=["2020"]), Path("/proc/self/status")
    transformers.utils.logging.disable_progress_bar()
    model, before = model_of(settings), 0.0

    def megabytes(field: str) -> float:
        return int(re.findall(rf"{field}:\s*(\d+) kB", status.read_text())[0]) * 1024 / 1e6

    with torch.no_grad():
        for length in (4, tokens):  # the short one first, for memory that is allocated only once
            work = next(work for work in plan(settings, model, length) if work.name == name)
            gc.collect()
            before = megabytes("VmRSS")
            status.with_name("clear_refs").write_text("5")  # reset the peak
            _measure_once(work, model, "cpu")
    return megabytes("VmHWM") - before


def machine(device: str) -> dict[str, Any]:
    """Describe what the figures depend on besides the model."""
    info = Path("/proc/cpuinfo")
    cpu = re.search(r"model name\s*: (.*)", info.read_text() if info.exists() else "")
    return {
        **({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {}),
        "cpu": cpu[1] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
        "normscope": normscope.__version__,
        "python": platform.python_version(),
    }
