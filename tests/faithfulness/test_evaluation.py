"""Figures against loops over the definitions; what they must not depend on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import normscope
from normscope.errors import InputError
from tests.helpers.heads import (
    classifier,
    language_model,
    masked_tokenizer,
    tiny_head,
    translator,
)
from tests.helpers.tiny import tokenizer

TEXTS = ["the cat sat on the mat", "a dog ran over the fence with friend", "she looked", "moon"]
TOK = masked_tokenizer()
METRICS = ("aopc", "comprehensiveness", "sufficiency", "blank_out", "logprob_drop")
METHODS = ("frozen", "secant", "random")


def probabilities(model: Any, ids: list[int], hide: Any = (), zero: Any = ()) -> Any:
    """The distribution that a model gives for ids, computed alone and plainly."""
    mask = torch.ones(1, len(ids), dtype=torch.long)
    mask[0, list(hide)] = 0
    table = model.get_input_embeddings()
    embedded = table(torch.tensor([ids])).clone()
    embedded[0, list(zero)] = 0
    causal = type(model).__name__.endswith(("LMHeadModel", "ForCausalLM"))
    places = {"position_ids": torch.arange(len(ids))[None]} if causal else {}
    with torch.no_grad():
        logits = model(inputs_embeds=embedded, attention_mask=mask, **places).logits
    return (logits[0, -1] if causal else logits[0]).softmax(-1).numpy()


def changed(model: Any, ids: list[int], kind: str, gone: Any) -> Any:
    if kind == "delete":
        return probabilities(model, [t for at, t in enumerate(ids) if at not in gone] or [0])
    if kind in ("mask", "pad"):
        index = TOK.mask_token_id if kind == "mask" else TOK.pad_token_id
        return probabilities(model, [index if at in gone else t for at, t in enumerate(ids)])
    return probabilities(model, ids, **{"hide" if kind == "attention" else "zero": list(gone)})


def slow(model: Any, ids: list[int], special: Any, scores: Any, kind: str) -> dict[str, float]:
    """Every figure of one text, straight from its definition."""
    whole = probabilities(model, ids)
    answer = int(whole.argmax())
    places = [at for at in range(len(ids)) if not special[at]]

    def p(gone: Any) -> float:
        return float(changed(model, ids, kind, set(gone))[answer])

    most = sorted(places, key=lambda at: (-scores[at], at))
    least = sorted(places, key=lambda at: (scores[at], at))
    n, own = len(places), float(whole[answer])
    drops = [own - p(most[: n * k // 10]) for k in range(1, 10)]
    figures = {"aopc": sum(drops) / 9}
    figures["aopc_least"] = sum(own - p(least[: n * k // 10]) for k in range(1, 10)) / 9
    counts = [math.ceil(n * k / 100) for k in (1, 5, 10, 20, 50)]
    figures["comprehensiveness"] = sum(own - p(most[:count]) for count in counts) / 5
    figures["sufficiency"] = sum(own - p(most[count:]) for count in counts) / 5
    alone = [own - p([at]) for at in places]
    if n > 1:
        figures["blank_out"] = float(spearmanr([scores[at] for at in places], alone).statistic)
    for name, first in (("logprob_drop", 0), ("logprob_drop_without_first", 1)):
        ranked = sorted(range(first, len(ids)), key=lambda at: (-scores[at], at))
        for percent in (5, 10, 20):
            count = max(1, len(ranked) * percent // 100)
            left = p(ranked[:count])
            figures[f"{name}@{percent}%"] = math.log(own) - math.log(left)
    return figures


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("classifier", kind) for kind in ("mask", "pad", "delete", "zero", "attention")),
        *(("language model", kind) for kind in ("pad", "delete", "zero", "attention")),
        ("opt", "attention"),  # numbers positions by the mask, if it is not told them
        ("roberta", "delete"),
        ("llama", "zero"),
    ],
)
def test_every_figure_against_loops(name: str, kind: str) -> None:
    models = {
        "classifier": classifier,
        "language model": language_model,
        "opt": lambda: tiny_head("opt", "OPTForCausalLM"),
        "roberta": lambda: tiny_head("roberta", "RobertaForSequenceClassification"),
        "llama": lambda: tiny_head("llama", "LlamaForSequenceClassification"),
    }
    model = models[name]()
    causal = name in ("language model", "opt")
    tok = tokenizer(pair=False) if causal or name != "classifier" else TOK
    methods = ("frozen", "attn_lrp")
    how: dict[str, Any] = {"metrics": METRICS, "replacement": kind, "resamples": 0}
    if kind == "mask":
        tok = masked_tokenizer()
    result = normscope.faithfulness(model, tok, TEXTS, methods=methods, **how)
    for method in methods:
        explained = normscope.attribute(model, tok, TEXTS, method=method)
        for at, each in enumerate(explained):
            ids = list(each.tokens.ids or ())
            expected = slow(model, ids, each.tokens.special, each.scores.values, kind)
            for figure, value in expected.items():
                measured = result.each(method, figure)[at]
                assert measured == pytest.approx(value, abs=1e-9), (figure, TEXTS[at])


@pytest.mark.parametrize("name", ["classifier", "language model"])
def test_a_batch_equals_texts_alone_and_the_order_of_methods_changes_nothing(name: str) -> None:
    model, tok = (classifier(), TOK) if name == "classifier" else (language_model(), TOK)
    how: dict[str, Any] = {"metrics": METRICS, "resamples": 200}
    together = normscope.faithfulness(model, tok, TEXTS, methods=METHODS, **how)
    backwards = normscope.faithfulness(model, tok, TEXTS, methods=METHODS[::-1], **how)
    alone = [normscope.faithfulness(model, tok, t, methods=METHODS, **how) for t in TEXTS]
    for method in METHODS:
        np.testing.assert_array_equal(together.values[method], backwards.values[method])
        rows = np.concatenate([each.values[method] for each in alone])
        np.testing.assert_allclose(together.values[method], rows, atol=1e-10)
        for figure in together.figures:
            assert together.interval(method, figure.name) == pytest.approx(
                backwards.interval(method, figure.name), nan_ok=True
            )


def test_all_methods_explain_the_same_answer() -> None:
    """One text's own choice, another's given answer, and continuations of several tokens."""
    model = language_model()
    tok = tokenizer(pair=False)
    asked: list[Any] = []

    def spy(_model: Any, _tok: Any, texts: Any) -> list[Any]:
        asked.extend(texts)
        return normscope.attribute(_model, _tok, list(texts), continuation=[" mat and"] * 4)

    how: dict[str, Any] = {"metrics": "comprehensiveness", "resamples": 0}
    result = normscope.faithfulness(
        model, tok, TEXTS, methods={"a": spy, "b": "frozen"}, continuation=[" mat and"] * 4, **how
    )
    np.testing.assert_array_equal(result.values["a"], result.values["b"])
    assert asked == TEXTS
    # The outcome is the probability of the whole continuation.
    (each,) = normscope.attribute(model, tok, TEXTS[:1], continuation=[" mat and"])
    ids = list(each.tokens.ids or ())
    scores = each.scores.values.sum(axis=0)
    n = len(ids) - 2

    def p(gone: set[int]) -> float:
        left = [token for at, token in enumerate(ids) if at not in gone]
        with torch.no_grad():
            table = model(input_ids=torch.tensor([left])).logits[0].softmax(-1)
        return float(table[-3, ids[-2]] * table[-2, ids[-1]])

    most = sorted(range(1, n), key=lambda at: (-scores[at], at))
    counts = [math.ceil((n - 1) * k / 100) for k in (1, 5, 10, 20, 50)]
    expected = sum(p(set()) - p(set(most[:count])) for count in counts) / 5
    assert result.each("b", "comprehensiveness")[0] == pytest.approx(expected, abs=1e-10)


def test_masked_models_keep_their_mask_and_translators_their_target() -> None:
    masked = tiny_head("bert", "BertForMaskedLM")
    text = "the cat sun on the mat"
    result = normscope.faithfulness(
        masked, TOK, text, methods=("frozen",), metrics="comprehensiveness", resamples=0,
        conventions={"bins": [100]},
    )  # fmt: skip
    (each,) = normscope.attribute(masked, TOK, [text])
    ids = list(each.tokens.ids or ())

    def distribution(row: list[int], place: int) -> Any:
        with torch.no_grad():
            return masked(input_ids=torch.tensor([row])).logits[0, place].softmax(-1)

    whole = distribution(ids, 3)
    answer = int(whole.argmax())
    left = distribution([ids[0], ids[3], ids[-1]], 1)
    expected = float(whole[answer] - left[answer])
    assert result.mean("frozen", "comprehensiveness") == pytest.approx(expected, abs=1e-12)

    model, tok = translator(), tokenizer(pair=False)
    target = "a dog"
    result = normscope.faithfulness(
        model, tok, "the cat sat", target=target, methods=("frozen",), resamples=0,
        metrics="comprehensiveness", conventions={"bins": [100]},
    )  # fmt: skip
    (each,) = normscope.attribute(model, tok, ["the cat sat"], target=[target])
    assert each.steps is not None
    sides = np.array(each.sides)
    numbers = np.array(each.tokens.ids)
    source, written = numbers[sides == "source"], numbers[sides == "target"]

    def p(read: Any) -> float:
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor([read.tolist()]),
                decoder_input_ids=torch.tensor([written.tolist()]),
            ).logits[0]
        assert each.steps is not None
        wanted = list(each.steps.ids or ())
        return float(logits.softmax(-1)[range(len(wanted)), wanted].prod())

    expected = p(source) - p(source[[0, -1]])
    assert result.mean("frozen", "comprehensiveness") == pytest.approx(expected, abs=1e-12)


def test_nothing_of_the_model_is_changed() -> None:
    model = classifier()
    hooks = [len(module._forward_hooks) for module in model.modules()]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()
    try:
        normscope.faithfulness(model, TOK, TEXTS[:2], methods=("frozen",), resamples=0)
        assert model.training
    finally:
        model.eval()
    assert hooks == [len(module._forward_hooks) for module in model.modules()]
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": "aopk"}, "unknown metric: 'aopk'; valid: aopc"),
        ({"metrics": ()}, "unknown metric: none"),
        ({"methods": ()}, "no method was given"),
        ({"methods": ("frozen", "frozen")}, "named twice"),
        ({"methods": ("frozenn",)}, "method"),
        ({"methods": {"a": 7}}, "a name, keyword arguments or a function"),
        ({"methods": {"a": {"gate": "half"}}}, "needs a method= or a baseline="),
        ({"methods": (7,)}, "methods are names"),
        ({"conventions": "ferret"}, "there is no preset 'ferret'; valid: decompx"),
        ({"conventions": {"binz": [5]}}, "no field 'binz'; did you mean 'bins'"),
        ({"conventions": {"bins": [0]}}, "percentages above 0"),
        ({"conventions": {"bins": [20, 10]}}, "must rise"),
        ({"conventions": {"rounding": "up"}}, "rounding must be one of floor"),
        ({"conventions": {"orders": "best"}}, "orders must be of"),
        ({"conventions": {"monotone": 1}}, "monotone must be True or False"),
        ({"conventions": {"logprob_drop": "alti"}, "metrics": "aopc"}, "not among the metrics"),
        ({"conventions": 7}, "name of a preset, a Convention or a mapping"),
        ({"replacement": "blur"}, "replacement must be one of"),
        ({"resamples": -1}, "resamples must not be negative"),
        ({"text": None}, "no text was given"),
        ({"methods": {"a": lambda *_: []}}, "gave 0 results for 1 texts"),
        ({"methods": {"a": lambda *_: [[1.0]]}}, "give a finite score for each of the 5 tokens"),
    ],
)
def test_wrong_input_is_explained(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"text": "the cat sat", "methods": ("frozen",), **options}
    with pytest.raises(InputError, match=message):
        normscope.faithfulness(classifier(), TOK, given.pop("text"), **given)


def test_what_a_model_cannot_do_is_explained() -> None:
    plain = tokenizer(pair=False)
    with pytest.raises(InputError, match=r'has no mask token.*replacement="delete"'):
        normscope.faithfulness(language_model(), plain, "the cat", replacement="mask")
    with pytest.raises(InputError, match='"secant@mean"'):
        normscope.faithfulness(language_model(), plain, "the cat", methods=("secant",))
    with pytest.raises(InputError, match="no probability of a token or a label"):
        normscope.faithfulness(tiny_head("bert", "BertModel"), TOK, "the cat")
    with pytest.raises(InputError, match="leave out functions"):
        normscope.faithfulness(classifier(), TOK, "the cat", answer=lambda o: o.logits[0, 0])
    with pytest.raises(InputError, match="share their embeddings"):
        normscope.faithfulness(translator(), plain, "the cat", target="a", replacement="zero")
