"""Maps in the model's own precision: against dense float64 vectors, and how they are proved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import normscope
from normscope.capture import Capture
from normscope.decomposition import attention
from normscope.decomposition.available import available
from normscope.decomposition.cells import Cells
from normscope.decomposition.chain import DecompositionOptions
from normscope.decomposition.layer import LayerView
from normscope.engine.measure import Needs
from normscope.engine.run import look
from normscope.errors import ExactnessError
from normscope.kernels import cholesky, factor_norms
from normscope.models.architectures import tiny_inputs, tiny_model

PROMISED = 2e-6  # of Σ_h ‖α_h f_h‖, for float32 models
FACTORED = ("attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n", "atb", "atb_ln")


def analyzed(family: str, **options: Any) -> list[Any]:
    model = tiny_model(family, dtype=torch.float32)
    maps = [n for names in available(model).values() for n in names if n in FACTORED]
    results = normscope.analyze_inputs(model, tiny_inputs(family), maps=maps, **options)
    return [part for result in results for part in (result.parts.values() or [result])]


@pytest.mark.parametrize(
    "family", ["bert", "gpt2", "llama", "gpt_neox", "olmo2", "granite", "marian", "albert"]
)
def test_both_precisions_agree(family: str) -> None:
    quick, exact = analyzed(family), analyzed(family, precision="float64")
    assert "precision" not in quick[0].signature
    assert "precision:float64" in exact[0].signature
    for a, b in zip(quick, exact, strict=True):
        assert set(a) == set(b)
        for name in a:
            assert a[name].dtype == b[name].dtype == np.float32
            bound = 1e-5 * float(b[name].values.max())
            np.testing.assert_allclose(a[name].values, b[name].values, rtol=0, atol=bound)
            ratio, expected = a.mixing_ratio[name].values, b.mixing_ratio[name].values
            np.testing.assert_allclose(ratio, expected, rtol=0, atol=1e-5)
        norms = a.transformed_norm.values, b.transformed_norm.values
        np.testing.assert_allclose(*norms, rtol=1e-5)
        assert 0 < max(a.error.values()) < 5e-6


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_every_length_is_within_the_promise(family: str) -> None:
    """Each cell of attn_n against Σ_h αf built whole in float64, relative to its parts."""
    gaps: list[float] = []

    def compare(view: LayerView) -> None:
        captured = view.captured
        f = torch.einsum("bhke,heo->bhko", _value(captured), captured.projection.weight.double())
        alpha = captured.alpha.double()
        dense = torch.einsum("bhqk,bhko->bqko", alpha, f).norm(dim=-1)
        parts = torch.einsum("bhqk,bhk->bqk", alpha, f.norm(dim=-1))
        values = view.maps(["attn_n"])["attn_n"].values
        assert values is not None
        assert values.dtype == torch.float32
        gaps.append(float(((values - dense).abs() / parts.clamp_min(1e-30)).max()))

    look(tiny_model(family, dtype=torch.float32), tiny_inputs(family), compare)
    assert 0 < max(gaps) < PROMISED


def _value(captured: Capture) -> Tensor:
    value = captured.value.double()
    return value.repeat_interleave(captured.shape[1] // value.shape[1], dim=1)


def test_float64_models_are_computed_in_float64() -> None:
    model, inputs = tiny_model("bert"), tiny_inputs("bert")
    default = normscope.analyze_inputs(model, inputs, maps=["attn_n", "attn_res_n"])
    wide = normscope.analyze_inputs(
        model, inputs, maps=["attn_n", "attn_res_n"], precision="float64"
    )
    for a, b in zip(default, wide, strict=True):
        assert a["attn_n"] == b["attn_n"]
        assert a.error == b.error


def test_peaked_attention() -> None:
    """Weights so small that the squares of their lengths underflow in float32."""
    model = tiny_model("bert", dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query" in name or "key" in name:
                parameter.mul_(60)
    maps: Any = {"maps": ["attn_w", "attn_n", "attn_res_n"]}
    quick = normscope.analyze_inputs(model, tiny_inputs("bert"), **maps)
    exact = normscope.analyze_inputs(model, tiny_inputs("bert"), precision="float64", **maps)
    values, expected = quick[0]["attn_n"].values, exact[0]["attn_n"].values
    assert expected.min() < 1e-25
    seen = expected > 1e-27
    np.testing.assert_allclose(values[seen], expected[seen], rtol=1e-4)
    assert values[~seen].max(initial=0) < 1e-26


def test_an_unknown_precision() -> None:
    with pytest.raises(normscope.InputError, match="precision must be one of model, float64"):
        analyzed("bert", precision="float16")


# ---- what is proved

WRONG: dict[str, Any] = {
    "weights": lambda c: replace(c, weights=c.weights.mT.contiguous()),
    "a weight of one query": lambda c: replace(c, weights=_nudged(c.weights)),
    "values": lambda c: replace(c, value=c.value * 1.001),
    "W_O": lambda c: replace(
        c, projection=replace(c.projection, weight=c.projection.weight * 1.001)
    ),
    "b_O": lambda c: replace(c, projection=replace(c.projection, bias=None)),
    "heads": lambda c: replace(
        c, projection=replace(c.projection, weight=c.projection.weight.flip(0))
    ),
}


def _nudged(alpha: Tensor) -> Tensor:
    alpha = alpha.clone()
    alpha[0, -1, -1] *= 1.001
    return alpha


@pytest.mark.parametrize("part", WRONG)
@pytest.mark.parametrize("layer", [0, 1])
def test_a_wrong_record_is_refused(part: str, layer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every layer, also in those whose cells are not computed again."""
    right = LayerView.__init__

    def wrong(self: Any, captured: Capture, *args: Any, **options: Any) -> None:
        captured = WRONG[part](captured) if captured.layer == layer else captured
        right(self, captured, *args, **options)

    monkeypatch.setattr(LayerView, "__init__", wrong)
    with pytest.raises(ExactnessError, match=f"layer.{layer}"):
        analyzed("bert")


@pytest.mark.parametrize("name", ["factor_norms", "cholesky"])
def test_wrong_cells_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(attention, name)

    def wrong(*args: Any) -> Any:
        lengths = right(*args)
        return [1.001 * x for x in lengths] if isinstance(lengths, list) else 1.001 * lengths

    monkeypatch.setattr(attention, name, wrong)
    with pytest.raises(ExactnessError):
        analyzed("bert")


HOWS: list[dict[str, Any]] = [{}, {"precision": "float64"}, {"attention": "fused"}]


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_wrong_own_vectors_are_refused(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They change diagonals and mixing ratios but no sum over keys, in any layer."""
    right = Capture.own_vectors

    def wrong(self: Capture, dtype: Any = None) -> Any:
        vectors = right(self, dtype)
        return vectors * 1.001 if self.layer == 1 and vectors is not None else vectors

    monkeypatch.setattr(Capture, "own_vectors", wrong)
    with pytest.raises(ExactnessError, match=r"layer\.1"):
        analyzed("bert", **how)


def test_wrong_gram_matrices_are_refused_in_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a layer whose cells are not computed again: by the cells on the diagonal."""
    calls: list[int] = []

    def wrong(grams: Tensor) -> Tensor:
        calls.append(1)
        return cholesky(grams) * (1.001 if len(calls) == 3 else 1)  # two levels in each layer

    monkeypatch.setattr(attention, "cholesky", wrong)
    with pytest.raises(ExactnessError, match=r"layer\.1"):
        analyzed("bert")


def test_wrong_norms_of_single_heads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention.AttentionDecomposition.measure

    def wrong(self: Any, chain: Any) -> Any:
        made = right(self, chain)
        self._grams = replace(made, single=made.single * 1.001)
        return self._grams

    monkeypatch.setattr(attention.AttentionDecomposition, "measure", wrong)
    with pytest.raises(ExactnessError):
        analyzed("bert")


def test_weights_that_underflow_are_no_error() -> None:
    """The mean of weights below the smallest normal float32 has hardly a digit."""
    smallest = torch.finfo(torch.float32).smallest_normal * torch.finfo(torch.float32).eps
    alpha = smallest * torch.tensor([[[2.0, 1.0, 0.0, 0.0]]])
    place = torch.zeros((1, 1), dtype=torch.long)
    cells = Cells(place, place, place, alpha.double(), torch.zeros(1, 1, 4, 8).double(), None)
    assert float(cells.gap(alpha.mean(dim=-1), weight=True)) < 1e-5
    assert float(cells.gap(alpha.mean(dim=-1) + 1e-3, weight=True)) > 1


def test_float64_sums_of_cancelling_heads() -> None:
    """Mixing ratios where heads cancel to a ten-thousandth and b_O is large, from the record."""
    model: Any = tiny_model("bert", dtype=torch.float32)
    with torch.no_grad(), normscope.capture(model) as captures:
        model(input_ids=tiny_inputs("bert")["input_ids"])
    one = captures[0]
    alpha, value, weight = one.alpha.clone(), one.value.clone(), one.projection.weight.clone()
    alpha[:, 1::2], value[:, 1::2] = alpha[:, ::2], value[:, ::2]
    weight[1::2] = -weight[::2] * (1 - 1e-4)
    projection = replace(one.projection, weight=weight, bias=torch.full_like(weight[0, 0], 1e3))
    record = replace(one, weights=alpha, value=value, projection=projection)
    record = replace(record, output=record.reconstruct())
    f = torch.einsum("bhke,heo->bhko", value.double(), weight.double())
    dense = torch.einsum("bhqk,bhko->bqko", alpha.double(), f)
    own = dense.diagonal(dim1=1, dim2=2).transpose(1, 2).norm(dim=-1)
    eye = torch.eye(dense.shape[1], dtype=torch.float64)[None, :, :, None]
    others = (dense * (1 - eye)).sum(dim=2).norm(dim=-1)
    how = DecompositionOptions(precision="float64")
    ratio = LayerView(record, how=how).maps(["attn_n"])["attn_n"].mixing_ratio
    assert ratio is not None
    torch.testing.assert_close(ratio, others / (others + own), rtol=0, atol=1e-8)


def test_float64_feed_forwards() -> None:
    dtypes: list[torch.dtype] = []
    how = DecompositionOptions(precision="float64")
    look(
        tiny_model("bert", dtype=torch.float32),
        tiny_inputs("bert"),
        lambda view: dtypes.append(view.chain.feed_forward().dtype),
        needs=Needs(whole_layers=True, weights=True, how=how),
    )
    assert set(dtypes) == {torch.float64}


@pytest.mark.parametrize("left", [1.0, 1e-2, 1e-3, 0.0])
def test_factors_of_cancelling_heads(left: float) -> None:
    """Heads that cancel altogether, and heads whose vector is zero."""
    torch.manual_seed(0)
    f = torch.randn(2, 5, 6, 40)  # batch key head out
    f[:, :, 1::2] = -(1 - left) * f[:, :, ::2]
    f[0, 0] = 0
    f[0, 1, :2] = 0
    alpha = torch.rand(2, 3, 7, 5).repeat_interleave(2, dim=1)
    wide = f.double()
    factors = cholesky(wide @ wide.mT)
    assert bool(factors.isfinite().all())
    (lengths,) = factor_norms(alpha, [factors])
    dense = torch.einsum("bhqk,bkho->bqko", alpha.double(), wide).norm(dim=-1)
    parts = torch.einsum("bhqk,bkh->bqk", alpha.double(), wide.norm(dim=-1))
    assert bool((lengths[parts == 0] == 0).all())
    assert float(((lengths - dense).abs() / parts.clamp_min(1e-30)).max()) < PROMISED
