"""Projections to a whole vocabulary: cotangents keep their digits."""

from __future__ import annotations

import pytest
import torch

from normscope.linearisation import projections
from normscope.linearisation.projections import WideProjection, is_wide


def test_a_mean_over_a_vocabulary_keeps_its_digits() -> None:
    draw = torch.Generator().manual_seed(0)
    weight = torch.rand(40_000, 6, generator=draw) + 1
    cotangent = torch.softmax(torch.randn(2, 40_000, generator=draw), dim=-1)
    expected = cotangent.double() @ weight.double()
    (pulled,) = WideProjection(lambda x: x @ weight.T, weight).pull((), cotangent)
    assert pulled is not None
    assert pulled.dtype == torch.float32
    assert float((pulled - expected).abs().max()) < 1e-6  # 6e-6 in one go


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
def test_forwards_and_backwards_are_those_of_the_projection(shape: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(9000, 4, generator=draw), torch.randn(9000, generator=draw)
    project = WideProjection(lambda x: torch.nn.functional.linear(x, weight, bias), weight)
    x = torch.randn(*shape, generator=draw, requires_grad=True)
    cotangent = torch.randn(*shape[:-1], 9000, generator=draw)
    plain = torch.nn.functional.linear(x, weight, bias)
    assert torch.equal(project(x), plain)
    (expected,) = torch.autograd.grad(plain, x, cotangent)
    (pulled,) = torch.autograd.grad(project(x), x, cotangent)
    torch.testing.assert_close(pulled, expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(project.push((), [x.detach()]), plain.detach() - bias)


def test_only_wide_float32_weights_on_a_cpu() -> None:
    wide = torch.zeros(projections.WIDE, 2)
    assert is_wide(wide)
    assert is_wide(torch.nn.Parameter(wide))
    assert not is_wide(wide.double())
    assert not is_wide(wide[1:])
    assert not is_wide(wide[:, 0])
