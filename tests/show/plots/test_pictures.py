"""Patches drawn over the image that a model reads, and frames over a recording."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from numpy.testing import assert_allclose

from normscope import InputError
from normscope.show.headline import row_shares
from normscope.show.plots import image_map, theme
from tests.helpers.attributions import tokens_of
from tests.helpers.figures import figure_of
from tests.helpers.patched import frames, mapped, patches, shared


def written(ax: Any) -> set[str]:
    """All words of a figure."""
    return {text.get_text() for text in figure_of(ax).findobj(Text) if text.get_text()}


def layers_of(ax: Any) -> list[AxesImage]:
    return list(ax.get_images())


def test_cells_stand_over_the_image_and_the_strongest_is_the_most_opaque() -> None:
    tokens = patches(2, 3, words=())
    ax = image_map(shared(tokens, [0.0, 1, 2, 4, 0, -4, -1]))
    under, cells = layers_of(ax)
    assert [*under.get_extent()] == [*cells.get_extent()] == [0, 3, 2, 0]
    opacity = np.asarray(cells.get_array())[..., 3]
    assert opacity.shape == (2, 3)
    assert_allclose(opacity[0, 2], opacity[1, 1])
    assert opacity[1, 0] == 0  # a share of zero lets the image through
    assert opacity.max() < 1
    red, _, blue, _ = np.asarray(cells.get_array())[1, 1]
    assert red > blue  # against the answer


def test_a_row_of_a_map_with_the_query_framed() -> None:
    result = mapped(patches(2, 2))
    ax = image_map(result, 1, 2)
    (frame,) = [box for box in ax.patches if isinstance(box, Rectangle) and not box.get_fill()]
    assert frame.get_xy() == (1, 0)  # the second patch of the first row
    assert "patch 0,1" in ax.get_title(loc="left")
    assert "layer 1" in written(ax)
    shares = row_shares(result["attn_n"].values[1])[2]
    colours = np.asarray(layers_of(ax)[-1].get_array())[..., 3].ravel()
    assert_allclose(colours.argsort(), shares[1:5].argsort())


def test_tokens_that_are_no_patches_stand_below() -> None:
    ax = image_map(mapped(patches(2, 2, words=("what", "colour"))), 0)
    assert {"[CLS]", "what", "colour"} <= written(ax)
    assert not any(text.startswith("patch") for text in written(ax))
    figure = figure_of(ax)
    figure.draw_without_rendering()
    for text in figure.findobj(Text):
        box = text.get_window_extent()
        if text.get_text() and text.get_visible():
            assert -1 <= box.x0 < box.x1 <= figure.bbox.width + 1, text
            assert -1 <= box.y0 < box.y1 <= figure.bbox.height + 1, text


def test_a_recording_has_seconds_below_and_is_wide() -> None:
    ax = image_map(mapped(frames(8, 0.5)), 0)
    assert ax.get_xlabel() == "seconds"
    assert [label.get_text() for label in ax.get_xticklabels()][-1] == "0.50"
    wide, high = figure_of(ax).get_size_inches()
    assert wide > 2 * high
    assert image_map(mapped(frames(8, None)), 0).get_xlabel() == ""


def test_an_image_of_one_row_keeps_its_shape() -> None:
    wide, high = figure_of(image_map(mapped(patches(1, 1, words=())), 0)).get_size_inches()
    assert wide < 1.5 * high


def test_a_dark_figure_has_a_dark_image() -> None:
    light = np.asarray(layers_of(image_map(mapped(patches()), 0))[0].get_array())
    with theme("dark"):
        dark = np.asarray(layers_of(image_map(mapped(patches()), 0))[0].get_array())
    assert dark.max() < light.max()


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(InputError, match="no pictures"):
        image_map(shared(tokens_of(["a", "b"]), [1.0, 2.0]))
    with pytest.raises(InputError, match=r"picture is 1; valid: 0 to 0"):
        image_map(mapped(patches()), 0, picture=1)
