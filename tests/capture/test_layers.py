"""capture_layers(): whole layers as they run, and the layouts that are kept for a model."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from normscope.capture import layers as layers_module
from normscope.capture.layers import LayerCapture, capture_layers, layers_of, paths_of
from normscope.errors import UnsupportedModelError
from normscope.models import layouts
from normscope.models.architectures import tiny_inputs
from normscope.models.layouts import LAYOUTS, register_layout
from tests.helpers.captures import identical, model_of, run, state


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the table, so that what a test registers is forgotten."""
    monkeypatch.setattr(layouts, "LAYOUTS", dict(LAYOUTS))


def layers_run(model: Any, inputs: Any, **options: Any) -> list[LayerCapture]:
    layers: list[LayerCapture] = []
    with torch.no_grad(), capture_layers(model, layers.append, **options):
        model(**inputs)
    return layers


@pytest.mark.parametrize("attention", ["eager", "fused"])
def test_each_layer_is_given_whole(attention: str) -> None:
    model, inputs = model_of("bert"), tiny_inputs("bert")
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True).hidden_states
    layers = layers_run(model, inputs, attention=attention)
    assert [layer.name for layer in layers] == [f"encoder.layer.{i}" for i in range(3)]
    for layer, output in zip(layers, states[1:], strict=True):
        assert layer.module is model.get_submodule(layer.name)
        assert layer.layout is not None
        assert set(layer.ran) == set(paths_of(layer.layout))
        assert layer.last is layer.attention
        torch.testing.assert_close(layer.output, output, rtol=1e-5, atol=1e-5)
        norm = layer.module.get_submodule("output.LayerNorm")
        assert torch.equal(norm(layer.given("output.LayerNorm")), layer.output)
        assert torch.equal(layer.output_of("output.LayerNorm"), layer.output)


def test_a_decoder_layer_has_both_attentions() -> None:
    layers = layers_run(model_of("marian"), tiny_inputs("marian"))
    for layer in layers:
        decoder = "decoder" in layer.name
        assert layer.attention is not None
        assert layer.layout is not None
        assert (layer.cross is not None) == (layer.layout.cross is not None) == decoder
        assert layer.last is (layer.cross if decoder else layer.attention)


def test_the_model_is_left_as_it_was_and_other_threads_are_not_recorded() -> None:
    model, inputs = model_of("llama"), tiny_inputs("llama")
    before, outputs = state(model), run(model, inputs)
    layers: list[LayerCapture] = []
    elsewhere: list[bool] = []
    with capture_layers(model, layers.append):
        thread = threading.Thread(
            target=lambda: elsewhere.append(identical(run(model, inputs), outputs))
        )
        thread.start()
        thread.join()
    assert (layers, elsewhere) == ([], [True])
    assert state(model) == before


def test_a_chunked_feed_forward_is_refused() -> None:
    model = model_of("bert")
    for layer in model.encoder.layer:
        layer.chunk_size_feed_forward = 3
    layers = layers_run(model, {"input_ids": torch.arange(4, 13)[None]})
    with pytest.raises(UnsupportedModelError, match=r"ran on 3 at a time.*load it with 0"):
        layers[0].given("intermediate.dense")


# ------------------------------------------------------------------------ layouts that are kept


def test_layouts_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("bert")
    first = layers_of(model)
    monkeypatch.setattr(layers_module, "layout_of", None)
    assert layers_of(model) == first


def test_a_corrected_layout_counts_for_a_model_that_was_seen_already() -> None:
    model = model_of("bert")
    (right,) = LAYOUTS["BertLayer"]
    wrong = replace(right, ff=replace(right.ff, after=None, branch="output.LayerNorm"))
    register_layout("BertLayer", wrong)
    assert {layout.ff.branch for _, layout in layers_of(model).values()} == {"output.LayerNorm"}
    register_layout("BertLayer", right)
    assert {layout.ff.branch for _, layout in layers_of(model).values()} == {None}


def test_a_layer_that_was_replaced_is_looked_at_anew() -> None:
    model = model_of("bert")
    assert len(layers_of(model)) == 3
    for _ in range(20):  # the memory of a freed layer may be used for the next one
        layer = model.encoder.layer[1]
        model.encoder.layer[1] = nn.Identity()
        assert len(layers_of(model)) == 2
        model.encoder.layer[1] = layer
        assert len(layers_of(model)) == 3
