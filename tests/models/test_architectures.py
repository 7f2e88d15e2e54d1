"""The table of families: tiny models and inputs that anybody gets again from the same seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from normscope.errors import InputError
from normscope.models.architectures import (
    FAMILIES,
    randomize_,
    register,
    tiny_inputs,
    tiny_model,
)


@pytest.mark.parametrize("name", ["bert", "gemma", "marian", "clip", "wav2vec2", "whisper"])
def test_the_same_seed_gives_the_same_model_and_inputs(name: str) -> None:
    before = torch.random.get_rng_state()
    first, second, other = tiny_model(name), tiny_model(name), tiny_model(name, seed=1)
    for key, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[key])
    changed = [(p != other.get_parameter(n)).any() for n, p in first.named_parameters()]
    assert all(changed)
    for key, tensor in tiny_inputs(name).items():
        assert torch.equal(tensor, tiny_inputs(name)[key])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not first.training


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_models_and_inputs_have_the_dtype(dtype: torch.dtype) -> None:
    model: Any = tiny_model("vit", dtype=dtype)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert tiny_inputs("vit", dtype=dtype)["pixel_values"].dtype == dtype


def test_rows_are_padded() -> None:
    inputs = tiny_inputs("marian", batch=4, length=9)
    assert inputs["attention_mask"].sum(dim=1).tolist() == [9, 8, 7, 9]
    assert inputs["decoder_attention_mask"].sum(dim=1).tolist() == [7, 5, 6, 7]
    padding = tiny_model("marian").config.pad_token_id
    assert ((inputs["input_ids"] == padding) == (inputs["attention_mask"] == 0)).all()


@pytest.mark.parametrize(("name", "around"), [("gemma", 0.0), ("llama", 1.0), ("bert", 1.0)])
def test_weights_of_norms_are_around_what_leaves_the_input_alone(name: str, around: float) -> None:
    """Gemma's norms multiply by 1 + weight; once more, and they still do."""
    model: Any = tiny_model(name)
    for seed in (0, 1):
        randomize_(model, seed)
        weights = [
            m.weight for m in model.modules() if "Norm" in type(m).__name__ and m.weight is not None
        ]
        mean = float(torch.cat([w.detach().flatten() for w in weights]).mean())
        assert abs(mean - around) < 0.1


def test_random_statistics_can_be_used() -> None:
    """A variance is positive; what is computed, not learnt, is left as it was."""
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    module.register_buffer("inv_freq", torch.ones(3))
    module.register_buffer("unsaved", torch.ones(3), persistent=False)
    randomize_(module)
    assert (module.get_buffer("1.running_var") > 0).all()
    assert (module.get_buffer("1.running_mean") != 0).all()
    assert (module.get_buffer("inv_freq") == 1).all()
    assert (module.get_buffer("unsaved") == 1).all()


def test_families_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.models.architectures.FAMILIES", dict(FAMILIES))
    own = replace(FAMILIES["bert"], name="bert (mine)")
    assert own.base == "bert"
    with pytest.raises(InputError, match=r"unknown family 'bert \(mine\)'; known.*register"):
        tiny_model("bert (mine)")
    register(own)
    assert torch.equal(tiny_inputs("bert (mine)")["input_ids"], tiny_inputs("bert")["input_ids"])
    assert type(tiny_model("bert (mine)")) is type(tiny_model("bert"))
    with pytest.raises(InputError, match=r"already registered.*'bert \(mine\)'"):
        register(FAMILIES["bert"])
