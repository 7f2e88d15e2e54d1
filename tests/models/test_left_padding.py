"""Padding on the left is warned of where, and only where, it changes what the model computes."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import normscope
from normscope.models.architectures import tiny_model
from normscope.models.left_padding import counts_columns

COUNTING = (
    "bert",
    "distilbert",
    "electra",
    "albert",
    "gpt2",
    "gpt_neo",
    "bart",
    "marian",
    "biogpt",
)
OTHERS = (
    *("roberta", "mpnet", "opt", "bloom", "llama", "gpt_neox", "gptj", "t5", "modernbert"),
    *("m2m_100", "deberta-v2"),
)


@pytest.mark.parametrize("name", [*COUNTING, *OTHERS])
def test_families_that_count_columns(name: str) -> None:
    assert counts_columns(tiny_model(name)) is (name in COUNTING)


def test_a_vision_model_has_no_padding() -> None:
    assert not counts_columns(tiny_model("vit"))


@pytest.mark.parametrize("call", [normscope.analyze_inputs, normscope.attribute_inputs])
def test_rows_that_begin_with_padding_are_warned_of(call: Any) -> None:
    model: Any = tiny_model("gpt2")
    pad = model.config.pad_token_id or 0
    left = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    inputs = {
        "input_ids": torch.where(left > 0, torch.tensor([10, 11, 12, 13, 14]), pad),
        "attention_mask": left,
    }
    message = r"1 of 2 rows are padded on the left \(the first is row 0\).*or give position_ids"
    with pytest.warns(UserWarning, match=message):
        call(model, inputs)
    positions = (left.cumsum(-1) - 1).clamp_min(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(model, {**inputs, "position_ids": positions})
        call(tiny_model("llama"), inputs)
        call(model, {**inputs, "attention_mask": left.flip(-1)})
