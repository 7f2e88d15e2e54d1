"""Inputs as a caller gives them: served where they are clear, refused elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

import normscope
from normscope import InputError
from normscope.engine.given import checked_inputs
from normscope.engine.naming import _with_texts, named
from normscope.models.architectures import tiny_inputs, tiny_model
from tests.helpers import tiny

IDS = torch.tensor([[0, 5, 6, 7, 2], [0, 5, 2, 1, 1]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


@pytest.fixture(scope="module")
def bert() -> Any:
    return tiny_model("bert")


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_model("llama")


@pytest.mark.parametrize(
    "convert",
    [lambda t: t.tolist(), lambda t: t.numpy(), lambda t: t.int(), lambda t: t.short(), list],
    ids=["lists", "numpy", "int32", "int16", "rows"],
)
def test_what_can_only_mean_one_thing_is_served(bert: Any, llama: Any, convert: Any) -> None:
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    converted = {name: convert(value) for name, value in inputs.items()}
    pairs = zip(
        normscope.analyze_inputs(bert, converted),
        normscope.analyze_inputs(bert, inputs),
        strict=True,
    )
    for result, expected in pairs:
        assert_array_equal(result["attn_n"].values, expected["attn_n"].values)
    shares = [normscope.attribute_inputs(llama, x)[1].scores for x in (converted, inputs)]
    assert_array_equal(shares[0], shares[1])


def test_pixels_of_numpy_get_the_dtype_of_the_model() -> None:
    model, inputs = tiny_model("vit"), tiny_inputs("vit")
    pixels = inputs["pixel_values"].float()
    (result, *_), (expected, *_) = (
        normscope.analyze_inputs(model, {"pixel_values": x})
        for x in (pixels.numpy(), pixels.double())
    )
    assert_array_equal(result["attn_n"].values, expected["attn_n"].values)


WRONG: dict[str, tuple[Any, str]] = {
    "a text": ({"input_ids": "hello"}, "not input_ids: str"),
    "nothing": ({}, "not an empty one"),
    "no rows": ({"input_ids": [1, 2, 3]}, r"shape \(3,\); give \(row, position\).*return_tensors"),
    "ragged": ({"input_ids": [[1, 2], [3]]}, r"different lengths \(1 to 2\): pad them"),
    "empty": ({"input_ids": IDS[:0]}, r"input_ids is empty.*\(0, 5\)"),
    "floats": ({"input_ids": IDS.float()}, "dtype float32: ids are whole numbers"),
    "unknown": ({"input_ids": IDS + 900}, "id 907, which is out of range; the model has ids 0 to"),
    "ignored": ({"input_ids": IDS - 107}, r"id -107"),
    "mask": (
        {"input_ids": IDS, "attention_mask": MASK[:, :3]},
        r"attention_mask has the shape \(2, 3\), and input_ids has \(2, 5\)",
    ),
    "additive": ({"input_ids": IDS, "attention_mask": MASK * -1e9}, "values other than 0"),
    "no text": ({"input_ids": IDS, "attention_mask": MASK * 0}, "row 0 of attention_mask is all"),
    "positions": ({"input_ids": IDS, "position_ids": IDS[:, :2]}, r"\(2, 2\).*one position for"),
    "misspelt": (
        {"input_ids": IDS, "attention_masks": MASK},
        r"no input 'attention_masks' \(did you mean 'attention_mask'\?\); its inputs are: inp",
    ),
    "both": (
        {"input_ids": IDS, "inputs_embeds": torch.zeros(2, 5, 24)},
        "itself fails on these inputs: ValueError: You must specify exactly one",
    ),
}


@pytest.mark.parametrize(("inputs", "message"), WRONG.values(), ids=WRONG)
def test_everything_else_is_refused(bert: Any, llama: Any, inputs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        normscope.analyze_inputs(bert, inputs)
    with pytest.raises(InputError, match=message):
        normscope.attribute_inputs(llama, inputs)


def test_a_tensor_alone_is_refused(bert: Any) -> None:
    with pytest.raises(InputError, match=r"not Tensor; give \{\"input_ids\": …\}"):
        checked_inputs(bert, IDS, "analyze_inputs")


def test_more_positions_and_types_than_the_model_has(bert: Any) -> None:
    with pytest.raises(InputError, match=r"rows have 900 positions, and the model has \d+$"):
        normscope.analyze_inputs(bert, {"input_ids": torch.full((1, 900), 5)})
    with pytest.raises(InputError, match="values from 0 to 9, and the model has types 0 to 1"):
        normscope.analyze_inputs(bert, {"input_ids": IDS, "token_type_ids": MASK * 9})


def test_errors_that_are_not_the_models_own_are_not_renamed(
    bert: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a mistake elsewhere")

    monkeypatch.setattr("normscope.measures.analysis.run", broken)
    with pytest.raises(RuntimeError, match=r"^a mistake elsewhere$"):
        normscope.analyze_inputs(bert, {"input_ids": IDS})


def test_targets_of_training_are_refused_by_attribute_inputs(llama: Any) -> None:
    inputs = {"input_ids": IDS, "labels": IDS}
    with pytest.raises(InputError, match="labels makes LlamaForCausalLM compute a loss"):
        normscope.attribute_inputs(llama, inputs)
    marian: Any = tiny_model("marian")
    with pytest.raises(InputError, match="the target is given as decoder_input_ids"):
        normscope.attribute_inputs(marian, inputs)


def test_a_tokenizer_names_ids(bert: Any, llama: Any) -> None:
    tokenizer = tiny.tokenizer(pair=False)
    inputs = tokenizer(["the cats", "a dog"], padding=True, return_tensors="pt")
    results = normscope.analyze_inputs(bert, inputs, tokenizer=tokenizer)
    expected = normscope.analyze(bert, tokenizer, ["the cats", "a dog"])
    for result, other in zip(results, expected, strict=True):
        assert result.tokens.strings == other.tokens.strings
        assert result.tokens.special == other.tokens.special
    assert results[0].tokens.words == ("<s>", "the", "cats", "</s>")
    answered: Any = {"answer": "dog", "foil": "cat"}
    (first, second) = normscope.attribute_inputs(llama, inputs, tokenizer=tokenizer, **answered)
    assert first.tokens.strings == results[0].tokens.strings
    assert second.tokens.words == ("<s>", "a", "dog", "</s>")
    assert (second.answer, second.foil) == ("dog", "cat")
    index, foil = tokenizer.convert_tokens_to_ids(["dog", "cat"])
    by_id = normscope.attribute_inputs(llama, inputs, answer=index, foil=foil)
    assert_array_equal(by_id[1].scores, second.scores)
    with pytest.raises(InputError, match="one id or one token: not 'a dog'"):
        normscope.attribute_inputs(llama, inputs, tokenizer=tokenizer, answer="a dog")
    for call in (normscope.analyze_inputs, normscope.attribute_inputs):
        with pytest.raises(InputError, match="give one of them"):
            call(llama, inputs, [["x"] * 5] * 2, tokenizer=tokenizer)
        with pytest.raises(InputError, match="must be a transformers tokenizer"):
            call(llama, inputs, tokenizer=object())


def test_a_tokenizer_names_the_ids_of_both_sides() -> None:
    model, tokenizer = tiny_model("marian"), tiny.tokenizer()
    inputs = {"input_ids": IDS, "decoder_input_ids": np.array([[2, 8], [2, 9]])}
    results = normscope.analyze_inputs(model, inputs, tokenizer=tokenizer)
    assert results[1].decoder["attn_w"].tokens["query"].strings == ("</s>", "sat")
    assert results[0].encoder["attn_w"].tokens["query"].strings[-1] == "</s>"


def test_words_beside_patches_stay_whole_and_apart() -> None:
    """A word of several pieces is one, also right behind a patch; each patch is its own."""
    names = ["patch 0,0", "patch 0,1", "un", "##do", "it", "patch 1,0", "##s"]
    patch = [True, True, False, False, False, True, False]
    known = replace(
        named(["<img>", "<img>", "un", "##do", "it", "<img>", "##s"]),
        texts=("", "", "un", "do", "it", "", "s"),
        word_of=(0, 0, 1, 1, 2, 2, 2),
        words=("<img><img>", "undo", "its"),
    )
    mixed = _with_texts(named(names), known, patch)
    assert mixed.word_of == (0, 1, 2, 2, 3, 4, 5)
    assert mixed.words == ("patch 0,0", "patch 0,1", "undo", "its", "patch 1,0", "its")
    assert mixed.texts == ("patch 0,0", "patch 0,1", "un", "do", "it", "patch 1,0", "s")
