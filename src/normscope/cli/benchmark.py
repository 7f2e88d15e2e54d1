"""`normscope bench`: time and memory beside the model's own passes, all in one run.

The same weights and the same random ids go through

    forward   the model's plain forward pass with sdpa attention, which all ratios refer to
    eager     its eager forward pass, with output_attentions=True
    2020      normscope: attn_w and attn_n
    2021      normscope: on through the residual and the norm after it, with mixing ratios
    2024      normscope: the feed-forward scopes
    reduce    normscope: mixing ratios and the 16 largest contributors of each token, no map kept
    matmul    one large square product, in the dtype of the feed-forward's products
    dense …   what 2020 gives (both maps, ‖f‖, ratios, the gap to the model's output), by building
              every vector αf(x) from the recorded α, values and W_O, in the dtype named
"""

from __future__ import annotations

import gc
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import transformers
from rich import box
from rich.table import Column, Table
from torch import Tensor
from tqdm import tqdm

import normscope
from normscope.capture import Capture, capture
from normscope.capture.layers import layers_of
from normscope.decomposition.maps import NAMES, available
from normscope.engine.collector import Options
from normscope.engine.runner import Runner
from normscope.errors import ExactnessError, InputError
from normscope.models import identity, load
from normscope.models.layouts import FeedForward
from normscope.results.signature import Signature
from normscope.testing import random_inputs
from normscope.text.limits import max_length_of

GROUPS = {
    "2020": ("attn_w", "attn_n"),
    "2021": ("attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n"),
    "2024": tuple(name for name in NAMES if "_ff" in name),
    "reduce": ("attn_n", "attn_res_n", "attn_res_ln_n"),
}
DTYPES = ["float64", "float32", "bfloat16", "float16"]
# Shapes with random weights. LlamaConfig's defaults are those of 8B too: hidden 4096, 32 heads.
LLAMA = {"num_key_value_heads": 8, "intermediate_size": 14336, "num_hidden_layers": 1}
LLAMA |= {"vocab_size": 1000, "max_position_embeddings": 2**18}
SHAPES = {"bert-base": ("Bert", dict[str, int]()), "llama-8b-layer": ("Llama", LLAMA)}
FF_LENGTH = 128  # the feed-forward scopes cost T²·d_ff·d: beyond, only if they are asked for
ONE_LAYER = 256e6  # bytes of a dense tensor beyond which one layer stands for all
DENSE_MOST, DENSE_SHARE = (
    10e9,
    0.6,
)  # the largest: bytes on a CPU, share of the free memory on a GPU
SQUARE = {"cpu": 2048, "cuda": 8192}  # side of the matrices whose product gives the speed


@dataclass(frozen=True)
class Settings:
    """What to measure, checked; the lengths are compared with the model once it is there."""

    model: str | None = None  # a folder, a hub name or one of SHAPES; None: the default model
    device: str = "cpu"
    dtype: str = "float32"
    lengths: Sequence[int] = (128, 512)
    batch: int = 1
    groups: Sequence[str] | None = None  # None: all, the feed-forward's up to FF_LENGTH only
    repeats: int = 5
    dense: bool = True
    tf32: bool = False

    def __post_init__(self) -> None:
        for what, given, valid in (
            ("group of maps", self.groups or (), list(GROUPS)),
            ("dtype", [self.dtype], DTYPES),
            ("device", [self.device], ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]),
        ):
            if unknown := [repr(name) for name in given if name not in valid]:
                raise InputError(f"unknown {what}: {unknown[0]}; valid here: {', '.join(valid)}")


def model_of(settings: Settings) -> Any:
    """The model, loaded or made, ready for plain passes."""
    dtype = getattr(torch, settings.dtype)
    if settings.model in SHAPES:
        kind, sizes = SHAPES[settings.model]
        config = getattr(transformers, f"{kind}Config")(**sizes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = getattr(transformers, f"{kind}Model")(config).to(settings.device, dtype).eval()
    else:
        model, _ = load(settings.model, dtype=dtype, device=settings.device, tokenizer=False)
    model.config.use_cache = False  # nobody reads it, and a plain pass would pay for it
    return model


def inputs_of(model: Any, batch: int, tokens: int) -> dict[str, Tensor]:
    """Random ids without padding, and no mask."""
    rows = [random_inputs(model, batch=1, length=tokens, seed=seed) for seed in range(batch)]
    return {k: torch.cat([row[k] for row in rows]) for k in rows[0] if k != "attention_mask"}


@dataclass(frozen=True, eq=False)
class Work:
    """One thing to measure, or the reason why it is left out."""

    name: str
    call: Any  # a function, or None
    note: str = ""
    attention: str = "eager"  # which every model has
    times: int = 1  # one layer stands for so many
    operations: int = 0


def plan(settings: Settings, model: Any, tokens: int) -> Iterator[Work]:
    """Everything that is measured at one length."""
    inputs = inputs_of(model, settings.batch, tokens)
    plain = "sdpa" if model._supports_sdpa else "eager"
    yield Work("forward", lambda: model(**inputs), f"{plain} attention", plain)
    yield Work("eager", lambda: model(**inputs, output_attentions=True))
    has = {name for names in available(model).values() for name in names} | {*GROUPS["2020"]}
    for group in GROUPS if settings.groups is None else settings.groups:
        maps = [name for name in GROUPS[group] if name in has]
        if group != "2020" and set(maps) <= {*GROUPS["2020"]}:
            yield Work(group, None, "the model has none of these maps")
        elif group == "2024" and settings.groups is None and tokens > FF_LENGTH:
            yield Work(group, None, f"over {FF_LENGTH} tokens only with --maps 2024")
        else:
            cost = _ff_operations(model, settings.batch, tokens) if group == "2024" else 0
            if cost:
                yield _matmul(settings)
            call = ours(model, inputs, tuple(maps), reduce=group == "reduce")
            yield Work(group, call, "", plain, operations=cost)
    if settings.dense:
        yield from _dense(settings, model, inputs, tokens)


def ours(
    model: Any, inputs: dict[str, Tensor], maps: tuple[str, ...], *, reduce: bool
) -> Callable[[], Any]:
    """Normscope on one batch; on a GPU the maps stay there, as the outputs of a plain pass do."""
    names = ("mixing_ratio", "top16") if reduce else ()
    options = Options(attention="fused" if reduce else "auto", reduce=names)
    runner = Runner(model, maps, options, Signature(model, None, {}))
    if next(model.parameters()).device.type == "cpu" or reduce:
        return lambda: runner.run(inputs)
    runner.run(inputs)  # judged once
    return lambda: runner.collect(inputs)


def _ff_operations(model: Any, batch: int, tokens: int) -> int:
    """Floating-point operations of the feed-forward scopes.

    For each layer and pair of tokens, a multiplication and an addition for each of
        d_ff · d      the vector through W_2
        H · d_ff      the heads' first projections, weighted and summed; twice where it is gated
        H · d         the same for what the residual carries
    A causal mask would allow half of it, and only whole blocks without any weight are passed over:
    of decoders, too, the full square is counted. A parallel layer has no such work.
    """
    shape, total = _shape(model), 0
    for layer, layout in layers_of(model).values():
        if isinstance(ff := layout.ff, FeedForward) and not layout.parallel:
            second: Any = layer.get_submodule(ff.second)
            inner = second.weight.numel() // shape["hidden"]
            first = (2 if ff.gate or ff.packed else 1) * inner
            total += inner * shape["hidden"] + shape["heads"] * (first + shape["hidden"])
    return 2 * total * batch * tokens**2


def _shape(model: Any) -> dict[str, int]:
    """Attention calls of a pass, and heads and hidden size, as a short pass shows them."""
    with torch.no_grad(), capture(model) as calls:
        model(**inputs_of(model, 1, 4))
    one = calls[0]
    return {"layers": len(calls), "heads": one.alpha.shape[1], "hidden": one.output.shape[-1]}


def _matmul(settings: Settings) -> Work:
    side, dtype = SQUARE[settings.device], getattr(torch, settings.dtype)
    dtype = torch.promote_types(dtype, torch.float32)  # as the feed-forward's products are
    square = torch.randn(side, side, dtype=dtype, device=settings.device)
    return Work("matmul", lambda: square @ square, f"{side}³, {dtype}", operations=2 * side**3)


def _dense(settings: Settings, model: Any, inputs: Any, tokens: int) -> Iterator[Work]:
    shape, most = _shape(model), DENSE_MOST
    if settings.device == "cuda":
        torch.cuda.empty_cache()  # what torch keeps for later counts as free
        most = DENSE_SHARE * torch.cuda.mem_get_info()[0]
    cells = settings.batch * shape["heads"] * tokens**2 * shape["hidden"]
    kept: list[Capture] = []
    wanted = shape["layers"] if 8 * cells <= ONE_LAYER else 1
    if 4 * cells <= most:  # or none will be built
        with capture(model, lambda one: kept.append(one) if len(kept) < wanted else None):
            model(**inputs)
    times = shape["layers"] // wanted
    for dtype in (torch.float64, torch.float32):
        name, size = str(dtype).replace("torch.", "dense "), dtype.itemsize * cells
        if size > most:
            yield Work(name, None, f"a tensor of {size / 1e9:.1f} GB for each layer")
        else:
            note = "" if times == 1 else f"one layer, times {times}"
            call = partial(lambda dtype: [dense(one, dtype) for one in kept], dtype)
            yield Work(name, call, note, times=times)


def dense(one: Capture, dtype: torch.dtype) -> dict[str, Tensor]:
    """What `2020` gives of one attention, by building every αf(x).

    That is a (batch, head, query, key, hidden) tensor; lengths and sums over keys are read off it.
    """
    repeats = one.alpha.shape[1] // one.value.shape[1]  # value heads are shared in groups
    value = one.value.to(dtype).repeat_interleave(repeats, dim=1)
    f = torch.einsum("bhke,heo->bhko", value, one.projection.weight.to(dtype))
    weighted = one.alpha.to(dtype).unsqueeze(-1) * f.unsqueeze(2)
    summed = weighted.sum(dim=1)
    whole, own = summed.sum(dim=2), summed.diagonal(dim1=1, dim2=2).transpose(1, 2)
    bias = 0 if one.projection.bias is None else one.projection.bias.to(dtype)
    mixed, kept = (whole - own).norm(dim=-1), own.norm(dim=-1)
    return {
        "attn_w": one.alpha.mean(dim=1),
        "attn_n": summed.norm(dim=-1),
        "transformed_norm": f.norm(dim=-1),
        "mixing_ratio": mixed / (mixed + kept),
        "gap": (whole + bias - one.output.to(dtype)).norm(dim=-1),
    }


def run(settings: Settings) -> dict[str, Any]:
    """Measure, and give everything as plain data: machine, model, rows."""
    model = model_of(settings)
    limit = min(max_length_of(model.config, as_target=side) or 2**20 for side in (False, True))
    if wrong := [tokens for tokens in settings.lengths if not 2 <= tokens <= limit]:
        raise InputError(f"unknown length: {wrong[0]}; valid for this model: 2 to {limit}")
    rows: list[dict[str, Any]] = []
    products = torch.backends.cuda.matmul
    before, products.allow_tf32 = products.allow_tf32, settings.tf32
    try:
        with torch.no_grad():
            for tokens in settings.lengths:
                rows += _measure(settings, model, list(plan(settings, model, tokens)), tokens)
    finally:
        products.allow_tf32 = before
    for row in rows if settings.device == "cpu" else ():
        if row["tokens"] == max(settings.lengths) and row["work"] in ("eager", "2020"):
            row["peak_mb"] = _peak_of_child(settings, row["work"], row["tokens"])
    name = settings.model if settings.model in SHAPES else identity(model)["name"]
    told = {"name": name, **_shape(model), "dtype": settings.dtype + " (tf32)" * settings.tf32}
    return {"machine": machine(settings.device), "model": told, "rows": rows}


def _measure(settings: Settings, model: Any, works: list[Work], tokens: int) -> list[Any]:
    rows: dict[str, Any] = {}
    for work in works:
        rows[work.name] = {"work": work.name, "batch": settings.batch, "tokens": tokens}
        rows[work.name] |= {"ms": None, "ratio": None, "peak_mb": None, "note": work.note}
    made: dict[Work, list[tuple[float, float | None]]] = {w: [] for w in works if w.call}
    for _ in tqdm(range(settings.repeats + 1), f"{tokens} tokens", disable=None, leave=False):
        for work in list(made):  # in turns: a slow moment of the machine falls on all
            try:
                made[work].append(_once(work, model, settings.device))
            except (torch.OutOfMemoryError, ExactnessError) as error:
                rows[work.name]["note"] = f"{type(error).__name__}: {str(error).split('. ')[0]}"
                del made[work]
    for work, figures in made.items():
        times, _ = zip(*figures[1:], strict=True)  # the first is the warm-up
        row, ms = rows[work.name], statistics.median(times)
        # Of all, the warm-up too: what a recorded graph holds is not counted when it is replayed.
        held = [one for _, one in figures if one is not None]
        row |= {"ms": ms, "all_ms": times, "peak_mb": max(held, default=None)}
        row["ratio"] = ms / rows["forward"]["ms"] if rows["forward"]["ms"] else None
        if work.operations:
            row["gflops"] = work.operations / ms / 1e6
        if work.name == "2024" and "gflops" in rows.get("matmul", {}):
            row["of_matmul"] = row["gflops"] / rows["matmul"]["gflops"]
            row["note"] = f"{row['of_matmul']:.0%} of the speed of matmul"
    _compare_with_dense(rows)
    return list(rows.values())


def _compare_with_dense(rows: dict[str, Any]) -> None:
    """Say how much longer the dense form takes: it makes maps from captures, and runs no model."""
    forward, ours = (rows.get(name, {}).get("ms") for name in ("forward", "2020"))
    for name, row in rows.items():
        if name.startswith("dense") and row["ms"] and ours and forward and ours > forward:
            row["to_2020"] = (forward + row["ms"]) / ours
            row["to_2020_maps"] = row["ms"] / (ours - forward)
            told = f"{row['to_2020_maps']:.0f}× the 2020 maps, {row['to_2020']:.0f}× with the pass"
            row["note"] = "; ".join(part for part in (row["note"], told) if part)


def _once(work: Work, model: Any, device: str) -> tuple[float, float | None]:
    """Milliseconds, and on a GPU the megabytes above what was held before."""
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


def _peak_of_child(settings: Settings, work: str, tokens: int) -> float | None:
    """What one pass takes in a fresh process; None where the system does not tell."""
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        try:
            return fresh.submit(_peak, settings, work, tokens).result()
        except (OSError, BrokenExecutor):
            return None


def _peak(settings: Settings, work: str, tokens: int) -> float:
    """The most that this process holds in one pass, in MB above what it held before."""
    settings, status = replace(settings, dense=False, groups=["2020"]), Path("/proc/self/status")
    transformers.utils.logging.disable_progress_bar()
    model, before = model_of(settings), 0.0

    def megabytes(field: str) -> float:
        return int(re.findall(rf"{field}:\s*(\d+) kB", status.read_text())[0]) * 1024 / 1e6

    with torch.no_grad():
        for length in (4, tokens):  # a short one first, for what is allocated once
            one = next(one for one in plan(settings, model, length) if one.name == work)
            gc.collect()
            before = megabytes("VmRSS")
            status.with_name("clear_refs").write_text("5")  # forget the peak so far
            _once(one, model, "cpu")
    return megabytes("VmHWM") - before


def machine(device: str) -> dict[str, Any]:
    """What the figures depend on besides the model."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", info.read_text() if info.exists() else "")
    return {
        **({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {}),
        "cpu": found[1] if found else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **{one.__name__: str(one.__version__) for one in (torch, transformers, normscope)},
        "python": platform.python_version(),
    }


def tables(told: dict[str, Any]) -> Iterator[Table]:
    """One for each length."""
    model = told["model"]
    for tokens in dict.fromkeys(row["tokens"] for row in told["rows"]):
        right = [Column(name, justify="right") for name in ("ms", "× forward", "peak MB")]
        made = Table(Column("work", no_wrap=True), *right, "", box=box.SIMPLE, title_justify="left")
        for row in (row for row in told["rows"] if row["tokens"] == tokens):
            figures = [row[name] for name in ("ms", "ratio", "peak_mb")]
            shown = ["–" if one is None else f"{one:,.2f}" for one in figures]
            made.add_row(row["work"], *shown, row["note"])
            made.title = f"{model['name']}, {row['batch']} × {tokens} tokens, {model['dtype']}"
        yield made
