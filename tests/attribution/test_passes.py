"""One pass forward and one back, against component vectors pushed forwards by the equations."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
)

import normscope
from normscope import attribute
from normscope.attribution import account, passes
from normscope.attribution.account import RowShares
from normscope.attribution.passes import explain
from normscope.capture import capture
from normscope.errors import InputError, UnsupportedModelError
from normscope.linearisation import network
from normscope.linearisation.rules import RULES, rules_of
from normscope.models import load
from normscope.models.architectures import tiny_inputs, tiny_model
from normscope.models.completeness import made_up
from normscope.testing import FullPrecision
from tests.helpers.explained import (
    by_position,
    last_position,
    left_padded,
    positions,
    rows_of,
    size,
)
from tests.helpers.saved_models import SMALL_BERT, rewrite, save, without
from tests.helpers.written_out import IDS, components, shares, written

pytestmark = pytest.mark.usefixtures("unchecked_types")

TOLERANCE = 1e-12

CASES = [
    *(("bert", method, "half") for method in ("frozen", "secant", "attn_lrp", "input_x_gradient")),
    *(("llama", "frozen", gate) for gate in ("half", "gate", "up", "ig")),
    *(("llama", method, "half") for method in ("secant", "attn_lrp", "input_x_gradient")),
]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("name", "method", "gate"), CASES)
def test_shares_are_the_components_pushed_forwards(
    name: str, method: str, gate: str, attention: str
) -> None:
    result = shares(name, method, gate, attention)
    value, parts = components(name, method, gate)
    loose = name == "llama" and attention == "eager" and method in ("attn_lrp", "input_x_gradient")
    bound = (1e-5 if loose else TOLERANCE) * float(size(result).max())
    assert result.value == pytest.approx(value, abs=bound)
    assert result.bias == pytest.approx(float(parts[-1]), abs=bound)
    by_part = parts[:-1].reshape(-1, IDS.shape[1])
    names = list(written(name).embeddings(written(name).model, IDS[0]))
    constant = {*names} & {"position"} if method == "secant" else set()  # the same in both
    assert {source.part for source in result.sources} | constant == {*names}
    for source in result.sources:
        expected = by_part[names.index(source.part)].numpy()
        np.testing.assert_allclose(source.shares[0, 0], expected, rtol=0, atol=bound)


def test_input_x_gradient_is_the_plain_gradient() -> None:
    for name in ("bert", "llama"):
        by_hand = written(name)
        embeddings = by_hand.embeddings(by_hand.model, IDS[0])["word"][None].requires_grad_()
        with FullPrecision():
            value = by_hand.value(by_hand.model(inputs_embeds=embeddings)).sum()
            (gradient,) = torch.autograd.grad(value, embeddings)
        expected = (embeddings * gradient).sum(-1)[0].detach().numpy()
        result = shares(name, "input_x_gradient")
        word = next(source.shares for source in result.sources if source.part == "word")
        np.testing.assert_allclose(word[0, 0], expected, rtol=0, atol=1e-13)


def test_attention_and_gates_apart_attn_lrp_is_the_frozen_network() -> None:
    # One token attends to itself alone: the softmax is constant, and so is its tangent's offset.
    by_hand = written("bert")
    inputs = {"input_ids": IDS[:, :1]}
    frozen, relevance = (
        explain(by_hand.model, inputs, by_hand.value, rules_of(method))
        for method in ("frozen", "attn_lrp")
    )
    # Half of the relevance goes to the weights, and from there to the offset: the values' half
    # is all that tokens get of what passes attention.
    assert np.abs(relevance.bias - frozen.bias).max() > 1e-3
    assert relevance.error.max() < 1e-14


def explained(
    name: str, inputs: dict[str, Tensor], method: str = "frozen", steps: int = 1, **options: Any
) -> RowShares:
    model: Any = options.pop("model", None) or tiny_model(name)
    baseline = None
    if method == "secant":
        ids = inputs["input_ids"].clone()
        ids[:, 2:4] = 17
        baseline = {"input_ids": ids}
    # The backward pass, which computes layers again, does not see FullPrecision.
    with nullcontext() if "recompute" in options else FullPrecision():
        return explain(
            model,
            inputs,
            last_position(inputs, steps),
            rules_of(method),
            baseline_inputs=baseline,
            **options,
        )


def assert_same(first: RowShares, second: RowShares, bound: float = 1e-12) -> None:
    limit = bound * float(size(first).max())
    np.testing.assert_allclose(first.value, second.value, rtol=0, atol=limit)
    np.testing.assert_allclose(first.bias, second.bias, rtol=0, atol=limit)
    for one, other in zip(first.sources, second.sources, strict=True):
        assert (one.stack, one.part) == (other.stack, other.part)
        np.testing.assert_allclose(one.shares, other.shares, rtol=0, atol=limit)


def row(result: RowShares, at: int, columns: Any) -> RowShares:
    sources = [
        account.SourceShares(s.stack, s.part, s.shares[at : at + 1][..., columns])
        for s in result.sources
    ]
    return RowShares(
        result.value[at : at + 1], result.bias[at : at + 1], result.error[at : at + 1], sources
    )


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_a_batch_is_its_rows_one_at_a_time(name: str, method: str) -> None:
    model, inputs = tiny_model(name), tiny_inputs(name)
    whole = explained(name, inputs, method, model=model)
    for at in range(3):
        alone = explained(name, rows_of(inputs, at), method, model=model)
        real = inputs["attention_mask"][at].bool().numpy()
        both = {(s.stack, s.part) for s in alone.sources} & {
            (s.stack, s.part) for s in whole.sources
        }
        kept = [s for s in alone.sources if (s.stack, s.part) in both]
        rest = [s for s in alone.sources if (s.stack, s.part) not in both]
        assert all(np.abs(s.shares).max() == 0 for s in rest)  # positions, in both inputs alike
        ordered = sorted(kept, key=lambda s: s.part)
        mine = row(whole, at, real)
        mine = replace(mine, sources=sorted(mine.sources, key=lambda s: s.part))
        assert_same(mine, replace(alone, sources=ordered))
        for source in whole.sources:
            assert np.abs(source.shares[at][:, ~real]).max(initial=0) == 0  # padding has no share


@pytest.mark.parametrize("method", RULES)
@pytest.mark.parametrize("name", ["electra", "gpt2", "llama", "mistral"])
def test_padding_on_either_side_is_the_same(name: str, method: str) -> None:
    model, inputs = tiny_model(name), tiny_inputs(name)
    inputs["position_ids"] = positions(inputs["attention_mask"])
    left = left_padded(inputs)
    left["position_ids"] = positions(left["attention_mask"])
    right_shares, left_shares = (explain_changed(model, given, method) for given in (inputs, left))
    for at in range(3):
        real, moved = (given["attention_mask"][at].bool().numpy() for given in (inputs, left))
        assert_same(row(right_shares, at, real), row(left_shares, at, moved))
        assert np.abs(by_position(left_shares)[at][:, ~moved]).max(initial=0) == 0


@pytest.mark.parametrize("name", ["bert", "llama", "bart", "vit", "wav2vec2"])
def test_one_backward_pass_tells_rows_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass for each row is only for models that mix rows."""
    calls: list[Tensor] = []
    back = account.Account._back

    def counted(self: Any, scalar: Tensor, keep: bool) -> Any:
        calls.append(scalar)
        return back(self, scalar, keep)

    monkeypatch.setattr(account.Account, "_back", counted)
    for method in RULES:
        inputs = tiny_inputs(name)
        floats = {key: t.flip(0) for key, t in inputs.items() if t.is_floating_point()}
        other = floats or {"input_ids": torch.where(inputs["input_ids"] > 9, 9, 8)}
        calls.clear()
        explain(
            tiny_model(name),
            inputs,
            last_position(inputs),
            rules_of(method),
            baseline_inputs=other if method == "secant" else None,
        )
        assert len(calls) == 1


def explain_changed(model: Any, inputs: dict[str, Tensor], method: str) -> RowShares:
    """Explain; a baseline has another id wherever the id is odd."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    other = torch.where((ids % 2 == 1) & (mask == 1), 17, ids)
    baseline = {"input_ids": other} if method == "secant" else None
    with FullPrecision():
        return explain(
            model, inputs, last_position(inputs), rules_of(method), baseline_inputs=baseline
        )


@pytest.mark.parametrize("name", ["bert", "llama", "bart", "wav2vec2"])
def test_recomputation_changes_nothing(name: str) -> None:
    model, inputs = tiny_model(name), tiny_inputs(name)
    for method in RULES if name == "llama" else ["frozen"]:
        kept, again = (
            explained(name, inputs, method, 2, model=model, recompute=recompute, trace=True)
            for recompute in (False, True)
        )
        assert_same(kept, again, 1e-15)
        assert kept.trace is not None
        assert again.trace is not None
        for one, other in zip(kept.trace.cuts, again.trace.cuts, strict=True):
            for stack, found in one.shares.items():
                np.testing.assert_allclose(found, other.shares[stack], rtol=0, atol=1e-13)
        for layer, other_layer in zip(kept.trace.layers, again.trace.layers, strict=True):
            np.testing.assert_allclose(layer.heads, other_layer.heads, rtol=0, atol=1e-13)


@pytest.mark.parametrize("method", RULES)
def test_several_steps_are_single_ones(method: str) -> None:
    model, inputs = tiny_model("llama"), tiny_inputs("llama")
    several = explained("llama", inputs, method, 3, model=model)

    def single(output: Any) -> Tensor:
        return last_position(inputs, 3)(output)[:, [1]]

    baseline = {"input_ids": inputs["input_ids"].clone()}
    baseline["input_ids"][:, 2:4] = 17
    with FullPrecision():
        alone = explain(
            model,
            inputs,
            single,
            rules_of(method),
            baseline_inputs=baseline if method == "secant" else None,
        )
    np.testing.assert_allclose(several.value[:, 1:2], alone.value, rtol=0, atol=1e-14)
    np.testing.assert_allclose(several.bias[:, 1:2], alone.bias, rtol=0, atol=1e-12)
    np.testing.assert_allclose(by_position(several)[:, 1:2], by_position(alone), rtol=0, atol=1e-13)


def test_the_order_of_methods_changes_nothing() -> None:
    model, inputs = tiny_model("qwen3"), tiny_inputs("qwen3")
    orders = [[*RULES], [*RULES][::-1]]
    runs = [
        {method: explained("qwen3", inputs, method, model=model) for method in order}
        for order in orders
    ]
    for method in RULES:
        assert_same(runs[0][method], runs[1][method], 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_half_precision_is_within_its_bound(name: str, dtype: torch.dtype) -> None:
    exact = explain(
        tiny_model(name),
        (inputs := tiny_inputs(name)),
        last_position(inputs),
        rules_of("frozen"),
    )
    rounded = explain(
        tiny_model(name, dtype=dtype), inputs, last_position(inputs), rules_of("frozen")
    )
    bound = {torch.bfloat16: 5e-2, torch.float16: 1e-2, torch.float32: 1e-5}[dtype]
    assert 0 < rounded.error.max() < bound
    gap = np.abs(by_position(rounded) - by_position(exact)).max()
    assert gap < bound * float(size(exact).max())


@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad])
def test_disabled_gradients_make_no_difference(context: Any) -> None:
    inputs = tiny_inputs("bert")
    expected = explained("bert", inputs)
    model = tiny_model("bert")
    with context():
        made = tiny_inputs("bert")
        result = explain(model, made, last_position(made), rules_of("frozen"))
    assert_same(expected, result, 0)


def test_a_model_made_in_inference_mode_is_refused() -> None:
    inputs = tiny_inputs("bert")
    with torch.inference_mode():
        model = tiny_model("bert")
    with pytest.raises(InputError, match=r"made inside torch\.inference_mode"):
        explain(model, inputs, last_position(inputs), rules_of("frozen"))


def test_input_and_baseline_may_be_equal() -> None:
    inputs = tiny_inputs("llama")
    model = tiny_model("llama")
    same = {"input_ids": inputs["input_ids"]}
    result = explain(model, inputs, last_position(inputs), rules_of("secant"), baseline_inputs=same)
    assert not result.value.any()
    assert not by_position(result).any()
    assert not result.error.any()


# ---- nothing is left behind


def condition(model: nn.Module) -> list[Any]:
    """Return everything that an attribution may change for a while."""
    config: Any = model.config
    return [
        [(len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in model.modules()],
        [sorted(vars(m)) for m in model.modules()],
        [
            (p.requires_grad, p.grad is None, len(p._backward_hooks or ()))
            for p in model.parameters()
        ],
        config.to_dict(),
        config._attn_implementation,
        torch.is_grad_enabled(),
        network.running(),
        torch.overrides._get_current_function_mode_stack(),
    ]


class Stop(nn.Module):
    """Raises in the middle of a model's third call of a layer."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def __call__(self, *_: Any) -> None:
        raise self.error("in the middle")


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_behind(error: type[BaseException] | None, recompute: bool) -> None:
    model: Any = tiny_model("llama").train()
    model.model.layers[0].eval()
    model.lm_head.weight.requires_grad_(False)
    model.model.norm.weight.grad = torch.ones_like(model.model.norm.weight)
    inputs = tiny_inputs("llama")
    before = condition(model)
    layer = model.model.layers[1]
    value = last_position(inputs)
    if error is None:
        explain(model, inputs, value, rules_of("frozen"), recompute=recompute, trace=True)
    else:
        handle = layer.mlp.register_forward_hook(Stop(error))
        with pytest.raises(error, match="in the middle"):
            explain(model, inputs, value, rules_of("frozen"), recompute=recompute, trace=True)
        handle.remove()
    assert condition(model) == before
    assert torch.equal(model.model.norm.weight.grad, torch.ones_like(model.model.norm.weight))


def test_an_error_in_the_backward_pass_leaves_nothing_behind() -> None:
    model: Any = tiny_model("llama")
    inputs = tiny_inputs("llama")
    before = condition(model)

    def value(output: Any) -> Tensor:
        output.logits.register_hook(Stop(KeyboardInterrupt))
        return last_position(inputs)(output)

    for recompute in (False, True):
        with pytest.raises(KeyboardInterrupt, match="in the middle"):
            explain(model, inputs, value, rules_of("frozen"), recompute=recompute)
        assert condition(model) == before


def test_a_forward_of_the_instance_stays() -> None:
    model: Any = tiny_model("llama")
    inputs = tiny_inputs("llama")
    layer = model.model.layers[0]
    own = layer.forward
    layer.forward = own
    explain(model, inputs, last_position(inputs), rules_of("frozen"), recompute=True)
    assert vars(layer)["forward"] is own


@pytest.mark.parametrize("recompute", [False, True])
def test_states_are_freed(recompute: bool) -> None:
    model, inputs = tiny_model("bert"), tiny_inputs("bert")
    states: list[weakref.ref[Tensor]] = []

    def note(module: nn.Module, args: Any, output: Any) -> None:
        states.append(weakref.ref(output[0] if isinstance(output, tuple) else output))

    handles = [module.register_forward_hook(note) for module in model.modules()]
    result = explain(
        model,
        inputs,
        last_position(inputs),
        rules_of("frozen"),
        trace=True,
        recompute=recompute,
    )
    for handle in handles:
        handle.remove()
    assert result.trace is not None
    assert len(states) > 60
    gc.collect()
    assert [state for state in states if state() is not None] == []


def test_attributions_do_not_nest() -> None:
    model, inputs = tiny_model("bert"), tiny_inputs("bert")
    value = last_position(inputs)

    def nested(output: Any) -> Tensor:
        explain(model, inputs, value, rules_of("frozen"))
        return value(output)

    with pytest.raises(InputError, match="inside another attribution"):
        explain(model, inputs, nested, rules_of("frozen"))
    with capture(model), pytest.raises(InputError, match="inside a capture"):
        explain(model, inputs, value, rules_of("frozen"))


@pytest.mark.parametrize("recompute", [False, True])
def test_other_threads_are_not_disturbed(recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = tiny_model("llama")
    inputs = tiny_inputs("llama")
    own = model(**inputs).logits.detach()
    expected = explain(model, inputs, last_position(inputs), rules_of("frozen"))
    embeddings = model.model.embed_tokens.weight
    (gradient,) = torch.autograd.grad(model(**inputs).logits.sum(), embeddings)
    outputs: list[Tensor] = []
    gradients: list[Tensor] = []

    def other_thread() -> None:
        with torch.no_grad():
            outputs.append(model(**inputs).logits)
        outputs.append(model(**inputs).logits)
        gradients.extend(torch.autograd.grad(outputs[-1].sum(), embeddings))

    def in_the_middle(*_: Any) -> None:
        if network.running() and not outputs:  # of this thread
            thread = threading.Thread(target=other_thread)
            thread.start()
            thread.join()

    runs: list[Any] = []
    once = passes._Setup.shares

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        runs.append(options)
        return once(self, *args, **options)

    monkeypatch.setattr(passes._Setup, "shares", counted)
    handle = model.model.layers[1].register_forward_hook(in_the_middle)
    result = explain(
        model, inputs, last_position(inputs), rules_of("frozen"), recompute=recompute, trace=True
    )
    handle.remove()
    assert len(outputs) == 2
    assert len(runs) == 1  # a run that was disturbed would be repeated
    assert all(torch.equal(output, own) for output in outputs)
    assert torch.equal(gradients[0], gradient)
    assert result.trace is not None
    assert len(result.trace.layers) == 3  # nothing of the other thread was recorded
    assert_same(result, expected, 1e-15)


# ---- parameters that no file had


def lacking(model: Any, folder: Path, *parts: str, strict: bool = True) -> Any:
    """Load a saved model without the weights that have one of these parts in their name."""
    rewrite(save(model, folder), without(*parts))
    return load(folder, strict=strict)


@pytest.mark.parametrize(
    ("model_class", "parts", "count", "named"),
    [
        (BertForMaskedLM, ("cls.",), 5, r"cls\.predictions\.bias"),
        (BertForSequenceClassification, ("classifier",), 2, r"classifier\.bias"),
        (BertForSequenceClassification, ("pooler",), 2, r"bert\.pooler\.dense\.bias"),
    ],
)
def test_what_no_file_had_is_not_explained(
    model_class: Any, parts: tuple[str, ...], count: int, named: str, tmp_path: Path
) -> None:
    model, reader = lacking(model_class(SMALL_BERT), tmp_path / "m", *parts)
    how: dict[str, Any] = {"position": 0} if model_class is BertForMaskedLM else {}
    with pytest.raises(
        UnsupportedModelError,
        match=rf"this output of {model_class.__name__} depends on {count} parameters that no file "
        rf".*: {named}.*strict=False",
    ):
        attribute(model, reader, "the cat", **how)
    assert attribute(model, reader, "the cat", similar_to="a mat").error < 1e-5
    with pytest.raises(UnsupportedModelError, match="depends on"):
        attribute(tmp_path / "m", text="the cat", **how)
    assert attribute(tmp_path / "m", text="the cat", strict=False, **how).error < 1e-5


def test_a_head_of_its_own_that_no_file_had(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=2, tie_word_embeddings=False)
    model, reader = lacking(GPT2LMHeadModel(config), tmp_path / "m", "lm_head")
    with pytest.raises(UnsupportedModelError, match=r"depends on 1 parameter .*lm_head\.weight;"):
        attribute(model, reader, "the cat")


def test_what_no_file_had_may_be_in_the_model_if_the_answer_ignores_it(tmp_path: Path) -> None:
    model, reader = lacking(BertModel(SMALL_BERT), tmp_path / "m", "pooler")
    assert made_up(model)
    state = attribute(model, reader, "the cat", answer=lambda o: o.last_hidden_state[0, 1, 0])
    assert state.error < 1e-5
    with pytest.raises(UnsupportedModelError, match=r"pooler\.dense\.weight"):
        attribute(model, reader, "the cat", answer=lambda o: o.pooler_output[0, 1])
    before = [parameter.requires_grad for parameter in model.parameters()]
    assert all(before), "the model is as it was"


@pytest.mark.parametrize("name", ["bloom", "llama"])
@pytest.mark.parametrize("method", ["frozen", "input_x_gradient"])
def test_padding_that_makes_a_model_give_nan_is_named(name: str, method: str) -> None:
    """The softmax of eager attention is in float32, where the mask of float64 is -inf."""
    model: Any = tiny_model(name)
    model.set_attn_implementation("eager")
    ids = torch.tensor([[9, 8, 7, 6, 5], [1, 1, 1, 6, 5]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]])
    given = {"input_ids": ids, "attention_mask": mask}
    with torch.no_grad():
        assert model(**given).logits[1].isnan().all()
    explained = partial(normscope.attribute_inputs, model, method=method)
    with pytest.raises(InputError, match=r"^row 1: .* gives NaN, .* The row is padded on the left"):
        explained(given)
    # What the message advises:
    flipped = {
        "input_ids": torch.cat([ids[:1], ids[1:].roll(2)]),
        "attention_mask": mask.sort(dim=1, descending=True)[0],
    }
    alone = {key: tensor[1:, 3:] for key, tensor in given.items()}
    (_, right), (single,) = explained(flipped), explained(alone)
    assert right.tokens == single.tokens
    np.testing.assert_allclose(right.scores.values, single.scores.values, rtol=1e-5)
    _, left = normscope.attribute_inputs(model.float(), given, method=method)
    np.testing.assert_allclose(left.scores.values, single.scores.values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["bloom", "llama", "opt", "gpt_neox"])
@pytest.mark.parametrize("method", sorted(RULES))
def test_padding_that_does_not_reach_the_output_is_not_refused(name: str, method: str) -> None:
    """The NaN of padding ends in the only layer; its derivatives do not reach other positions."""
    model: Any = tiny_model(name)
    del next(m for m in model.modules() if isinstance(m, nn.ModuleList))[1:]
    model.set_attn_implementation("eager")
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]])
    given = {"input_ids": torch.tensor([[9, 8, 7, 6, 5], [1, 1, 1, 6, 5]]), "attention_mask": mask}
    other = {"input_ids": torch.tensor([[4, 8, 9, 6, 5], [1, 1, 1, 7, 5]])}
    with torch.no_grad():
        logits = model(**given).logits
    assert logits[1, 0].isnan().all()
    assert logits[1, 3:].isfinite().all()
    read = last_position(given)
    options: dict[str, Any] = {
        "baseline_inputs": other if RULES[method].difference else None,
        "trace": True,
    }
    found = explain(model, given, read, rules_of(method), **options)
    assert np.isfinite(found.value).all()
    alone = {key: tensor[1:, 3:] for key, tensor in given.items()}
    if options["baseline_inputs"]:
        options["baseline_inputs"] = {key: tensor[1:, 3:] for key, tensor in other.items()}
    single = explain(model, alone, last_position(alone), rules_of(method), **options)
    np.testing.assert_allclose(
        by_position(found)[1:, :, 3:], by_position(single), rtol=1e-4, atol=1e-6
    )
    assert (by_position(found)[1, :, :3] == 0).all()
