"""`attribute_inputs`: tensors of every kind, padding on either side, baselines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import normscope
from normscope import InputError
from normscope.models.architectures import tiny_inputs
from tests.attribution.test_api import PROMPT, TOK, adds_up
from tests.helpers.heads import classifier, language_model, tiny_head, translator


def logits_of(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs).logits


def test_rows_of_ids_equal_the_text() -> None:
    inputs = TOK([PROMPT, "a dog"], padding=True, return_tensors="pt")
    results = normscope.attribute_inputs(classifier(), dict(inputs), answer="positive")
    expected = normscope.attribute(classifier(), TOK, [PROMPT, "a dog"], answer="positive")
    for result, text in zip(results, expected, strict=True):
        np.testing.assert_allclose(result.scores.values, text.scores.values, atol=1e-12)
        assert result.tokens.ids == text.tokens.ids
        assert result.tokens.strings == tuple(map(str, text.tokens.ids or ()))
        assert result.answer == "positive"
        adds_up(result)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_is_removed(side: str) -> None:
    lm = language_model()
    rows = [[0, 4, 6, 9, 10, 4], [0, 5, 8]]
    ids = torch.ones(2, 6, dtype=torch.long)
    mask = torch.zeros(2, 6, dtype=torch.long)
    for at, row in enumerate(rows):
        where = slice(0, len(row)) if side == "right" else slice(6 - len(row), 6)
        ids[at, where], mask[at, where] = torch.tensor(row), 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    if side == "left":
        inputs["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)
    results = normscope.attribute_inputs(lm, inputs, answer=7)
    for row, result in zip(rows, results, strict=True):
        alone = normscope.attribute_inputs(lm, {"input_ids": torch.tensor([row])}, answer=7)[0]
        assert result.tokens.ids == tuple(row)
        np.testing.assert_allclose(result.scores.values, alone.scores.values, atol=1e-10)
        assert result.value == pytest.approx(alone.value)
        adds_up(result)
    last = [int(mask[at].nonzero().max()) for at in range(2)]
    logits = logits_of(lm, inputs)
    for at, result in enumerate(results):
        assert result.value == pytest.approx(float(logits[at, last[at], 7]))
    second = normscope.attribute_inputs(lm, inputs, answer=7, position=1)
    first = int(mask[1].nonzero().min())
    assert second[1].value == pytest.approx(float(logits[1, first + 1, 7]))
    with pytest.raises(InputError, match="position 3 is out of range"):
        normscope.attribute_inputs(lm, inputs, answer=7, position=3)


def test_left_padding_without_positions_explains_what_the_model_computes() -> None:
    lm = language_model()
    inputs = {
        "input_ids": torch.tensor([[1, 1, 0, 5, 8], [0, 4, 6, 9, 10]]),
        "attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]),
    }
    logits = logits_of(lm, inputs)
    with pytest.warns(UserWarning, match="1 of 2 rows are padded on the left"):
        results = normscope.attribute_inputs(lm, inputs)
    for row, result in enumerate(results):
        assert result.value == pytest.approx(float(logits[row, -1].max()))
        assert result.answer == str(int(logits[row, -1].argmax()))
        adds_up(result)
    assert len(results[0].tokens) == 3


def test_pixels_are_named_by_patch() -> None:
    model = tiny_head("vit", "ViTForImageClassification")
    inputs = tiny_inputs("vit", batch=2)
    results = normscope.attribute_inputs(model, inputs, answer=["positive", 0])
    logits = logits_of(model, dict(inputs))
    assert results[0].value == pytest.approx(float(logits[0, 1]))
    assert results[1].value == pytest.approx(float(logits[1, 0]))
    assert results[0].tokens.strings[:3] == ("[CLS]", "patch 0,0", "patch 0,1")
    assert results[0].tokens.strings[-1] == "patch 2,2"
    assert results[0].tokens.special[:2] == (True, False)
    for result in results:
        adds_up(result)
    black = normscope.attribute_inputs(model, inputs, answer=1, baseline="zero")
    zero = logits_of(model, {"pixel_values": torch.zeros_like(inputs["pixel_values"])})
    assert black[0].value == pytest.approx(float(logits[0, 1] - zero[0, 1]))
    adds_up(black[0])


def test_audio_is_named_by_frame_and_its_padding_removed() -> None:
    model = tiny_head("wav2vec2", "Wav2Vec2ForSequenceClassification")
    inputs = tiny_inputs("wav2vec2", batch=2, length=9)
    results = normscope.attribute_inputs(model, inputs, answer=1)
    logits = logits_of(model, dict(inputs))
    for row, result in enumerate(results):
        assert result.value == pytest.approx(float(logits[row, 1]))
        assert result.tokens.strings[0] == "frame 0"
        adds_up(result)
    assert [len(result.tokens) for result in results] == [9, 8]


def test_source_and_target() -> None:
    model, inputs = translator(), tiny_inputs("bart", batch=2)
    results = normscope.attribute_inputs(model, inputs, answer=9)
    logits = logits_of(model, dict(inputs))
    for row, result in enumerate(results):
        last = int(inputs["decoder_attention_mask"][row].sum()) - 1
        assert result.value == pytest.approx(float(logits[row, last, 9]))
        assert result.sides.count("source") == int(inputs["attention_mask"][row].sum())
        assert result.sides.count("target") == last + 1
        adds_up(result)


def test_choices_spans_and_functions() -> None:
    model = tiny_head("bert", "BertForMultipleChoice")
    ids = torch.tensor([[[0, 4, 6, 2], [0, 5, 8, 2], [0, 9, 2, 1]]] * 2)
    ids[1] += 3
    mask = torch.ones_like(ids)
    mask[:, 2, 3] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    logits = logits_of(model, inputs)
    results = normscope.attribute_inputs(model, inputs, answer=[1, 0], foil=2)
    assert results[0].value == pytest.approx(float(logits[0, 1] - logits[0, 2]))
    assert results[1].value == pytest.approx(float(logits[1, 0] - logits[1, 2]))
    assert len(results[0].tokens) == 11
    for result in results:
        adds_up(result)
    spans = tiny_head("bert", "BertForQuestionAnswering", labels=2)
    flat = {"input_ids": ids[0, :2]}
    with torch.no_grad():
        output = spans(**flat)
    given = normscope.attribute_inputs(spans, flat, answer=(1, 2))
    assert given[1].value == pytest.approx(
        float(output.start_logits[1, 1] + output.end_logits[1, 2])
    )
    value = normscope.attribute_inputs(spans, flat, answer=lambda o: o.start_logits[0, 1])
    assert value[1].value == pytest.approx(float(output.start_logits[1, 1]))
    adds_up(value[1])


def test_baselines() -> None:
    lm = language_model()
    ids = torch.tensor([[0, 4, 6, 9], [0, 5, 8, 11]])
    other = torch.tensor([[0, 5, 6, 9], [0, 5, 8, 12]])
    real, changed = (logits_of(lm, {"input_ids": x})[:, -1, 7] for x in (ids, other))
    results = normscope.attribute_inputs(
        lm, {"input_ids": ids}, answer=7, baseline={"input_ids": other}
    )
    for row, result in enumerate(results):
        assert result.value == pytest.approx(float(real[row] - changed[row]))
        adds_up(result)
    assert np.flatnonzero(results[0].scores.values).tolist() == [1]
    several = normscope.attribute_inputs(
        lm, {"input_ids": ids}, answer=7, baseline=["mean", 3, {"input_ids": other}]
    )
    assert several[0].spread is not None
    assert several[0].settings["baseline"] == "mean,3,inputs"
    adds_up(several[0])
    with pytest.raises(InputError, match=r"shape \(2, 3\).*\(2, 4\): they must be equal"):
        normscope.attribute_inputs(
            lm, {"input_ids": ids}, answer=7, baseline={"input_ids": other[:, 1:]}
        )
    with pytest.raises(InputError, match="a mapping of tensors, an id"):
        normscope.attribute_inputs(lm, {"input_ids": ids}, answer=7, baseline="the dog")


def test_tokens_name_the_positions() -> None:
    inputs = dict(TOK([PROMPT, "a dog"], padding=True, return_tensors="pt"))
    names = [TOK.tokenize(text) for text in (PROMPT, "a dog")]
    framed = [["[", *row, "]"] for row in names]
    results = normscope.attribute_inputs(classifier(), inputs, framed, answer=1)
    assert [list(result.tokens.strings) for result in results] == framed
    with pytest.raises(InputError, match="tokens names 5 positions of row 0, but it has 7 real"):
        normscope.attribute_inputs(classifier(), inputs, names, answer=1)


def test_inference_tensors_are_copied() -> None:
    with torch.inference_mode():
        inputs = dict(TOK([PROMPT], return_tensors="pt"))
        result = normscope.attribute_inputs(classifier(), inputs, answer=1)[0]
    expected = normscope.attribute(classifier(), TOK, PROMPT, answer=1)
    np.testing.assert_allclose(result.scores.values, expected.scores.values)


def test_bad_inputs() -> None:
    lm, ids = language_model(), torch.tensor([[0, 4, 6]])
    with pytest.raises(InputError, match="needs a mapping of tensors"):
        normscope.attribute_inputs(lm, {"input_ids": "a cat"})
    with pytest.raises(InputError, match=r"the id 60, which is out of range.*0 to 59"):
        normscope.attribute_inputs(lm, {"input_ids": torch.tensor([[0, 60]])})
    with pytest.raises(InputError, match="one id, since there is no tokenizer"):
        normscope.attribute_inputs(lm, {"input_ids": ids}, answer=" mat")
    with pytest.raises(InputError, match="no answer 60"):
        normscope.attribute_inputs(lm, {"input_ids": ids}, answer=60)
    with pytest.raises(InputError, match="answer is a list of 2 for 1 rows"):
        normscope.attribute_inputs(lm, {"input_ids": ids}, answer=[1, 2])
    mask = torch.zeros_like(ids)
    with pytest.raises(InputError, match="all zero"):
        normscope.attribute_inputs(lm, {"input_ids": ids, "attention_mask": mask})
    with pytest.raises(InputError, match="BertModel has no head"):
        normscope.attribute_inputs(tiny_head("bert", "BertModel"), {"input_ids": ids})
    with pytest.raises(InputError, match="has an output at each position: give position="):
        normscope.attribute_inputs(tiny_head("bert", "BertForMaskedLM"), {"input_ids": ids})
    with pytest.raises(InputError, match="leave out position"):
        normscope.attribute_inputs(classifier(), {"input_ids": ids}, position=1)


def test_an_output_that_depends_on_padding_is_refused() -> None:
    inputs = dict(TOK([PROMPT, "a dog"], padding=True, return_tensors="pt"))
    model = tiny_head("bert", "BertModel")
    with pytest.raises(InputError, match=r"depends on padding, which has [0-9.]+% of the shares"):
        normscope.attribute_inputs(model, inputs, answer=lambda o: o.last_hidden_state[0, -1, 3])


def test_what_was_given_is_said() -> None:
    model = language_model()
    with pytest.raises(InputError, match="input_ids: str"):
        normscope.attribute_inputs(model, {"input_ids": "a cat"}, answer=5)
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        normscope.attribute_inputs(model, {"input_ids": torch.tensor([10, 11, 12])}, answer=5)
