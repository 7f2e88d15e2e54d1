"""Whole analyses on a GPU: Triton's kernels, graphs and fused attention against plain torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import normscope
from normscope.decomposition.available import available
from normscope.engine.batch import Batch
from normscope.engine.options import AnalysisOptions
from normscope.engine.run import SEEN, Engine
from normscope.measures.maps import Maps
from normscope.models.architectures import FAMILIES, tiny_inputs, tiny_model
from normscope.results.signature import Signature

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
    engine = Engine(model, [Maps(model, options, Signature(model, None, {}))])
    torch.cuda.manual_seed(1)
    expected = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(1)
    for seed in range(SEEN + 3):
        ids = inputs["input_ids"].roll(seed, dims=0).roll(seed, dims=1)
        new = {**inputs, "input_ids": ids}
        plain = normscope.analyze_inputs(model, new, maps=maps)
        (results,) = engine.finish(engine.start(Batch(model, new))).results
        compare(plain, results, 1e-6)
    recorded = [graph is not None for graph in engine.graphs.values()]
    assert recorded == [name != "mixtral"]  # experts are chosen by looking at numbers
    # Whoever draws random numbers afterwards draws them as if nothing had been.
    assert torch.equal(torch.rand(3, device="cuda"), expected)
