"""Images and recordings as files, arrays and objects."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from normscope import InputError
from normscope.models.media import recording_of, rgb_of
from tests.helpers.pictured import drawn, sound


@pytest.mark.parametrize(
    "form",
    [
        lambda image: image,
        torch.tensor,
        lambda image: np.moveaxis(image, -1, 0),
        lambda image: image.astype(np.int64),
        lambda image: image / 255,
        lambda image: torch.tensor(image / 255).permute(2, 0, 1),
        lambda image: np.concatenate([image, image[..., :1]], axis=-1),
    ],
)
def test_an_array_of_any_form_has_the_same_bytes(form: Any) -> None:
    np.testing.assert_array_equal(rgb_of(form(drawn())), drawn())


def test_grey_images_have_three_equal_channels(tmp_path: Path) -> None:
    grey = drawn()[..., 0]
    expected = np.repeat(grey[..., None], 3, axis=-1)
    np.testing.assert_array_equal(rgb_of(grey), expected)
    np.testing.assert_array_equal(np.asarray(rgb_of(Image.fromarray(grey))), expected)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    np.testing.assert_array_equal(np.asarray(rgb_of(tmp_path / "grey.png")), expected)


def test_a_file_is_read_as_colours(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    Image.fromarray(drawn()).convert("RGBA").save(path)
    np.testing.assert_array_equal(np.asarray(rgb_of(path)), drawn())
    np.testing.assert_array_equal(np.asarray(rgb_of(str(path))), drawn())


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((2, 3, 4, 5)), "has the shape"),
        (np.zeros((5, 5, 7)), "has the shape"),
        (np.full((4, 4, 3), -1.0), "numbers from -1 to -1"),
        (np.full((4, 4, 3), 300), "numbers from 300"),
        (np.full((4, 4, 3), np.nan), "numbers from"),
        (17, "not int"),
        ("no such file.png", "could not read the image"),
    ],
)
def test_what_is_no_image_is_refused(image: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        rgb_of(image)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.png"
    path.write_text("no image")
    with pytest.raises(InputError, match="not an image of a format"):
        rgb_of(path)


def written(path: Path, samples: np.ndarray, width: int, channels: int = 1) -> Path:
    """A WAV file of samples from −1 to 1."""
    top = 2 ** (8 * width - 1) - 1
    whole = np.round(np.repeat(samples, channels) * top).astype(np.int64)
    if width == 1:
        data = (whole + 128).astype(np.uint8).tobytes()
    elif width == 3:
        data = b"".join(int(number).to_bytes(3, "little", signed=True) for number in whole)
    else:
        data = whole.astype(f"<i{width}").tobytes()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(16_000)
        file.writeframes(data)
    return path


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_wave_file_of_any_width_has_its_samples(
    tmp_path: Path, width: int, channels: int
) -> None:
    samples = sound(0.05)
    path = written(tmp_path / "sound.wav", samples, width, channels)
    read = recording_of(path, None, 16_000)
    assert read.dtype == np.float32
    np.testing.assert_allclose(read, samples, atol=2.0 ** (2 - 8 * width) + 1e-7)


def test_samples_may_be_numbers_of_any_kind() -> None:
    samples = sound(0.01)
    for form in (samples.tolist(), torch.tensor(samples), samples.astype(np.float64)):
        np.testing.assert_allclose(recording_of(form, None, 16_000), samples, atol=1e-7)
    whole = np.round(samples * 32767).astype(np.int16)
    np.testing.assert_allclose(recording_of(whole, 16_000, 16_000), samples, atol=1e-4)


def test_another_sampling_rate_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "sound.wav", sound(0.01), 2)
    with pytest.raises(InputError, match="16000 samples in a second, and the model hears 8000"):
        recording_of(path, None, 8000)
    with pytest.raises(InputError, match="44100 samples"):
        recording_of(sound(0.01), 44_100, 16_000)


@pytest.mark.parametrize("audio", [np.zeros((2, 5)), np.zeros(0), ["a"], np.zeros(3, dtype=bool)])
def test_what_is_no_recording_is_refused(audio: Any) -> None:
    with pytest.raises(InputError, match="a recording is"):
        recording_of(audio, None, 16_000)


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    for data in (b"", b"RIFF", b"text"):
        path.write_bytes(data)
        with pytest.raises(InputError, match="could not read the recording"):
            recording_of(path, None, 16_000)
