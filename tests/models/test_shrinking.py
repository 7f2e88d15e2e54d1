"""Small models of any type: what is replaced, what is derived again, what is kept of each kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from normscope.models.shrinking import (
    model_class,
    model_types,
    shrunken_config,
    shrunken_model,
)
from normscope.models.sizes import EXCEPTIONS, SINGLE


def test_numbers_inside_are_small_too() -> None:
    config = shrunken_config("llava")
    assert config.text_config.model_type == "llama"
    for inner in (config.text_config, config.vision_config):
        assert (inner.hidden_size, inner.intermediate_size, inner.num_hidden_layers) == (64, 48, 2)
    assert config.vision_config.image_size == 16
    assert config.image_token_index == 4
    assert config.text_config.vocab_size == 100


def test_numbers_that_are_derived_are_derived_again() -> None:
    config = shrunken_config("deepseek_v3")
    assert config.qk_head_dim == config.qk_nope_head_dim + config.qk_rope_head_dim == 16
    assert config.head_dim == config.qk_rope_head_dim == 8
    assert shrunken_config("llama").head_dim == 16


def test_heads_of_keys_stay_fewer_than_those_of_queries() -> None:
    assert shrunken_config("mixtral").num_key_value_heads == 2  # 8 of 32
    assert shrunken_config("llama").num_key_value_heads == 4  # 32 of 32
    assert shrunken_config("gemma").num_key_value_heads == 4  # 16 of 16


@pytest.mark.parametrize(
    ("name", "attribute"), [("qwen3_next", "layer_types"), ("gemma2", "layer_types")]
)
def test_a_layer_of_each_kind_is_kept(name: str, attribute: str) -> None:
    from transformers import CONFIG_MAPPING

    kinds = set(getattr(CONFIG_MAPPING[name](), attribute))
    config = shrunken_config(name)
    assert set(getattr(config, attribute)) == kinds
    assert config.num_hidden_layers == len(getattr(config, attribute)) == 2


def test_exceptions_reach_configurations_inside() -> None:
    config = shrunken_config("qwen2_vl")
    assert config.text_config.rope_parameters["mrope_section"] == [2, 3, 3]
    assert shrunken_config("align").vision_config.image_size == 64
    assert EXCEPTIONS["qwen2_vl_text"]["rope_parameters"]["mrope_section"] == [2, 3, 3]


def test_models_are_random_and_the_same_for_the_same_seed() -> None:
    before = torch.random.get_rng_state()
    first, second, other = (shrunken_model("bert", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.dtype == torch.float64
    assert not first.training
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, second.get_parameter(name))
        assert (parameter != other.get_parameter(name)).any()
    assert shrunken_model("fsmt").dtype == torch.float32
    assert "fsmt" in SINGLE


def test_the_class_is_the_base_model_where_there_is_one() -> None:
    names: dict[str, Any] = {
        name: cls.__name__ for name in ("bert", "whisper", "qwen2_vl") if (cls := model_class(name))
    }
    assert names == {"bert": "BertModel", "whisper": "WhisperModel", "qwen2_vl": "Qwen2VLModel"}
    assert model_class("no such type") is None
    assert {"bert", "llava", "whisper"} <= set(model_types())
