"""Output projections that are no plain layers: adapters, quantised and offloaded weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.capture import capture, eager
from normscope.errors import UnsupportedModelError
from normscope.models.architectures import randomize_, tiny_inputs
from tests.helpers.captures import Around, captured, gap, identical, model_of, replaced, run

HEADS, WIDTH = 48, 32  # what the output projections of the tiny llama read and make


class Lora(nn.Module):
    """As peft has it: it stands in for the layer that it wraps, and looks like one."""

    def __init__(self, base_layer: nn.Linear, dropout: float = 0.0) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.in_features, self.out_features = base_layer.in_features, base_layer.out_features
        self.lora_dropout = nn.ModuleDict({"default": nn.Dropout(dropout)})
        self.lora_A = nn.ModuleDict({"default": nn.Linear(HEADS, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, WIDTH, bias=False)})
        randomize_(self, seed=7)

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    @property
    def bias(self) -> Tensor | None:
        return self.base_layer.bias

    def forward(self, x: Tensor) -> Any:
        low = self.lora_A["default"](self.lora_dropout["default"](x))
        return self.base_layer(x) + 2.0 * self.lora_B["default"](low)


def merged(adapter: Any) -> Tensor:
    a, b = adapter.lora_A["default"], adapter.lora_B["default"]
    whole: Tensor = adapter.base_layer.weight + 2.0 * b.weight @ a.weight
    return whole.detach().T.unflatten(0, (4, 12))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_an_adapter_is_read_as_a_whole(dtype: torch.dtype) -> None:
    model = replaced(Lora).to(dtype)
    eps = torch.finfo(dtype).eps
    captures = captured(model, tiny_inputs("llama"))
    for a, layer in zip(captures, model.model.layers, strict=True):
        adapter = layer.self_attn.o_proj
        torch.testing.assert_close(a.projection.weight, merged(adapter), rtol=0, atol=8 * eps)
        torch.testing.assert_close(a.projection.bias, adapter.bias, rtol=0, atol=0)
        assert a.projection.name.endswith("o_proj")
        assert gap(a) < 16 * eps
    assert torch.equal(captures[0].output, captured(model, tiny_inputs("llama"))[0].output)


def test_an_adapter_with_dropout_in_training_is_no_linear_map() -> None:
    model = replaced(lambda layer: Lora(layer, dropout=0.5))
    assert gap(captured(model, tiny_inputs("llama"))[0]) < 1e-14
    model.train()
    message = r"^model\.layers\.0\.self_attn\.o_proj \(Lora\) is not a linear map"
    with pytest.raises(UnsupportedModelError, match=message):
        captured(model, tiny_inputs("llama"))


class Named(Around):
    """Calls the layer by the name of its argument."""

    def forward(self, x: Tensor) -> Any:
        return self.inner(input=x)


def test_a_projection_that_is_called_with_a_keyword() -> None:
    expected = captured(model_of("llama"), tiny_inputs("llama"))
    for a, b in zip(captured(replaced(Named), tiny_inputs("llama")), expected, strict=True):
        assert a.projection.name == b.projection.name + ".inner"
        assert torch.equal(a.output, b.output)


class HomeMade(Around):
    """An adapter that does not look like a linear layer: only parts of it do."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__(inner)
        self.a, self.b = nn.Linear(HEADS, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x) + self.b(self.a(x))


class AdapterFirst(HomeMade):
    def forward(self, x: Tensor) -> Any:
        return self.b(self.a(x)) + self.inner(x)


class OfParameters(Around):
    def __init__(self, inner: nn.Linear) -> None:
        super().__init__(inner)
        self.a, self.b = nn.Parameter(torch.rand(HEADS, 2)), nn.Parameter(torch.rand(2, WIDTH))

    def forward(self, x: Tensor) -> Any:
        return self.inner(x) + x @ self.a @ self.b


@pytest.mark.parametrize(
    ("adapter", "named"),
    [(HomeMade, r"o_proj\.a"), (AdapterFirst, r"o_proj\.inner"), (OfParameters, "o_proj")],
)
def test_an_adapter_that_would_be_left_out_is_refused(adapter: type[Around], named: str) -> None:
    """Never half of a projection: its share would be missing from the map without a sign."""
    message = rf"^model\.layers\.0\.self_attn\.{named} acts on the output of the heads"
    with pytest.raises(UnsupportedModelError, match=message):
        captured(replaced(adapter), tiny_inputs("llama"))


class Quantised(nn.Module):
    """Weights as small integers and a scale for each row, in buffers, as quantisers keep them."""

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        scale = layer.weight.detach().abs().amax(dim=1, keepdim=True) / 127
        self.register_buffer("weight", (layer.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", layer.bias.detach())

    def forward(self, x: Tensor) -> Any:
        return x @ (self.weight.to(x) * self.scale).T + self.bias


class QuantisedInputs(Quantised):
    """And the activations as well, which is no linear map any more."""

    def forward(self, x: Tensor) -> Any:
        step = x.abs().amax(dim=-1, keepdim=True) / 127
        return super().forward((x / step).round() * step)


class Subclass(nn.Linear):
    """A linear layer whose weight is not what it multiplies with."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features)
        self.load_state_dict(layer.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.sign() * self.weight.abs().mean(), self.bias)


def patched(layer: Any) -> nn.Module:
    """The layer itself, with another forward."""
    signs = layer.weight.detach().sign() * layer.weight.detach().abs().mean()
    layer.forward = lambda x: nn.functional.linear(x, signs, layer.bias)
    return layer


def test_an_own_forward_that_does_the_usual_keeps_the_usual_weights() -> None:
    """Falcon's linear layers are of a class of its own; nothing needs to be worked out."""
    model = model_of("falcon")
    a = captured(model, tiny_inputs("falcon"))[0]
    layer = model.get_submodule(a.projection.name)
    assert type(layer).forward is not nn.Linear.forward
    assert a.projection.weight.data_ptr() == layer.weight.data_ptr()


@pytest.mark.parametrize("kind", [Quantised, Subclass, patched])
def test_weights_that_are_not_plain_are_read_off_what_they_do(kind: type[nn.Module]) -> None:
    model = replaced(kind)
    for a in captured(model, tiny_inputs("llama")):
        layer: Any = model.get_submodule(a.projection.name)
        if isinstance(layer, Quantised):
            effective = layer.weight * layer.scale
        else:
            effective = layer.weight.sign() * layer.weight.abs().mean()
        expected = effective.detach().T.unflatten(0, (4, 12))
        torch.testing.assert_close(a.projection.weight, expected, rtol=0, atol=1e-15)
        assert gap(a) < 1e-14


def test_quantised_activations_are_refused() -> None:
    message = r"^model\.layers\.0\.self_attn\.o_proj \(QuantisedInputs\) is not a linear map"
    with pytest.raises(UnsupportedModelError, match=message):
        captured(replaced(QuantisedInputs), tiny_inputs("llama"))


def test_a_projection_that_makes_no_tensor_is_refused() -> None:
    class Pair(Quantised):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), self.scale

    with pytest.raises(UnsupportedModelError, match=r"o_proj \(Pair\) makes a tuple"):
        captured(replaced(Pair), tiny_inputs("llama"))


@pytest.mark.parametrize("name", ["llama", "gpt2", "falcon"])
def test_hooks_that_bring_the_weights_along(name: str) -> None:
    """As accelerate's do for a device_map: forward is replaced, weights wait on "meta"."""
    model, inputs = model_of(name), tiny_inputs(name)
    with eager(model):
        outputs = run(model, inputs)
    expected = captured(model, inputs)
    for module in model.modules():
        if not list(module.children()) and list(module.parameters()):
            offload(module)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    with capture(model) as captures:
        found = run(model, inputs)
    assert identical(found, outputs)
    for a, b in zip(captures, expected, strict=True):
        assert torch.equal(a.alpha, b.alpha)
        assert torch.equal(a.output, b.output)
        torch.testing.assert_close(a.projection.weight, b.projection.weight, rtol=0, atol=1e-15)
        assert gap(a) < 1e-14


def offload(module: nn.Module) -> None:
    """Keep the parameters aside, and bring them in for the time of each forward pass."""
    kept, forward = dict(module._parameters), module.forward

    def meta() -> None:
        for name, parameter in kept.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)

    def with_weights(*args: Any, **kwargs: Any) -> Any:
        module._parameters.update(kept)
        try:
            return forward(*args, **kwargs)
        finally:
            meta()

    meta()
    module.forward = with_weights
