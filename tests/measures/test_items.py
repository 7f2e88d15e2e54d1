"""`analyze` with a processor: images, recordings, and texts with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscope
from normscope import InputError
from tests.helpers.pictured import (
    drawn,
    inputs_of,
    model_of,
    processor_of,
    saved,
    sound,
    tokenizer,
)

QUESTION = "<image> what colour is the shape ?"


def analyzed(name: str, **given: Any) -> Any:
    return normscope.analyze(model_of(name), processor_of(name), **given)


def test_an_image_gives_the_maps_of_what_its_processor_makes() -> None:
    result = analyzed("vit", images=drawn())
    inputs = processor_of("vit")(drawn(), return_tensors="pt")
    (expected,) = normscope.analyze_inputs(model_of("vit"), inputs)
    for name in ("attn_w", "attn_n"):
        np.testing.assert_array_equal(result[name].values, expected[name].values)
    patches = [f"patch {row},{column}" for row in range(3) for column in range(3)]
    assert list(result.tokens.strings) == ["[CLS]", *patches]
    assert result.tokens.special == (True, *[False] * 9)
    assert result.tokens.places == (None, *((0, at // 3, at % 3) for at in range(9)))
    assert expected.tokens.places == result.tokens.places
    assert "processor:ViTImageProcessorPil:" in result.signature


def test_the_picture_is_the_image_as_the_model_reads_it() -> None:
    (picture,) = analyzed("vit", images=drawn(12, 12)).tokens.pictures
    assert (picture.name, picture.rows, picture.columns) == ("image 0", 3, 3)
    pixels = picture.pixels()
    assert pixels is not None
    assert np.abs(pixels.astype(int) - drawn(12, 12)).max() <= 1


def test_patches_that_follow_each_other_make_the_same_picture() -> None:
    """The copy of an image is put together from Qwen's patches, merged ones included."""
    processor = processor_of("qwen2-vl")
    made = processor(drawn(24, 32), return_tensors="pt")
    _, rows, columns = made["image_grid_thw"][0].tolist()
    inputs = inputs_of("qwen2-vl")
    count = rows * columns // 4
    ids = inputs["input_ids"]
    ids = ids.new_tensor([[0, *[int(ids[0, 1])] * count, 5, 6]])
    given = {"input_ids": ids, "mm_token_type_ids": (ids == ids[0, 1]).long(), **made}
    (result,) = normscope.analyze_inputs(model_of("qwen2-vl"), given)
    assert (rows, columns) == (6, 8)
    for part, grid in ((result.visual, (6, 8)), (result.language, (3, 4))):
        (picture,) = part.tokens.pictures
        assert (picture.rows, picture.columns) == grid
        pixels = picture.pixels()
        assert pixels is not None
        levels = np.corrcoef(pixels.ravel(), drawn(24, 32).ravel())[0, 1]
        assert levels > 0.99  # from the darkest to the brightest, as no scale is known


def test_patches_of_an_image_have_their_places_in_the_text() -> None:
    result = analyzed("llava", images=drawn(), text=f"<s> {QUESTION}")
    text = result.language.tokens
    assert text.strings[:3] == ("<s>", "patch 0,0", "patch 0,1")
    assert text.strings[10:] == ("what", "colour", "is", "the", "shape", "?")
    assert text.places == (None, *((0, at // 3, at % 3) for at in range(9)), *[None] * 6)
    assert result.vision.tokens.strings[0] == "[CLS]"
    assert result.vision.tokens.pictures == text.pictures
    assert result.words().language.tokens.places == text.places
    chosen = result.language["attn_n"].sel(layer=1, query="?", key=["patch 1,1", "colour"])
    assert chosen.tokens["key"].places == ((0, 1, 1), None)


def test_both_towers_have_tokens_of_their_own() -> None:
    result = analyzed("clip", images=drawn(), text="a cat")
    assert result.text.tokens.strings == ("a", "cat")
    assert result.text.tokens.places is None
    assert len(result.vision.tokens) == 10


def test_parts_of_an_image_are_parts_of_the_result() -> None:
    (result,) = normscope.analyze_inputs(model_of("llava next"), inputs_of("llava next"))
    assert list(result.parts) == [*(f"vision_{at}" for at in range(5)), "language"]
    assert len(result.language.tokens.pictures) == 5
    assert result.language.tokens.strings[1] == "image 0 patch 0,0"
    assert result.language.tokens.strings.count("4") == 6  # the ends of rows
    copies = {result.parts[f"vision_{at}"].tokens.pictures[0].png for at in range(5)}
    assert copies == {picture.png for picture in result.language.tokens.pictures}
    assert len(copies) == 5


def test_frames_have_their_times() -> None:
    result = analyzed("whisper", audio=sound(), target="a cat")
    assert result.encoder.tokens.strings[:3] == ("0.00 s", "0.02 s", "0.04 s")
    assert result.cross.key_tokens == result.encoder.tokens
    assert result.decoder.tokens.strings == ("</s>", "a")
    (picture,) = result.encoder.tokens.pictures
    assert (picture.rows, picture.columns, picture.seconds) == (1, 50, 1.0)


def test_frames_of_samples_count_the_strides_of_the_convolutions() -> None:
    result = analyzed("wav2vec2", audio=sound(0.05))
    # 800 samples: (800 − 10) / 5 + 1 = 159, and (159 − 8) / 4 + 1 = 38 frames of 20 samples.
    assert len(result.tokens) == 38
    assert result.tokens.strings[8] == "0.010 s"


def test_lists_give_a_result_for_each() -> None:
    both = analyzed("vit", images=[drawn(), drawn(seed=1)])
    for image, result in zip((drawn(), drawn(seed=1)), both, strict=True):
        assert result == analyzed("vit", images=image)
    texts = analyzed("llava", images=[drawn(), drawn()], text=[QUESTION, "<image> red ?"])
    assert [len(result.language.tokens) for result in texts] == [15, 11]
    together = analyzed("llava", images=[drawn(), drawn(seed=1)], text="<image> <image> red ?")
    assert [picture.name for picture in together.language.tokens.pictures] == ["image 0", "image 1"]


def test_a_folder_is_loaded_with_its_processor(tmp_path: Path) -> None:
    folder = saved("llava", tmp_path / "llava")
    model, processor = normscope.models.load(folder)
    assert type(processor) is type(processor_of("llava"))
    result = normscope.analyze(folder, images=drawn(), text=QUESTION)
    expected = normscope.analyze(model, processor, images=drawn(), text=QUESTION)
    np.testing.assert_array_equal(
        result.language["attn_n"].values, expected.language["attn_n"].values
    )
    vision = saved("vit", tmp_path / "vit")
    assert len(normscope.analyze(vision, images=drawn()).tokens) == 10
    # A text alone is read by the processor's tokenizer.
    model, processor = normscope.models.load(saved("clip", tmp_path / "clip"))
    assert processor.tokenizer.vocab == tokenizer().vocab


def test_results_keep_their_pictures(tmp_path: Path) -> None:
    result = analyzed("llava", images=drawn(), text=QUESTION)
    path = tmp_path / "result.safetensors"
    result.save(path)
    assert normscope.load(path) == result


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("llava", {"images": drawn(), "text": "what colour"}, "no place for the image"),
        ("clip", {"images": drawn()}, "give text= too"),
        ("vit", {"images": drawn(), "text": "a cat"}, "does not read text"),
        ("vit", {"audio": sound(0.01)}, "does not read audio"),
        ("wav2vec2", {"images": drawn()}, "does not read images"),
        ("whisper", {"audio": sound()}, "give target="),
        ("vit", {"images": []}, "is empty"),
        ("vit", {"images": drawn(), "text_pair": "x"}, "text_pair applies"),
        ("vit", {"images": drawn(), "truncate": True}, "truncate applies"),
        ("llava", {"images": [drawn()], "text": ["a", "b"]}, "1 images for 2 texts"),
        ("whisper", {"audio": [sound()] * 2, "target": "a"}, None),
    ],
)
def test_what_does_not_go_together_is_refused(
    name: str, given: dict[str, Any], words: str | None
) -> None:
    if words is None:
        assert len(analyzed(name, **given)) == 2
        return
    with pytest.raises(InputError, match=words):
        analyzed(name, **given)


def test_a_model_that_reads_images_says_so_of_a_text() -> None:
    with pytest.raises(InputError, match="give images= or audio="):
        normscope.analyze(model_of("vit"), processor_of("vit"), "a cat")
    with pytest.raises(InputError, match="no processor was given"):
        normscope.analyze(model_of("vit"), images=drawn())
