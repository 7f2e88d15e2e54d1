"""`normscope bench`: time and memory beside the model's own passes, all in one run.

The same weights and the same random ids go through

    forward   the model's plain forward pass with sdpa attention, which all ratios refer to
    eager     its eager forward pass, with output_attentions=True
    2020      normscope: attn_w and attn_n
    2021      normscope: on through the residual and the norm after it, with mixing ratios
    2024      normscope: the feed-forward scopes
    matmul    one large square product, in the dtype of the feed-forward's products
    dense …   every vector αf(x) built, from the recorded α, values and W_O, in the dtype named

The works take turns, so that a slow moment of the machine falls on all of them.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import normscope
from normscope.capture import Capture, capture
from normscope.capture.layers import layers_of
from normscope.errors import ExactnessError, InputError
from normscope.layouts import FeedForward
from normscope.limits import max_length_of
from normscope.maps import NAMES, available
from normscope.models import identity, load
from normscope.testing import random_inputs

if TYPE_CHECKING:
    from rich.table import Table

GROUPS = {
    "2020": ("attn_w", "attn_n"),
    "2021": ("attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n"),
    "2024": tuple(name for name in NAMES if "_ff" in name),
}
DEVICES = ("cpu", "cuda")
DTYPES = ("float64", "float32", "bfloat16", "float16")
# Shapes of well-known models, with random weights: class, configuration.
SHAPES: dict[str, tuple[str, str, dict[str, int]]] = {
    "bert-base": ("BertModel", "BertConfig", {}),
    "llama-8b-layer": (
        *("LlamaModel", "LlamaConfig"),
        {
            **{"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8},
            **{"intermediate_size": 14336, "vocab_size": 1000, "num_hidden_layers": 1},
            "max_position_embeddings": 2**18,
        },
    ),
}
FF_LENGTH = 128  # the feed-forward scopes cost T²·d_ff·d: beyond, only if they are asked for
ONE_LAYER = 256e6  # bytes of a dense tensor from which one layer stands for all
DENSE_MOST = 4e9  # bytes of the largest dense tensor on a CPU; on a GPU a share of what is free
DENSE_SHARE = 0.6
SQUARE = {"cpu": 2048, "cuda": 8192}  # side of the matrices whose product gives the speed


@dataclass(frozen=True)
class Settings:
    """What to measure, checked; the lengths are compared with the model when it is there."""

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
        _one_of("group of maps", self.groups or (), GROUPS)
        _one_of("device", [self.device], DEVICES)
        _one_of("dtype", [self.dtype], DTYPES)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("torch sees no cuda device on this machine; valid: cpu")
        if min(self.batch, self.repeats) < 1:
            raise InputError("batch and repeats are whole numbers from 1 on")


def _one_of(what: str, given: Sequence[str], valid: Sequence[str] | dict[str, Any]) -> None:
    for name in given:
        if name not in valid:
            raise InputError(f"unknown {what}: {name!r}; valid: {', '.join(valid)}")


def numbers(text: str) -> tuple[int, ...]:
    """The lengths in "128,512", each once."""
    try:
        return tuple(dict.fromkeys(int(one) for one in text.split(",")))
    except ValueError:
        raise InputError(
            f"lengths are numbers of tokens such as 128,512, but {text!r} was given"
        ) from None


# ------------------------------------------------------------------------- what is measured


@dataclass(frozen=True, eq=False)
class Subject:
    """The model, and the sizes that costs depend on."""

    model: Any
    layers: int  # attention calls in a forward pass
    heads: int
    hidden: int
    has: frozenset[str]  # the maps of it that there are
    ff_operations: float  # of the feed-forward scopes, for each pair of tokens

    @classmethod
    def of(cls, settings: Settings) -> Subject:
        """Load the model, or make it, and look at one short pass."""
        name, dtype = settings.model, getattr(torch, settings.dtype)
        if name in SHAPES:
            model = _random_model(name).to(settings.device, dtype).eval()
        else:
            model, _ = load(name, dtype=dtype, device=settings.device, tokenizer=False)
        model.config.use_cache = False  # a plain pass should not pay for a cache that nobody reads
        with torch.no_grad(), capture(model) as calls:
            model(**inputs_of(model, 1, 4))
        heads, hidden = calls[0].alpha.shape[1], calls[0].output.shape[-1]
        has = {name for names in available(model).values() for name in names} | {*GROUPS["2020"]}
        operations = _ff_operations(model, heads, hidden)
        return cls(model, len(calls), heads, hidden, frozenset(has), operations)


def _random_model(name: str) -> Any:
    import transformers

    kind, config, sizes = SHAPES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, kind)(getattr(transformers, config)(**sizes))


def _ff_operations(model: Any, heads: int, hidden: int) -> float:
    """Floating-point operations of the feed-forward scopes for one (query, key) pair.

    In each layer, two (multiply and add) for each of

        d_ff · d      the vector through W_2
        H · d_ff      the heads' first projections, weighted and summed; twice where it is gated
        H · d         the same for what the residual carries

    A causal mask would allow half, and only whole blocks without any weight are left out: for
    decoders the fraction is that of the full square. Parallel layers have no such work.
    """
    total = 0
    for layer, layout in layers_of(model).values():
        if isinstance(ff := layout.ff, FeedForward) and not layout.parallel:
            inner = layer.get_submodule(ff.second).weight.numel() // hidden
            first = 2 if ff.gate or ff.fused else 1
            total += 2 * (inner * hidden + first * heads * inner + heads * hidden)
    return total


def inputs_of(model: Any, batch: int, tokens: int) -> dict[str, Tensor]:
    """Random ids without padding, and no mask."""
    rows = [random_inputs(model, batch=1, length=tokens, seed=seed) for seed in range(batch)]
    return {k: torch.cat([row[k] for row in rows]) for k in rows[0] if k != "attention_mask"}


@dataclass(frozen=True, eq=False)
class Work:
    """One thing to measure, or why it is not measured."""

    name: str
    call: Callable[[], Any] | None
    note: str = ""
    attention: str = "sdpa"
    times: int = 1  # one layer stands for so many
    operations: float = 0


def plan(settings: Settings, subject: Subject, tokens: int) -> Iterator[Work]:
    """Everything that is measured at one length."""
    model, batch = subject.model, settings.batch
    inputs = inputs_of(model, batch, tokens)
    yield Work("forward", lambda: model(**inputs))
    yield Work("eager", lambda: model(**inputs, output_attentions=True), attention="eager")
    for group in GROUPS if settings.groups is None else settings.groups:
        yield _normscope(settings, subject, inputs, tokens, group)
    if settings.dense:
        yield from _dense(settings, subject, inputs, tokens)


def _normscope(
    settings: Settings, subject: Subject, inputs: dict[str, Tensor], tokens: int, group: str
) -> Work:
    maps = [name for name in GROUPS[group] if name in subject.has]
    if not maps or (group == "2021" and "attn_res_n" not in maps):
        return Work(group, None, "the model has none of these maps")
    if group != "2024":
        return Work(group, lambda: ours(subject.model, inputs, maps))
    if settings.groups is None and tokens > FF_LENGTH:
        return Work(group, None, f"over {FF_LENGTH} tokens only with --maps 2024")
    operations = subject.ff_operations * settings.batch * tokens**2
    return Work(group, lambda: ours(subject.model, inputs, maps), operations=operations)


def ours(model: Any, inputs: dict[str, Tensor], maps: Sequence[str]) -> Any:
    """The one place where normscope is called."""
    return normscope.analyze_inputs(model, inputs, maps=maps)


def _matmul(settings: Settings) -> Work:
    side, dtype = SQUARE[settings.device], getattr(torch, settings.dtype)
    dtype = torch.promote_types(dtype, torch.float32)  # as the feed-forward's products are
    square = torch.randn(side, side, dtype=dtype, device=settings.device)
    note = f"{side} × {side}, {str(dtype).removeprefix('torch.')}"
    return Work("matmul", lambda: square @ square, note, operations=2 * side**3)


def _dense(
    settings: Settings, subject: Subject, inputs: dict[str, Tensor], tokens: int
) -> Iterator[Work]:
    most = DENSE_MOST
    if settings.device == "cuda":
        most = DENSE_SHARE * torch.cuda.mem_get_info()[0]
    cells = settings.batch * subject.heads * tokens**2 * subject.hidden
    kept: list[Capture] = []
    # The narrower one decides how much is recorded.
    wanted = subject.layers if 4 * cells <= ONE_LAYER else 1

    def keep(captured: Capture) -> None:
        if len(kept) < wanted:
            kept.append(captured)

    if 4 * cells <= most:
        with capture(subject.model, keep):
            subject.model(**inputs)
    for dtype in (torch.float64, torch.float32):
        name, size = f"dense {str(dtype).removeprefix('torch.')}", dtype.itemsize * cells
        if size > most:
            yield Work(name, None, f"a tensor of {size / 1e9:.1f} GB for each layer")
            continue
        some = kept if size <= ONE_LAYER else kept[:1]
        note = "" if len(some) == subject.layers else f"one layer, times {subject.layers}"
        yield Work(name, _builder(some, dtype), note, times=subject.layers // len(some))


def _builder(calls: Sequence[Capture], dtype: torch.dtype) -> Callable[[], None]:
    def build() -> None:
        for captured in calls:
            dense_norms(captured, dtype)  # dropped before the next

    return build


def dense_norms(captured: Capture, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """‖f‖, ‖αf‖ and ‖Σ_h αf‖ by building every αf(x): (batch, head, query, key, hidden)."""
    heads, groups = captured.alpha.shape[1], captured.value.shape[1]
    value = captured.value.to(dtype).repeat_interleave(heads // groups, dim=1)
    f = torch.einsum("bhke,heo->bhko", value, captured.projection.weight.to(dtype))
    weighted = captured.alpha.to(dtype).unsqueeze(-1) * f.unsqueeze(2)
    return f.norm(dim=-1), weighted.norm(dim=-1), weighted.sum(dim=1).norm(dim=-1)


# ---------------------------------------------------------------------------------- measuring


def run(settings: Settings) -> dict[str, Any]:
    """Measure, and give everything as plain data: machine, model, rows."""
    subject = Subject.of(settings)
    model = subject.model
    ends = [max_length_of(model.config, as_target=as_target) for as_target in (False, True)]
    limit = min((end for end in ends if end is not None), default=None)
    for tokens in settings.lengths:
        if tokens < 2 or (limit is not None and tokens > limit):
            valid = "from 2 on" if limit is None else f"from 2 to {limit}"
            raise InputError(f"unknown length: {tokens}; valid for this model: {valid}")
    rows: list[dict[str, Any]] = []
    with torch.no_grad(), _tf32(settings.tf32):
        for tokens in settings.lengths:
            works = list(plan(settings, subject, tokens))
            if any(work.name == "2024" and work.operations for work in works):
                works.append(_matmul(settings))
            rows += _measure(settings, model, works, tokens)
            del works  # with what it has recorded
    if settings.device == "cpu":
        for row in rows:
            if row["tokens"] == max(settings.lengths) and row["work"] in ("eager", "2020"):
                row["peak_mb"] = _peak_of_child(settings, row["work"], row["tokens"])
    name = settings.model if settings.model in SHAPES else identity(model)["name"]
    sizes = {"layers": subject.layers, "heads": subject.heads, "hidden": subject.hidden}
    told = {"name": name, **sizes, "dtype": settings.dtype, "tf32": settings.tf32}
    return {"machine": machine(settings.device), "model": told, "rows": rows}


def _measure(
    settings: Settings, model: Any, works: Sequence[Work], tokens: int
) -> list[dict[str, Any]]:
    from tqdm import tqdm

    times: dict[str, list[float]] = {work.name: [] for work in works}
    rows = {
        work.name: {
            **{"work": work.name, "batch": settings.batch, "tokens": tokens},
            **{"ms": None, "ratio": None, "peak_mb": None, "note": work.note},
        }
        for work in works
    }
    ready = [work for work in works if work.call is not None]
    total = len(ready) * (settings.repeats + 1)
    with tqdm(total=total, desc=f"{tokens} tokens", disable=None, leave=False) as bar:
        for turn in range(settings.repeats + 1):
            for work in list(ready):
                try:
                    ms, peak = _once(work, model, settings.device)
                except (torch.OutOfMemoryError, ExactnessError) as error:
                    ready.remove(work)
                    rows[work.name]["note"] = _first_line(error)
                    continue
                if turn:  # the first is the warm-up
                    times[work.name].append(ms)
                    rows[work.name]["peak_mb"] = peak
                bar.update()
    for work in ready:
        row = rows[work.name]
        row["ms"] = statistics.median(times[work.name])
        row["all_ms"] = times[work.name]
        row["ratio"] = row["ms"] / rows["forward"]["ms"] if rows["forward"]["ms"] else None
        if work.operations:
            row["gflops"] = work.operations / row["ms"] / 1e6
    speed, ff = rows.get("matmul", {}).get("gflops"), rows.get("2024", {})
    if speed and "gflops" in ff:
        ff["of_matmul"] = ff["gflops"] / speed
        ff["note"] = f"{ff['of_matmul']:.0%} of the speed of matmul"
    return list(rows.values())


def _once(work: Work, model: Any, device: str) -> tuple[float, float | None]:
    """Milliseconds, and on a GPU the megabytes above what was held before."""
    assert work.call is not None
    model.set_attn_implementation(work.attention)
    before = 0
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    work.call()
    if device == "cuda":
        torch.cuda.synchronize()
    ms = 1e3 * (time.perf_counter() - start) * work.times
    return ms, (torch.cuda.max_memory_allocated() - before) / 1e6 if device == "cuda" else None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


@contextmanager
def _tf32(wanted: bool) -> Iterator[None]:
    """The GPU's short float32 products, or not, inside; as it was outside."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = wanted
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _peak_of_child(settings: Settings, work: str, tokens: int) -> float | None:
    """What one pass takes in a fresh process, whose memory no earlier work has touched."""
    told = json.dumps({"settings": asdict(settings), "work": work, "tokens": tokens})
    command = [sys.executable, "-m", "normscope.bench", told]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def _measure_peak(told: dict[str, Any]) -> float:
    """The peak of resident memory in one pass, in MB above what the process held before it."""
    settings = Settings(**{**told["settings"], "dense": False})
    subject = Subject.of(settings)
    with torch.no_grad():
        for tokens in (8, told["tokens"]):  # a short one first, which imports and allocates
            work = next(w for w in plan(settings, subject, tokens) if w.name == told["work"])
            gc.collect()
            before = _memory_mb("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
            _once(work, subject.model, "cpu")
    return _memory_mb("VmHWM") - before


def _memory_mb(field: str) -> float:
    """A field of Linux's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(x.split()[1]) * 1024 / 1e6 for x in lines if x.startswith(field))


# ------------------------------------------------------------------------------------ telling


def machine(device: str) -> dict[str, Any]:
    """What the figures depend on besides the model."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        **({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {}),
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        **{name: version(name) for name in ("torch", "transformers")},
        "python": platform.python_version(),
        "normscope": normscope.__version__,
    }


def tables(told: dict[str, Any]) -> Iterator[Table]:
    """One for each length."""
    from rich import box
    from rich.table import Table

    model = told["model"]
    dtype = model["dtype"] + (" (tf32)" if model["tf32"] else "")
    for tokens in dict.fromkeys(row["tokens"] for row in told["rows"]):
        rows = [row for row in told["rows"] if row["tokens"] == tokens]
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, title_justify="left")
        made.title = f"{model['name']}, {rows[0]['batch']} × {tokens} tokens, {dtype}"
        made.add_column("work", no_wrap=True)
        for title in ("ms", "× forward", "peak MB"):
            made.add_column(title, justify="right", no_wrap=True)
        made.add_column("")
        for row in rows:
            figures = zip(("ms", "ratio", "peak_mb"), (".1f", ".2f", ".0f"), strict=True)
            shown = ["–" if row[k] is None else format(row[k], form) for k, form in figures]
            made.add_row(row["work"], *shown, row["note"])
        yield made


if __name__ == "__main__":
    print(_measure_peak(json.loads(sys.argv[1])))
