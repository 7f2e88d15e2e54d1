"""The fast forms in torch against vectors built whole; and what calls Triton's, with a stand-in."""

from __future__ import annotations

import math
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import normscope
from normscope.capture import scores
from normscope.decomposition.available import available
from normscope.kernels import Linear, ScoreInputs, Scratch, backend, gram
from normscope.models.architectures import tiny_inputs, tiny_model

CPU = torch.device("cpu")
EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    make = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=make)


# ---- by torch's operations


@pytest.fixture(params=[2**20, 300, 1])
def block(request: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """Numbers in a block: all keys at once, some, one."""
    monkeypatch.setitem(gram.BLOCK, "cpu", request.param)
    return int(request.param)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_grams_of_vectors_built_whole(block: int, groups: int, own: bool) -> None:
    batch, heads, keys, size, out = 2, 4, 5, 3, 6
    value, weight = numbers(batch, groups, keys, size), numbers(heads, size, out, seed=1)
    chain = [
        [Linear(True, numbers(out, seed=2))],
        [Linear(False, None), Linear(False, numbers(out, seed=3)), Linear(True, None)],
    ]
    weights = numbers(batch, heads, keys, seed=4) if own else None
    found = gram.gram_matrices(value, weight, chain, weights)
    assert (found.diagonal is not None) == own
    for b in range(batch):
        for j in range(keys):
            f = [value[b, h * groups // heads, j] @ weight[h] for h in range(heads)]
            for h in range(heads):
                assert_close(found.single[b, h, j], f[h].norm(), **EXACT)
            if weights is not None and found.diagonal is not None:
                summed = sum((weights[b, h, j] * f[h] for h in range(heads)), torch.zeros(out))
                assert_close(found.diagonal[b, j], summed.double(), **EXACT)
            for at, steps in enumerate([[], *chain]):
                for step in steps:
                    f = [v - v.mean() if step.centred else v for v in f]
                    f = [v if step.scale is None else v * step.scale for v in f]
                stacked = torch.stack(f)
                assert_close(found.matrices[at][b, j], stacked @ stacked.T, **EXACT)


@pytest.mark.parametrize("queries", [3, 255, 256])
def test_norms_of_sums_over_heads(block: int, queries: int) -> None:
    batch, heads, keys, out = 2, 3, 4, 5
    alpha = numbers(batch, heads, queries, keys).softmax(dim=-1)
    vectors = [numbers(batch, keys, heads, out, seed=seed) for seed in (1, 2)]
    grams = [one @ one.mT for one in vectors]
    scratch = Scratch()
    for _ in range(2):  # with memory that holds something else, too
        found = gram.quadratic_norms(alpha, grams, scratch)
        for made, one in zip(found, vectors, strict=True):
            assert_close(made, torch.einsum("bhqk,bkho->bqko", alpha, one).norm(dim=-1), **EXACT)
    (none,) = gram.quadratic_norms(alpha, [-1e-18 * torch.ones_like(grams[0])])
    assert (none == 0).all()  # a square that rounding made negative


def test_products_of_sixteen_bits_are_added_up_in_float32() -> None:
    value, weight = numbers(2, 2, 5, 8).bfloat16(), numbers(4, 8, 6, seed=1).bfloat16()
    found = gram.gram_matrices(value, weight, own=torch.ones(2, 4, 5))
    assert found.matrices[0].dtype == found.single.dtype == torch.float32
    exact = gram.gram_matrices(value, weight.double())
    assert_close(found.single.double(), exact.single, rtol=1e-6, atol=1e-6)
    assert_close(found.matrices[0].double(), exact.matrices[0], rtol=1e-5, atol=1e-5)


def test_factors_of_gram_matrices(block: int) -> None:
    """ΦΦᵀ = G, also where heads repeat one another and G has no full rank."""
    f = numbers(2, 6, 4, 7)
    f[0, 2, 1] = f[0, 2, 0]  # twice the same
    f[1, 3] = f[1, 3, :1] * torch.tensor([1.0, -2.0, 0.5, 3.0]).double()[:, None]
    grams = f @ f.mT
    grams[1, 3] = torch.outer(torch.ones(4), torch.ones(4)).double()
    assert bool(torch.linalg.cholesky_ex(grams)[1].any())
    factors = gram.cholesky(grams)
    assert factors.dtype == torch.float32
    size = grams.diagonal(dim1=2, dim2=3).amax(dim=-1)[..., None, None]
    gap = (factors.double() @ factors.double().mT - grams).abs() / size
    assert gap.amax() < 1e-6
    assert (factors.triu(1) == 0).all()


@pytest.mark.parametrize("cost", [0, 1, 7, 40, 100])
@pytest.mark.parametrize("length", [0, 1, 9, 64])
def test_blocks_are_even_and_fit(length: int, cost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gram.BLOCK, "cpu", 50)
    found = list(gram.blocks(length, cost, CPU))
    assert [i for one in found for i in range(length)[one]] == list(range(length))
    fewest = math.ceil(length * cost / 50)
    assert len(found) <= max(fewest, 1)
    step = max(1, math.ceil(length / max(fewest, 1)))
    assert all(one.stop - one.start == step for one in found[:-1])
    monkeypatch.setitem(gram.BLOCK, "cuda", 10**6)
    assert len(list(gram.blocks(length, cost, torch.device("meta")))) == min(length, 1)


# ---- what calls Triton's kernels, with dense arithmetic in their place


class Dense(ModuleType):
    """The kernels as their descriptions have them, in plain torch; counts what is called."""

    def __init__(self) -> None:
        super().__init__("dense")
        self.called: dict[str, int] = {}

    def _note(self, name: str) -> None:
        self.called[name] = self.called.get(name, 0) + 1

    def gram_matrices(self, vectors: Tensor, steps: Any = (), own: Any = None) -> Any:
        self._note("gram_matrices")
        assert vectors.dtype == torch.float64
        summed = None if own is None else torch.einsum("nh,hno->no", own, vectors)
        made = [torch.einsum("hno,gno->nhg", vectors, vectors)]
        for centred, gamma in steps:
            vectors = vectors - vectors.mean(dim=-1, keepdim=True) if centred else vectors
            if gamma is not None:
                assert gamma.shape == vectors.shape[-1:]
                vectors = vectors * gamma
            made.append(torch.einsum("hno,gno->nhg", vectors, vectors))
        return made, summed

    def quadratic_norms(self, alpha: Tensor, grams: Any, *, dtype: torch.dtype) -> Any:
        self._note("quadratic_norms")
        assert all(one.dtype == torch.float64 for one in grams)
        wide = alpha.double()
        squares = [torch.einsum("bhqk,bkhg,bgqk->bqk", wide, one, wide) for one in grams]
        return [one.clamp_min(0).sqrt().to(dtype) for one in squares], None

    def attention_lse(self, inputs: ScoreInputs) -> Tensor:
        return self._scores(inputs).logsumexp(dim=-1).float()

    def flash_norms(self, inputs: ScoreInputs, lse: Tensor, factors: Tensor, rows: slice) -> Tensor:
        self._note("flash_norms")
        alpha = (self._scores(inputs) - lse[..., None].double()).exp()
        norms = torch.einsum("bhqk,bkhr->bqkr", alpha, factors.double()).norm(dim=-1)
        return norms[:, rows].float()

    def _scores(self, inputs: ScoreInputs) -> Tensor:
        query, key, mask = inputs.query.double(), inputs.key.double(), inputs.mask
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores: Tensor = query @ key.mT * inputs.scaling
        if mask is not None:
            shut = ~mask if mask.dtype == torch.bool else mask < torch.finfo(mask.dtype).min / 2
            scores = scores.masked_fill(shut, -torch.inf)
        if inputs.causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~seen, -torch.inf)
        return scores

    def row_lengths(self, rows: Any) -> Any:
        self._note("row_lengths")
        total, own, residual = rows.total.double(), rows.own, rows.residual
        none = torch.zeros_like(total)
        bias = none if rows.bias is None else rows.bias.double() + none
        others = total - bias - own
        vectors = {"own": own, "others": others, "bias": bias}
        pairs = {"ratio": ("own", "others")}
        if residual is not None:
            vectors |= {"own_residual": own + residual,
                        "gap_residual": total + residual - rows.after_residual}  # fmt: skip
            pairs["ratio_residual"] = "own_residual", "others"
        sigmas: dict[str, Any] = {}
        if rows.after_norm is not None:
            wide = rows.after_residual.double()
            spread = wide - wide.mean(dim=-1, keepdim=True) if rows.centred else wide
            sigma = (spread.square().mean(dim=-1, keepdim=True) + rows.eps).sqrt()

            def through(v: Tensor) -> Tensor:
                v = v - v.mean(dim=-1, keepdim=True) if rows.centred else v
                return (v if rows.gamma is None else v * rows.gamma.double()) / sigma

            shift = none if rows.beta is None else rows.beta.double()
            vectors |= {
                "own_norm": through(own + residual),
                "others_norm": through(others),
                "bias_norm": through(bias) + shift,
                "gap_norm": through(total + residual) + shift - rows.after_norm,
            }
            sigmas["weight"] = 1 / sigma.squeeze(-1)
            pairs["ratio_norm"] = "own_norm", "others_norm"
        lengths = {k: v.double().norm(dim=-1) for k, v in vectors.items()}
        ratios = {k: lengths[b] / (lengths[a] + lengths[b]) for k, (a, b) in pairs.items()}
        return SimpleNamespace(**lengths, **ratios, **sigmas)


@pytest.fixture
def dense(monkeypatch: pytest.MonkeyPatch) -> Dense:
    made = Dense()
    monkeypatch.setattr("normscope.kernels.triton", made, raising=False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(backend, "_has_triton", lambda: True)
    monkeypatch.setitem(scores.BLOCK, "cpu", 250)  # a few queries at a time
    monkeypatch.setitem(gram.BLOCK, "cpu", 900)  # and a few keys
    return made


FACTORED = ("attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n", "atb", "atb_ln")
WHOLE = {"gram_matrices", "quadratic_norms"}


@pytest.mark.parametrize(
    ("name", "dtype", "attention", "bound", "called"),
    [
        ("bert", torch.float64, "eager", 1e-12, WHOLE),
        ("gpt2", torch.float64, "eager", 1e-12, WHOLE),
        ("llama", torch.float64, "fused", 1e-12, WHOLE),
        ("marian", torch.float64, "eager", 1e-12, WHOLE),
        ("olmo2", torch.float64, "eager", 1e-12, WHOLE),
        ("granite", torch.float64, "eager", 1e-12, WHOLE),
        ("gpt_neox", torch.float64, "eager", 1e-12, WHOLE),
        ("llama", torch.bfloat16, "fused", 2e-2, {"flash_norms", "row_lengths"}),
    ],
)
def test_maps_are_the_same_by_either_kernels(
    name: str, dtype: torch.dtype, attention: Any, bound: float, called: set[str], dense: Dense
) -> None:
    model, inputs = tiny_model(name, dtype=dtype), tiny_inputs(name, dtype=dtype)
    has = {m for maps in available(model).values() for m in maps}
    for maps in ([m for m in FACTORED if m in has], ["attn_n"], ["attn_n", "attn_res_n"]):
        how: Any = {"maps": maps, "attention": attention}
        before = dict(dense.called)
        one = normscope.analyze_inputs(model, inputs, kernels="torch", **how)
        assert dense.called == before
        other = normscope.analyze_inputs(model, inputs, kernels="triton", **how)
        for a, b in zip(one, other, strict=True):
            for p, q in zip(a.parts.values() or [a], b.parts.values() or [b], strict=True):
                for key, array in p._arrays().items():
                    same, size = q._arrays()[key].values, abs(array.values).max()
                    gap = abs(array.values - same).max()
                    # Errors are rounding alone, of which neither has the same.
                    assert gap <= bound * (1 if "error" in key else size + 1e-30), (key, gap)
    assert set(dense.called) == called
