"""Parameters of norms are read again when a module changes, in whatever way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import normscope
from normscope.models.architectures import tiny_inputs, tiny_model

CHANGES: dict[str, Callable[[Any], Any]] = {
    "epsilon": lambda norm: setattr(norm, "eps", 0.5),
    "a write that torch does not count": lambda norm: norm.weight.data.mul_(2),
    "a write that torch counts": lambda norm: norm.load_state_dict(
        {name: 2 * tensor for name, tensor in norm.state_dict().items()}
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("family", ["bert", "gemma2"])  # γ, and 1 + γ of which a copy is kept
def test_a_changed_norm_is_read_again(family: str, change: Callable[[Any], Any]) -> None:
    model, inputs = tiny_model(family, dtype=torch.float32), tiny_inputs(family)
    normscope.analyze_inputs(model, inputs, maps=["attn_res_n", "atb"])
    for module in model.modules():
        if "norm" in type(module).__name__.lower():
            change(module)
    changed = normscope.analyze_inputs(model, inputs, maps=["attn_res_n", "atb"])
    fresh = tiny_model(family, dtype=torch.float32)
    for module in fresh.modules():
        if "norm" in type(module).__name__.lower():
            change(module)
    for row, other in zip(
        changed, normscope.analyze_inputs(fresh, inputs, maps=["attn_res_n", "atb"]), strict=True
    ):
        assert row["atb"] == other["atb"]
