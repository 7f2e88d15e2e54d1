"""What `normscope bench` measures, on the same weights and the same random ids.

forward   the model's plain forward pass with sdpa attention, which all ratios refer to
forward, graph  the same, recorded as a CUDA graph and replayed; on a GPU
eager     its eager forward pass, with output_attentions=True
2020      normscope: attention weights and norms
four      normscope: attention weights, norms, norms with the residual and with the norm after it
2021      normscope: also the weights with the residual, with mixing ratios
2024      normscope: the scopes through the feed-forward
reduce    normscope: mixing ratios and the 16 largest contributors of each token, no map kept
attribute normscope: what made one output of each row; see `bench_attribution`
methods   normscope: the same by every method; see `bench_methods`
texts     normscope: many texts of different lengths; see `bench_texts`
matmul    one large square product, in the dtype of the feed-forward's products
dense …   the results of 2020 (both maps, ‖f‖, mixing ratios, the error), computed by building
every vector αf(x) from the captured α, values and W_O, in the dtype named

On a CPU, a group of maps is a call of `normscope.analyze_inputs`, judged, with every array read as
numpy. On a GPU, this is the work "2021 in hand", and "2021" leaves the maps on the card, as a plain
forward pass does with its output; there, they are judged once and not in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

import normscope
from normscope.capture import AttentionMode, Capture
from normscope.capture.layers import layers_of
from normscope.cli import bench_methods
from normscope.cli.bench_accuracy import accuracy
from normscope.cli.bench_attribution import attribution_passes
from normscope.decomposition.available import available
from normscope.decomposition.layer import LayerView
from normscope.decomposition.scopes import (
    ANALYSES,
    BLOCK_MAPS,
    HEAD_MAPS,
    NORMS,
    WEIGHTS,
    behind_feed_forward,
    by_vectors,
)
from normscope.engine.batch import Batch
from normscope.engine.options import AnalysisOptions
from normscope.engine.run import Engine, look
from normscope.errors import InputError, UnsupportedModelError
from normscope.measures.maps import Maps
from normscope.models import load
from normscope.models.layouts import FeedForward
from normscope.models.random_inputs import random_inputs
from normscope.results.signature import Signature

ATTRIBUTE = "attribute"  # no maps, but shares of an output
METHODS = "methods"  # all methods of attribution, and the maps they roll out
TEXTS = "texts"  # not one batch at a time: see `bench_texts`
# Weights, and norms up to each station of the attention block.
FOUR = (WEIGHTS, *(scope.name for scope in by_vectors(ANALYSES)))
GROUPS: dict[str, tuple[str, ...]] = {
    "2020": HEAD_MAPS,
    "four": FOUR,
    "2021": ANALYSES,
    "2024": tuple(behind_feed_forward(BLOCK_MAPS)),
    "reduce": tuple(scope.name for scope in by_vectors(ANALYSES)),
    ATTRIBUTE: (),
    METHODS: bench_methods.MAPS,
    TEXTS: FOUR,
}
DTYPES = ("float64", "float32", "bfloat16", "float16")
# Architectures with random weights. The other sizes of Llama 8B are LlamaConfig's defaults.
LLAMA = {
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_hidden_layers": 1,
    "vocab_size": 1000,
    "max_position_embeddings": 2**18,
}
MINILM = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "vocab_size": 30522,
}
SHAPES = {
    "bert-base": ("Bert", dict[str, int]()),
    "minilm-shape": ("Bert", MINILM),
    "llama-8b-layer": ("Llama", LLAMA),
    "llama-8b-8-layers": ("Llama", {**LLAMA, "num_hidden_layers": 8}),
}
FF_LENGTH = 128  # feed-forward scopes cost T²·d_ff·d: longer texts only on request
ONE_LAYER = 256e6  # bytes: if a dense tensor is larger, one layer is measured in place of all
DENSE_BYTES = 10e9  # the largest dense tensor on a CPU
DENSE_SHARE = 0.6  # the largest dense tensor on a GPU, as a share of the free memory
SQUARE = {"cpu": 2048, "cuda": 8192}  # side of the matrices of matmul


@dataclass(frozen=True)
class BenchSettings:
    """What to measure. Lengths are checked later, when the model is loaded."""

    model: str | None = None  # a folder, a hub name or a key of SHAPES; None: the default model
    device: str = "cpu"
    dtype: str = "float32"
    lengths: Sequence[int] = (128, 512)
    batch: int = 1
    # None: all but methods and texts, and 2024 only up to FF_LENGTH tokens.
    groups: Sequence[str] | None = None
    repeats: int = 5
    dense: bool = True
    tf32: bool = False
    profile: str | None = None  # the file for a profile of each group of maps

    @property
    def by_length(self) -> list[str]:
        """The groups that are measured at every length."""
        if self.groups is None:
            return [group for group in GROUPS if group not in (TEXTS, METHODS)]
        return [group for group in self.groups if group != TEXTS]

    @property
    def texts(self) -> bool:
        """Whether many texts are measured, too."""
        return self.groups is not None and TEXTS in self.groups

    def __post_init__(self) -> None:
        devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        for noun, names, valid in (
            ("group of maps", self.groups or (), tuple(GROUPS)),
            ("dtype", [self.dtype], DTYPES),
            ("device", [self.device], devices),
        ):
            for name in names:
                if name not in valid:
                    raise InputError(f"unknown {noun}: {name!r}; valid here: {', '.join(valid)}")


@dataclass(frozen=True, eq=False)
class Work:
    """One computation to measure, or the reason why it is left out."""

    name: str
    call: Callable[[], Any] | None
    note: str = ""
    attention: str = "eager"  # every model has it
    times: int = 1  # how many layers the one measured layer stands for
    operations: int = 0  # floating-point operations, where they are known
    in_hand: bool = False  # whether results are judged and read as numpy
    accuracy: Callable[[], float | None] | None = None  # of lengths, against a dense computation


def model_of(settings: BenchSettings) -> Any:
    """Load the model, or make it with random weights."""
    dtype = getattr(torch, settings.dtype)
    if settings.model in SHAPES:
        kind, sizes = SHAPES[settings.model]
        config = getattr(transformers, f"{kind}Config")(**sizes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = getattr(transformers, f"{kind}Model")(config).to(settings.device, dtype).eval()
    else:
        model, _ = load(settings.model, dtype=dtype, device=settings.device, tokenizer=False)
    model.config.use_cache = False  # a cache would slow the plain forward pass for nothing
    return model


def inputs_of(model: Any, batch: int, tokens: int) -> dict[str, Tensor]:
    """Make random ids without padding and without a mask."""
    rows = [random_inputs(model, batch=1, length=tokens, seed=seed) for seed in range(batch)]
    return {
        name: torch.cat([row[name] for row in rows]) for name in rows[0] if name != "attention_mask"
    }


def shape_of(model: Any) -> dict[str, int]:
    """Run a short pass and return its number of attention calls, the heads and the hidden size."""
    shapes: list[tuple[int, int]] = []

    def note(view: LayerView) -> None:
        shapes.append((view.captured.shape[1], view.captured.output.shape[-1]))

    look(model, inputs_of(model, 1, 4), note)
    heads, hidden = shapes[0]
    return {"layers": len(shapes), "heads": heads, "hidden": hidden}


def plan(settings: BenchSettings, model: Any, tokens: int) -> Iterator[Work]:
    """Yield everything to measure at one length."""
    inputs = inputs_of(model, settings.batch, tokens)
    plain = plain_attention(model)
    yield Work("forward", lambda: model(**inputs), f"{plain} attention", plain)
    if settings.device == "cuda":
        yield Work("forward, graph", graph_of(model, inputs), "a replayed CUDA graph", plain)
    yield Work("eager", lambda: model(**inputs, output_attentions=True))
    scopes = {name for names in available(model).values() for name in names} | {*HEAD_MAPS}
    for group in settings.by_length:
        maps = tuple(name for name in GROUPS[group] if name in scopes)
        if group == ATTRIBUTE:
            for name, call, note in attribution_passes(model, inputs):
                yield Work(name, call, note, plain)
        elif group == METHODS:
            yield from _method_works(model, inputs, maps)
        elif group != "2020" and set(maps) <= {*HEAD_MAPS}:
            yield Work(group, None, "the model has none of these maps")
        elif group == "2024" and settings.groups is None and tokens > FF_LENGTH:
            yield Work(group, None, f"over {FF_LENGTH} tokens only with --maps 2024")
        else:
            yield from _group_works(settings, model, inputs, group, maps)
    if settings.dense:
        yield from _dense_works(settings, model, inputs, tokens)


def _method_works(model: Any, inputs: dict[str, Tensor], maps: tuple[str, ...]) -> Iterator[Work]:
    """Yield the works of every method of attribution, and of the maps they roll out."""
    plain = plain_attention(model)
    for name, call, note in bench_methods.method_passes(model, inputs):
        yield Work(name, call, note, plain)
    for name in maps:
        yield Work(f"map {name}", analysis(model, inputs, (name,), reduce=False), "", plain)


def _group_works(
    settings: BenchSettings,
    model: Any,
    inputs: dict[str, Tensor],
    group: str,
    maps: tuple[str, ...],
) -> Iterator[Work]:
    """Yield the works of one group of maps: in hand, and on a GPU also on the card."""
    plain, reduce = plain_attention(model), group == "reduce"
    operations = 0
    if group == "2024":
        tokens = inputs["input_ids"].shape[1]
        operations = _ff_operations(model, settings.batch, tokens)
    if operations:
        yield _matmul(settings)

    @cache
    def exact() -> float | None:
        return None if reduce else accuracy(model, inputs, maps, shape_of(model)["layers"])

    name = group
    if settings.device == "cuda":
        call, note = on_card(model, inputs, maps, reduce=reduce), "maps on the card"
        yield Work(group, call, note, plain, operations=operations, accuracy=exact)
        name = f"{group} in hand"
    call = analysis(model, inputs, maps, reduce=reduce)
    yield Work(name, call, "", plain, operations=operations, in_hand=True, accuracy=exact)


def plain_attention(model: Any) -> str:
    """Return the attention of the plain forward pass."""
    return "sdpa" if model._supports_sdpa else "eager"


def graph_of(model: Any, inputs: dict[str, Tensor]) -> Callable[[], None]:
    """Return a function that replays the plain forward pass, recorded at its first call."""
    recorded: list[torch.cuda.CUDAGraph] = []
    held: list[Any] = []  # the output, whose memory every replay writes

    def replay() -> None:
        if not recorded:
            model(**inputs)  # what is allocated only once is allocated outside the graph
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            try:
                with torch.cuda.graph(graph):
                    held.append(model(**inputs))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                torch.cuda.synchronize()
                raise UnsupportedModelError(f"no graph of this pass: {error}") from error
            recorded.append(graph)
        recorded[0].replay()

    return replay


def analysis(
    model: Any, inputs: dict[str, Tensor], maps: tuple[str, ...], *, reduce: bool
) -> Callable[[], Any]:
    """Return a function that analyses one batch by the public call and reads all of its arrays."""
    names = ("mixing_ratio", "top16") if reduce else ()
    attention = "fused" if reduce else "auto"

    def call() -> Any:
        results = normscope.analyze_inputs(
            model, inputs, maps=maps, attention=attention, reduce=names
        )
        return read(results)

    return call


def read(results: Sequence[Any]) -> list[NDArray[Any]]:
    """Return every array of some results as numpy, converted if that has not been done yet."""
    arrays: list[Any] = []
    for result in results:
        for part in result.parts.values() if result.parts else [result]:
            arrays += [part[name] for name in part]
            arrays += [array for by_map in part.extras.values() for array in by_map.values()]
            if len(part):  # reductions have no map, and no ‖f‖ either
                arrays.append(part.transformed_norm)
    return [np.asarray(array.values) for array in arrays]


def on_card(
    model: Any, inputs: dict[str, Tensor], maps: tuple[str, ...], *, reduce: bool
) -> Callable[[], Any]:
    """Return a function that runs normscope on one batch and leaves the maps on the device.

    Reductions are small and are copied to the CPU.
    """
    names = ("mixing_ratio", "top16") if reduce else ()
    attention: AttentionMode = "fused" if reduce else "auto"
    options = AnalysisOptions(maps, attention=attention, reduce=names).checked()
    engine = Engine(model, [Maps(options, Signature(model, None, {}))], attention)

    def judged() -> Any:
        return engine.finish(engine.start(Batch(model, inputs)))

    if reduce:
        return judged
    judged()  # measured() alone does not check the error
    return lambda: engine.measured(Batch(model, inputs))


def _ff_operations(model: Any, batch: int, tokens: int) -> int:
    """Count the floating-point operations of the feed-forward scopes.

    For each layer and pair of tokens there is one multiplication and one addition for each of
        d_ff · d      the vector through W_2
        H · d_ff      the heads' first projections, weighted and summed; twice if gated
        H · d         the same for the residual
    The full square of tokens is counted for decoders as well: of a causal mask, only whole blocks
    without any weight are skipped. A parallel layer has no such operations.
    """
    shape, total = shape_of(model), 0
    for layer, layout in layers_of(model).values():
        if isinstance(ff := layout.ff, FeedForward) and not layout.parallel:
            second: Any = layer.get_submodule(ff.second)
            inner = second.weight.numel() // shape["hidden"]
            first = (2 if ff.gate or ff.packed else 1) * inner
            total += inner * shape["hidden"] + shape["heads"] * (first + shape["hidden"])
    return 2 * total * batch * tokens**2


def _matmul(settings: BenchSettings) -> Work:
    side, dtype = SQUARE[settings.device], getattr(torch, settings.dtype)
    dtype = torch.promote_types(dtype, torch.float32)  # as in the feed-forward's products
    square = torch.randn(side, side, dtype=dtype, device=settings.device)
    return Work("matmul", lambda: square @ square, f"{side}³, {dtype}", operations=2 * side**3)


def _dense_works(
    settings: BenchSettings, model: Any, inputs: dict[str, Tensor], tokens: int
) -> Iterator[Work]:
    shape, largest = shape_of(model), DENSE_BYTES
    if settings.device == "cuda":
        torch.cuda.empty_cache()  # count memory that torch holds in reserve as free
        largest = DENSE_SHARE * torch.cuda.mem_get_info()[0]
    cells = settings.batch * shape["heads"] * tokens**2 * shape["hidden"]
    captures: list[Capture] = []
    layers = shape["layers"] if 8 * cells <= ONE_LAYER else 1
    if 4 * cells <= largest:  # at least float32 fits

        def keep(view: LayerView) -> None:
            if len(captures) < layers:
                captures.append(view.captured)

        look(model, inputs, keep)
    times = shape["layers"] // layers
    for dtype in (torch.float64, torch.float32):
        name, size = str(dtype).replace("torch.", "dense "), dtype.itemsize * cells
        if size > largest:
            yield Work(name, None, f"a tensor of {size / 1e9:.1f} GB for each layer")
        else:
            note = "" if times == 1 else f"one layer, times {times}"
            call = partial(lambda dtype: [dense(layer, dtype) for layer in captures], dtype)
            yield Work(name, call, note, times=times)


def dense(call: Capture, dtype: torch.dtype) -> dict[str, Tensor]:
    """Compute the results of `2020` for one attention call by building every αf(x).

    That is a (batch, head, query, key, hidden) tensor, from which norms and sums are taken.
    """
    repeats = call.alpha.shape[1] // call.value.shape[1]  # value heads are shared in groups
    value = call.value.to(dtype).repeat_interleave(repeats, dim=1)
    f = torch.einsum("bhke,heo->bhko", value, call.projection.weight.to(dtype))
    weighted = call.alpha.to(dtype).unsqueeze(-1) * f.unsqueeze(2)
    summed = weighted.sum(dim=1)
    output, own = summed.sum(dim=2), summed.diagonal(dim1=1, dim2=2).transpose(1, 2)
    bias = 0 if call.projection.bias is None else call.projection.bias.to(dtype)
    mixed, kept = (output - own).norm(dim=-1), own.norm(dim=-1)
    return {
        WEIGHTS: call.alpha.mean(dim=1),
        NORMS: summed.norm(dim=-1),
        "transformed_norm": f.norm(dim=-1),
        "mixing_ratio": mixed / (mixed + kept),
        "gap": (output + bias - call.output.to(dtype)).norm(dim=-1),
    }
