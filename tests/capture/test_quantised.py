"""Whole models of quantised linear layers: every map is that of the dequantised model.

Two ways in which quantisers keep weights: a module with integers and scales that dequantises in
its forward pass, and an ordinary linear layer whose weight is a tensor of a class of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn

import normscope
from normscope.decomposition.available import available
from normscope.decomposition.scopes import NAMES
from normscope.errors import UnsupportedModelError
from normscope.models.architectures import tiny_inputs, tiny_model
from tests.capture.test_projection import Quantised, QuantisedInputs


class Packed(Tensor):
    """Stands for integers times a scale; every operation sees the product."""

    numbers: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor, scale: Tensor) -> Packed:
        made: Any = Tensor._make_wrapper_subclass(
            cls, numbers.shape, dtype=scale.dtype, device=numbers.device
        )
        return made

    def __init__(self, numbers: Tensor, scale: Tensor) -> None:
        self.numbers, self.scale = numbers, scale

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return Packed(args[0].numbers, args[0].scale)

        def plain(value: Any) -> Any:
            return value.numbers * value.scale if isinstance(value, Packed) else value

        return func(*map(plain, args), **{k: plain(v) for k, v in (kwargs or {}).items()})


def rounded(layer: nn.Linear) -> tuple[Tensor, Tensor]:
    scale = layer.weight.detach().abs().amax(dim=1, keepdim=True) / 127
    return (layer.weight.detach() / scale).round(), scale


def packed(layer: nn.Linear) -> nn.Module:
    numbers, scale = rounded(layer)
    weight = Packed(numbers.to(torch.int8), scale)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


def dequantised(layer: nn.Linear) -> nn.Module:
    numbers, scale = rounded(layer)
    layer.weight = nn.Parameter(numbers * scale, requires_grad=False)
    return layer


def made_of(name: str, kind: Callable[[Any], nn.Module]) -> Any:
    """A tiny model with every linear layer with a bias inside its layers replaced."""
    model = tiny_model(name)
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and module.bias is not None and "layer" in path:
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, kind(module).eval())
    return model


@pytest.mark.parametrize("kind", [Quantised, packed])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_every_map_is_that_of_the_dequantised_model(name: str, kind: Any) -> None:
    model, plain = made_of(name, kind), made_of(name, dequantised)
    has = {one for names in available(plain).values() for one in names}
    maps = [one for one in NAMES if one in has]
    assert any("_ff" in one for one in maps)
    inputs = tiny_inputs(name)
    found = normscope.analyze_inputs(model, inputs, maps=maps)
    for result, expected in zip(
        found, normscope.analyze_inputs(plain, inputs, maps=maps), strict=True
    ):
        for one in maps:
            assert_allclose(result[one].values, expected[one].values, rtol=1e-9, atol=1e-12)


def test_quantised_activations_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"dense \(QuantisedInputs\) is not a linear"):
        normscope.analyze_inputs(made_of("bert", QuantisedInputs), tiny_inputs("bert"))
