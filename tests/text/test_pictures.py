"""Small copies of images as PNG, and the pictures and places of tokens."""

from __future__ import annotations

import contextlib
import io
import pickle

import numpy as np
import pytest
from PIL import Image

from normscope import InputError
from normscope.engine.naming import named
from normscope.results.arrays import merge_words, take
from normscope.text.pictures import SIDE, Picture, read_png, small_copy, wide_copy, write_png
from normscope.text.tokens import Tokens
from tests.helpers.pictured import drawn


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_has_the_pixels_that_other_programs_read(channels: int) -> None:
    pixels = drawn(7, 5)[..., :channels]
    png = write_png(pixels)
    np.testing.assert_array_equal(read_png(png), pixels)
    opened = np.asarray(Image.open(io.BytesIO(png)))
    np.testing.assert_array_equal(opened.reshape(pixels.shape), pixels)


def test_a_large_image_is_the_means_of_blocks() -> None:
    image = np.zeros((2 * SIDE, SIDE + 1, 3))
    image[::2] = 1.0
    copy = read_png(small_copy(image))
    assert copy.shape == (SIDE, (SIDE + 2) // 2, 3)
    assert set(copy.ravel().tolist()) == {128}
    assert read_png(wide_copy(np.ones((80, 3000)))).shape[0] == 80


@pytest.mark.parametrize("place", [0, 20, 30, 45, -5])
def test_a_damaged_copy_is_an_error(place: int) -> None:
    png = bytearray(write_png(drawn(6, 6)))
    cut = bytes(png[: len(png) // 2])
    png[place] ^= 255
    for damaged in (cut, b"", b"GIF89a" + bytes(80)):
        with pytest.raises(ValueError, match="it"):
            read_png(damaged)
    with contextlib.suppress(ValueError):  # or other pixels: checksums are not read
        read_png(bytes(png))


def pictured() -> Tokens:
    picture = Picture("image 0", 1, 2, write_png(drawn(3, 6)))
    places = (None, (0, 0, 0), (0, 0, 1))
    plain = named(["[CLS]", "patch 0,0", "patch 0,1"])
    return Tokens(**{**vars(plain), "places": places, "pictures": (picture,)})


def test_places_stay_with_their_tokens() -> None:
    tokens = pictured()
    assert take(tokens, [2, 0]).places == ((0, 0, 1), None)
    assert merge_words(tokens)[1].places == tokens.places
    assert Tokens.from_dict(tokens.to_dict()) == tokens
    assert pickle.loads(pickle.dumps(tokens)) == tokens
    assert "places" not in named("ab").to_dict()


@pytest.mark.parametrize("place", [(1, 0, 0), (0, 1, 0), (0, 0, 2), (-1, 0, 0)])
def test_a_place_outside_of_its_picture_is_refused(place: tuple[int, int, int]) -> None:
    tokens = pictured()
    with pytest.raises(InputError, match="none of its pictures"):
        Tokens(**{**vars(tokens), "places": (None, None, place)})
