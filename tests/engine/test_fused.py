"""Weights made from queries and keys, a block at a time, and maps that are reduced on the way."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import normscope
from normscope.capture import interface, plain, scores
from normscope.capture.interface import why_not_fused
from normscope.decomposition.available import available
from normscope.decomposition.reductions import check_reductions
from normscope.errors import ExactnessError, InputError, UnsupportedModelError
from normscope.models.architectures import FAMILIES, tiny_inputs, tiny_model
from normscope.models.inventory import Inventory
from tests.helpers.captures import checkpoint
from tests.helpers.tiny import tokenizer

FACTORED = ("attn_w", "attn_n", "attn_res_w", "attn_res_n", "attn_res_ln_n", "atb", "atb_ln")
# Attention that is not the softmax of scaled products and a mask, or not through the interface.
OTHERS = {
    *("mpnet", "deberta-v2", "gptj", "gpt_neo", "bloom", "falcon", "falcon (grouped)"),
    *("falcon (alibi)", "fsmt", "gemma2", "gemma3", "gpt_oss", "nllb-moe"),
}
BIASED = {"t5", "mt5", "umt5"}  # plain but for a bias that their calls bring along
# Not plain, or not through the interface, in the oldest transformers that is claimed.
LATER = {*BIASED, "gpt2", "whisper"}


def maps_of(model: Any) -> list[str]:
    has = {name for names in available(model).values() for name in names}
    return [name for name in FACTORED if name in has]


def parts_of(result: Any) -> list[Any]:
    return list(result.parts.values()) or [result]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scores.BLOCK, "cpu", 250)  # two or three queries at a time


@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in OTHERS])
def test_fused_is_eager(name: str) -> None:
    """The same maps, ratios and shares; many eager softmaxes round to float32, ours does not."""
    model: Any = tiny_model(name)
    inputs, maps = tiny_inputs(name), maps_of(model)
    if (why := why_not_fused(Inventory(model))) is not None:
        assert name in LATER, why
        with pytest.raises(UnsupportedModelError, match="not possible here"):
            normscope.analyze_inputs(model, inputs, attention="fused")
        return
    one = normscope.analyze_inputs(model, inputs, maps=maps, attention="eager")
    other = normscope.analyze_inputs(model, inputs, maps=maps, attention="fused")
    assert ("path:interface" if name in BIASED else "path:fused") in other[0].signature
    for a, b in zip(one, other, strict=True):
        for p, q in zip(parts_of(a), parts_of(b), strict=True):
            assert max(q.error.values()) < 1e-6  # what is left is the model's norms in float32
            for array, same in zip(p._arrays().values(), q._arrays().values(), strict=True):
                assert_allclose(same.values, array.values, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_other_attention_is_refused_by_name_and_left_to_eager(name: str) -> None:
    model, inputs = tiny_model(name), tiny_inputs(name)
    with pytest.raises(UnsupportedModelError, match=r"fused.*not possible.*\(.*(Attention|Self)"):
        normscope.analyze_inputs(model, inputs, attention="fused")
    with normscope.capture(model, attention="auto") as captures, torch.no_grad():
        model(**inputs)
    assert {c.path for c in captures} <= {"interface", "watched"}


def test_the_model_runs_as_it_would_alone() -> None:
    for name in ("llama", "bert", "marian"):
        model, inputs = tiny_model(name), tiny_inputs(name)
        with torch.no_grad():
            alone = model(**inputs)[0]
            with normscope.capture(model, attention="fused") as captures:
                captured = model(**inputs)[0]
        assert torch.equal(alone, captured)
        assert {c.path for c in captures} == {"fused"}
        for c in captures:
            assert_allclose(c.alpha.sum(dim=-1), torch.ones(c.shape[:3]), rtol=1e-12)
            assert_allclose(c.reconstruct(), c.output, atol=1e-12)


def test_nested_with_eager_it_is_eager_for_both() -> None:
    model, inputs = tiny_model("llama"), tiny_inputs("llama")
    with torch.no_grad(), normscope.capture(model, attention="fused") as outer:
        with normscope.capture(model) as inner:
            model(**inputs)
        model(**inputs)
    assert [c.path for c in inner] == ["interface"] * len(inner)
    assert [c.path for c in outer] == ["interface"] * len(inner) + ["fused"] * len(inner)


def test_left_padding_and_a_window() -> None:
    model: Any = tiny_model("mistral")
    model.config.sliding_window = 3
    inputs = tiny_inputs("mistral")
    mask = inputs["attention_mask"].flip(1)
    one = normscope.analyze_inputs(model, {**inputs, "attention_mask": mask}, attention="eager")
    other = normscope.analyze_inputs(model, {**inputs, "attention_mask": mask}, attention="fused")
    for a, b in zip(one, other, strict=True):
        assert (a["attn_n"].values == 0).any()
        assert_allclose(b["attn_n"].values, a["attn_n"].values, rtol=1e-5, atol=1e-6)


def test_long_inputs_are_fused_of_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.engine.run.LONG", 8)
    model, inputs = tiny_model("llama"), tiny_inputs("llama")
    assert "path:fused" in normscope.analyze_inputs(model, inputs)[0].signature
    each = normscope.analyze_inputs(model, inputs, heads="each")[0]
    assert "path:interface" in each.signature


def test_weights_that_are_not_the_models_are_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale that is off by a hundredth is seen at the rows that are checked."""
    right = plain.scores_of

    def wrong(*args: Any) -> Any:
        from dataclasses import replace

        made = right(*args)
        return replace(made, scaling=made.scaling * 1.01)

    monkeypatch.setattr(interface, "scores_of", wrong)
    with pytest.raises(ExactnessError, match=r"attn_w of model\.layers\.0"):
        normscope.analyze_inputs(tiny_model("llama"), tiny_inputs("llama"), attention="fused")


# ---------------------------------------------------------------------------------- reductions


@pytest.mark.parametrize("attention", ["eager", "fused"])
@pytest.mark.parametrize("name", ["bert", "llama", "marian"])
def test_reductions_are_those_of_the_maps(name: str, attention: str) -> None:
    model: Any = tiny_model(name)
    inputs, maps = tiny_inputs(name), maps_of(model)
    names = ("mixing_ratio", "row_sum", "argmax", "top3", "category")
    whole = normscope.analyze_inputs(model, inputs, maps=maps, attention=attention)
    chosen = [str(int(i)) for i in inputs["input_ids"].flatten()[:2]]
    reduced = normscope.analyze_inputs(
        model, inputs, maps=maps, attention=attention, reduce=names,
        categories={"first": chosen[:1], "second": chosen},
    )  # fmt: skip
    for a, b in zip(whole, reduced, strict=True):
        for p, q in zip(parts_of(a), parts_of(b), strict=True):
            assert q.tokens == p.tokens
            assert q.categories == ("first", "second", "other")
            assert max(q.error.values()) < 1e-6
            for kind in maps:
                if kind in p:
                    _compare(p, q, kind, chosen)


def _compare(whole: Any, reduced: Any, name: str, chosen: list[str]) -> None:
    array = whole[name].values
    assert_allclose(reduced.mixing_ratio[name], whole.mixing_ratio[name].values, rtol=1e-12)
    assert_allclose(reduced.row_sum[name], array.sum(axis=-1), rtol=1e-12)
    ranks = min(3, array.shape[-1])
    order = np.argsort(-array, axis=-1, kind="stable")[..., :ranks]
    values = np.take_along_axis(array, order, axis=-1)
    assert_allclose(reduced.top_value[name][..., :ranks], values, rtol=1e-12)
    keys = reduced.top_key[name][..., :ranks]
    assert keys.min() >= 0
    assert_allclose(np.take_along_axis(array, keys, axis=-1), values, rtol=1e-12)
    assert (reduced.argmax[name] == keys[..., 0]).all()
    strings = whole.key_tokens.strings
    of = [0 if s == chosen[0] else 1 if s == chosen[1] else 2 for s in strings]
    sums = np.stack([array[..., : len(of)][..., np.array(of) == c].sum(axis=-1) for c in range(3)])
    assert_allclose(reduced.category[name], np.moveaxis(sums, 0, -1), rtol=1e-12)


def test_more_ranks_than_keys_are_empty() -> None:
    model, inputs = tiny_model("bert"), tiny_inputs("bert")
    for result in normscope.analyze_inputs(model, inputs, reduce=("top9",)):
        real = len(result.tokens)
        assert (result.top_key["attn_n"][..., real:] == -1).all()
        assert (result.top_value["attn_n"][..., real:] == 0).all()
        assert len(result.top("attn_n", 0, 0)) == real
        for query in range(real):
            assert sorted(result.top_key["attn_n"][0, query, :real]) == list(range(real))


def test_reductions_of_texts_know_their_tokens() -> None:
    model: Any = tiny_model("bert")
    texts = ["the cat sat", "the dog"]
    results = normscope.analyze(
        model, tokenizer(), texts, reduce=("argmax", "category"), categories={"the": ["the"]}
    )
    whole = normscope.analyze(model, tokenizer(), texts)
    for reduced, result in zip(results, whole, strict=True):
        at = [s == "the" for s in result.tokens.strings]
        expected = result["attn_n"].values[..., at].sum(axis=-1)
        assert_allclose(reduced.category["attn_n"][..., 0], expected, rtol=1e-12)
        assert not reduced.top_key
        assert not reduced.mixing_ratio
        plain = reduced.to_dict()
        assert plain["tokens"] == list(result.tokens.strings)
        assert "reduce:argmax,category" in plain["signature"]


@pytest.mark.parametrize(("how", "message"), [
    ({"reduce": ("top",)}, "unknown reduction: 'top'; the reductions are: mixing_ratio"),
    ({"reduce": ("top0",)}, "unknown reduction"),
    ({"reduce": ("argmax",), "heads": "each"}, "not on those of single heads"),
    ({"reduce": ("category",)}, "go together: give both"),
    ({"reduce": ("argmax",), "categories": {"a": ["b"]}}, "go together: give both"),
    ({"reduce": ("category",), "categories": {"a": "b"}}, "a list of tokens, not a string"),
    ({"attention": "flash"}, "one of auto, eager, fused"),
    ({"kernels": "cuda"}, "one of auto, torch, triton"),
    ({"kernels": "triton"}, "cpu is not a CUDA device"),
])  # fmt: skip
def test_bad_input_says_what_is_valid(how: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        normscope.analyze_inputs(tiny_model("bert"), tiny_inputs("bert"), **how)


# -------------------------------------------------------------------------- found by attackers


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_checkpointed_gradients_are_those_of_the_model(name: str) -> None:
    """With gradients, nothing is fused: a second run of a layer must do what the first did."""

    def gradient(*, checkpointing: bool) -> torch.Tensor:
        model: Any = tiny_model(name, dtype=torch.float32).train()
        if checkpointing:
            checkpoint(model, reentrant=False)
        inputs = tiny_inputs(name, dtype=torch.float32)
        torch.manual_seed(0)
        with normscope.capture(model, attention="auto") as captures:
            model(**inputs, use_cache=False)[0].pow(2).sum().backward()
        assert {c.path for c in captures} <= {"interface", "watched"}
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    plain = gradient(checkpointing=False)
    bound = 1e-4 * float(plain.abs().max())
    assert_allclose(gradient(checkpointing=True), plain, rtol=1e-4, atol=bound)


@pytest.mark.parametrize("low", [-1e9, -1e4])
def test_rows_of_low_scores_still_add_up_to_one(low: float) -> None:
    model = tiny_model("bert", dtype=torch.float32)
    ids = tiny_inputs("bert", batch=2)["input_ids"].clamp_min(5)
    mask = torch.zeros(2, 1, 9, 9)
    mask[0, :, 4, :] = low
    result = normscope.analyze_inputs(
        model, {"input_ids": ids, "attention_mask": mask}, attention="fused"
    )[0]
    assert_allclose(result["attn_w"].values.sum(axis=-1), np.ones((3, 9)), rtol=1e-5)


def test_weights_that_are_wrong_for_one_query_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = tiny_model("llama"), {"input_ids": tiny_inputs("llama")["input_ids"]}
    normscope.analyze_inputs(model, inputs, attention="fused")  # is_plain has looked by now
    right = scores.Scores.rows

    def wrong(self: Any, here: slice) -> Any:
        made = right(self, here).clone()
        if here.start <= 3 < here.stop:
            made[:, :, 3 - here.start] *= 2
        return made

    monkeypatch.setattr(scores.Scores, "rows", wrong)
    hows: list[dict[str, Any]] = [{}, {"reduce": ("row_sum", "top3")}]
    for how in hows:
        with pytest.raises(ExactnessError, match='try attention="eager"'):
            normscope.analyze_inputs(model, inputs, attention="fused", **how)
    # Left to itself it goes back to eager attention.
    monkeypatch.setattr("normscope.engine.run.LONG", 8)
    assert "path:interface" in normscope.analyze_inputs(model, inputs)[0].signature


def test_a_mask_of_one_row_stands_for_all_queries() -> None:
    model = tiny_model("bert")
    ids = tiny_inputs("bert", batch=2)["input_ids"].clamp_min(5)
    mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    inputs = {"input_ids": ids, "attention_mask": mask}
    one = normscope.analyze_inputs(model, inputs, attention="eager")
    other = normscope.analyze_inputs(model, inputs, attention="fused")
    for a, b in zip(one, other, strict=True):
        assert_allclose(b["attn_n"].values, a["attn_n"].values, rtol=1e-12)


def test_reductions_travel_without_their_model() -> None:
    model = tiny_model("bert")
    result = normscope.analyze(model, tokenizer(), "the cat sat", reduce=("top3",))
    again = pickle.loads(pickle.dumps(result))
    assert again.signature == result.signature
    assert "changed-after-analysis" not in again.signature
    assert len(pickle.dumps(result)) < 20_000
    assert repr(again) == repr(result)
    assert len(repr(result)) < 200


def test_reductions_of_several_parts_say_so() -> None:
    model, inputs = tiny_model("marian"), tiny_inputs("marian")
    result = normscope.analyze_inputs(model, inputs, reduce=("top3", "mixing_ratio"))[0]
    assert set(result.error) == {"attn_w", "attn_n"}
    with pytest.raises(InputError, match=r"choose a part: result\.encoder"):
        result.top("attn_n", 0, 0)
    with pytest.raises(AttributeError, match="its parts are"):
        _ = result.crss
    with pytest.raises(InputError, match="no layer 99"):
        result.encoder.top("attn_n", 99, 0)
    assert len(result.encoder.top("attn_n", 0, 0)) == 3


def test_ranks_do_not_depend_on_the_other_texts() -> None:
    model = tiny_model("bert")
    texts = ["the cat", "the cat sat on the mat , and looked at it ."]
    together = normscope.analyze(model, tokenizer(), texts, reduce=("top8",))[0]
    alone = normscope.analyze(model, tokenizer(), texts[0], reduce=("top8",))
    assert together.top_key["attn_n"].shape == alone.top_key["attn_n"].shape
    assert_array_equal(together.top_key["attn_n"].values, alone.top_key["attn_n"].values)
    assert together.top_key["attn_n"].shape[-1] == 8


def test_more_bad_input() -> None:
    for given in (5, [5]):
        with pytest.raises(InputError, match="unknown reduction: 5"):
            check_reductions(given)
    model, inputs = tiny_model("bert"), tiny_inputs("bert")
    with pytest.raises(InputError, match="choose another name"):
        normscope.analyze_inputs(model, inputs, reduce=("category",), categories={"other": ["a"]})
    how: Any = {"attention": "Fused"}
    with pytest.raises(Exception, match="Fused"), normscope.capture(model, **how):
        pass
