"""What is found in a model: locations, attention modules, configurations."""

from __future__ import annotations

import pytest
from torch import nn

from normscope.capture.inventory import (
    Inventory,
    Location,
    attention_of,
    configs_of,
    uses_interface,
)
from normscope.errors import UnsupportedModelError
from tests.helpers.captures import model_of


def test_modules_are_located_in_their_layer_lists() -> None:
    model = model_of("t5")
    inventory = Inventory(model)
    attention = model.get_submodule("decoder.block.1.layer.1.EncDecAttention")
    assert inventory[attention] == Location(
        name="decoder.block.1.layer.1.EncDecAttention",
        stack="decoder.block",
        element="decoder.block.1",
        block="decoder.block.1.layer.1",
    )
    assert inventory.described(attention) == f"{inventory[attention].name} (T5Attention)"
    assert inventory[model.shared].stack == ""
    assert set(inventory.owners) == {model.encoder, model.decoder}
    assert len(inventory.elements) == 2 + 3
    assert nn.Identity() not in inventory


@pytest.mark.parametrize(
    ("name", "interface", "handmade"), [("llama", 3, 0), ("bloom", 0, 3), ("marian", 8, 0)]
)
def test_attention_by_the_interface_and_by_hand(name: str, interface: int, handmade: int) -> None:
    inventory = Inventory(model_of(name))
    assert sum(uses_interface(type(m)) for m in inventory.attention) == interface
    assert len(inventory.handmade) == handmade


def test_a_shared_layer_is_found_once() -> None:
    inventory = Inventory(model_of("albert"))
    assert len(inventory.attention) == len(set(inventory.attention))
    assert len(inventory.elements) == 1


def test_the_eager_function_is_that_of_the_models_own_module() -> None:
    from transformers.models.llama import modeling_llama

    attention = model_of("llama").model.layers[0].self_attn
    table, eager = attention_of(attention)
    assert eager is modeling_llama.eager_attention_forward
    assert table is vars(modeling_llama)["ALL_ATTENTION_FUNCTIONS"]
    with pytest.raises(UnsupportedModelError, match="Linear does not name exactly one eager"):
        attention_of(nn.Linear(1, 1))


def test_configurations_of_all_parts_are_found() -> None:
    model = model_of("clip")
    configs = configs_of(model)
    for config in (model.config, model.config.text_config, model.config.vision_config):
        assert configs[id(config)] is config
    assert configs_of(nn.Linear(1, 1)) == {}
