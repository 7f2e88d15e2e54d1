"""What does not pass shares on is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.errors import ExactnessError, UnsupportedModelError
from normscope.linearisation.rules import RULES
from tests.linearisation.test_network import Own, explain_own

pytestmark = pytest.mark.usefixtures("unchecked_types")


@pytest.mark.parametrize("method", RULES)
def test_an_unknown_function_is_named(method: str) -> None:
    with pytest.raises(ExactnessError, match=r"torch's special_i1e? in middle"):
        explain_own(Own(torch.special.i1), method)


def fails_as_a_network(x: Tensor) -> Tensor:
    if x.requires_grad:
        raise RuntimeError("this kernel has no derivative\nand more")
    return x


@pytest.mark.parametrize("method", RULES)
def test_what_only_fails_as_a_network_is_named(method: str) -> None:
    words = r"Own does in fails_as_a_network \(test_diagnosis.py, line \d+\) what cannot"
    with pytest.raises(UnsupportedModelError, match=words) as caught:
        explain_own(Own(fails_as_a_network), method)
    assert "RuntimeError: this kernel has no derivative. " in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_model_that_fails_by_itself_raises_its_own_error() -> None:
    def fails(x: Tensor) -> Tensor:
        raise KeyError("no such expert")

    with pytest.raises(KeyError, match="no such expert"):
        explain_own(Own(fails), "frozen")


def half_detached(x: Tensor) -> Tensor:
    return torch.cat([x[..., :4], x[..., 4:].detach()], -1)


def through_numpy(x: Tensor) -> Tensor:
    half = torch.from_numpy(x[..., 4:].detach().numpy() * 2)
    return torch.cat([x[..., :4], half], -1)


@pytest.mark.parametrize("function", [half_detached, through_numpy])
@pytest.mark.parametrize("method", RULES)
def test_detached_states(function: Any, method: str) -> None:
    """A detached state is a constant: shares of one input add up, those of a difference do not."""
    if RULES[method].difference:
        with pytest.raises(ExactnessError):
            explain_own(Own(function), method)
        return
    result = explain_own(Own(function), method)
    assert result.error.max() < 1e-12
