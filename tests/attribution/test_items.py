"""`attribute` with a processor: shares of patches, frames and the text beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import normscope
from normscope import Attribution, InputError
from normscope.attribution.heads import label_index, labels_of
from tests.attribution.test_api import adds_up
from tests.helpers.pictured import (
    IMAGE,
    drawn,
    inputs_of,
    model_of,
    processor_of,
    saved,
    sound,
    tokenizer,
)

QUESTION = "<image> what colour is the shape ?"
# Llama computes its norms in float32, so the last digits are those.
ROUNDED = {"llava", "llava (layer)", "pixtral", "mistral3", "gemma3", "idefics3", "internvl"} | {
    "qwen2-vl", "qwen2.5-vl", "llava next"
}  # fmt: skip


def attributed(name: str, **given: Any) -> Any:
    return normscope.attribute(model_of(name), processor_of(name), **given)


def logits_of(name: str, **given: Any) -> torch.Tensor:
    made = processor_of(name)(**given, return_tensors="pt")
    made = {k: v.double() if v.is_floating_point() else v for k, v in made.items()}
    with torch.no_grad():
        return model_of(name)(**made).logits


def word(text: str) -> int:
    return int(tokenizer().convert_tokens_to_ids(text))


def proved(result: Attribution, name: str) -> None:
    tolerance = 1e-6 if name in ROUNDED else 1e-12
    total = result.scores.values.sum(-1) + result.bias
    np.testing.assert_allclose(total, result.value, rtol=tolerance, atol=tolerance)


def test_shares_of_patches_make_a_label() -> None:
    result = attributed("vit", images=drawn(), answer=2, foil="LABEL_1")
    logits = logits_of("vit", images=drawn())[0]
    assert result.value == pytest.approx(float(logits[2] - logits[1]), abs=1e-12)
    adds_up(result)
    assert result.question == "What makes the image 'LABEL_2' rather than 'LABEL_1'"
    assert set(result.sides) == {"image"}
    assert result.tokens.strings[:2] == ("[CLS]", "patch 0,0")
    inputs = processor_of("vit")(drawn(), return_tensors="pt")
    (expected,) = normscope.attribute_inputs(model_of("vit"), inputs, answer=2, foil=1)
    np.testing.assert_array_equal(result.scores.values, expected.scores.values)
    assert expected.tokens.strings == result.tokens.strings


def test_the_source_of_a_patch_is_the_state_that_enters_the_first_layer() -> None:
    """CLIP adds its positions by an embedding; they are part of a patch's state, not beside it."""
    result = attributed("clip", images=drawn(), text="a cat")
    assert set(result.part_names) == {"word", "position", "state"}
    patches = [at for at, side in enumerate(result.sides) if side == "image"]
    parts = dict(zip(result.part_names, result.parts.values, strict=True))
    assert not parts["word"][patches].any()
    assert not parts["position"][patches].any()
    np.testing.assert_array_equal(parts["state"][patches], result.scores.values[patches])


def test_the_share_of_a_patch_is_its_state_times_the_slope_of_the_frozen_model() -> None:
    """A classifier without nonlinearity after its first layer's input: plain gradients tell."""
    result = attributed("vit", images=drawn(), answer=0)
    assert np.abs(result.scores.values).min() > 0
    bright = drawn().copy()
    bright[:, 20:] = 255 - bright[:, 20:]  # of 30 columns, of which the model reads all
    other = attributed("vit", images=bright, answer=0)
    assert other.scores.values[3] != result.scores.values[3]


def test_a_word_is_explained_by_patches_and_text() -> None:
    result = attributed("llava", images=drawn(), text=QUESTION, answer="red", foil="blue")
    logits = logits_of("llava", images=drawn(), text=QUESTION)[0, -1]
    assert result.value == pytest.approx(float(logits[word("red")] - logits[word("blue")]))
    proved(result, "llava")
    assert result.question == "What made the model say 'red' rather than 'blue'"
    # The places of the image in the text have no share; the tower's patches stand for them.
    assert IMAGE not in (result.tokens.ids or ())
    assert [result.sides.count(side) for side in ("text", "image")] == [6, 10]
    (picture,) = result.tokens.pictures
    assert (picture.rows, picture.columns) == (3, 3)


def test_several_tokens_follow_the_text_and_are_explained_with_those_before() -> None:
    result = attributed("llava", images=drawn(), text=QUESTION, continuation="red cat")
    logits = logits_of("llava", images=drawn(), text=f"{QUESTION} red")[0]
    assert result.value[0] == pytest.approx(float(logits[-2, word("red")]))
    assert result.value[1] == pytest.approx(float(logits[-1, word("cat")]))
    proved(result, "llava")
    assert result.steps is not None
    assert result.steps.texts == ("red", "cat")
    follow = [at for at, side in enumerate(result.sides) if side == "continuation"]
    assert [result.tokens.texts[at] for at in follow] == ["red", "cat"]
    together = attributed("llava", images=drawn(), text=QUESTION, answer="red cat")
    assert together.value == pytest.approx(result.value.sum())


def test_what_the_model_writes_is_what_it_says_step_by_step() -> None:
    result = attributed("llava", images=drawn(), text=QUESTION, generate=2)
    proved(result, "llava")
    assert result.steps is not None
    first = int(logits_of("llava", images=drawn(), text=QUESTION)[0, -1].argmax())
    assert result.steps.ids is not None
    assert result.steps.ids[0] == first


def test_a_model_that_writes_an_image_says_so() -> None:
    with pytest.raises(InputError, match="itself fails on these inputs"):
        attributed("llava", images=drawn(), text=QUESTION, continuation="<image> cat")


def test_a_trace_has_the_places_of_the_image_in_the_text() -> None:
    result = attributed("llava", images=drawn(), text=QUESTION, answer="red", trace=True)
    assert result.sides.count("text") == 15
    places = [at for at in range(15) if (result.tokens.places or ())[at] is not None]
    assert len(places) == 9
    assert not result.scores.values[places].any()
    assert np.abs(result.layers.values[-2][places]).sum() > 0
    totals = result.layers.values.sum(-1) + result.layer_bias.values
    np.testing.assert_allclose(totals, result.value, rtol=1e-5)


def test_image_and_text_belong_together_by_their_logit() -> None:
    result = attributed("clip", images=drawn(), text="a cat")
    made = processor_of("clip")(images=drawn(), text="a cat", return_tensors="pt")
    with torch.no_grad():
        output = model_of("clip")(**{**made, "pixel_values": made["pixel_values"].double()})
    assert result.value == pytest.approx(float(output.logits_per_image[0, 0]))
    adds_up(result)
    assert result.question == "What makes image and text belong together"
    assert {"image", "text"} == set(result.sides)


@pytest.mark.parametrize(
    "asked", [{"target": "a cat"}, {"generate": 2}, {"answer": "cat", "foil": "dog"}]
)
def test_frames_and_the_text_so_far_make_what_is_written(asked: dict[str, Any]) -> None:
    result = attributed("whisper", audio=sound(), **asked)
    adds_up(result)
    assert result.sides.count("audio") == 50
    assert result.tokens.strings[:2] == ("0.00 s", "0.02 s")
    made = processor_of("whisper")(audio=sound(), sampling_rate=16_000, return_tensors="pt")
    with torch.no_grad():
        logits = model_of("whisper")(
            input_features=made["input_features"].double(),
            decoder_input_ids=torch.tensor([[2]]),
        ).logits[0, -1]
    if "target" in asked:
        assert result.value[0] == pytest.approx(float(logits[word("a")]))
    elif "generate" in asked:
        assert result.value[0] == pytest.approx(float(logits.max()))
    else:
        assert result.value == pytest.approx(float(logits[word("cat")] - logits[word("dog")]))


def test_a_recording_has_a_label() -> None:
    result = attributed("wav2vec2", audio=sound(0.05))
    adds_up(result)
    assert result.question.startswith("What makes the recording 'LABEL_")
    assert len(result.tokens) == 38


def test_a_detected_object_is_explained_at_its_position() -> None:
    result = attributed("yolos", images=drawn(12, 16), position=2, answer=1)
    logits = logits_of("yolos", images=drawn(12, 16))[0]
    assert result.value == pytest.approx(float(logits[2, 1]), abs=1e-12)
    adds_up(result)
    assert result.tokens.strings[-1] == "[DET 4]"
    with pytest.raises(InputError, match="give position=, 0 to 4"):
        attributed("yolos", images=drawn(12, 16))


def test_what_a_detector_says_of_each_object_or_that_there_is_none() -> None:
    detector = model_of("detr")
    assert labels_of(detector)[4] == "no object"
    assert label_index(detector, "no object") == 4
    assert "no object" not in labels_of(model_of("vit")).values()
    (result,) = normscope.attribute_inputs(detector, inputs_of("detr"), position=2, answer=4)
    with torch.no_grad():
        logits = detector(**inputs_of("detr")).logits[0]
    assert result.value == pytest.approx(float(logits[2, 4]), abs=1e-12)
    assert result.answer == "no object"
    assert result.sides == ("image",) * 12 + ("objects",) * 6
    assert result.tokens.strings[-1] == "object 5"
    assert result.tokens.strings[4] == "patch 1,0"
    shares = result.scores.values
    assert (shares[12:] == 0).all()  # where objects are asked for directs attention, which is held
    asked = attributed("yolos", images=drawn(12, 16), position=2, answer=1)
    assert asked.question == "What makes 'object 2' 'LABEL_1'"


@pytest.mark.parametrize("name", sorted({*ROUNDED, "siglip", "registers", "detr"} - {"llava"}))
def test_every_kind_of_model_adds_up(name: str) -> None:
    """Towers, merging, windows, several parts of an image, a backbone of convolutions."""
    model, inputs = model_of(name), inputs_of(name)

    def last(output: Any) -> torch.Tensor:
        logits = getattr(output, "logits", None)
        return (output.logits_per_image if logits is None else logits).flatten(0, -2)[-1, 0]

    (result,) = normscope.attribute_inputs(model, inputs, answer=last)
    with torch.no_grad():
        assert result.value == pytest.approx(float(last(model(**inputs))))
    proved(result, name)
    images = [
        share for share, s in zip(result.scores.values, result.sides, strict=True) if s == "image"
    ]
    assert np.abs(images).sum() > 0


def test_a_baseline_of_zeros_explains_the_difference_from_it() -> None:
    result = attributed("vit", images=drawn(), answer=1, baseline="zero")
    zero = torch.zeros(1, 3, 12, 12, dtype=torch.float64)
    with torch.no_grad():
        without = model_of("vit")(pixel_values=zero).logits[0, 1]
    expected = logits_of("vit", images=drawn())[0, 1] - without
    assert result.value == pytest.approx(float(expected), abs=1e-10)
    np.testing.assert_allclose(result.scores.values.sum(), result.value, atol=1e-9)
    assert result.bias == 0.0


def test_a_list_has_a_result_for_each_image(tmp_path: Path) -> None:
    images = [drawn(), drawn(seed=1)]
    both = attributed("vit", images=images, answer=[0, 1])
    for at, (image, result) in enumerate(zip(images, both, strict=True)):
        assert result == attributed("vit", images=image, answer=at)
    folder = saved("vit", tmp_path / "vit")
    assert normscope.attribute(folder, images=drawn()).error < 1e-5


def test_results_keep_their_pictures(tmp_path: Path) -> None:
    result = attributed("llava", images=drawn(), text=QUESTION, continuation="red cat")
    path = tmp_path / "result.safetensors"
    result.save(path)
    loaded = normscope.load(path)
    assert loaded == result
    assert loaded.tokens.pictures == result.tokens.pictures
    assert loaded.words().tokens.places == result.words().tokens.places


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("vit", {"images": drawn(), "similar_to": "a cat"}, "similar_to compares texts"),
        ("vit", {"images": drawn(), "position": 1}, "leave out position"),
        ("vit", {"images": drawn(), "generate": 2}, "writes no text"),
        ("vit", {"images": drawn(), "answer": "nothing"}, "no label"),
        ("llava", {"images": drawn(), "text": "what"}, "no place for the image"),
        ("llava", {"images": drawn(), "text": QUESTION, "text_pair": "a"}, "not a pair"),
        ("clip", {"images": drawn(), "text": "a cat", "answer": "cat"}, "no head"),
    ],
)
def test_what_does_not_go_together_is_refused(name: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        attributed(name, **given)
