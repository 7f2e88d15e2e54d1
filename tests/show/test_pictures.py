"""Patches as grids: shares of attributions and rows of maps."""

from __future__ import annotations

import numpy as np
import pytest

from normscope import InputError
from normscope.results.attribution import Attribution
from normscope.show.headline import row_shares
from normscope.show.pictures import backdrop, grids, map_grids, others, row_of_map, share_grids
from normscope.text.pictures import Picture
from tests.helpers.attributions import tokens_of
from tests.helpers.patched import frames, mapped, patches, shared, striped


def test_numbers_go_to_the_places_of_their_patches() -> None:
    tokens = patches(2, 3)
    (grid,) = grids(tokens, np.arange(9.0))
    np.testing.assert_array_equal(grid.values, [[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(grid.positions, [[1, 2, 3], [4, 5, 6]])
    assert list(others(tokens)) == [0, 7, 8]


def test_a_place_without_a_patch_has_no_number() -> None:
    tokens = patches(2, 2, words=())
    (grid,) = grids(tokens, np.arange(5.0))
    assert grid.values[1, 1] == 4
    places = (None, *[(0, row, column) for row, column in ((0, 0), (0, 1), (1, 0))], None)
    object.__setattr__(tokens, "places", places)
    (grid,) = grids(tokens, np.arange(5.0))
    assert np.isnan(grid.values[1, 1])
    assert grid.positions[1, 1] == -1


def test_shares_of_an_answer_and_the_sum_of_several() -> None:
    tokens, scores = patches(1, 2, words=()), np.array([[1.0, 2, 3], [10, 20, 30]])
    result: Attribution = shared(tokens, scores, steps=tokens_of(["a", "b"]))
    assert share_grids(result)[0].values.tolist() == [[22, 33]]
    assert share_grids(result, 1)[0].values.tolist() == [[20, 30]]
    with pytest.raises(InputError, match=r"step is 2; valid: 0 to 1"):
        share_grids(result, 2)


def test_a_row_of_a_map_is_divided_by_its_sum() -> None:
    result = mapped(patches(2, 2))
    norms = row_shares(result["attn_n"].values[1])
    row = row_of_map(result, 1, "a")
    np.testing.assert_allclose(row.shares, norms[5])
    assert (row.query, row.position, row.name) == ("a", 5, "attn_n")
    (grid,) = map_grids(row)
    np.testing.assert_allclose(grid.values, norms[5][1:5].reshape(2, 2))
    mean = row_of_map(result["attn_n"], 0, None)
    np.testing.assert_allclose(mean.shares, row_shares(result["attn_n"].values[0]).mean(axis=0))
    with pytest.raises(InputError, match=r"'attn_n' has 2 layers; choose one with layer="):
        row_of_map(result, None, "a")


def test_results_without_patches_have_no_pictures() -> None:
    tokens = tokens_of(["a", "b"])
    with pytest.raises(InputError, match="this result has no pictures"):
        share_grids(shared(tokens, [1.0, 2.0]))
    with pytest.raises(InputError, match="this result has no pictures"):
        map_grids(row_of_map(mapped(tokens), 0, None))


def test_the_copy_under_the_colours_is_grey_and_neither_black_nor_white() -> None:
    picture = patches().pictures[0]
    for theme, (low, high) in {"light": (100, 255), "dark": (10, 150)}.items():
        under = backdrop(picture, theme)
        assert under is not None
        assert under.shape == picture.pixels().shape[:2]  # type: ignore[union-attr]
        assert low <= under.min() < under.max() <= high
        assert (np.diff(under.mean(axis=0).astype(float)) >= 0).all()
    assert backdrop(Picture("image 0", 1, 1), "light") is None


def test_a_recording_and_an_image_of_one_row_are_two_things() -> None:
    assert frames().pictures[0].recording
    assert not patches(1, 4).pictures[0].recording
    picture = Picture("recording", 1, 3, striped(), 0.5, recording=True)
    assert Picture.from_dict(picture.to_dict()) == picture
