"""Checks of the Triton kernels against dense float64 arithmetic, on whatever device."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.kernels import (
    CellLinear,
    CellMap,
    CellSums,
    GapInputs,
    Linear,
    RowInputs,
    ScoreInputs,
)
from normscope.kernels.products import kept_products

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
kernels: Any = None
if INTERPRETED or torch.cuda.is_available():
    kernels = importlib.import_module("normscope.kernels.triton")
WIDE = torch.float64
Step = tuple[bool, bool]  # whether the mean is taken off, whether there is a γ


# ---- the checks, for any device


def numbers(*shape: int, dtype: torch.dtype = WIDE, device: str = "cpu") -> Tensor:
    return torch.randn(*shape, dtype=WIDE, device=device).to(dtype)


def check_quadratic(
    shape: tuple[int, int, int, int], dtype: torch.dtype, made: torch.dtype, device: str = "cpu"
) -> None:
    batch, heads, queries, keys = shape
    # By (batch, query, head, key) in memory, and every other key: strides of all kinds.
    alpha = torch.rand(batch, queries, heads, 2 * keys, dtype=WIDE, device=device)
    alpha = alpha.to(dtype).transpose(1, 2)[..., ::2]
    f = [numbers(batch, keys, heads, 40, device=device) for _ in range(2)]
    scale = torch.rand(batch, queries, dtype=WIDE, device=device)
    grams = [x @ x.mT for x in f]
    maps, mean = kernels.quadratic_norms(alpha, grams, [None, scale], mean=True, dtype=made)
    wide = alpha.double()
    plain, scaled = (torch.einsum("bhqk,bkhd->bqkd", wide, x).norm(dim=-1) for x in f)
    rtol = 1e-12 if made == WIDE else 2e-7
    torch.testing.assert_close(maps[0], plain.to(made), rtol=rtol, atol=0)
    torch.testing.assert_close(maps[1], (scaled * scale[..., None]).to(made), rtol=rtol, atol=0)
    torch.testing.assert_close(mean, wide.mean(dim=1).float(), rtol=2e-7, atol=0)
    (alone,), none = kernels.quadratic_norms(alpha, grams[:1], dtype=made)
    assert none is None
    assert torch.equal(alone, maps[0])


def check_gram(
    heads: int, rows: int, size: int, steps: list[Step], own: bool, device: str = "cpu"
) -> None:
    f = numbers(heads, rows, size, device=device) + 3  # a mean to take off
    weights = numbers(rows, heads, device=device) if own else None
    chain = [(centred, numbers(size, device=device) if g else None) for centred, g in steps]
    grams, summed = kernels.gram_matrices(f, chain, weights)
    if weights is None:
        assert summed is None
    else:
        close(summed, torch.einsum("nh,hnd->nd", weights, f))
    assert len(grams) == 1 + len(chain)
    vectors = f.transpose(0, 1)
    for gram, (centred, gamma) in zip(grams, [(False, None), *chain], strict=True):
        vectors = vectors - vectors.mean(dim=-1, keepdim=True) if centred else vectors
        vectors = vectors if gamma is None else vectors * gamma
        close(gram, vectors @ vectors.mT, at_least=float(grams[0].norm()))


def check_cancelling(heads: int, rows: int, size: int, device: str = "cpu") -> None:
    """The last head undoes all but a hundredth of the others, before and after a LayerNorm."""
    f = numbers(heads, rows, size, device=device)
    alpha = (torch.rand(heads, rows, dtype=WIDE, device=device) + 0.1).float()
    wide = alpha.double().unsqueeze(-1)
    f[-1] = -0.99 * (wide * f)[:-1].sum(dim=0) / wide[-1]
    gamma = numbers(size, device=device)
    grams, _ = kernels.gram_matrices(f, [(True, gamma)])
    maps, _ = kernels.quadratic_norms(
        alpha.view(1, heads, 1, rows), [gram.unsqueeze(0) for gram in grams]
    )
    whole = (wide * f).sum(dim=0)
    after = (whole - whole.mean(dim=-1, keepdim=True)) * gamma
    for got, vectors in zip(maps, (whole, after), strict=True):
        torch.testing.assert_close(got[0, 0].double(), vectors.norm(dim=-1), rtol=2e-6, atol=0)


def check_rows(
    rows: int, size: int, dtype: torch.dtype, centred: bool, affine: bool, device: str = "cpu"
) -> None:
    def new(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return numbers(*shape, dtype=kind, device=device)

    total, own = new(rows, size, kind=torch.float32), new(rows, size, kind=WIDE)
    x, given, normed = (new(rows, size) for _ in range(3))
    bias, gamma, beta = (new(size) if affine else None for _ in range(3))
    eps = 1e-5

    def linear(v: Tensor) -> Tensor:
        v = v - v.mean(dim=-1, keepdim=True) if centred else v
        return v if gamma is None else v * gamma.double()

    constant = torch.zeros_like(own) if bias is None else bias.double().expand(rows, -1)
    shift = 0 if beta is None else beta.double()
    others = total.double() - constant - own
    spread = given.double() - (given.double().mean(dim=-1, keepdim=True) if centred else 0)
    sigma = (spread.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    whole = total.double() + x.double()
    wanted = {
        "own": own,
        "others": others,
        "bias": constant,
        "own_residual": own + x.double(),
        "gap_residual": whole - given.double(),
        "weight": 1 / sigma,
        "own_norm": linear(own + x.double()) / sigma,
        "others_norm": linear(others) / sigma,
        "bias_norm": linear(constant) / sigma + shift,
        "gap_norm": linear(whole) / sigma + shift - normed.double(),
    }
    inputs = RowInputs(
        total, bias=bias, own=own, residual=x, after_residual=given,
        gamma=gamma, beta=beta, centred=centred, eps=eps, after_norm=normed,
    )  # fmt: skip
    lengths = kernels.row_lengths(inputs)
    sizes = {name: vectors.norm(dim=-1) for name, vectors in wanted.items()}
    for name, expected in sizes.items():
        close(getattr(lengths, name), expected, name)
    for end, mixed in (("", "others"), ("_residual", "others"), ("_norm", "others_norm")):
        own_length, other_length = sizes[f"own{end}"], sizes[mixed]
        close(getattr(lengths, f"ratio{end}"), other_length / (own_length + other_length))
    short = kernels.row_lengths(RowInputs(total))
    close(short.others, total.double().norm(dim=-1))
    assert float(short.own.sum()) == 0
    assert short.own_residual is None
    middle = kernels.row_lengths(RowInputs(total, residual=x, after_residual=given))
    close(middle.own_residual, x.double().norm(dim=-1))
    assert middle.weight is None


def check_plain_block(
    heads: tuple[int, int], length: int, size: int, out: int, masked: str = "",
    batch: int = 2, device: str = "cpu", left: float = 1.0,
) -> None:  # fmt: skip
    """All kernels of a plain block in float32, from queries and keys to the gaps.

    ``left``: what is left where every other head cancels the one before it.
    """
    many, few = heads

    def new(*shape: int) -> Tensor:
        return numbers(*shape, dtype=torch.float32, device=device)

    query, key = new(batch, length, many, size).transpose(1, 2), new(batch, few, length, size)
    value, weight, gamma = new(batch, few, length, size), new(many, size, out), new(out)
    if left < 1:  # the second head of each pair undoes the first but for a fraction
        query[:, 1::2], weight[1::2] = query[:, ::2], -weight[::2] * (1 - left)
        key, value = (t[:, ::2].repeat_interleave(2, dim=1) for t in (key, value))
    mask: Tensor | None = None
    scores = query.double() @ key.double().repeat_interleave(many // few, dim=1).mT * size**-0.5
    if masked == "padded":
        mask = torch.ones(batch, 1, length, length, dtype=torch.bool, device=device)
        mask[-1, ..., length - length // 3 :] = False
        scores = scores.masked_fill(~mask, -torch.inf)
    elif masked == "added":
        mask = new(batch, 1, length, length)
        scores = scores + mask.double()
    elif masked == "causal":
        seen = torch.ones(length, length, dtype=torch.bool, device=device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    alpha, wide = scores.softmax(dim=-1), value.double().repeat_interleave(many // few, dim=1)
    context = (alpha @ wide).transpose(1, 2)
    inputs = ScoreInputs(query, key, size**-0.5, masked == "causal", mask)
    attended = kernels.attend(inputs, value, context.float())
    got = (attended.scores - attended.lse.unsqueeze(-1)).double().exp2()
    assert float((got - alpha).abs().max()) < 2e-6
    diagonal = alpha.diagonal(dim1=2, dim2=3)
    assert float((attended.own.double() - diagonal).abs().max()) < 2e-6
    assert float(attended.gap.max()) < 2e-6
    wrong = context.float()
    wrong[0, 0, many - 1] *= 1.01
    bad = kernels.attend(inputs, value, wrong).gap
    assert float(bad[0, many - 1, 0]) > 1e-4
    assert torch.equal(bad[:, :, 1:], attended.gap[:, :, 1:])

    f = torch.einsum("bhke,heo->bhko", wide, weight.double())
    parts = torch.einsum("bhqk,bhk->bqk", alpha, f.norm(dim=-1))
    own = kernels.own_vectors(value, diagonal.float(), weight).unflatten(0, (batch, length))
    expected = torch.einsum("bhk,bhko->bko", diagonal, f)
    own_parts = parts.diagonal(dim1=1, dim2=2)
    assert float(((own - expected).norm(dim=-1) / own_parts.clamp_min(1e-30)).max()) < 2e-6

    levels: list[tuple[Linear, ...]] = [(), (Linear(True, gamma),)]
    products = kept_products(nn.Identity(), weight, levels, kernels.padded_products)
    factors, single = kernels.gram_factors(value, products.blocks)
    torch.testing.assert_close(single.double(), f.norm(dim=-1), rtol=1e-6, atol=0)
    vectors = torch.einsum("bhqk,bhko->bqko", alpha, f)
    normed = (vectors - vectors.mean(dim=-1, keepdim=True)) * gamma.double()
    centred = (f - f.mean(dim=-1, keepdim=True)) * gamma.double()
    normed_parts = torch.einsum("bhqk,bhk->bqk", alpha, centred.norm(dim=-1))
    scale, at = (torch.rand(batch, length, device=device) for _ in "12")
    wanted = [CellMap(-1), CellMap(0), CellMap(0, None, at), CellMap(1, scale, at),
              CellMap(-1, halved=True)]  # fmt: skip
    maps, sums = kernels.cell_norms(attended.scores, attended.lse, factors, wanted)
    eye = torch.eye(length, dtype=torch.bool, device=device)
    mean, lengths, own_at = alpha.mean(dim=1), vectors.norm(dim=-1), at.double().unsqueeze(-1)
    scaled = scale.double().unsqueeze(-1)
    exact = [
        (mean, mean),
        (lengths, parts),
        (torch.where(eye, own_at, lengths), parts),
        (torch.where(eye, own_at, normed.norm(dim=-1) * scaled), normed_parts * scaled),
        (mean / 2 + 0.5 * eye, mean),
    ]
    for number, (found, (values, size_of)) in enumerate(zip(maps, exact, strict=True)):
        gap = (found.double() - values).abs() / (size_of + eye).clamp_min(1e-30)
        # Weights recomputed from queries and keys have a rounding of their own.
        assert float(gap.max()) < 4e-6, (number, float(gap.max()))
        added = sums[number].double().sum(dim=1)
        torch.testing.assert_close(added, values.sum(dim=-1), rtol=2e-5, atol=1e-6)

    bias = new(out)
    output = torch.einsum("bqhe,heo->bqo", context, weight.double()) + bias.double()
    chosen = torch.randint(length, (batch, 1), device=device)
    gaps = GapInputs(
        context.float().flatten(2), output.float(), weight, bias, chosen,
        products.random, products.probe, products.scale,
    )  # fmt: skip
    difference, share = torch.rand(batch, length, device=device), at
    stations = [(None, share), (difference, share)]
    real = torch.ones(batch, length, dtype=torch.bool, device=device)
    real[0, 0] = length == 1
    some = sums[:2].contiguous()
    worst, ratio = kernels.row_gaps(gaps, attended, some, stations, real)
    torch.testing.assert_close(
        ratio.double(), mean.sum(dim=-1) - diagonal.mean(dim=1), rtol=0, atol=2e-6
    )
    assert float(worst[0].max()) < 2e-6
    relative = difference / (some[1].sum(dim=1) + share)
    expected = relative.double().masked_fill(~real, 0).amax(dim=1)
    torch.testing.assert_close(worst[1], expected, rtol=1e-5, atol=2e-6)
    for changed in (
        replace(gaps, output=gaps.output * 1.01),
        replace(gaps, bias=None),
        replace(gaps, weight=weight.flip(0) if many > 1 else 2 * weight),
        replace(gaps, probe=gaps.probe * 1.01),
    ):
        assert float(kernels.row_gaps(changed, attended, some, stations, real)[0].min()) > 1e-4
    nothing = replace(gaps, output=gaps.output * torch.nan)
    assert bool(kernels.row_gaps(nothing, attended, some, stations, real)[0].isinf().all())


def check_flash(
    heads: tuple[int, int],
    lengths: tuple[int, int],
    size: int,
    dtype: torch.dtype,
    causal: bool = True,
    masked: str = "",
    batch: int = 1,
    device: str = "cpu",
) -> None:
    (many, few), (queries, keys) = heads, lengths
    query = numbers(batch, many, queries, size, dtype=dtype, device=device)
    # As models have them: (batch, key, head, size) in memory.
    key = numbers(batch, keys, few, size, dtype=dtype, device=device).transpose(1, 2)
    factors = numbers(batch, keys, many, many, dtype=torch.float32, device=device)
    mask: Tensor | None = None
    i = torch.arange(queries, device=device).unsqueeze(1) + keys - queries
    j = torch.arange(keys, device=device)
    seen = torch.ones(batch, many, queries, keys, dtype=torch.bool, device=device)
    seen &= (j <= i) if causal else True
    scores = query.double() @ key.double().repeat_interleave(many // few, dim=1).mT
    scores = scores * size**-0.5
    if masked == "padded":  # the first keys of the last row; its first queries see nothing
        mask = torch.ones(batch, 1, queries, keys, dtype=torch.bool, device=device)
        mask[-1, ..., : keys // 3] = False
    elif masked == "added":
        mask = numbers(1, many, queries, keys, dtype=torch.float32, device=device)
        mask[..., ::3] = -torch.inf
        scores = scores + mask.double()
    seen &= mask if masked == "padded" and mask is not None else True
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(dim=-1)
    alpha = (scores - lse.masked_fill(lse.isinf(), 0).unsqueeze(-1)).exp()
    norms: Tensor = torch.einsum("bhqk,bkhr->bqkr", alpha, factors.double()).norm(dim=-1)

    inputs = ScoreInputs(query, key, scaling=size**-0.5, causal=causal, mask=mask)
    got = kernels.attention_lse(inputs)
    torch.testing.assert_close(got, lse.float(), rtol=2e-6, atol=5e-6)
    cells: Tensor = kernels.flash_norms(inputs, got, factors)
    assert bool((cells[norms == 0] == 0).all())
    torch.testing.assert_close(cells, norms.float(), rtol=2e-5, atol=1e-6)
    rows = slice(queries // 3, queries // 3 + max(queries // 2, 1))
    some = kernels.flash_norms(inputs, got, factors, rows)
    torch.testing.assert_close(some, cells[:, rows], rtol=2e-6, atol=1e-6)
    given = numbers(batch, many, queries, size, dtype=dtype, device=device)
    expected = (alpha.mT @ given.double()).unflatten(1, (few, -1)).sum(2)
    found: Tensor = kernels.value_cotangents(inputs, got, given)
    assert found.shape == (batch, few, keys, size)
    exact = dtype == torch.float32 or device == "cpu"  # else the weights are rounded to 16 bits
    size_of = float(expected.abs().max()) + 1e-6
    bound = (2e-5 if dtype == torch.float32 else 1e-2 if exact else 2e-2) * size_of
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=bound)


def check_elementwise(count: int, dtype: torch.dtype, device: str = "cpu") -> None:
    u, value, g = (numbers(count, dtype=dtype, device=device) for _ in range(3))
    u[::5] = 0
    found = kernels.slope_cotangents(u, value, g, 0.25, 3.0)
    slope = torch.where(u == 0, 3.0, (value.double() - 0.25) / torch.where(u == 0, 1, u).double())
    rtol = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found.double(), g.double() * slope, rtol=rtol, atol=1e-30)
    first, second = kernels.product_cotangents(u, value, g, 0.25, 0.75)
    torch.testing.assert_close(first.double(), 0.25 * (g * value).double(), rtol=rtol, atol=1e-30)
    torch.testing.assert_close(second.double(), 0.75 * (g * u).double(), rtol=rtol, atol=1e-30)


def close(got: Tensor, wanted: Tensor, name: str = "", at_least: float = 1e-300) -> None:
    """Equal up to the rounding of sums of parts that are ``at_least`` so large."""
    gap = float((got.double() - wanted).norm() / wanted.norm().clamp_min(at_least))
    assert gap < (1e-13 if got.dtype == WIDE else 1e-7), (name, gap)


CHAINS: list[list[Step]] = [
    [],
    [(True, True)],
    [(False, True)],
    [(True, False)],
    [(False, True), (True, True)],
    [(True, True), (False, True), (True, False)],
]


def cell_sums(shape: tuple[int, int, int, int], size: int, like: Tensor) -> CellSums:
    """Random factors: slices of larger arrays, as in a block of queries and keys."""
    batch, keys, heads, queries = shape
    weights = numbers(batch, keys + 1, heads, queries + 3, device=str(like.device)).to(like)
    vectors = numbers(batch, keys + 1, heads, size, device=str(like.device)).to(like)
    return CellSums(weights[:, 1:, :, 2:-1], vectors[:, 1:])


def dense_sums(sums: CellSums) -> Tensor:
    return torch.einsum("bkhq,bkho->bkqo", sums.weights.double(), sums.vectors.double())


def check_scaled_sums(
    shape: tuple[int, int, int, int], size: int, terms: int, like: Tensor, compute: Any
) -> None:
    """``compute`` is called as `normscope.kernels.scaled_sums`, without options."""
    sums = [cell_sums(shape, size, like) for _ in range(terms)]
    factors = [numbers(shape[0], shape[3], size, device=str(like.device)).to(like) for _ in sums]
    expected = torch.zeros((shape[0], shape[1], shape[3], size), dtype=WIDE, device=like.device)
    for term, factor in zip(sums, factors, strict=True):
        expected += dense_sums(term) * factor.double().unsqueeze(1)
    bound = 1e-13 if like.dtype == WIDE else 2e-6
    gap = (compute(sums, factors).double() - expected).abs().max()
    assert gap <= bound * shape[2] * expected.abs().max()


def check_cell_lengths(
    shape: tuple[int, int, int, int], size: int, steps: tuple[Step | None, Step | None],
    like: Tensor, compute: Any,
) -> None:  # fmt: skip
    """``compute`` is called as `normscope.kernels.cell_lengths`, without options."""
    batch, keys, _, queries = shape
    device = str(like.device)
    vectors = (numbers(batch, keys, queries, size, device=device) + 3).to(like)
    carried = cell_sums(shape, size, like)
    branch, after = (
        step
        and CellLinear(
            step[0],
            numbers(size, device=device).to(like) if step[1] else None,
            numbers(batch, queries, device=device).abs().to(like),
        )
        for step in steps
    )
    rows = _slow_linear(vectors.double(), branch)
    stages = [rows, rows + dense_sums(carried)]
    stages += [] if after is None else [_slow_linear(stages[1], after)]
    expected = torch.stack([stage.norm(dim=-1) for stage in stages])
    lengths = compute(vectors.clone(), branch, carried, after)
    bound = 1e-12 if like.dtype == WIDE else 1e-5
    assert lengths.shape == expected.shape
    assert (lengths.double() - expected).abs().max() <= bound * expected.max()


def _slow_linear(vectors: Tensor, step: CellLinear | None) -> Tensor:
    """Apply a linear step to every cell, one after another."""
    mapped = vectors.clone()
    for b, j, i in torch.cartesian_prod(*(torch.arange(n) for n in vectors.shape[:3])).view(-1, 3):
        vector = mapped[b, j, i]
        if step is not None:
            vector = vector - vector.mean() if step.centred else vector
            vector = vector if step.scale is None else vector * step.scale.double()
            vector = vector if step.weight is None else vector * step.weight[b, i].double()
        mapped[b, j, i] = vector
    return mapped
