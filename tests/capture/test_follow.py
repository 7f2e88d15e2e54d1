"""Tensors made of the heads' output, written out again from what the follower says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.capture.follow import HeadFollower, Trail
from normscope.foundation.torch_settings import LeavableMode

GAMMA = nn.Parameter(torch.linspace(0.5, 2, 12, dtype=torch.float64))
BETA = nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64))


class Followed(LeavableMode):
    """Reports every torch function to a follower."""

    def __init__(self, follower: HeadFollower) -> None:
        super().__init__()
        self.follower = follower

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        self.follower.ran(func, args, kwargs or {}, output)
        return output


def heads(seed: int = 0) -> Tensor:
    """The output of three heads: (batch, query, head, size)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 5, 3, 4, generator=generator, dtype=torch.float64)


def followed(function: Callable[..., Tensor], *outputs: Tensor) -> tuple[Tensor, Trail | None]:
    follower = HeadFollower()
    for output in outputs:
        follower.begin(output)
    with torch.no_grad(), Followed(follower):
        result = function(*outputs)
    return result, follower.trail(result)


def written_out(trail: Trail, outputs: tuple[Tensor, ...]) -> Tensor:
    """Σ_t m[source] · Π factors + constant, number by number."""
    if trail.centred is not None:
        inner = written_out(trail.centred, outputs)
        outputs = (inner - inner.mean(dim=-1, keepdim=True),)
    numbers = torch.cat([output.flatten() for output in outputs])
    total = torch.zeros(trail.shape, dtype=torch.float64)
    for term in trail.terms:
        for place in range(total.numel()):
            number = numbers[term.source.reshape(-1)[place]]
            for key in term.factors:
                factor = trail.factors[key].value
                number = number * (
                    factor.reshape(-1)[place] if isinstance(factor, Tensor) else factor
                )
            total.view(-1)[place] += number
    return total if trail.constant is None else total + trail.constant


def merged(m: Tensor) -> Tensor:
    return m.reshape(2, 5, 12)


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "merged": merged,
    "moved": lambda m: m.transpose(1, 2).flatten(2).permute(0, 2, 1).unsqueeze(1),
    "indexed": lambda m: m[:, :, 1:].flatten(2)[..., ::2],
    "number": lambda m: merged(m) * 0.5 / 3,
    "gate": lambda m: merged(m) * torch.sigmoid(merged(m)),
    "gate on the left": lambda m: torch.sigmoid(merged(m)) * merged(m),
    "gate of a head": lambda m: merged(m * torch.tanh(m.mean(-1, keepdim=True))),
    "parameter": lambda m: merged(m) * GAMMA + BETA,
    "negative": lambda m: -merged(m) - 1.0,
    "rms by hand": lambda m: m * torch.rsqrt(m.pow(2).mean(-1, keepdim=True) + 1e-6),
    "rms": lambda m: F.rms_norm(merged(m), (12,), GAMMA, 1e-6),
    "layer norm": lambda m: F.layer_norm(merged(m), (12,), GAMMA, BETA),
    "quotient": lambda m: merged(m) / merged(m).norm(dim=-1, keepdim=True),
    "halves": lambda m: torch.cat(merged(m).chunk(2, dim=-1)[::-1], dim=-1),
    "scaled halves": lambda m: torch.cat([m[:, :, :1] * 2.0, m[:, :, 1:]], dim=2),
    "difference": lambda m: m[:, :, 0] - 0.3 * m[:, :, 1],
    "cast": lambda m: merged(m).to(torch.float64).contiguous().detach(),
}


@pytest.mark.parametrize("name", FORMS)
def test_what_is_followed_is_what_was_computed(name: str) -> None:
    m = heads()
    result, trail = followed(FORMS[name], m)
    assert trail is not None
    torch.testing.assert_close(written_out(trail, (m,)), result, rtol=1e-12, atol=1e-13)


def test_the_outputs_of_several_calls() -> None:
    """As in a difference of two softmaxes that are two calls."""
    first, second = heads(), heads(1)
    result, trail = followed(lambda a, b: merged(a) - 0.2 * merged(b), first, second)
    assert trail is not None
    assert len(trail.terms) == 2
    torch.testing.assert_close(written_out(trail, (first, second)), result)


@pytest.mark.parametrize(
    "function",
    [
        lambda m: torch.tanh(merged(m)),
        lambda m: merged(m).square(),
        lambda m: merged(m) @ torch.ones(12, 12, dtype=torch.float64),
        lambda m: merged(m).cumsum(dim=1),
        lambda m: merged(m) + torch.ones(2, 5, 12, dtype=torch.float64),
        lambda m: F.layer_norm(F.layer_norm(merged(m), (12,)), (12,)),
        lambda m: torch.cat([merged(m), torch.zeros(2, 5, 1, dtype=torch.float64)], dim=-1),
        lambda m: 1 / merged(m),
    ],
)
def test_what_is_no_sum_of_heads_is_not_followed(function: Callable[[Tensor], Tensor]) -> None:
    assert followed(function, heads())[1] is None


def test_a_tensor_that_is_written_into_is_no_longer_followed() -> None:
    def function(m: Tensor) -> Tensor:
        m = merged(m) * 1.0
        return m.tanh_()

    assert followed(function, heads())[1] is None
