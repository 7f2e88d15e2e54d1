"""The attribution experiments, small: their figures on models whose order of tokens is known."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the experiments are no part of the package

from experiments.attribution import language, report, sst2
from experiments.attribution.faithfulness import (
    FIGURES,
    MONOTONE,
    Ids,
    changed,
    figures,
    interval,
    reciprocal_rank,
)
from experiments.attribution.yardsticks import integrated_gradients
from normscope.attribution.passes import explain
from normscope.errors import ExactnessError
from normscope.linearisation.rules import rules_of

CLS, SEP, MASK, PAD = 1, 2, 3, 0
WEIGHTS = {10: 0.25, 11: -0.1, 12: 0.15, 13: 0.05, 14: 0.0}  # every other token weighs nothing


class Toy(Mapping[Ids, float]):
    """The probability of a class, 0.5 and the weights of the tokens that are there."""

    def __getitem__(self, ids: Ids) -> float:
        return 0.5 + sum(WEIGHTS.get(token, 0.0) for token in ids)

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


def toy_figures(ids: list[int], scores: list[float]) -> dict[str, float]:
    special = [token in (CLS, SEP) for token in ids]
    sentence = changed(ids, special, np.array(scores), MASK)
    return figures(Toy()[tuple(ids)], sentence, Toy())


def test_the_true_order_reaches_the_extreme_of_all_orders_and_the_reversed_one_the_other() -> None:
    ids = [CLS, *WEIGHTS, SEP]
    true = [0.0, *WEIGHTS.values(), 0.0]
    by_order = [toy_figures(ids, [9.0, *order, -9.0]) for order in itertools.permutations(range(5))]
    oracle = toy_figures(ids, true)
    reversed_ = toy_figures(ids, [-score for score in true])
    for name, best, worst in (
        ("aopc_most", max, min),
        ("aopc_least", min, max),
        ("comprehensiveness", max, min),
        ("sufficiency", min, max),
    ):
        every = [found[name] for found in by_order]
        assert oracle[name] == pytest.approx(best(every))
        assert reversed_[name] == pytest.approx(worst(every))
        assert max(every) > min(every) + 0.05


def test_figures_by_hand() -> None:
    """One token in ten, of weight 0.25, ranked first."""
    ids = [CLS, 10, *range(20, 29), SEP]
    found = toy_figures(ids, [0.0, 1.0, *[0.0] * 9, 0.0])
    assert found["aopc_most"] == pytest.approx(0.25)  # gone from the first step on
    assert found["aopc_least"] == pytest.approx(0)  # the last to go, at 100%, which is left out
    assert found["comprehensiveness"] == pytest.approx(0.25)
    assert found["comprehensiveness_monotone"] == pytest.approx(0.25 * 5 / 6)
    assert found["sufficiency"] == found["sufficiency_monotone"] == pytest.approx(0)


def test_monotone_curves_keep_the_best_so_far() -> None:
    """A helpful token ranked first of four, a harmful one second: half of all is two tokens."""
    found = toy_figures([CLS, 10, 11, 20, 21, SEP], [0, 4, 3, 2, 1, 0])
    assert found["comprehensiveness"] == pytest.approx((4 * 0.25 + 0.15) / 5)
    assert found["comprehensiveness_monotone"] == pytest.approx(5 * 0.25 / 6)
    assert found["sufficiency"] == pytest.approx((4 * -0.1 + 0) / 5)
    assert found["sufficiency_monotone"] == pytest.approx(5 * -0.1 / 6)


@pytest.mark.parametrize(("n", "replaced", "deleted"), [
    (10, [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 1, 1, 2, 5]),
    (7, [0, 1, 2, 2, 3, 4, 4, 5, 6], [1, 1, 1, 2, 4]),
    (1, [0] * 9, [1] * 5),
    (0, [0] * 9, [0] * 5),
])  # fmt: skip
def test_replaced_are_rounded_down_and_deleted_up(
    n: int, replaced: list[int], deleted: list[int]
) -> None:
    ids = [CLS, *range(20, 20 + n), SEP]
    special = [True, *[False] * n, True]
    found = changed(ids, special, np.arange(n + 2.0), MASK)
    assert [ids.count(MASK) for ids in found.aopc_most] == replaced
    assert [ids.count(MASK) for ids in found.aopc_least] == replaced
    assert [n + 2 - len(ids) for ids in found.comprehensiveness] == deleted
    assert [len(ids) - 2 for ids in found.sufficiency] == deleted
    for name in FIGURES:
        assert all(ids[0] == CLS and ids[-1] == SEP for ids in getattr(found, name))


def test_of_equal_scores_the_earlier_token_comes_first_from_either_end() -> None:
    found = changed([CLS, 20, 21, 22, SEP], [True, False, False, False, True], np.zeros(5), MASK)
    assert found.aopc_most[3] == found.aopc_least[3] == (CLS, MASK, 21, 22, SEP)
    assert found.comprehensiveness[0] == (CLS, 21, 22, SEP)
    assert found.sufficiency[0] == (CLS, 20, SEP)


def test_a_sentence_of_special_tokens_loses_nothing() -> None:
    assert set(toy_figures([CLS, SEP], [1.0, 2.0]).values()) == {0.0}


def test_one_token_is_deleted_but_never_replaced() -> None:
    found = toy_figures([CLS, 10, SEP], [0.0, 1.0, 0.0])
    assert found["aopc_most"] == found["aopc_least"] == found["sufficiency"] == 0
    assert found["comprehensiveness"] == pytest.approx(0.25)


@pytest.mark.parametrize(("scores", "evidence", "rank"), [
    ([3, 2, 1], [0], 1), ([3, 2, 1], [2], 3), ([3, 2, 1], [1, 2], 2),
    ([2, 2, 1], [1], 1), ([2, 2, 1], [2], 3), ([0, 0, 0], [2], 1), ([-3, -1, -2], [0], 3),
    ([5], [0], 1),
])  # fmt: skip
def test_competition_ranks(scores: list[float], evidence: list[int], rank: int) -> None:
    assert reciprocal_rank(np.array(scores, dtype=float), evidence) == pytest.approx(1 / rank)


def test_the_interval_is_that_of_a_mean() -> None:
    values = np.random.default_rng(0).normal(2, 3, 900)
    low, high = interval(values)
    assert low == pytest.approx(values.mean() - 1.96 * 3 / 30, abs=0.03)
    assert high == pytest.approx(values.mean() + 1.96 * 3 / 30, abs=0.03)
    assert interval(values) == [low, high]
    assert interval(np.ones(5)) == [1, 1]
    assert interval(np.array([3.0])) == [3, 3]


# --------------------------------------------------------------------------- the classifier


@pytest.fixture
def scorer() -> sst2.Scorer:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    config = BertConfig(vocab_size=40, num_hidden_layers=2, initializer_range=0.5, **sizes)
    model: Any = BertForSequenceClassification(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    tokenizer = SimpleNamespace(
        all_special_ids=[PAD, CLS, SEP, MASK], mask_token_id=MASK, pad_token_id=PAD
    )
    return sst2.Scorer(model, tokenizer)


ROWS = [[CLS, 20, 21, 22, 23, SEP], [CLS, 24, SEP], [CLS, 30, 31, 20, 30, 33, 34, SEP]]


def test_input_x_gradient_is_that_of_the_engine(scorer: sst2.Scorer) -> None:
    batch = scorer.batch(ROWS)
    plain = scorer._gradients(batch)[0]
    for ours, theirs in zip(plain, scorer.shares("input_x_gradient", batch), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-10)


def test_integrated_gradients_and_secant_add_up_to_the_same_difference(
    scorer: sst2.Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sst2, "STEPS", 200)
    batch = scorer.batch(ROWS)
    integrated = scorer._integrated(batch)
    secant = scorer.shares("secant", batch, MASK)
    for ours, theirs in zip(secant, integrated, strict=True):
        assert ours.sum() == pytest.approx(theirs.sum(), abs=1e-3)
        assert ours[0] == ours[-1] == theirs[0] == theirs[-1] == 0  # special tokens are kept


def test_integrated_gradients_of_a_square() -> None:
    """Closed form for y = Σ x²: x² − x₀² for each coordinate, whatever the chunks."""

    def model(inputs_embeds: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return (inputs_embeds**2).sum((1, 2))

    start, end = torch.randn(2, 3, 4, 5, dtype=torch.float64).unbind()
    mask = {"attention_mask": torch.ones(3, 4)}
    for rows in (1, 7, 1000):
        found = integrated_gradients(model, (start, end), mask, lambda y: y, steps=5, rows=rows)
        torch.testing.assert_close(found, (end**2 - start**2).sum(-1))


def test_figures_do_not_depend_on_batches(
    scorer: sst2.Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = sst2.measure(scorer, ROWS)
    monkeypatch.setattr(sst2, "CHUNK", 1)
    monkeypatch.setitem(sst2.ROWS, "cpu", 3)
    alone = sst2.measure(scorer, ROWS)
    for name, by in together.items():
        assert set(by) == {*FIGURES, *MONOTONE}
        for figure, values in by.items():
            if name != "random":
                np.testing.assert_allclose(values, alone[name][figure], atol=1e-9)
    whole = sst2.summarised(together)["minus integrated gradients"]
    assert "random" not in whole
    assert whole["secant"]["aopc_most"]["verdict"] in ("better", "equal", "worse")


def test_worse_is_the_other_way_round_where_less_is_better() -> None:
    values = np.linspace(0, 1, 50)
    found = {
        "secant": dict.fromkeys(FIGURES, values + 0.1),
        sst2.RIVAL: dict.fromkeys(FIGURES, values),
    }
    verdicts = {figure: sst2.compared(found, "secant", figure)["verdict"] for figure in FIGURES}
    assert verdicts == {
        "aopc_most": "better",
        "comprehensiveness": "better",
        "aopc_least": "worse",
        "sufficiency": "worse",
    }


# ----------------------------------------------------------------------- the language model

WORDS = [
    *("<unk>", "When", "Mary", "and", "John", "went", ",", "gave", "it", "to", "Ann", "Marie"),
    *("these", "grocery", "stores", "store"),
]


@pytest.fixture
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")


def row(prefix: str, good: str, bad: str, target: str) -> dict[str, str]:
    names = ("one_prefix_prefix", "one_prefix_word_good", "one_prefix_word_bad", "target")
    return dict(zip(names, (prefix, good, bad, target), strict=True))


def test_prompts(tokenizer: Any) -> None:
    text = "When Mary and John went, John gave it to"
    prompt = language.read_prompt(tokenizer, row(text, "Mary", "John", "Mary"))
    assert prompt is not None
    assert prompt.evidence == (1,)
    assert (prompt.good, prompt.bad) == (WORDS.index("Mary"), WORDS.index("John"))
    assert prompt.exchanged is not None
    swapped = [WORDS[i] for i in prompt.exchanged]
    assert swapped == ["When", "John", "and", "Mary", "went", ",", "Mary", "gave", "it", "to"]

    longer = row(text.replace("Mary", "Ann Marie"), "Ann Marie", "John", "Ann Marie")
    prompt = language.read_prompt(tokenizer, longer)
    assert prompt is not None
    assert prompt.evidence == (1, 2)
    assert prompt.exchanged is None  # two tokens and one

    prompt = language.read_prompt(
        tokenizer, row("John gave these", "grocery stores", "grocery store", "these")
    )
    assert prompt is not None
    assert [WORDS[i] for i in prompt.ids] == ["John", "gave", "these", "grocery"]
    assert (WORDS[prompt.good], WORDS[prompt.bad]) == ("stores", "store")


def test_prompts_that_cannot_be_used(tokenizer: Any) -> None:
    assert language.read_prompt(tokenizer, row("Mary went", "to", "it", "NA")) is None
    assert language.read_prompt(tokenizer, row("Mary went", "to", "it", "Mar")) is None
    assert language.read_prompt(tokenizer, row("Mary went", "to", "to Ann", "Mary")) is None


def test_evidence_is_ranked_by_every_method(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(WORDS), num_hidden_layers=2, **sizes)
    model: Any = LlamaForCausalLM(config).double().eval()
    text = "When Mary and John went, John gave it to"
    rows = [row(text, "Mary", "John", "Mary"), row(text, "Ann", "John", "John")]
    with (tmp_path / "toy.csv").open("w", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    monkeypatch.setattr(language, "resolve", lambda *_, **__: (model, tokenizer))
    output = tmp_path / "out.json"
    words = ["--data", str(tmp_path), "--output", str(output), "--sets", "toy", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["language", *words])
    language.main()
    assert "| toy (2) |" in output.with_suffix(".md").read_text(encoding="utf-8")

    prompt = language.read_prompt(tokenizer, rows[0])
    assert prompt is not None
    explainer = language.Explainer(model)
    methods = explainer.methods()
    scores = {name: method([prompt])[0] for name, method in methods.items()}
    assert all(len(values) == len(prompt.ids) for values in scores.values())
    assert np.flatnonzero(scores["secant, names exchanged"]).tolist() == [1, 3, 6]
    assert set(np.flatnonzero(scores["random, names alone"])) == {1, 3, 6}
    inputs = {"input_ids": torch.tensor([prompt.ids])}
    found = explain(model, inputs, explainer._contrast([prompt]), rules_of("frozen"))
    np.testing.assert_allclose(scores["frozen"], found.sources[0].shares[0, 0])
    difference = explainer.differences([prompt])
    assert scores["frozen"].sum() + found.bias[0, 0] == pytest.approx(difference[0], rel=1e-6)


def test_batches_whose_proof_fails_are_repeated_in_float64(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), num_hidden_layers=1, **sizes))
    prompt = language.read_prompt(tokenizer, row("Mary and John went", "to", "it", "Mary"))
    assert prompt is not None
    explainer = language.Explainer(model.eval())
    methods = explainer.methods()
    names = ("frozen", "secant, mean embedding")
    plain = [methods[name]([prompt]) for name in names]
    assert explainer.repeated == 0

    def strict(given: Any, *arguments: Any, **options: Any) -> Any:
        if given.dtype == torch.float32:
            raise ExactnessError("too few digits")
        return explain(given, *arguments, **options)

    monkeypatch.setattr(language, "explain", strict)
    repeated = [methods[name]([prompt]) for name in names]
    assert explainer.repeated == 2
    assert model.dtype == torch.float32
    for ours, theirs in zip(plain, repeated, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_the_page_gets_the_tables_that_there_are(tmp_path: Path) -> None:
    entry = {"mean": 0.5, "interval": [0.25, 0.75]}
    result = {"sets": {"toy": {"rows": 2, "methods": {"frozen": entry}}}}
    file = tmp_path / "cpu-attribution-language.json"
    file.write_text(json.dumps(result), encoding="utf-8")
    page = (
        "a\n<!-- sst2 -->\nold\n<!-- /sst2 -->\nb\n<!-- language -->\nold\n<!-- /language -->\nc\n"
    )
    filled = report.filled(page, tmp_path)
    assert "| frozen | 0.500 [0.250, 0.750] |" in filled
    assert filled.count("old") == 1
    assert filled.startswith("a\n<!-- sst2 -->\nold\n")
    assert filled.endswith("/language -->\nc\n")
    assert report.filled(filled, tmp_path) == filled


def test_the_experiment_and_normscope_faithfulness_have_the_same_figures() -> None:
    """Two computations of the same conventions, for a method with ties and one without."""
    import normscope
    from tests.helpers.heads import classifier, masked_tokenizer
    from tests.helpers.tiny import tokenizer

    model, tok = classifier(), masked_tokenizer()
    texts = ["the cat sat on the mat", "a dog ran over the fence with friend", "moon"]
    rows = [list(tokenizer()(text)["input_ids"]) for text in texts]
    scores: dict[str, Any] = {
        "ids": [np.array(ids, dtype=float) for ids in rows],
        "ties": [np.array([token % 3 for token in ids], dtype=float) for ids in rows],
    }
    methods = {name: lambda *_, s=listed: s for name, listed in scores.items()}
    both = {}
    for conventions in (None, "alti-released"):
        both[conventions] = normscope.faithfulness(
            model, tok, texts, methods=methods, conventions=conventions, resamples=0,
            metrics=("aopc", "comprehensiveness", "sufficiency"),
        )  # fmt: skip
    names = dict(
        zip(FIGURES, ("aopc", "aopc_least", "comprehensiveness", "sufficiency"), strict=True)
    )
    for name, listed in scores.items():
        for at, ids in enumerate(rows):
            special = [False] * len(ids)
            special[0] = special[-1] = True
            sentence = changed(ids, special, listed[at], tok.mask_token_id)
            with torch.no_grad():
                whole = model(input_ids=torch.tensor([ids])).logits[0].softmax(-1)
                answer = int(whole.argmax())
                known = {
                    form: float(model(input_ids=torch.tensor([form])).logits[0].softmax(-1)[answer])
                    for form in sentence.forms()
                }
            expected = figures(float(whole[answer]), sentence, known)
            for figure, mine in names.items():
                assert both[None].each(name, mine)[at] == pytest.approx(expected[figure], abs=1e-12)
            for figure in MONOTONE:
                mine = names[figure.removesuffix("_monotone")]
                measured = both["alti-released"].each(name, mine)[at]
                assert measured == pytest.approx(expected[figure], abs=1e-12)
