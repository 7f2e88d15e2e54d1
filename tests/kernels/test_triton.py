"""Triton's kernels through its interpreter, each by itself and in whole analyses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", minversion="3.6")

pytestmark = pytest.mark.slow

# In a process of its own: the interpreter is chosen when triton is imported.
SCRIPT = """
import torch, normscope
from normscope.models.architectures import tiny_inputs, tiny_model
from normscope.capture import scores
from normscope.decomposition.available import available
scores.BLOCK["cpu"] = 250  # a few queries at a time
FACTORED = ("attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n", "atb", "atb_ln")
for name, dtype, attention, bound in CASES:
    dtype = getattr(torch, dtype)
    model, inputs = tiny_model(name, dtype=dtype), tiny_inputs(name, dtype=dtype)
    has = {m for maps in available(model).values() for m in maps}
    how = {"maps": [m for m in FACTORED if m in has], "attention": attention}
    one = normscope.analyze_inputs(model, inputs, kernels="torch", **how)
    other = normscope.analyze_inputs(model, inputs, kernels="triton", **how)
    assert "kernels:triton" in other[0].signature and "kernels" not in one[0].signature
    for a, b in zip(one, other):
        for p, q in zip(a.parts.values() or [a], b.parts.values() or [b]):
            for key, array in p._arrays().items():
                same = q._arrays()[key]
                gap = abs(array.values - same.values).max() / (abs(array.values).max() + 1e-30)
                assert gap < bound, (name, dtype, attention, key, gap)
    reduce = {"reduce": ("mixing_ratio", "top3"), **how}
    one = normscope.analyze_inputs(model, inputs, kernels="torch", **reduce)
    other = normscope.analyze_inputs(model, inputs, kernels="triton", **reduce)
    for a, b in zip(one, other):
        for p, q in zip(a.parts.values() or [a], b.parts.values() or [b]):
            for key, array in p.top_value.items():
                gap = abs(array.values - q.top_value[key].values).max()
                assert gap / array.values.max() < bound, (name, key)
print("same")
"""


ENVIRONMENT = {
    **os.environ,
    "TRITON_INTERPRET": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def test_kernels_against_dense_arithmetic() -> None:
    folder = str(Path(__file__).parent / "interpreted")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split(" passed")[0].split()[-1]) > 50


@pytest.mark.parametrize("cases", [
    [("bert", "float64", "eager", 1e-12), ("llama", "float64", "fused", 1e-12)],
    [("marian", "float64", "eager", 1e-12), ("olmo2", "float64", "eager", 1e-12)],
    [("llama", "bfloat16", "fused", 2e-2), ("mistral", "bfloat16", "fused", 2e-2)],
    [("gpt_neox", "float32", "eager", 1e-6), ("bert", "float32", "eager", 1e-6)],
], ids=lambda cases: "-".join(case[0] for case in cases))  # fmt: skip
def test_triton_is_torch(cases: object) -> None:
    command = [sys.executable, "-c", SCRIPT.replace("CASES", repr(cases))]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.stdout.strip().endswith("same"), done.stderr


@pytest.mark.parametrize("cases", [
    [("bert", "float64", "eager", 1e-12), ("llama", "float64", "eager", 1e-12)],
    [("marian", "float64", "eager", 1e-12), ("olmo2", "float64", "eager", 1e-12)],
    [("gpt2", "float32", "eager", 1e-5), ("gemma2", "float32", "eager", 1e-5)],
], ids=lambda cases: "-".join(case[0] for case in cases))  # fmt: skip
def test_triton_is_torch_behind_the_feed_forward(cases: object) -> None:
    behind = 'tuple(behind_feed_forward(NAMES)) + ("attn_w",'
    whole_maps = SCRIPT.split("    reduce = ")[0] + 'print("same")'
    script = whole_maps.replace("CASES", repr(cases)).replace(
        "FACTORED = (", f"FACTORED = {behind}"
    )
    script = "from normscope.decomposition.scopes import NAMES, behind_feed_forward" + script
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.stdout.strip().endswith("same"), done.stderr
