"""Whole analyses on a GPU: Triton's kernels, graphs and fused attention against plain torch."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import normscope
from normscope.decomposition import cells, norms
from normscope.decomposition.available import available
from normscope.engine.batch import Batch
from normscope.engine.options import AnalysisOptions
from normscope.engine.recordings import KEPT, SEEN, recordings_of
from normscope.engine.run import Engine
from normscope.measures.maps import Maps
from normscope.models.architectures import FAMILIES, tiny_inputs, tiny_model
from normscope.results.signature import Signature
from tests.helpers.tiny import tokenizer

FACTORED = ("attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n", "atb", "atb_ln")
BOUNDS = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 0.2}  # eager rounds to float32


def ready(name: str, dtype: torch.dtype) -> tuple[Any, dict[str, Any], list[str]]:
    model: Any = tiny_model(name, dtype=dtype)
    model.cuda()
    inputs = {k: v.cuda() for k, v in tiny_inputs(name, dtype=dtype).items()}
    has = {m for maps in available(model).values() for m in maps}
    return model, inputs, [m for m in FACTORED if m in has]


def compare(one: Any, other: Any, bound: float) -> None:
    for a, b in zip(one, other, strict=True):
        parts = zip(a.parts.values() or [a], b.parts.values() or [b], strict=True)
        for p, q in parts:
            for key, array in p._arrays().items():
                size = np.abs(array.values).max()
                assert_allclose(q._arrays()[key].values, array.values, atol=bound * size, rtol=0)


# FSMT's own mask overflows in float64 inside transformers.
PAIRS = [(name, dtype) for name in FAMILIES for dtype in BOUNDS]
PAIRS.remove(("fsmt", torch.float64))


@pytest.mark.parametrize(("name", "dtype"), PAIRS)
def test_triton_is_torch(name: str, dtype: torch.dtype) -> None:
    model, inputs, maps = ready(name, dtype)
    one = normscope.analyze_inputs(model, inputs, maps=maps, kernels="torch", attention="eager")
    exact = normscope.analyze_inputs(model, inputs, maps=maps, kernels="triton", attention="eager")
    compare(one, exact, 1e-6)
    compare(one, normscope.analyze_inputs(model, inputs, maps=maps), BOUNDS[dtype])


@pytest.mark.parametrize("name", ["bert", "llama", "marian", "mixtral"])
def test_graphs_give_the_same(name: str) -> None:
    """Other numbers of the same shape go through a recorded graph, or past it."""
    model, inputs, maps = ready(name, torch.float32)
    options = AnalysisOptions(maps).checked()
    engine = Engine(model, [Maps(options, Signature(model, None, {}))])
    torch.cuda.manual_seed(1)
    expected = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(1)
    for seed in range(SEEN + 3):
        ids = inputs["input_ids"].roll(seed, dims=0).roll(seed, dims=1)
        new = {**inputs, "input_ids": ids}
        plain = normscope.analyze_inputs(model, new, maps=maps)
        (results,) = engine.finish(engine.start(Batch(model, new))).results
        compare(plain, results, 1e-6)
    recorded = [graph is not None for graph in engine.recordings.graphs.values()]
    assert recorded == [name != "mixtral"]  # experts are chosen by looking at numbers
    # Whoever draws random numbers afterwards draws them as if nothing had been.
    assert torch.equal(torch.rand(3, device="cuda"), expected)


def analyzed(model: Any, inputs: Any, maps: list[str]) -> Any:
    """A fresh run: of a copy, for which no graph is kept."""
    return normscope.analyze_inputs(copy.deepcopy(model), inputs, maps=maps)


def graphs_of(model: Any) -> list[Any]:
    return [graph for graph in recordings_of(model).graphs.values() if graph is not None]


@pytest.mark.parametrize("name", ["bert", "llama", "marian"])
def test_graphs_are_kept_from_call_to_call(name: str) -> None:
    model, inputs, maps = ready(name, torch.float32)
    for seed in range(SEEN + 3):
        new = {**inputs, "input_ids": inputs["input_ids"].roll(seed, dims=0).roll(seed, dims=1)}
        results = normscope.analyze_inputs(model, new, maps=maps)
        compare(analyzed(model, new, maps), results, 1e-6)
        assert len(graphs_of(model)) == (seed >= SEEN)
    (kept,) = graphs_of(model)
    normscope.analyze_inputs(model, inputs, maps=maps)
    assert graphs_of(model) == [kept]  # it was replayed, not recorded again
    other = normscope.analyze_inputs(model, inputs, maps=maps[:1])
    compare(analyzed(model, inputs, maps[:1]), other, 1e-6)


def change_weight(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)


def write_through_data(model: Any) -> None:
    weight = next(m for m in model.modules() if isinstance(m, torch.nn.Linear)).weight
    weight.data.mul_(1.5)


def move_and_back(model: Any) -> None:
    model.cpu()
    held = [torch.empty_like(p, device="cuda") for p in model.parameters()]
    model.cuda()
    del held


def scale(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "scaling"):
            module.scaling *= 2


def steer(model: Any) -> None:
    model.encoder.layer[1].register_forward_hook(lambda m, a, y: 1.5 * y)


@pytest.mark.parametrize("change", [change_weight, write_through_data, move_and_back,
                                    torch.nn.Module.double, scale, steer])  # fmt: skip
def test_graphs_are_not_replayed_for_a_model_that_changed(change: Any) -> None:
    model, inputs, maps = ready("bert", torch.float32)
    for _ in range(SEEN + 2):
        normscope.analyze_inputs(model, inputs, maps=maps)
    assert len(graphs_of(model)) == 1
    change(model)
    for _ in range(SEEN + 2):
        compare(analyzed(model, inputs, maps), normscope.analyze_inputs(model, inputs, maps=maps),
                1e-6)  # fmt: skip


def test_a_kept_graph_outlives_what_caches_drop() -> None:
    """Norms in float64 and drawn cells are cached elsewhere, and dropped there."""
    model, inputs, maps = ready("bert", torch.float32)
    for _ in range(SEEN + 2):
        normscope.analyze_inputs(model, inputs, maps=maps)
    norms._PARAMETERS._entries.clear()
    cells._chances.cache_clear()
    noise = [torch.full((2**18,), float("nan"), device="cuda") for _ in range(64)]
    results = normscope.analyze_inputs(model, inputs, maps=maps)
    del noise
    compare(analyzed(model, inputs, maps), results, 1e-6)


def test_graphs_are_few_and_leave_with_the_model() -> None:
    model, inputs, maps = ready("bert", torch.float32)
    ids = inputs["input_ids"].repeat(KEPT, 1)
    for rows in range(1, KEPT + 3):
        for _ in range(SEEN + 1):
            normscope.analyze_inputs(model, {"input_ids": ids[:rows]}, maps=maps)
    assert len(graphs_of(model)) == KEPT
    reference, graph = weakref.ref(model), weakref.ref(graphs_of(model)[0])
    del model
    gc.collect()
    assert reference() is None
    assert graph() is None


def test_texts_are_the_same_with_graphs_and_without() -> None:
    model: Any = tiny_model("bert", dtype=torch.float32)
    texts = [" ".join(["the", "cat", "sat", "on"][i % 4] for i in range(n % 23 + 2))
             for n in range(300)]  # fmt: skip
    on_cpu = normscope.analyze(model, tokenizer(), texts)
    model.cuda()
    for _ in range(SEEN + 2):
        compare(on_cpu, normscope.analyze(model, tokenizer(), texts), 1e-5)
    assert graphs_of(model)
