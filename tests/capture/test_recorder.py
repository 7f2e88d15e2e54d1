"""What cannot be seen, or breaks what the method needs, is refused by name: never a wrong map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.capture import capture
from normscope.errors import UnsupportedModelError
from normscope.models.architectures import tiny_inputs
from normscope.testing import check_architecture
from tests.helpers.captures import Around, captured, model_of, replaced, state

# ------------------------------------------------------------------------ gates and the like


class Gate(Around):
    def forward(self, heads: Tensor) -> Any:
        return self.inner(heads * torch.sigmoid(heads.mean(dim=-1, keepdim=True)))


class InPlace(Around):
    def forward(self, heads: Tensor) -> Any:
        return self.inner(heads.mul_(0.5))


class Activation(Around):
    def forward(self, heads: Tensor) -> Any:
        return self.inner(torch.tanh(heads))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("layer", [0, 2])
def test_an_activation_between_heads_and_projection_is_refused(
    layer: int, context: Callable[[], Any]
) -> None:
    """By the name of the attention, also in the last layer."""
    model = replaced(Activation, (layer,))
    before = state(model)
    message = rf"^model\.layers\.{layer}\.self_attn: the output of its heads .*gate"
    with pytest.raises(UnsupportedModelError, match=message), context(), capture(model):
        model(**tiny_inputs("llama"))
    assert state(model) == before


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("gate", [Gate, InPlace])
@pytest.mark.parametrize("layer", [0, 2])
def test_a_gate_between_heads_and_projection_is_held(
    gate: type[Around], layer: int, context: Callable[[], Any]
) -> None:
    """Also in the last layer, also where it writes into the memory of the heads."""
    model = replaced(gate, (layer,))
    before = state(model)
    with context(), capture(model) as captures:
        model(**tiny_inputs("llama"))
    assert state(model) == before
    assert [c.held is not None for c in captures] == [number == layer for number in range(3)]
    for c in captures:
        held = 1 if c.held is None or c.held.scale is None else c.held.scale
        alpha, value = c.alpha * torch.as_tensor(held).unsqueeze(-1), c.value
        value = value.repeat_interleave(alpha.shape[1] // value.shape[1], dim=1)
        parts = torch.einsum("bhqk,bhke,hed->bqd", alpha, value, c.projection.weight)
        parts = parts if c.projection.bias is None else parts + c.projection.bias
        assert (parts - c.output).abs().max() < 1e-13


def test_a_gate_inside_the_attention_itself() -> None:
    """As in BLOOM with its heads switched by a parameter."""
    model, inputs = model_of("bloom"), tiny_inputs("bloom")
    attention = model.transformer.h[1].self_attention
    attention.dense.register_forward_pre_hook(lambda m, args: (args[0] * 0.9,))
    assert check_architecture(model, inputs, bound=1e-10).attentions == {"transformer.h self": 3}


@pytest.mark.parametrize("name", ["bloom", "llama"])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_weights_that_are_not_numbers_are_no_gate(name: str, context: Callable[[], Any]) -> None:
    """What comes out is for those who read it to judge; the module is not to blame."""
    model = model_of(name)
    layer: Any = model.get_submodule({"bloom": "transformer.h", "llama": "model.layers"}[name])[0]
    with torch.no_grad():
        next(layer.parameters()).fill_(float("nan"))
    with context(), capture(model) as captures:
        model(**tiny_inputs(name))
    assert len(captures) == 3
    assert captures[0].output.isnan().all()


# -------------------------------------------------------------------------------- not captured


def test_an_attention_that_was_swapped_for_another() -> None:
    """torch's own multi-head attention does all in one kernel; nothing of it is seen."""
    model = model_of("bert")

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)

        def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
            return self.inner(hidden_states, hidden_states, hidden_states)

    model.encoder.layer[1].attention.self = Other()
    message = r"^encoder\.layer\.1\.attention \(BertAttention\) ran, but"
    with pytest.raises(UnsupportedModelError, match=message):
        captured(model, tiny_inputs("bert"))


def test_a_patched_forward_that_bypasses_the_interface() -> None:
    model = model_of("gpt2")
    attention: Any = model.transformer.h[2].attn
    attention.forward = lambda hidden_states, *_, **__: (attention.c_proj(hidden_states), None)
    with pytest.raises(UnsupportedModelError, match=r"^transformer\.h\.2\.attn \(GPT2Attention\)"):
        captured(model, tiny_inputs("gpt2"))


# ---------------------------------------------------------------------------- compiled models


def in_place(model: Any) -> Any:
    model.compile(backend="eager")
    return model


def its_forward(model: Any) -> Any:
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def a_part(model: Any) -> Any:
    model.model.layers[1] = torch.compile(model.model.layers[1], backend="eager")
    return model


@pytest.mark.parametrize(
    ("made", "named"),
    [(lambda model: torch.compile(model, backend="eager"), "OptimizedModule"),
     (in_place, "LlamaForCausalLM"), (its_forward, "LlamaForCausalLM"), (a_part, "model.layers.1")],
)  # fmt: skip
def test_compiled_models_are_refused(made: Callable[[Any], Any], named: str) -> None:
    model = made(model_of("llama"))
    with pytest.raises(UnsupportedModelError, match=f"^{named} is compiled"), capture(model):
        pass


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_scripted_parts_are_refused() -> None:
    model = model_of("llama")
    part = model.model.layers[2].mlp.up_proj
    model.model.layers[2].mlp.up_proj = torch.jit.trace(
        part, torch.rand(2, 32, dtype=torch.float64)
    )
    message = r"^model\.layers\.2\.mlp\.up_proj is compiled"
    with pytest.raises(UnsupportedModelError, match=message), capture(model):
        pass
