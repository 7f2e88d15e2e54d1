"""capture_layers(): whole layers as they run, and the layouts that are kept for a model."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from normscope.capture import wiring
from normscope.capture.layers import LayerCapture, capture_layers, layers_of
from normscope.errors import UnsupportedModelError
from normscope.models import layouts
from normscope.models.architectures import FAMILIES, tiny_inputs
from normscope.models.layouts import LAYOUTS, paths_of, register_layout
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
    monkeypatch.setattr(wiring.Sighting, "run", None)
    assert layers_of(model) == layers_of(model, tiny_inputs("bert")) == first


def test_a_corrected_layout_counts_for_a_model_that_was_seen_already() -> None:
    model = model_of("bert")
    _, right = layers_of(model)["encoder.layer.0"]
    wrong = replace(right, ff=replace(right.ff, after=None, branch="output.LayerNorm"))
    register_layout("BertLayer", wrong)
    assert {layout.ff.branch for _, layout in layers_of(model).values()} == {"output.LayerNorm"}
    register_layout("BertLayer", right)
    assert {layout.ff.branch for _, layout in layers_of(model).values()} == {None}


def test_a_part_that_was_replaced_is_looked_at_anew() -> None:
    model = model_of("bert")

    def norms() -> list[str | None]:
        return [layout.ff.after for _, layout in layers_of(model).values()]

    part = model.encoder.layer[1].output
    assert norms() == ["output.LayerNorm"] * 3
    for _ in range(5):  # the memory of a freed module may be used for the next one
        norm, part.LayerNorm = part.LayerNorm, nn.Identity()
        assert norms() == ["output.LayerNorm", None, "output.LayerNorm"]
        part.LayerNorm = norm
        assert norms() == ["output.LayerNorm"] * 3


def test_an_attention_that_does_not_run_on_random_inputs_is_seen_on_those_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family = FAMILIES["gpt2"]
    crossing = replace(family, tiny={**family.tiny, "add_cross_attention": True})
    monkeypatch.setitem(FAMILIES, "gpt2 (crossing)", replace(crossing, name="gpt2 (crossing)"))
    model = model_of("gpt2 (crossing)", dtype=torch.float32)
    inputs = tiny_inputs("gpt2")
    assert {layout.cross for _, layout in layers_of(model).values()} == {None}
    assert {layout.cross for _, layout in layers_of(model, inputs).values()} == {None}
    inputs["encoder_hidden_states"] = torch.randn(3, 4, 32)
    for known in (layers_of(model, inputs), layers_of(model)):
        crosses = [layout.cross for _, layout in known.values()]
        assert [cross and cross.before for cross in crosses] == ["ln_cross_attn"] * 3
    layouts = [layer.layout for layer in layers_run(model, tiny_inputs("gpt2"))]
    assert [layout is not None and layout.cross for layout in layouts] == [None] * 3
