"""What does not pass shares on is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.errors import ExactnessError
from normscope.linearisation.rules import RULES
from tests.linearisation.test_network import Own, explain_own

pytestmark = pytest.mark.usefixtures("unchecked_types")


class _OwnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * s * (1 + x * (1 - s))


def own_function(x: Tensor) -> Tensor:
    value: Tensor = _OwnFunction.apply(x)
    return value


@pytest.mark.parametrize("method", RULES)
def test_an_unknown_function_is_named(method: str) -> None:
    with pytest.raises(ExactnessError, match=r"torch's special_i1e? in middle"):
        explain_own(Own(torch.special.i1), method)


@pytest.mark.parametrize("method", ["frozen", "secant"])
def test_an_autograd_function_of_the_models_own(method: str) -> None:
    with pytest.raises(ExactnessError, match="an autograd function"):
        explain_own(Own(own_function), method)


def half_detached(x: Tensor) -> Tensor:
    return torch.cat([x[..., :4], x[..., 4:].detach()], -1)


def half_without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        half = 2 * x[..., 4:]
    return torch.cat([x[..., :4], half], -1)


def through_numpy(x: Tensor) -> Tensor:
    half = torch.from_numpy(x[..., 4:].detach().numpy() * 2)
    return torch.cat([x[..., :4], half], -1)


@pytest.mark.parametrize("function", [half_detached, half_without_gradients, through_numpy])
@pytest.mark.parametrize("method", RULES)
def test_detached_states(function: Any, method: str) -> None:
    """A detached state is a constant: shares of one input add up, those of a difference do not."""
    if RULES[method].difference:
        with pytest.raises(ExactnessError):
            explain_own(Own(function), method)
        return
    result = explain_own(Own(function), method)
    assert result.error.max() < 1e-12
