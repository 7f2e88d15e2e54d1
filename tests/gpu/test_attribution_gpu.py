"""Attribution on a GPU: shares in 16 and 32 bits against those of the same model on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from normscope.attribution.account import RowShares
from normscope.attribution.passes import explain
from normscope.linearisation.rules import RULES, rules_of
from normscope.models.architectures import tiny_inputs, tiny_model


def value(output: Any) -> Tensor:
    states: Tensor = output[0]
    return states[:, -1, :2].float()


def token_shares(shares: RowShares) -> np.ndarray:
    return np.sum([source.shares for source in shares.sources], axis=0)


def compare(one: RowShares, other: RowShares, bound: float) -> None:
    size = np.abs(token_shares(one)).sum() + np.abs(one.bias).sum()
    assert np.abs(token_shares(one) - token_shares(other)).max() < bound * size
    assert np.abs(one.bias - other.bias).max() < bound * size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "qwen2", "mixtral"])
@pytest.mark.parametrize("method", [*RULES])
def test_a_gpu_gives_what_the_cpu_gives(method: str, family: str, dtype: torch.dtype) -> None:
    inputs = tiny_inputs(family)
    baseline = None
    if method == "secant":
        if family == "mixtral":
            return  # its experts differ between input and baseline
        baseline = {"input_ids": inputs["input_ids"].flip(0)}
    model: Any = tiny_model(family, dtype=dtype).double()
    expected = explain(model, inputs, value, rules_of(method), baseline_inputs=baseline)
    model = model.to("cuda", dtype)
    given = {name: tensor.cuda() for name, tensor in inputs.items()}
    start = None if baseline is None else {name: t.cuda() for name, t in baseline.items()}
    found = explain(model, given, value, rules_of(method), baseline_inputs=start)
    compare(expected, found, {torch.float32: 1e-4, torch.float16: 0.02}.get(dtype, 0.1))


@pytest.mark.parametrize("method", ["frozen", "attn_lrp"])
def test_recomputed_layers_give_the_same_and_keep_less(method: str) -> None:
    from transformers import LlamaConfig, LlamaModel

    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6}
    heads: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 100}
    torch.manual_seed(0)
    model: Any = LlamaModel(LlamaConfig(**sizes, **heads)).eval()
    model.to("cuda", torch.bfloat16)
    inputs = {"input_ids": torch.randint(0, 100, (1, 4096), device="cuda")}
    found, peaks = [], []
    for recompute in (False, True):
        explain(model, inputs, value, rules_of(method), recompute=recompute)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        found.append(explain(model, inputs, value, rules_of(method), recompute=recompute))
        peaks.append(torch.cuda.max_memory_allocated() - before)
        assert torch.cuda.memory_allocated() <= before + 2**20  # nothing is kept
    compare(found[0], found[1], 1e-2)
    assert peaks[1] < peaks[0] / 2
