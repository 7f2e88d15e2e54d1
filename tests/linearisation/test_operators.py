"""Each linear map alone: its value, its transpose, and differences at hard places."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from normscope.linearisation import attention as fused
from normscope.linearisation.attention import Call, HeldAttention, SecantAttention
from normscope.linearisation.operators import (
    Bilinear,
    ElementwiseProduct,
    HeldNorm,
    LinearMap,
    Operator,
    Origin,
    Slope,
    path_parts,
)
from normscope.linearisation.secants import (
    Midpoint,
    SecantExtreme,
    SecantLogSumExp,
    SecantNorm,
    SecantQuotient,
    SecantSlope,
    SecantSoftmax,
)
from normscope.linearisation.solving import SecantSolve


def noise(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def norm_of(kind: type[HeldNorm], centred: bool) -> HeldNorm:
    scale = 1 + noise(6, seed=5)
    if centred:
        function: Any = partial(functional.layer_norm, normalized_shape=(6,), weight=scale)
    else:
        function = partial(functional.rms_norm, normalized_shape=(6,), weight=scale, eps=1e-5)
    return kind(function, scale, lambda x: x, 1e-5, centred)


def _solver(upper: bool, left: bool, unit: bool) -> SecantSolve:
    def solve(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit)

    return SecantSolve(solve, upper, left, unit)


_MASK = noise(4, 3, 5, 5, seed=3) + 0.1  # what the test below draws as the fourth state
_ALL_HEADS = noise(4, 1, 5, 5, seed=3) + 0.1
CAUSAL = Call(None, causal=True, scale=None)
SDPA = functional.scaled_dot_product_attention
SHAPE = (4, 3, 5, 6)  # two pairs of rows
# The operator, the shapes of its states, and whether it maps differences.
OPERATORS: dict[str, tuple[Callable[[], Operator], list[tuple[int, ...]], bool]] = {
    "slope": (lambda: Slope(torch.tanh, Origin.of(torch.tanh)), [SHAPE], False),
    "product": (lambda: Bilinear(torch.matmul), [SHAPE, (4, 3, 6, 2)], False),
    "elementwise": (
        lambda: ElementwiseProduct(torch.mul, (0.3, 0.7)), [SHAPE, (4, 1, 5, 6)], False,
    ),
    "norm": (lambda: norm_of(HeldNorm, centred=True), [SHAPE], False),
    "rms": (lambda: norm_of(HeldNorm, centred=False), [SHAPE], False),
    "secant": (lambda: SecantSlope(functional.gelu), [SHAPE], True),
    "midpoint": (lambda: Midpoint(torch.matmul), [SHAPE, (4, 3, 6, 2)], True),
    "quotient": (lambda: SecantQuotient(torch.div), [SHAPE, (4, 3, 5, 1)], True),
    "secant norm": (lambda: norm_of(SecantNorm, centred=True), [SHAPE], True),
    "secant rms": (lambda: norm_of(SecantNorm, centred=False), [SHAPE], True),
    "softmax": (lambda: SecantSoftmax(partial(torch.softmax, dim=-1), -1), [SHAPE], True),
    "logsumexp": (
        lambda: SecantLogSumExp(partial(torch.logsumexp, dim=-1), -1, keepdim=False), [SHAPE], True,
    ),
    "extreme": (lambda: SecantExtreme(-1, keepdim=False, largest=True), [SHAPE], True),
    "smallest": (lambda: SecantExtreme(1, keepdim=True, largest=False), [SHAPE], True),
    "attention": (
        lambda: SecantAttention(partial(SDPA, is_causal=True), CAUSAL), [SHAPE, SHAPE, SHAPE], True,
    ),
    "attention with scores in its mask": (
        lambda: SecantAttention(SDPA, Call(_MASK, causal=False, scale=None)),
        [SHAPE, SHAPE, SHAPE, (4, 3, 5, 5)],
        True,
    ),
    "attention with scores of all heads": (
        lambda: SecantAttention(SDPA, Call(_ALL_HEADS, causal=False, scale=None)),
        [SHAPE, SHAPE, SHAPE, (4, 1, 5, 5)],
        True,
    ),
    "linear": (lambda: LinearMap(partial(torch.matmul, noise(4, 5, seed=8))), [SHAPE], False),
    **{
        f"triangular system, upper {upper}, left {left}, unit {unit}": (
            partial(_solver, upper, left, unit),
            [(4, 3, 5, 5), SHAPE if left else (4, 3, 6, 5)],
            True,
        )
        for upper in (True, False)
        for left in (True, False)
        for unit in (True, False)
    },
    "grouped attention": (
        lambda: SecantAttention(partial(SDPA, is_causal=True, enable_gqa=True), CAUSAL),
        [SHAPE, (4, 1, 5, 6), (4, 1, 5, 6)],
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_maps_pass_on_the_value_and_are_transposed(name: str) -> None:
    make, shapes, pairs = OPERATORS[name]
    states = [noise(*shape, seed=seed) + 0.1 for seed, shape in enumerate(shapes)]
    operator = make()
    value, saved = operator.run(*states)
    half = len(value) // 2
    # The components are the states themselves, or the differences of the pairs.
    components = [_difference(state) if pairs else state for state in states]
    pushed = operator.push(saved, components)
    expected = value[:half] - value[half:] if pairs else _linear_part(name, value)
    torch.testing.assert_close(pushed[: len(expected)], expected, rtol=1e-11, atol=1e-12)
    g = noise(*value.shape, seed=9)
    if pairs:
        g[half:] = 0
    pulled = operator.pull(saved, g)
    back = sum((c * p).sum() for c, p in zip(components, pulled, strict=True) if p is not None)
    assert float(back) == pytest.approx(float((pushed * g).sum()), rel=1e-12, abs=1e-11)


def _difference(pairs: Tensor) -> Tensor:
    half = len(pairs) // 2
    return torch.cat([pairs[:half] - pairs[half:], torch.zeros_like(pairs[:half])])


def _linear_part(name: str, value: Tensor) -> Tensor:
    return value  # no operator here has an offset


@pytest.mark.parametrize("distance", [0.0, 1e-14, 1e-9, 1e-5, 1e-3, 1.1e-3, 1.0, 30.0])
@pytest.mark.parametrize(
    "function", [functional.gelu, functional.silu, torch.tanh, torch.relu, torch.exp, torch.square]
)
def test_slopes_between_points_at_any_distance(
    function: Callable[[Tensor], Tensor], distance: float
) -> None:
    start = torch.tensor([-2.0, -0.3, 0.0, 1e-4, 0.7, 3.0], dtype=torch.float64)
    u = torch.stack([start + distance, start])
    operator = SecantSlope(function)
    _, saved = operator.run(u)
    slope = operator.factor(saved)[0]
    assert bool(torch.isfinite(slope).all())
    expected = function(u[0]) - function(u[1])
    bound = 1e-15 * (function(u[0]).abs() + function(u[1]).abs() + 1)
    assert bool(((slope * (u[0] - u[1]) - expected).abs() <= 4 * bound).all())


@pytest.mark.parametrize("distance", [0.0, 1e-12, 1e-3, 1.0, 800.0])
def test_softmax_of_points_at_any_distance(distance: float) -> None:
    scores = noise(2, 3, 7)
    scores[0] = scores[1] + distance * noise(3, 7, seed=1)
    scores[:, 1, 3:] = -torch.inf
    scores[:, 2] = -torch.inf  # a query of the padding
    operator = SecantSoftmax(partial(torch.softmax, dim=-1), -1)
    value, saved = operator.run(scores)
    change = torch.nan_to_num(scores[0] - scores[1], nan=0.0)
    pushed = operator.push(saved, [torch.stack([change, torch.zeros_like(change)])])
    expected = torch.nan_to_num(value[0] - value[1], nan=0.0)
    torch.testing.assert_close(pushed[0], expected, rtol=0, atol=1e-13 * (1 + distance))
    g = torch.stack([noise(3, 7, seed=2), torch.zeros(3, 7, dtype=torch.float64)])
    (pulled,) = operator.pull(saved, g)
    assert pulled is not None
    assert bool(torch.isfinite(pulled).all())
    assert not pulled[0, 1, 3:].any()
    assert not pulled[0, 2].any()


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("block", [1, 20, 2**24])
def test_attention_in_blocks_of_queries(
    block: int, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "BLOCK", block)
    mask = torch.ones(4, 1, 5, 5, dtype=torch.bool).tril()
    mask[1, :, :, 0] = False  # its first query sees nothing
    mask[3] = mask[1]
    mask = mask[:, :, -queries:]
    q, k, v = (noise(*SHAPE, seed=seed) for seed in range(3))
    attention = partial(SDPA, attn_mask=mask)
    operator = SecantAttention(attention, Call(mask, causal=False, scale=None))
    value, saved = operator.run(q, k, v)
    pushed = operator.push(saved, [_difference(state) for state in (q, k, v)])
    torch.testing.assert_close(pushed[:2], value[:2] - value[2:], rtol=0, atol=1e-13)
    held = HeldAttention(attention, Call(mask, causal=False, scale=None))
    value, saved = held.run(q, k, v)
    torch.testing.assert_close(held.push(saved, [None, None, v]), value, rtol=0, atol=1e-13)


def test_the_slope_at_zero_is_the_derivative() -> None:
    for function, slope in ((functional.gelu, 0.5), (torch.tanh, 1.0), (functional.softplus, 0.5)):
        operator = Slope(function, Origin.of(function))
        _, saved = operator.run(torch.zeros(2, dtype=torch.float64))
        assert operator.factor(saved).tolist() == [slope, slope]


def test_path_parts_at_zero_and_far_away() -> None:
    u = torch.tensor([0.0, 1e-300, 1e-8, -30.0, 5.0], dtype=torch.float64)
    parts = path_parts(functional.silu, Origin.of(functional.silu), u)
    assert bool(torch.isfinite(parts).all())
    # Near zero SiLU is u/2: the integral of t θ(0) is half of θ(0).
    torch.testing.assert_close(parts[:3], torch.full((3,), 0.5, dtype=torch.float64))
