"""Pictures of alignments: what is drawn, not its pixels."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from normscope import InputError, MissingExtraError
from normscope.alignment.links import Links
from normscope.alignment.plots import aer_by_head, aer_by_layer, norm_by_head, soft_alignment
from normscope.alignment.result import Alignment
from normscope.show.palette import CATEGORIES
from normscope.show.plots import alignment
from tests.helpers.alignments import pair

SOFT = np.array([[1.0, 2.0, 1.0], [3.0, 0.0, 1.0]], dtype=np.float32)
PAIR = Alignment(("das", "$x_1$"), ("the", "house"), Links.of({(1, 0), (0, 1)}), SOFT)


def names(ticks: Any) -> list[str]:
    return [label.get_text() for label in ticks]


def test_a_soft_alignment_with_gold_frames() -> None:
    gold = Links.of({(0, 0)}, {(1, 1)})
    ax = soft_alignment(PAIR, gold)
    image: Any = ax.get_images()[0]
    np.testing.assert_allclose(image.get_array(), [[0.25, 0.5, 0.25], [0.75, 0, 0.25]])
    assert names(ax.get_xticklabels()) == ["das", "$x_1$", "</s>"]
    assert names(ax.get_yticklabels()) == ["the", "house"]
    frames: Any = ax.patches
    assert [(p.get_x(), p.get_y(), p.get_linestyle()) for p in frames] == [
        (pytest.approx(-0.46), pytest.approx(-0.46), "-"),
        (pytest.approx(0.54), pytest.approx(0.54), "--"),
    ]
    figure: Any = ax.figure
    figure.savefig(io.BytesIO(), format="png")
    (plain,) = soft_alignment(PAIR, shares=False).get_images()
    np.testing.assert_array_equal(plain.get_array(), SOFT)
    with pytest.raises(InputError, match=r"soft=True"):
        soft_alignment(Alignment(("a",), ("b",), Links()))


def test_a_matrix_of_nothing_has_the_colour_of_zero() -> None:
    ax = soft_alignment(replace(PAIR, soft=np.zeros_like(SOFT)))
    assert ax.get_images()[0].get_clim() == (0, 1)


def test_long_words_are_abridged_and_leave_room() -> None:
    word = "Donaudampfschifffahrtsgesellschaftskapitänsmütze"
    ax = soft_alignment(replace(PAIR, source=("das", word), target=(word, "house")))
    shown = [ax.get_xticklabels()[1], ax.get_yticklabels()[0]]
    assert names(shown) == ["Donaudampfs…pitänsmütze"] * 2
    figure: Any = ax.figure
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in shown]
    assert min(min(box.x0, box.y0) for box in boxes) >= 0
    assert ax.get_window_extent().width > figure.dpi
    assert aer_by_layer({word: [0.5]}).get_legend_handles_labels()[1] == names(shown[:1])


def test_frames_of_audio_are_numbered() -> None:
    ax = soft_alignment(Alignment(None, ("the", "house"), Links(), SOFT))
    assert names(ax.get_xticklabels()) == ["0", "1", "2"]


def test_aer_by_layer() -> None:
    curves = {"norms": [0.5, 0.25], "weights": [0.6, 0.3], "published norms": [0.4, 0.2, 0.1]}
    ax = aer_by_layer(curves, title="RWTH")
    assert {str(line.get_label()): list(line.get_ydata()) for line in ax.lines} == {  # type: ignore[arg-type]
        "norms": [50, 25],
        "weights": [60, 30],
        "published norms": pytest.approx([40, 20, 10]),
    }
    assert [line.get_linestyle() for line in ax.lines] == ["-", "-", "--"]
    assert ax.get_xticks().tolist() == [0, 1, 2]
    assert (ax.get_ylabel(), ax.get_title()) == ("alignment error rate, %", "RWTH")
    with pytest.raises(InputError, match=r"no curves were given"):
        aer_by_layer({})


@pytest.mark.parametrize(("draw", "factor"), [(aer_by_head, 100), (norm_by_head, 1)])
def test_tables_by_head(draw: Any, factor: float) -> None:
    values = np.array([[0.25, 0.5, 0.125], [1.0, 0.75, 0.0]])
    ax = draw(values)
    (image,) = ax.get_images()
    np.testing.assert_array_equal(image.get_array(), factor * values)
    assert [text.get_text() for text in ax.texts] == [
        f"{factor * value:.1f}" for value in values.flat
    ]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")
    # The best AER and the largest norm are the dark ones, with light numbers.
    dark = values.min() if draw is aer_by_head else values.max()
    colours = {value: text.get_color() for value, text in zip(values.flat, ax.texts, strict=True)}
    assert colours[dark] == "white"
    with pytest.raises(InputError, match=r"two axes \(layer, head\), not 1"):
        draw([0.1, 0.2])


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"normscope\[plots\]"):
        aer_by_head([[0.1]])


def test_links_are_lines_between_two_rows() -> None:
    one = pair(gold=False)
    ax = alignment(one)
    lines: Any = {patch.get_gid(): patch for patch in ax.patches}
    assert set(lines) == {"link-0-0", "link-1-1", "link-1-2", "link-4-3"}
    widths = {name: patch.get_linewidth() for name, patch in lines.items()}
    assert sorted(widths, key=widths.__getitem__) == [
        "link-1-2",
        "link-0-0",
        "link-4-3",
        "link-1-1",
    ]
    opacity = {name: patch.get_alpha() for name, patch in lines.items()}
    assert opacity["link-1-1"] == pytest.approx(0.3 + 0.7 * 0.84)
    words = {text.get_text(): text for text in ax.texts}
    assert {*(one.source or ()), *one.target} <= set(words)
    assert words["heute"].get_fontstyle() == "italic"
    assert words["Katze"].get_fontstyle() == "normal"
    start, *_, end = lines["link-4-3"].get_path().vertices
    assert start[0] == words["gut"].get_position()[0]
    assert end[0] == words["well"].get_position()[0]
    assert ax.get_title().replace("\n", " ") == one.headline
    assert ax.get_legend() is None
    figure: Any = ax.figure
    figure.savefig(io.BytesIO(), format="pdf")


def test_gold_links_have_colours_and_dashes() -> None:
    ax = alignment(pair())
    drawn: Any = {
        patch.get_gid(): (to_hex(patch.get_edgecolor()), patch.get_linestyle())
        for patch in ax.patches
    }
    assert drawn["link-1-1"] == (CATEGORIES[0].lower(), "-")
    assert drawn["link-4-3"] == (CATEGORIES[5].lower(), "-")
    assert drawn["link-1-2"] == (CATEGORIES[1].lower(), "-")
    assert drawn["link-5-4"][1] == ":"
    entries: Any = ax.get_legend()
    assert names(entries.get_texts()) == [
        *("sure, found", "possible, found", "wrong", "sure, missing"),
    ]
    other = alignment(pair(gold=False), Links.of({(0, 0)}))
    assert sum(patch.get_linestyle() == ":" for patch in other.patches) == 0
    assert len(other.patches) == 4


def test_long_sentences_are_columns_and_scripts_have_their_direction() -> None:
    words = tuple(f"word{at}" for at in range(40))
    long = Alignment(words, words, Links.of({(0, 0), (39, 39)}))
    ax = alignment(long)
    spots = [text.get_position() for text in ax.texts]
    assert {x for x, _ in spots} == {0, 1.7}
    assert [y for _, y in spots[:3]] == pytest.approx([0, 0.27, 0.54])
    hebrew = alignment(Alignment(("שלום", "עולם"), ("hello", "world"), Links.of({(0, 0)})))
    places = {text.get_text(): text.get_position()[0] for text in hebrew.texts}
    assert places["שלום"] > places["עולם"]
    assert places["hello"] < places["world"]
    with pytest.raises(InputError, match=r"source of this alignment is audio"):
        alignment(Alignment(None, ("a",), Links()))
