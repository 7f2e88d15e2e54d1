"""What is found in a model: locations, attention modules, configurations."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from normscope.capture.layers import layers_of
from normscope.errors import UnsupportedModelError
from normscope.models import inventory as inventory_module
from normscope.models.inventory import (
    Inventory,
    Location,
    attention_of,
    compiled_part,
    configs_of,
    uses_interface,
)
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


# ------------------------------------------------------------------- the search is made once


def test_a_model_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("t5")
    first = Inventory(model)
    monkeypatch.setattr(inventory_module, "Search", None)
    again = Inventory(model)
    assert vars(again) == vars(first)
    assert list(again.named) == list(first.named)


def test_a_model_that_changed_is_searched_again() -> None:
    model = model_of("llama")
    layers = model.model.layers
    before = Inventory(model)
    for _ in range(20):  # the memory of a freed module may be used for the next one
        layers[1].self_attn.o_proj = nn.Linear(48, 32, bias=False, dtype=torch.float64)
        assert layers[1].self_attn.o_proj in Inventory(model)
    assert len(Inventory(model).attention) == 3
    layers.append(layers[0])
    assert "model.layers.3" in Inventory(model).named
    del layers[2:]
    assert len(Inventory(model).attention) == 2
    model.model.rows = model.model._modules.pop("layers")  # the same modules by another name
    assert Inventory(model)[layers[0].self_attn].name == "model.rows.0.self_attn"
    assert before[layers[0].self_attn].name == "model.layers.0.self_attn"


def test_a_configuration_that_was_replaced_is_found() -> None:
    model = model_of("llama")
    assert set(configs_of(model)) == {id(model.config)}
    other = copy.deepcopy(model.config)
    model.model.layers[1].self_attn.config = other
    assert set(configs_of(model)) == {id(model.config), id(other)}
    model.model.layers[1].mlp.config = third = copy.deepcopy(model.config)
    assert id(third) in configs_of(model)


def test_a_part_that_is_compiled_later_is_noticed() -> None:
    model = model_of("bert")
    assert compiled_part(model) is None
    layer = model.encoder.layer[1]
    layer.forward = layer.forward  # patched, but not compiled
    assert compiled_part(model) is None
    layer.forward = torch.compile(layer.forward, backend="eager")
    assert compiled_part(model) == "encoder.layer.1"
    del layer.forward
    assert compiled_part(model) is None
    model.compile(backend="eager")
    assert compiled_part(model) == ""


def test_what_is_kept_does_not_keep_the_model() -> None:
    model = model_of("bert")
    Inventory(model)
    layers_of(model)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
