"""Patches in the terminal: a grid of colours, or of digits."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from rich.console import Console

from normscope.show.patches import print_grid
from normscope.show.pictures import grids
from tests.helpers.patched import frames, patches


def printed(tokens: Any, values: Any, *, signed: bool = False, colours: Any = None) -> list[str]:
    (grid,) = grids(tokens, np.asarray(values, dtype=np.float64))
    console = Console(width=99, file=io.StringIO(), color_system=colours, force_terminal=True)
    print_grid(grid, console, 80, signed=signed, what="shares")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_digits_without_colours() -> None:
    lines = printed(patches(2, 3, words=()), [9, 0, 1, 2, 5, 7, 9])
    assert lines[0] == "image 0, 2 × 3 patches: shares; 9 is the largest"
    assert lines[1:3] == [" · 1 2", " 5 7 9"]


def test_negative_numbers_have_a_sign() -> None:
    lines = printed(patches(1, 3, words=()), [0, -2, 0, 1], signed=True)
    assert lines[1] == "-9 ·+4"


def test_colours_grow_with_the_numbers() -> None:
    lines = printed(patches(1, 2, words=()), [0, 1, 2], colours="truecolor")
    first, second = (part for part in lines[1].split("\x1b[0m") if "48;2" in part)
    assert first != second
    assert "9 is the largest" not in lines[0]


def test_many_patches_are_means_of_blocks() -> None:
    lines = printed(patches(60, 60, words=()), np.ones(3601))
    assert lines[0].startswith("image 0, 60 × 60 patches, means of blocks")
    assert len([line for line in lines[1:] if line]) <= 24
    assert {len(line) for line in lines[1:] if line} == {2 * 20}


def test_a_recording_has_frames_and_an_image_of_one_row_has_patches() -> None:
    for seconds in (0.5, None):
        assert printed(frames(8, seconds), np.ones(8))[0].startswith("recording, 8 frames")
    assert printed(patches(1, 8, ()), np.ones(9))[0].startswith("image 0, 1 × 8 patches")
