"""What a model is at one moment: every change of it is noticed, also during a call."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import normscope
from normscope.capture import capture
from normscope.capture.layers import layers_of
from normscope.errors import ExactnessError, UnsupportedModelError
from normscope.foundation.caching import ModuleCache
from normscope.models.architectures import FAMILIES, tiny_inputs, tiny_model
from normscope.models.layouts import LAYOUTS, register_layout
from normscope.results.state import ModelState, Snapshot

# ------------------------------------------------------------------------- the state of a model


# FSMT's own mask overflows in float64 inside transformers.
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "fsmt"])
def test_running_a_model_does_not_change_its_state(name: str) -> None:
    model, inputs = tiny_model(name), tiny_inputs(name)
    normscope.analyze_inputs(model, inputs, maps=["attn_n"])
    state = ModelState(model)
    assert state.recordable
    kept = state.kept()
    normscope.analyze_inputs(model, inputs, maps=["attn_n"])
    assert ModelState(model) == kept
    assert ModelState(copy.deepcopy(model)) != kept


def write_in_place(model: Any) -> None:
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight.mul_(2)


def swap_data(model: Any) -> None:
    model.to(torch.float32)


def replace_parameter(model: Any) -> None:
    dense = model.encoder.layer[1].output.dense
    dense.weight = nn.Parameter(dense.weight.detach().clone())


def replace_module(model: Any) -> None:
    dense = model.encoder.layer[1].output.dense
    model.encoder.layer[1].output.dense = nn.Linear(dense.in_features, dense.out_features)


def write_buffer(model: Any) -> None:
    model.embeddings.position_ids += 1


def set_number(model: Any) -> None:
    model.encoder.layer[1].attention.self.scaling *= 2


def number_to_array(model: Any) -> None:
    model.encoder.layer[1].attention.self.scaling = torch.ones(4)


def replace_function(model: Any) -> None:
    model.encoder.layer[1].attention.self.hook = nn.functional.relu


def patch_forward(model: Any) -> None:
    model.encoder.layer[1].forward = model.encoder.layer[0].forward


def set_flag(model: Any) -> None:
    model.config.layer_norm_eps = 0.5


def replace_config(model: Any) -> None:
    model.encoder.layer[1].attention.self.config = copy.deepcopy(model.config)


def register(model: Any) -> None:
    register_layout("BertLayer", layers_of(model)["encoder.layer.0"][1])


@pytest.mark.parametrize(
    "change",
    [write_in_place, swap_data, replace_parameter, replace_module, write_buffer, set_number,
     number_to_array, replace_function, patch_forward, set_flag, replace_config, register],
)  # fmt: skip
def test_every_change_changes_the_state(
    change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normscope.models.layouts.LAYOUTS", dict(LAYOUTS))
    model: Any = tiny_model("bert")
    model.encoder.layer[1].attention.self.hook = nn.functional.gelu
    kept = ModelState(model).kept()
    assert ModelState(model) == kept
    with torch.no_grad():
        change(model)
    assert ModelState(model) != kept


def test_the_mode_does_not_matter() -> None:
    """The engine runs a model in evaluation mode whatever its own mode is."""
    model = tiny_model("bert")
    kept = ModelState(model).kept()
    assert ModelState(model.train()) == kept


def test_a_model_with_a_hook_is_not_recorded() -> None:
    model: Any = tiny_model("bert")
    hook = model.encoder.layer[1].register_forward_hook(lambda m, a, y: 2 * y)
    assert not ModelState(model).recordable
    hook.remove()
    assert ModelState(model).recordable


# ------------------------------------------------------------------------ the state of a call


def test_a_call_whose_weights_change_before_the_first_result_is_computed_again() -> None:
    """Some models change their own weights in the first pass."""
    model: Any = tiny_model("bert")
    weight = model.encoder.layer[0].output.dense.weight
    snapshot, calls = Snapshot(model), list[float]()

    def compute() -> float:
        calls.append(weight[0, 0].item())
        if len(calls) == 1:
            weight.data.add_(1)
        return calls[-1]

    assert snapshot.settled(compute) == weight[0, 0].item() == calls[1]
    weight.data.add_(1)
    with pytest.raises(UnsupportedModelError, match="BertModel were changed while it was"):
        snapshot.settled(lambda: 1)


def test_a_change_explains_other_errors() -> None:
    model: Any = tiny_model("bert")
    snapshot = Snapshot(model, used=True)

    def fail() -> None:
        raise ExactnessError("the parts differ")

    with pytest.raises(ExactnessError):
        snapshot.settled(fail)
    with torch.no_grad():
        model.encoder.layer[0].output.dense.weight.mul_(2)
    with pytest.raises(UnsupportedModelError, match="changed while"):
        snapshot.settled(fail)


@pytest.mark.parametrize(
    "change",
    [write_in_place, swap_data, replace_parameter, replace_module,
     lambda model: model.encoder.layer[1].output.dense.weight.data.mul_(2)],
)  # fmt: skip
def test_a_snapshot_notices_changes_of_weights(change: Callable[[Any], None]) -> None:
    model: Any = tiny_model("bert")
    snapshot = Snapshot(model, used=True)
    assert snapshot.holds()
    change(model)
    assert snapshot.changed_weights(model)
    with pytest.raises(UnsupportedModelError):
        snapshot.holds()


def test_buffers_of_the_model_s_own_may_change_in_a_pass() -> None:
    """Rotary embeddings compute their frequencies anew for long inputs."""
    model: Any = tiny_model("bert")
    snapshot = Snapshot(model, used=True)
    model.embeddings.position_ids = model.embeddings.position_ids.clone()
    assert snapshot.holds()
    model.embeddings.position_ids += 1
    assert snapshot.holds()
    assert snapshot.changed_structure(model)


def test_an_open_capture_of_another_thread_is_no_change() -> None:
    model = tiny_model("bert")
    snapshot = Snapshot(model, used=True)
    with capture(model):
        assert not snapshot.changed_structure(model)
        assert snapshot.holds()
        inside = Snapshot(model)
    assert not inside.changed_structure(model)


def test_a_snapshot_does_not_keep_the_model_alive() -> None:
    model = tiny_model("bert")
    snapshot, alive = Snapshot(model, used=True), weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
    assert snapshot.holds()


def test_what_was_computed_from_weights_goes_with_them() -> None:
    """Also where only samples tell that they were changed through ``.data``."""
    model: Any = tiny_model("bert")
    cache: ModuleCache[int] = ModuleCache(of_weights=True)
    Snapshot(model)
    cache.get(model.pooler, "same", lambda: 1)
    Snapshot(model)
    assert cache.get(model.pooler, "same", lambda: 2) == 1
    model.pooler.dense.weight.data.mul_(2)
    Snapshot(model)
    assert cache.get(model.pooler, "same", lambda: 2) == 2
