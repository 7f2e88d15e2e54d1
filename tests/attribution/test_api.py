"""`attribute`: every form of question, against the model's own output."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import normscope
from normscope import InputError
from tests.helpers.heads import (
    classifier,
    language_model,
    masked_tokenizer,
    tiny_head,
    translator,
)
from tests.helpers.tiny import tokenizer

PROMPT = "the cat sat on the"
TOK, PAIRS = tokenizer(pair=False), tokenizer()  # the second gives token types


def adds_up(result: Any, bound: float = 1e-10) -> None:
    """Shares and bias add up to the value, and tokens are those of the scores."""
    assert result.error < bound
    total = result.scores.values.sum(axis=-1) + result.bias
    np.testing.assert_allclose(total, result.value, rtol=10 * bound, atol=10 * bound)
    assert result.scores.shape[-1] == len(result.tokens) == len(result.sides)


def run(model: Any, ids: list[int], **more: Any) -> Any:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), **more)


def id_of(token: str) -> int:
    return int(TOK.convert_tokens_to_ids(token))


def test_a_token_and_its_foil() -> None:
    lm = language_model()
    result = normscope.attribute(lm, TOK, PROMPT, answer=" mat", foil=" house")
    assert result.tokens.strings == ("<s>", "the", "cat", "sat", "on", "the")  # no end token
    logits = run(lm, list(result.tokens.ids or ())).logits[0, -1]
    assert result.value == pytest.approx(float(logits[id_of("mat")] - logits[id_of("house")]))
    assert (result.answer, result.foil) == ("mat", "house")
    adds_up(result)
    by_id = normscope.attribute(lm, TOK, PROMPT, answer=id_of("mat"), foil=[id_of("house")])
    np.testing.assert_array_equal(by_id.scores.values, result.scores.values)


def test_the_model_chooses() -> None:
    lm = language_model()
    result = normscope.attribute(lm, TOK, PROMPT)
    logits = run(lm, list(result.tokens.ids or ())).logits[0, -1]
    assert result.value == pytest.approx(float(logits.max()))
    assert result.answer == TOK.decode([int(logits.argmax())])
    adds_up(result)


def test_an_answer_of_several_tokens_is_the_sum_of_their_logits() -> None:
    lm = language_model()
    result = normscope.attribute(lm, TOK, PROMPT, answer=" mat and ran")
    ids = [0, *TOK(f"{PROMPT} mat and", add_special_tokens=False)["input_ids"]]
    logits = run(lm, ids).logits[0]
    tokens = [id_of(token) for token in ("mat", "and", "ran")]
    expected = sum(float(logits[5 + at, token]) for at, token in enumerate(tokens))
    assert result.value == pytest.approx(expected)
    assert result.sides == ("text",) * 6 + ("continuation",) * 2
    assert result.scores.shape == (8,)
    adds_up(result)


def test_a_foil_of_several_tokens_is_compared_where_it_differs() -> None:
    lm = language_model()
    answer = {"answer": " mat and ran", "foil": " mat with friend"}
    result = normscope.attribute(lm, TOK, PROMPT, **answer)
    ids = [0, *TOK(f"{PROMPT} mat", add_special_tokens=False)["input_ids"]]
    logits = run(lm, ids).logits[0, -1]
    assert result.value == pytest.approx(float(logits[id_of("and")] - logits[id_of("with")]))
    assert result.tokens.strings[-1] == "mat"
    adds_up(result)
    with pytest.raises(InputError, match=r"do not differ in a token: mat and mat and"):
        normscope.attribute(lm, TOK, PROMPT, answer=" mat", foil=" mat and")


def test_position_explains_an_earlier_output() -> None:
    lm = language_model()
    ids = [0, *TOK(PROMPT, add_special_tokens=False)["input_ids"]]
    logits = run(lm, ids).logits[0]
    for position in (2, -4):
        result = normscope.attribute(lm, TOK, PROMPT, answer=" mat", position=position)
        assert result.value == pytest.approx(float(logits[2, id_of("mat")]))
        assert len(result.tokens) == 6
        assert not result.scores.values[3:].any()
    with pytest.raises(InputError, match="position 6 is out of range: the text has 6 tokens"):
        normscope.attribute(lm, TOK, PROMPT, answer=" mat", position=6)
    with pytest.raises(InputError, match="several tokens"):
        normscope.attribute(lm, TOK, PROMPT, answer=" mat and", position=2)


def test_a_continuation_is_explained_token_by_token() -> None:
    lm = language_model()
    result = normscope.attribute(lm, TOK, PROMPT, continuation=" mat and ran")
    assert result.steps is not None
    assert result.steps.strings == ("mat", "and", "ran")
    assert result.scores.axes == ("step", "token")
    ids = list(result.tokens.ids or ())
    logits = run(lm, ids).logits[0]
    expected = [float(logits[5 + at, ids[6 + at]]) for at in range(3)]
    np.testing.assert_allclose(result.value, expected)
    for step in range(3):  # nothing at or after the explained token
        assert not result.scores.values[step, 6 + step :].any()
        assert result.scores.values[step, 5 + step] != 0
    adds_up(result)
    whole = normscope.attribute(lm, TOK, PROMPT, answer=" mat and ran")
    np.testing.assert_allclose(result.scores.values.sum(axis=0)[:8], whole.scores.values)


def test_the_model_writes_and_stops() -> None:
    lm = language_model()
    result = normscope.attribute(lm, TOK, PROMPT, generate=4)
    ids = list(result.tokens.ids or ())
    logits = run(lm, ids).logits[0]
    assert ids[6:] == [int(logits[at].argmax()) for at in range(5, len(ids) - 1)]
    assert len(ids) <= 10
    adds_up(result)
    old = lm.generation_config.eos_token_id
    lm.generation_config.eos_token_id = ids[6]
    try:
        short = normscope.attribute(lm, TOK, PROMPT, generate=4)
    finally:
        lm.generation_config.eos_token_id = old
    assert list(short.tokens.ids or ()) == ids[:7]


@pytest.mark.parametrize("units", ["logit", "logprob"])
def test_a_list_equals_one_at_a_time(units: str) -> None:
    lm = language_model()
    texts = [PROMPT, "a dog", "she looked at the red house in the garden and sat"]
    answers = [" mat", " ran and", 7]
    many = normscope.attribute(lm, TOK, texts, answer=answers, units=units)
    for text, answer, batched in zip(texts, answers, many, strict=True):
        alone = normscope.attribute(lm, TOK, text, answer=answer, units=units)
        assert batched.tokens == alone.tokens
        np.testing.assert_allclose(batched.scores.values, alone.scores.values, atol=1e-12)
        np.testing.assert_allclose(batched.parts.values, alone.parts.values, atol=1e-12)
        assert (batched.value, batched.bias) == pytest.approx((alone.value, alone.bias))


def test_lists_of_steps_and_baselines_equal_one_at_a_time() -> None:
    lm = language_model()
    texts, follow = ["the cat", "a big dog sat"], [" sat on it", " and ran"]
    baselines = ["<unk>", ["a red cat ran", "zero"]]
    keywords: dict[str, Any] = {"continuation": follow, "baseline": baselines}
    for at, result in enumerate(normscope.attribute(lm, TOK, texts, **keywords)):
        alone = normscope.attribute(
            lm, TOK, texts[at], continuation=follow[at], baseline=baselines[at]
        )
        np.testing.assert_allclose(result.scores.values, alone.scores.values, atol=1e-12)
        assert (result.spread is None) == (alone.spread is None) == (at == 0)


def test_logprob_of_the_frozen_network_holds_the_probabilities() -> None:
    lm = language_model()
    result = normscope.attribute(lm, TOK, PROMPT, answer=" mat", units="logprob")
    logits = run(lm, list(result.tokens.ids or ())).logits[0, -1]
    expected = logits[id_of("mat")] - (logits.softmax(-1) * logits).sum()
    assert result.value == pytest.approx(float(expected))
    adds_up(result)
    # With a foil the mean cancels.
    pair = {"answer": " mat", "foil": " house"}
    one = normscope.attribute(lm, TOK, PROMPT, units="logprob", **pair)
    other = normscope.attribute(lm, TOK, PROMPT, **pair)
    np.testing.assert_allclose(one.scores.values, other.scores.values, atol=1e-12)


def test_labels_by_name_and_index() -> None:
    model = classifier()
    ids = TOK(PROMPT)["input_ids"]
    logits = run(model, ids).logits[0]
    for answer in ("positive", "Positive", 1, "1", np.int64(1)):
        result = normscope.attribute(model, TOK, PROMPT, answer=answer)
        assert result.value == pytest.approx(float(logits[1]))
        assert result.answer == "positive"
    adds_up(result)
    assert result.part_names[0] == "word"
    assert set(result.part_names) == {"word", "position", "token_type"}
    own = normscope.attribute(model, TOK, PROMPT)
    assert own.answer == model.config.id2label[int(logits.argmax())]
    foil = normscope.attribute(model, TOK, PROMPT, answer="positive", foil="negative")
    assert foil.value == pytest.approx(float(logits[1] - logits[0]))
    with pytest.raises(InputError, match=r"no label 'good'.*0 'negative', 1 'positive'"):
        normscope.attribute(model, TOK, PROMPT, answer="good")
    with pytest.raises(InputError, match="no label 3"):
        normscope.attribute(model, TOK, PROMPT, answer=3)
    with pytest.raises(InputError, match="same label"):
        normscope.attribute(model, TOK, PROMPT, answer=1, foil="positive")


def test_pairs() -> None:
    model = classifier()
    result = normscope.attribute(model, PAIRS, "the cat", text_pair="it was red")
    assert result.sides == ("text",) * 4 + ("pair",) * 4
    expected = run(
        model, TOK("the cat", "it was red")["input_ids"],
        token_type_ids=torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]]),
    ).logits.max()  # fmt: skip
    assert result.value == pytest.approx(float(expected))
    adds_up(result)


def test_a_reward_head_has_one_logit() -> None:
    model = tiny_head("gpt2", "GPT2ForSequenceClassification", labels=1)
    texts = [PROMPT, "a dog"]
    results = normscope.attribute(model, TOK, texts)
    for text, result in zip(texts, results, strict=True):
        expected = run(model, TOK(text)["input_ids"]).logits[0, 0]
        assert result.value == pytest.approx(float(expected))
        adds_up(result)
    with pytest.raises(InputError, match="needs two labels or more"):
        normscope.attribute(model, TOK, PROMPT, units="logprob")


def test_a_classifier_without_a_padding_token_reads_one_row_at_a_time() -> None:
    model = tiny_head("gpt2", "GPT2ForSequenceClassification", seed=3)
    model.config.pad_token_id = None
    results = normscope.attribute(model, TOK, [PROMPT, "a dog"])
    assert len(results) == 2
    with pytest.raises(InputError, match=r"set model\.config\.pad_token_id"):
        normscope.attribute(model, TOK, PROMPT, baseline="<unk>")


def test_token_labels_need_a_position() -> None:
    model = tiny_head("bert", "BertForTokenClassification")
    ids = TOK(PROMPT)["input_ids"]
    result = normscope.attribute(model, TOK, PROMPT, answer="neutral", position=2)
    assert result.value == pytest.approx(float(run(model, ids).logits[0, 2, 2]))
    assert "'cat'" in result.question
    adds_up(result)
    with pytest.raises(InputError, match=r"labels every token: give position=, 0 to 6: <s> the"):
        normscope.attribute(model, TOK, PROMPT)


def test_spans() -> None:
    model = tiny_head("bert", "BertForQuestionAnswering", labels=2)
    question, context = "who sat", "the cat sat on the mat"
    output = run(
        model, PAIRS(question, context)["input_ids"],
        token_type_ids=torch.tensor([[0] * 4 + [1] * 7]),
    )  # fmt: skip
    start, end = output.start_logits[0], output.end_logits[0]
    for answer in ("cat sat", (5, 6)):
        result = normscope.attribute(model, PAIRS, question, text_pair=context, answer=answer)
        assert result.value == pytest.approx(float(start[5] + end[6]))
        assert result.answer == "cat sat"
        adds_up(result)
    spans = [(i, j) for i in range(4, 10) for j in range(i, 10)]
    best = max(spans, key=lambda span: float(start[span[0]] + end[span[1]]))
    for given in (None, "span"):
        own = normscope.attribute(model, PAIRS, question, text_pair=context, answer=given)
        assert own.value == pytest.approx(float(start[best[0]] + end[best[1]]))
    logprob = normscope.attribute(
        model, PAIRS, question, text_pair=context, answer="cat sat", units="logprob"
    )
    adds_up(logprob)
    pair = normscope.attribute(
        model, PAIRS, [question, "who"], text_pair=[context, context], units="logprob",
        answer=["cat sat", "cat"],
    )  # fmt: skip
    np.testing.assert_allclose(pair[0].scores.values, logprob.scores.values, atol=1e-12)
    with pytest.raises(InputError, match="the span 'dog' is not in the text"):
        normscope.attribute(model, PAIRS, question, text_pair=context, answer="dog")
    with pytest.raises(InputError, match="ends before it starts"):
        normscope.attribute(model, PAIRS, question, text_pair=context, answer=(6, 5))


def test_multiple_choice() -> None:
    model = tiny_head("bert", "BertForMultipleChoice")
    text, choices = "the cat", ["sat on it", "ran", "looked at the big red house"]
    encoded = PAIRS([text] * 3, choices, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**{name: t[None] for name, t in encoded.items()}).logits[0]
    own = normscope.attribute(model, PAIRS, text, text_pair=choices)
    assert own.answer == choices[int(logits.argmax())]
    result = normscope.attribute(model, PAIRS, text, text_pair=choices, answer="ran", foil=0)
    assert result.value == pytest.approx(float(logits[1] - logits[0]))
    adds_up(result)
    assert len(result.tokens) == int(encoded["attention_mask"].sum())
    first, second, third = 8, 6, 11
    shares = result.scores.values
    assert shares[:first].any()
    assert shares[first : first + second].any()
    assert not shares[-third:].any()  # the third choice has no part in it
    with pytest.raises(InputError, match=r"no choice 'fly'; the choices are: 0 'sat on it'"):
        normscope.attribute(model, PAIRS, text, text_pair=choices, answer="fly")
    with pytest.raises(InputError, match="give text_pair="):
        normscope.attribute(model, PAIRS, text)


def test_the_mask_of_a_masked_model() -> None:
    model, tok = tiny_head("bert", "BertForMaskedLM"), masked_tokenizer()
    text = "the cat sun on the mat"
    logits = run(model, tok(text)["input_ids"]).logits[0]
    result = normscope.attribute(model, tok, text, answer="sat")
    assert result.value == pytest.approx(float(logits[3, id_of("sat")]))
    adds_up(result)
    own = normscope.attribute(model, tok, text)
    assert own.value == pytest.approx(float(logits[3].max()))
    elsewhere = normscope.attribute(model, tok, text, answer="dog", position=2)
    assert elsewhere.value == pytest.approx(float(logits[2, id_of("dog")]))
    with pytest.raises(InputError, match=r"'sat on' is 2 tokens \(sat on\)"):
        normscope.attribute(model, tok, text, answer="sat on")
    with pytest.raises(InputError, match=r"has no mask token.*put 'sun' in the text"):
        normscope.attribute(model, tok, "the cat sat", answer="sat")
    with pytest.raises(InputError, match=r"has 2 mask tokens.*give position="):
        normscope.attribute(model, tok, "the sun sun", answer="sat")


def test_a_translation_is_explained_by_source_and_earlier_target() -> None:
    model = translator()
    result = normscope.attribute(model, TOK, "the cat sat", target="a dog ran")
    assert result.steps is not None
    assert result.steps.strings == ("<s>", "a", "dog", "ran", "</s>")  # its end is explained too
    assert result.sides == ("source",) * 5 + ("target",) * 5
    read = [2, *TOK("a dog ran")["input_ids"][:-1]]
    logits = run(
        model, TOK("the cat sat")["input_ids"], decoder_input_ids=torch.tensor([read])
    ).logits[0]  # fmt: skip
    written = list(result.steps.ids or ())
    np.testing.assert_allclose(
        result.value, [float(logits[at, token]) for at, token in enumerate(written)]
    )
    for step in range(5):
        assert result.scores.values[step, 5 + step] != 0
        assert not result.scores.values[step, 6 + step :].any()
    adds_up(result)
    texts, targets = ["the cat sat", "a dog"], ["a dog ran", "the big red cat sat"]
    many = normscope.attribute(model, TOK, texts, target=targets)
    np.testing.assert_allclose(many[0].scores.values, result.scores.values, atol=1e-12)


def test_answers_of_a_translator() -> None:
    model = translator()
    ids = TOK("the cat sat")["input_ids"]
    result = normscope.attribute(model, TOK, "the cat sat", answer="a dog", foil="a cat")
    logits = run(model, ids, decoder_input_ids=torch.tensor([[2, 0, id_of("a")]])).logits[0]
    assert result.value == pytest.approx(float(logits[2, id_of("dog")] - logits[2, id_of("cat")]))
    adds_up(result)
    first = normscope.attribute(model, TOK, "the cat sat")
    start = run(model, ids, decoder_input_ids=torch.tensor([[2]])).logits[0, 0]
    assert first.value == pytest.approx(float(start.max()))
    written = normscope.attribute(model, TOK, "the cat sat", generate=3)
    assert written.steps is not None
    assert written.steps.strings[0] == TOK.convert_ids_to_tokens(int(start.argmax()))
    adds_up(written)


def test_a_classifier_with_a_decoder() -> None:
    model = tiny_head("bart", "BartForSequenceClassification")
    texts = [PROMPT, "a dog"]
    for text, result in zip(texts, normscope.attribute(model, TOK, texts), strict=True):
        ids = TOK(text)["input_ids"]
        assert result.value == pytest.approx(float(run(model, ids).logits.max()))
        assert len(result.tokens) == 2 * len(ids)
        adds_up(result)


def test_similarity_is_the_cosine_of_mean_embeddings() -> None:
    model = tiny_head("bert", "BertModel")

    def embedding(text: str) -> torch.Tensor:
        return run(model, TOK(text)["input_ids"]).last_hidden_state[0].mean(0)

    expected = torch.cosine_similarity(embedding(PROMPT), embedding("a dog ran"), dim=0)
    result = normscope.attribute(model, TOK, PROMPT, similar_to="a dog ran")
    assert result.value == pytest.approx(float(expected))
    adds_up(result)
    many = normscope.attribute(
        model, TOK, [PROMPT, "the red house was big"], similar_to="a dog ran"
    )
    np.testing.assert_allclose(many[0].scores.values, result.scores.values, atol=1e-12)
    secant = normscope.attribute(model, TOK, PROMPT, similar_to="a dog ran", baseline="<unk>")
    adds_up(secant)
    headed = normscope.attribute(
        tiny_head("bert", "BertForMaskedLM"), TOK, PROMPT, similar_to="a dog ran"
    )
    adds_up(headed)
    encoder = normscope.attribute(translator(), TOK, PROMPT, similar_to="a dog ran")
    assert len(encoder.tokens) == 7
    adds_up(encoder)


def test_the_default_model_compares_sentences() -> None:
    result = normscope.attribute(
        None, text="A man plays a guitar.", similar_to="Someone makes music."
    )
    assert result.error < 1e-5
    assert 0 < result.value < 1
    assert result.units == "cosine"
    assert dict(result.top(3)).keys() & {"guitar", "plays"}
    assert "all-MiniLM-L6-v2" in result.signature


@pytest.mark.slow
def test_the_default_language_model() -> None:
    keys: dict[str, Any] = {"text": "The keys to the cabinet"}
    result = normscope.attribute(None, **keys, answer=" are", foil=" is")
    assert (result.answer, result.foil) == (" are", " is")
    assert result.value > 1
    assert dict(result.top(2)).keys() == {"The", "keys"}
    assert result.error < 1e-5
    # The mean over 49,152 tokens nearly cancels the logit.
    for answer in (" are", "are"):  # "are" without its space is another token, and improbable
        logprob = normscope.attribute(None, **keys, answer=answer, units="logprob")
        assert logprob.answer == answer
        assert (logprob.value > 0) == (answer == " are")
        assert logprob.error < 1e-4
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    written = normscope.attribute(None, text=chat, generate=8)
    assert "Paris" in written.answer
    assert written.tokens.strings[-1 - len(written.steps or ())] == "Ċ"  # after "assistant"
    names: dict[str, Any] = {
        "text": "When Mary and John went to the store, John gave a drink to",
        "baseline": "When John and Mary went to the store, Mary gave a drink to",
    }
    swapped = normscope.attribute(None, **names, answer=" Mary", foil=" John")
    assert {token for token, share in swapped.top(3) if share} == {"Mary", "John"}
    assert swapped.value > 5


def test_functions_of_the_output() -> None:
    lm = language_model()
    result = normscope.attribute(lm, TOK, PROMPT, answer=lambda output: output.logits[0, -1, 5])
    plain = normscope.attribute(lm, TOK, PROMPT, answer=5)
    np.testing.assert_allclose(result.scores.values, plain.scores.values)
    many = normscope.attribute(
        lm, TOK, ["a dog", PROMPT], answer=lambda output: output.logits[:, -1, 5]
    )
    np.testing.assert_allclose(many[1].scores.values, plain.scores.values)
    secant = normscope.attribute(
        lm, TOK, PROMPT, answer=lambda o: o.logits[0, -1, 5], baseline="<unk>"
    )
    expected = normscope.attribute(lm, TOK, PROMPT, answer=5, baseline="<unk>")
    np.testing.assert_allclose(secant.scores.values, expected.scores.values)
    with pytest.raises(InputError, match=r"one number.*but it gave \(60,\)"):
        normscope.attribute(lm, TOK, PROMPT, answer=lambda output: output.logits[0, -1])
    with pytest.raises(InputError, match="subtract it in the function"):
        normscope.attribute(lm, TOK, PROMPT, answer=lambda output: output.logits, foil=3)
    base = normscope.attribute(
        tiny_head("bert", "BertModel"), TOK, PROMPT, answer=lambda o: o.last_hidden_state[0, 2, 0]
    )
    adds_up(base)


def test_a_function_that_is_not_linear_is_explained_in_pairs() -> None:
    lm = language_model()
    result = normscope.attribute(
        lm, TOK, PROMPT, baseline="<unk>", answer=lambda o: o.logits[:, -1].log_softmax(-1)[:, 5]
    )
    expected = normscope.attribute(lm, TOK, PROMPT, baseline="<unk>", answer=5, units="logprob")
    np.testing.assert_allclose(result.scores.values, expected.scores.values, atol=1e-9)


# ---- baselines


@pytest.mark.parametrize("baseline", ["<unk>", "zero", "mean", "a dog ran in a"])
def test_a_baseline_explains_a_difference(baseline: str) -> None:
    lm = language_model()
    result = normscope.attribute(lm, TOK, PROMPT, answer=" mat", baseline=baseline)
    ids = torch.tensor([list(result.tokens.ids or ())])
    embeddings = lm.get_input_embeddings()
    vectors = embeddings(ids)
    if baseline == "a dog ran in a":
        vectors = embeddings(torch.tensor([[0, *TOK(baseline)["input_ids"][1:-1]]]))
    else:
        filler = {
            "<unk>": embeddings.weight[3],
            "zero": torch.zeros(32, dtype=torch.float64),
            "mean": embeddings.weight.mean(0),
        }[baseline]
        vectors = torch.cat([vectors[:, :1], filler.expand(1, 5, -1)], dim=1)
    with torch.no_grad():
        real, other = lm(input_ids=ids).logits, lm(inputs_embeds=vectors).logits
    token = id_of("mat")
    assert result.value == pytest.approx(float(real[0, -1, token] - other[0, -1, token]))
    assert result.method == "secant"
    assert result.bias == pytest.approx(0, abs=1e-12)
    adds_up(result)


def test_log_probabilities_are_explained_exactly_by_a_difference() -> None:
    lm = language_model()
    result = normscope.attribute(
        lm, TOK, PROMPT, answer=" mat", baseline="a dog ran in a", units="logprob"
    )
    rows = [[0, *TOK(text)["input_ids"][1:-1]] for text in (PROMPT, "a dog ran in a")]
    real, other = (run(lm, ids).logits[0, -1].log_softmax(-1)[id_of("mat")] for ids in rows)
    assert result.value == pytest.approx(float(real - other))
    adds_up(result)


def test_several_baselines_are_averaged() -> None:
    lm = language_model()
    names = ["<unk>", "a dog ran in a", "mean"]
    results = [normscope.attribute(lm, TOK, PROMPT, answer=7, baseline=name) for name in names]
    several = normscope.attribute(lm, TOK, PROMPT, answer=7, baseline=names)
    scores = np.stack([result.scores.values for result in results])
    np.testing.assert_allclose(several.scores.values, scores.mean(axis=0), atol=1e-12)
    assert several.spread is not None
    np.testing.assert_allclose(several.spread.values, scores.std(axis=0), atol=1e-12)
    assert several.value == pytest.approx(np.mean([result.value for result in results]))
    assert several.settings["baseline"] == "<unk>,a dog ran in a,mean"


def test_equal_tokens_have_no_share_of_a_difference() -> None:
    model = classifier()
    result = normscope.attribute(model, TOK, "the cat sat", baseline="the dog sat")
    assert np.flatnonzero(result.scores.values).tolist() == [2]
    tokens = normscope.attribute(model, TOK, "the cat sat", baseline="<unk>")
    assert not tokens.scores.values[[0, -1]].any()  # special tokens are kept


def test_baselines_of_encoder_decoders() -> None:
    for family, model in {
        "bart": "BartForConditionalGeneration",
        "marian": "MarianMTModel",
        "t5": "T5ForConditionalGeneration",
    }.items():
        made = tiny_head(family, model)
        for baseline in ("<unk>", "mean", "a dog ran"):
            result = normscope.attribute(
                made, TOK, "the cat sat", target="a dog", baseline=baseline
            )
            adds_up(result, 1e-6)  # T5 computes norms in float32
            plain = normscope.attribute(made, TOK, "the cat sat", target="a dog")
            assert np.all(np.abs(result.value) > 0)
            assert plain.tokens == result.tokens


def test_a_baseline_text_must_have_as_many_tokens() -> None:
    with pytest.raises(InputError, match="the text has 7 tokens and the baseline 5") as error:
        normscope.attribute(classifier(), TOK, PROMPT, baseline="the dog ran")
    _, *lines = str(error.value).splitlines()
    assert [line.split() for line in lines] == [
        ["text", "<s>", "|", "the", "|", "cat", "|", "sat", "|", "on", "|", "the", "|", "</s>"],
        ["baseline", "<s>", "|", "the", "|", "dog", "|", "ran", "|", "</s>", "|", "|"],
    ]
    assert lines[0].index("cat") == lines[1].index("dog")


def test_unknown_baseline_tokens() -> None:
    with pytest.raises(InputError, match=r"no token '\[MASK\]'; its special tokens: .*<unk>"):
        normscope.attribute(classifier(), TOK, PROMPT, baseline="[MASK]")


# ---- what does not go together


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"foil": " mat"}, "a foil .* without an answer"),
        ({"answer": " mat", "continuation": " mat"}, "answer and continuation each specify"),
        ({"answer": " mat", "generate": 3}, "answer and generate each specify"),
        ({"continuation": " mat", "generate": 3}, "give only one of them"),
        ({"generate": 0}, "at least 1"),
        ({"generate": True}, "number of tokens"),
        ({"position": 1.5}, "position must be a whole number"),
        ({"continuation": " mat", "position": 1}, "position applies to an answer"),
        ({"continuation": ""}, "empty"),
        ({"answer": ""}, "empty"),
        ({"answer": [4, 900]}, "no token with the id 900; the model's ids are 0 to 59"),
        ({"answer": -1}, "no token with the id -1"),
        ({"answer": 1.5}, "a string, an id or a list of ids"),
        ({"target": "the dog"}, "does not accept target"),
        ({"text_pair": "the dog"}, "one text, not a pair"),
        ({"method": "frozen", "baseline": "<unk>"}, "leave out one of the two"),
        ({"method": "attn_lrp", "baseline": "<unk>"}, "leave out one of the two"),
        ({"method": "secant"}, "give baseline="),
        ({"method": "lime"}, "method must be one of frozen, secant"),
        ({"units": "bits"}, "units must be one of logit, logprob"),
        ({"gate": "none"}, "gate must be one of half"),
        ({"recompute": "always"}, "recompute must be one of auto, True, False"),
        ({"baseline": []}, "empty list"),
        ({"baseline": 1.5}, "a baseline must be a token"),
        ({"similar_to": "a dog", "answer": 3}, "answer and similar_to each specify"),
    ],
)
def test_bad_questions(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        normscope.attribute(language_model(), TOK, PROMPT, **keywords)


def test_bad_texts() -> None:
    lm = language_model()
    with pytest.raises(InputError, match="no text was given"):
        normscope.attribute(lm, TOK)
    for text in ("", "   "):
        with pytest.raises(InputError, match="give at least one word"):
            normscope.attribute(lm, TOK, text)
    with pytest.raises(InputError, match="a string, a chat or a list"):
        normscope.attribute(lm, TOK, 5)  # type: ignore[call-overload]
    with pytest.raises(InputError, match="no tokenizer was given"):
        normscope.attribute(lm, None, PROMPT)
    with pytest.raises(InputError, match="answer is a list of 1 for 2 texts"):
        normscope.attribute(lm, TOK, [PROMPT, "a dog"], answer=[" mat"])
    with pytest.raises(InputError, match="continuation must match the text"):
        normscope.attribute(lm, TOK, [PROMPT, "a dog"], continuation=" mat")


def test_a_text_that_is_too_long_is_cut_or_refused() -> None:
    lm, long = language_model(), "the cat " * 40
    with pytest.raises(InputError, match=r"81 tokens.*accepts at most 64"):
        normscope.attribute(lm, TOK, long, answer=" mat")
    cut = normscope.attribute(lm, TOK, long, answer=" mat and", truncate=True)
    assert len(cut.tokens) == 64
    assert cut.tokens.strings[-1] == "mat"
    with pytest.raises(InputError, match="accepts at most 64"):
        normscope.attribute(classifier(), TOK, long)
    assert len(normscope.attribute(classifier(), TOK, long, truncate=True).tokens) == 64


def test_a_model_without_a_head_says_what_to_load() -> None:
    with pytest.raises(InputError, match=r"BertModel has no head.*AutoModelForMaskedLM"):
        normscope.attribute(tiny_head("bert", "BertModel"), TOK, PROMPT)
    with pytest.raises(InputError, match=r"T5Model has no head.*AutoModelForSeq2SeqLM"):
        normscope.attribute(tiny_head("t5", "T5Model"), TOK, PROMPT)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_that_the_caller_disabled(mode: Any) -> None:
    expected = normscope.attribute(language_model(), TOK, PROMPT, answer=5)
    with mode():
        result = normscope.attribute(language_model(), TOK, PROMPT, answer=5)
        assert not torch.is_grad_enabled()
    np.testing.assert_array_equal(result.scores.values, expected.scores.values)


def test_a_model_that_was_made_in_inference_mode_is_refused() -> None:
    import transformers

    with torch.inference_mode():
        model = transformers.GPT2LMHeadModel(language_model().config).eval()
    with pytest.raises(InputError, match="load it outside"):
        normscope.attribute(model, TOK, PROMPT)


def test_a_compiled_model_is_the_model_it_was_compiled_from() -> None:
    lm = language_model()
    expected = normscope.attribute(lm, TOK, PROMPT, answer=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, on importing its compiler
        compiled = torch.compile(lm)
    result = normscope.attribute(compiled, TOK, PROMPT, answer=5)
    np.testing.assert_array_equal(result.scores.values, expected.scores.values)


def test_the_model_is_left_as_it_was() -> None:
    lm = language_model()
    lm.train()
    try:
        before = {name: p.detach().clone() for name, p in lm.named_parameters()}
        normscope.attribute(lm, TOK, PROMPT, generate=2)
        assert lm.training
        for name, parameter in lm.named_parameters():
            assert parameter.requires_grad
            assert parameter.grad is None
            assert torch.equal(parameter, before[name])
    finally:
        lm.eval()


def test_the_side_on_which_the_tokenizer_pads_does_not_matter() -> None:
    lm = language_model()
    texts = [PROMPT, "a dog"]
    expected = normscope.attribute(lm, TOK, texts, answer=5)
    left = tokenizer(pair=False)
    left.padding_side = "left"
    for one, other in zip(normscope.attribute(lm, left, texts, answer=5), expected, strict=True):
        np.testing.assert_array_equal(one.scores.values, other.scores.values)
    assert left.padding_side == "left"


def test_a_chat_goes_through_the_template() -> None:
    lm, tok = language_model(), tokenizer()
    chat = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    with pytest.raises(InputError, match="no chat template"):
        normscope.attribute(lm, tok, chat, answer=" mat")
    tok.chat_template = (
        "{{ bos_token }}{% for m in messages %} {{ m.content }} ,{% endfor %}"
        "{% if add_generation_prompt %} always{% endif %}"
    )
    result = normscope.attribute(lm, tok, chat, answer=" mat")
    assert result.tokens.strings == ("<s>", "the", "cat", ",", "sat", ",", "always")
    results = normscope.attribute(lm, tok, [chat, chat[:1]], answer=" mat")
    assert [len(r.tokens) for r in results] == [7, 5]
    np.testing.assert_allclose(results[0].scores.values, result.scores.values, atol=1e-12)


def test_the_signature_says_how() -> None:
    result = normscope.attribute(
        language_model(), TOK, PROMPT, answer=" mat", foil=" house", baseline="<unk>",
        units="logprob",
    )  # fmt: skip
    fields = dict(field.split(":", 1) for field in result.signature.split("|"))
    assert fields["method"] == "secant"
    assert fields["answer"] == str(id_of("mat"))
    assert fields["foil"] == str(id_of("house"))
    assert fields["baseline"] == "<unk>"
    assert (fields["units"], fields["position"], fields["dtype"]) == ("logprob", "5", "float64")
    assert fields["model"] == "GPT2LMHeadModel"


def test_only_needed_logits_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    lm, shapes = language_model(), []
    forward = type(lm.lm_head).forward

    def watched(self: Any, states: torch.Tensor) -> torch.Tensor:
        if self is lm.lm_head:
            shapes.append(tuple(states.shape))
        return forward(self, states)

    monkeypatch.setattr(type(lm.lm_head), "forward", watched)
    normscope.attribute(lm, TOK, PROMPT, answer=" mat")
    normscope.attribute(lm, TOK, [PROMPT, "a dog"], answer=" mat")
    assert [shape[:2] for shape in shapes] == [(1, 1), (2, 2)]


def test_a_model_writes_with_the_inputs_that_are_explained() -> None:
    typed = tokenizer()  # gives token types, which GPT-2 adds to its embeddings
    lm = language_model()
    result = normscope.attribute(lm, typed, PROMPT, generate=1)
    assert result.steps is not None
    assert result.steps.strings == (normscope.attribute(lm, typed, PROMPT).answer,)


@pytest.mark.parametrize("baseline", ["<unk>", "zero", "mean"])
def test_given_tokens_are_not_replaced_by_a_baseline(baseline: str) -> None:
    result = normscope.attribute(
        language_model(), TOK, PROMPT, continuation="and the", baseline=baseline
    )
    given = [at for at, side in enumerate(result.sides) if side == "continuation"]
    assert len(given) == 2
    assert np.abs(result.scores.values[:, given]).max() == 0
    assert np.abs(result.scores.values).max() > 0


def test_a_model_cannot_write_beyond_its_length() -> None:
    with pytest.raises(InputError, match=r"exceed the 64 that GPT2LMHeadModel accepts"):
        normscope.attribute(language_model(), TOK, "the " * 60, generate=5)


def test_texts_of_a_classifier_with_a_decoder_are_explained_one_at_a_time() -> None:
    model = tiny_head("bart", "BartForSequenceClassification")
    texts, pairs = ["the cat sat", "dog"], ["a dog", None]
    results = normscope.attribute(model, TOK, texts, text_pair=pairs)
    for text, pair, result in zip(texts, pairs, results, strict=True):
        single = normscope.attribute(model, TOK, text, text_pair=pair)
        np.testing.assert_allclose(result.scores.values, single.scores.values, atol=1e-12)


def test_functions_of_one_row_and_baselines() -> None:
    def of_batch(output: Any) -> Any:
        return output.logits[:, -1].log_softmax(-1)[:, 5]

    lm = language_model()
    result = normscope.attribute(lm, TOK, PROMPT, answer=of_batch, baseline="<unk>")
    expected = normscope.attribute(lm, TOK, PROMPT, answer=5, baseline="<unk>", units="logprob")
    assert result.value == pytest.approx(expected.value)
    np.testing.assert_allclose(result.scores.values, expected.scores.values, atol=1e-9)
    with pytest.raises(InputError, match="must work on a whole batch"):
        normscope.attribute(
            lm, TOK, PROMPT, answer=lambda o: o.logits[0, -1].log_softmax(-1)[5], baseline="<unk>"
        )


def test_a_model_of_images_reads_no_text() -> None:
    with pytest.raises(InputError, match="reads pixel_values, not text"):
        normscope.attribute(tiny_head("vit", "ViTForImageClassification"), TOK, PROMPT)


def test_numbers_of_numpy() -> None:
    lm = language_model()
    result = normscope.attribute(lm, TOK, PROMPT, answer=5, position=np.int64(1))
    assert result.value == normscope.attribute(lm, TOK, PROMPT, answer=5, position=1).value


def test_a_word_does_not_cross_from_the_prompt_into_the_continuation() -> None:
    result = normscope.attribute(language_model(), TOK, "the red mat", continuation="s ran")
    words = result.words()
    assert words.tokens.strings == ("<s>", "the", "red", "mat", "s", "ran")
    assert words.sides[-3:] == ("text", "continuation", "continuation")
