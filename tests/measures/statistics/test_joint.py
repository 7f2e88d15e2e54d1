"""The sketch of α and ‖f‖: bins and counts one pair at a time, ρ and its bound by definition."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from normscope.measures.statistics import joint
from normscope.measures.statistics.joint import ALPHA, NORM, Axis, add_up, correlation, count_pairs

AXES = {"alpha": ALPHA, "norm": NORM}


def bin_of(axis: Axis, value: float) -> int:
    """2,048 bins to a doubling, counted from 2^lowest; one coarse bin comes before them."""
    value = float(np.float32(value))
    if value == 0:
        return 0
    mantissa, exponent = np.frexp(value)  # value = mantissa · 2^exponent, mantissa from ½ to 1
    octave, share = int(exponent) - 1 - axis.lowest, 2 * float(mantissa) - 1
    before = 2048 // 2**axis.bits
    return min(max(octave * 2048 + int(share * 2048) + before, 0), axis.fine - 1)


@pytest.mark.parametrize("name", AXES)
def test_bins_are_shares_of_a_doubling(name: str) -> None:
    axis = AXES[name]
    lowest, highest = 2.0**axis.lowest, 2.0 ** (axis.lowest + axis.octaves)
    draw = np.random.default_rng(0)
    middle = 2.0 ** draw.uniform(axis.lowest + 1, axis.lowest + axis.octaves - 1, 500)
    ends = [0.0, lowest, lowest * 1.0005, highest * 0.999, 0.25, 0.49999, 0.5, 1.0]
    ends += [] if name == "alpha" else [lowest * 0.999, lowest / 3, highest, 3 * highest]
    values = torch.tensor([*ends, *middle.tolist()], dtype=torch.float64)
    found = axis.bins(values)
    assert found.tolist() == [bin_of(axis, value) for value in values.tolist()]
    assert axis.coarse == axis.octaves * 2**axis.bits + 1
    assert axis.fine == axis.coarse * 2048 // 2**axis.bits
    assert int(axis.bins(torch.tensor(1e-42)) >> axis.within) == 0  # below 2^-126


def pairs(seed: int, mask: str, rows: int = 5, heads: int = 2, tokens: int = 7) -> dict[str, Any]:
    """Weights, lengths, categories, real tokens and admitted pairs of a random batch."""
    make = torch.Generator().manual_seed(seed)
    real = torch.ones(rows, tokens, dtype=torch.bool)
    if mask == "padded":
        real = torch.arange(tokens) < torch.randint(2, tokens, (rows, 1), generator=make)
    admitted = real[:, None, None, :] & real[:, None, :, None]
    if mask == "causal":
        admitted = admitted[:1].tril()
    scores = 6 * torch.randn(rows, heads, tokens, tokens, dtype=torch.float64, generator=make)
    alpha = scores.masked_fill(~admitted, -torch.inf).softmax(dim=-1).nan_to_num(0)
    norm = torch.randn(rows, heads, tokens, dtype=torch.float64, generator=make).exp()
    norm = norm.masked_fill(~real[:, None], 1e9)  # of padding anything
    category = torch.randint(0, 3, (rows, tokens), generator=make)
    return {
        "alpha": alpha,
        "norm": norm,
        "category": category,
        "real": real,
        "admitted": None if mask == "none" else admitted,
    }


def counted(alpha: Any, norm: Any, category: Any, real: Any, admitted: Any) -> Any:
    """Cells with their counts and sums, and the counts of the fine bins, pair by pair."""
    cells: Any = defaultdict(lambda: np.zeros(3, dtype=int))
    alone: dict[str, Any] = {"alpha": defaultdict(int), "norm": defaultdict(int)}
    for b, h, i, j in np.ndindex(*alpha.shape):
        together = admitted is None or bool(admitted[b % len(admitted), 0, i, j])
        if together and bool(real[b, j]):
            c = int(category[b, j])
            u, v = bin_of(ALPHA, float(alpha[b, h, i, j])), bin_of(NORM, float(norm[b, h, j]))
            code = c, u // 128, v // 16
            cells[code] += (1, u % 128, v % 16)
            alone["alpha"][c * ALPHA.fine + u] += 1
            alone["norm"][c * NORM.fine + v] += 1
    return cells, alone


@pytest.mark.parametrize("most", [2**22, 200, 1])
@pytest.mark.parametrize("mask", ["none", "padded", "causal"])
def test_every_pair_is_counted(mask: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows at once or all, the sums of fine positions exact to the last bit."""
    monkeypatch.setattr(joint, "MOST", most)
    given = pairs(3, mask)
    cells, alone = counted(**given)
    found = {name: tensor.numpy() for name, tensor in count_pairs(**given, categories=3).items()}
    sums = add_up(found["code"], {name: found[name] for name in ("n", "alpha", "norm")})
    expected = {
        (c * ALPHA.coarse + a) * NORM.coarse + b: told.tolist() for (c, a, b), told in cells.items()
    }
    assert sums["code"].tolist() == sorted(expected)
    told = np.stack([sums[name] for name in ("n", "alpha", "norm")], axis=1)
    assert told.tolist() == [expected[code] for code in sorted(expected)]
    assert (told[:, 1] % 2 == 1).any()  # the lowest bit of a position is kept
    for name, counts in alone.items():
        assert found[f"{name}_code"].tolist() == sorted(counts)
        assert found[f"{name}_n"].tolist() == [counts[code] for code in sorted(counts)]


def test_threads_change_nothing() -> None:
    given = pairs(4, "padded")
    one = count_pairs(**given, categories=3)
    torch.set_num_threads(2)
    try:
        two = count_pairs(**given, categories=3)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_equal_codes_are_added_up() -> None:
    draw = np.random.default_rng(1)
    code, values = draw.integers(0, 9, 40), draw.integers(0, 100, 40)
    made = add_up(code, {"n": values})
    assert made["code"].tolist() == sorted(set(code.tolist()))
    assert made["n"].tolist() == [int(values[code == one].sum()) for one in made["code"]]
    assert add_up(code[:0], {"n": values[:0]})["n"].tolist() == []


def sketch(alpha: Any, norm: Any, category: Any) -> dict[str, Any]:
    """The state of pairs that are given one by one."""
    shape = (1, 1, 1, len(alpha))
    found = count_pairs(
        torch.from_numpy(alpha).view(shape),
        torch.from_numpy(norm).view(1, 1, -1),
        torch.from_numpy(category).view(1, -1),
        torch.ones(1, len(alpha), dtype=torch.bool),
        torch.ones(1, 1, 1, len(alpha), dtype=torch.bool),
        3,
    )
    told = {name: tensor.numpy() for name, tensor in found.items()}
    return {
        "cells": add_up(told["code"], {name: told[name] for name in ("n", "alpha", "norm")}),
        "alpha": add_up(told["alpha_code"], {"n": told["alpha_n"]}),
        "norm": add_up(told["norm_code"], {"n": told["norm_n"]}),
    }


class SlowRanks:
    """Ranks of the fine bins, from −½ to ½, and in each coarse bin their line of least squares."""

    def __init__(self, fine: Any, per: int) -> None:
        self.fine, self.coarse, self.position = fine, fine // per, fine % per
        below = np.array([(fine < f).mean() for f in fine])
        self.share = np.array([(fine == f).mean() for f in fine])
        self.rank = below + self.share / 2 - 0.5
        self.line, self.slope = np.zeros(len(fine)), np.zeros(len(fine))
        self.low, self.high = np.zeros(len(fine)), np.zeros(len(fine))
        for one in set(self.coarse.tolist()):
            here = self.coarse == one
            x, y = self.position[here].astype(float), self.rank[here]
            steep = np.polyfit(x, y, 1)[0] if len(set(x.tolist())) > 1 else 0.0
            self.slope[here], self.line[here] = steep, y.mean() + steep * (x - x.mean())
            self.low[here], self.high[here] = x.min(), x.max()
        self.wrong = (self.rank - self.line) ** 2 + self.share**2 / 12  # squared, at most


def slow_correlation(alpha: Any, norm: Any) -> tuple[float, float]:
    """ρ and its bound as the module's text has them, pair by pair."""
    u = SlowRanks(np.array([bin_of(ALPHA, one) for one in alpha]), 128)
    v = SlowRanks(np.array([bin_of(NORM, one) for one in norm]), 16)
    size = float(np.sqrt((u.rank**2).mean() * (v.rank**2).mean()))
    mean, deviation = np.zeros((2, len(alpha))), np.zeros((2, len(alpha)))
    for cell in set(zip(u.coarse.tolist(), v.coarse.tolist(), strict=True)):
        here = (u.coarse == cell[0]) & (v.coarse == cell[1])
        for k, one in enumerate((u, v)):
            mean[k, here] = one.line[here].mean()
            m, low, high = one.position[here].mean(), one.low[here][0], one.high[here][0]
            if here.sum() > 1:
                deviation[k, here] = abs(one.slope[here][0]) * np.sqrt((m - low) * (high - m))
    unknown = (deviation[0] * deviation[1]).mean()
    for one, k in ((u, 1), (v, 0)):  # what one strays from its lines, times the other's spread
        for place in set(one.coarse.tolist()):
            here = one.coarse == place
            spread = mean[k, here].var() + (deviation[k, here] ** 2).mean()
            unknown += here.mean() * np.sqrt(one.wrong[here].mean() * spread)
    lost = [float(one.wrong.mean()) for one in (u, v)]
    unknown += np.sqrt(lost[0] * lost[1])
    sizes = [float((one.rank**2).mean()) for one in (u, v)]
    bound = unknown / size + (lost[0] / sizes[0] + lost[1] / sizes[1]) / 2
    return float((mean[0] * mean[1]).mean() / size), float(bound)


@pytest.mark.parametrize("slope", [-1.0, -0.2, 0.0, 0.6])
def test_correlation_and_its_bound(slope: float) -> None:
    draw = np.random.default_rng(7)
    x = draw.normal(size=400)
    # Of few values in the first category: fine bins and cells with many pairs.
    x[:100] = np.round(x[:100] * 3) / 3
    alpha = 1 / (1 + np.exp(4 - x))
    norm = np.exp(0.3 * (slope * x + (1 - abs(slope)) * draw.normal(size=400)))
    norm[:100] = np.round(norm[:100], 2)
    category = np.repeat([0, 2], [100, 300])
    state = sketch(alpha, norm, category)
    for one in (0, 2):
        here = category == one
        count, rho, bound = correlation(state, one)
        assert count == here.sum()
        exact = spearmanr(alpha[here], norm[here]).statistic
        expected = slow_correlation(alpha[here], norm[here])
        assert rho == pytest.approx(expected[0], abs=1e-12)
        assert bound == pytest.approx(expected[1], rel=1e-9)
        assert abs(rho - exact) <= bound
    assert correlation(state, 1)[0] == 0  # there is none of it
    assert np.isnan(correlation(state, 1)[1:]).all()


def test_one_value_has_no_correlation() -> None:
    alpha, norm = np.full(5, 0.3), np.linspace(1, 2, 5)
    count, rho, bound = correlation(sketch(alpha, norm, np.zeros(5, dtype=int)), 0)
    assert count == 5
    assert np.isnan([rho, bound]).all()


# ---- how near it is, for distributions of many kinds


def softmax(scores: Any) -> Any:
    made = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return made / made.sum(axis=-1, keepdims=True)


def whole_sketch(alpha: Any, norm: Any) -> dict[str, Any]:
    keys = alpha.shape[-1]
    real = torch.ones(1, keys, dtype=torch.bool)
    category = torch.zeros(1, keys, dtype=torch.long)
    found = count_pairs(
        torch.tensor(alpha)[None],
        torch.tensor(norm)[None],
        category,
        real,
        torch.ones(1, 1, alpha.shape[1], keys, dtype=torch.bool),
        1,
    )
    made = {name: tensor.numpy() for name, tensor in found.items()}
    return {
        "cells": add_up(made["code"], {name: made[name] for name in ("n", "alpha", "norm")}),
        "alpha": add_up(made["alpha_code"], {"n": made["alpha_n"]}),
        "norm": add_up(made["norm_code"], {"n": made["norm_n"]}),
    }


DRAW = np.random.default_rng(0)
SHAPE = (4, 150, 150)
NORMS = np.exp(DRAW.normal(0, 0.4, (4, 150)))
TALL = np.log(NORMS)[:, None]
NORMAL = DRAW.normal(size=SHAPE)
STEPS = np.round(NORMS, 1) + 0.1
SMOOTH = {
    "independent": (softmax(2 * NORMAL), NORMS),
    "opposed": (softmax(NORMAL - 2 * TALL), NORMS),
    "weak": (softmax(2 * NORMAL - 0.3 * TALL), NORMS),
    "long tails": (softmax(1.5 * DRAW.standard_t(3, SHAPE) + TALL), NORMS**3),
    "two kinds of heads": (softmax(NORMAL * np.array([0.3, 1, 3, 5])[:, None, None]), NORMS),
    "monotone": (np.broadcast_to((NORMS / NORMS.max())[:, None], SHAPE).copy(), NORMS),
    "small": (softmax(2 * NORMAL - TALL) * 1e-9, NORMS * 1e-4),
    "float32": (softmax(8 * NORMAL - 4 * TALL).astype(np.float32), NORMS),
}
TIED = {
    "zeros": (np.where(DRAW.random(SHAPE) < 0.5, 0, softmax(NORMAL - TALL)), NORMS),
    "equal weights": (np.round(softmax(NORMAL - TALL), 3), NORMS),
    "equal norms": (softmax(NORMAL - np.log(STEPS)[:, None]), STEPS),
    "both": (np.round(softmax(NORMAL - np.log(STEPS)[:, None]), 3), STEPS),
}


@pytest.mark.parametrize("name", [*SMOOTH, *TIED])
def test_the_sketch_is_near_and_knows_how_near(name: str) -> None:
    alpha, norm = (SMOOTH | TIED)[name]
    pairs, rho, bound = correlation(whole_sketch(alpha, norm), 0)
    exact = spearmanr(alpha.ravel(), np.broadcast_to(norm[:, None], SHAPE).ravel()).statistic
    assert pairs == alpha.size
    assert abs(rho - exact) <= min(bound, 2e-4)
    if name in SMOOTH:
        assert bound <= 0.004  # of 90,000 pairs; more pairs have a smoother distribution


def test_the_bound_holds_where_the_sketch_is_too_coarse() -> None:
    narrow = 1 + 0.01 * DRAW.normal(size=(4, 150))
    for alpha in (softmax(0.01 * NORMAL + np.log(narrow)[:, None]), softmax(0.01 * NORMAL)):
        _, rho, bound = correlation(whole_sketch(alpha, narrow), 0)
        exact = spearmanr(alpha.ravel(), np.broadcast_to(narrow[:, None], SHAPE).ravel()).statistic
        assert abs(rho - exact) <= bound


def test_no_correlation_of_what_is_the_same() -> None:
    pairs, rho, _ = correlation(whole_sketch(np.full(SHAPE, 0.1), NORMS), 0)
    assert pairs == 90000
    assert np.isnan(rho)
