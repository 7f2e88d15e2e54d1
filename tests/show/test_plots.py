"""Pictures: what is drawn (images, labels, titles), not how its pixels come out."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.figure import Figure

from normscope import Contributions, InputError, LabelledArray, MissingExtraError
from normscope.show.plots import COLOURS, compare, heatmap, scopes
from normscope.show.plots.style import brief, letters
from normscope.text.tokens import Tokens

SOURCE = ("[CLS]", "cats", r"$x_1$", r"\alpha", "_a_")
TARGET = ("▁Katzen", "50%", "</s>")
DRAWN = np.random.default_rng(0)


def tokens(strings: tuple[str, ...]) -> Tokens:
    return Tokens(strings, None, (False,) * len(strings), strings)


def array(name: str = "attn_n", heads: int = 0) -> LabelledArray:
    """Three queries, five keys and two layers, called 2 and 5; every cell another number."""
    shape = (2, heads, 3, 5) if heads else (2, 3, 5)
    axes = ("layer", "head", "query", "key") if heads else ("layer", "query", "key")
    both = {"query": tokens(TARGET), "key": tokens(SOURCE)}
    return LabelledArray(DRAWN.random(shape) + 0.1, axes, both, {"layer": (2, 5)}, name)


def result(heads: int = 0) -> Contributions:
    maps = {name: array(name, heads) for name in ("attn_w", "attn_n")}
    return Contributions(maps, None, tokens(TARGET), tokens(SOURCE))


def drawn(ax: Any) -> Any:
    (image,) = ax.get_images()
    return image


def names(ticks: Any) -> list[str]:
    return [label.get_text() for label in ticks]


def figure_of(ax: Any) -> Figure:
    assert isinstance(ax.figure, Figure)
    return ax.figure


def test_a_heat_map_shows_queries_down_and_keys_across() -> None:
    one = array()
    ax = heatmap(one, layer=5)
    image = drawn(ax)
    assert np.array_equal(image.get_array(), one.values[1])
    assert image.origin == "upper"
    assert image.get_clim() == (0, one.values[1].max())
    assert names(ax.get_yticklabels()) == list(TARGET)
    assert names(ax.get_xticklabels()) == list(SOURCE)
    assert ax.get_yticks().tolist() == [0, 1, 2]
    assert ax.get_xticks().tolist() == [0, 1, 2, 3, 4]
    assert ax.get_ylabel().startswith("query")
    assert ax.get_xlabel().startswith("key")
    assert "layer 5" in ax.get_title()


def test_tokens_are_no_formulas() -> None:
    ax = heatmap(array(), layer=2)
    for label in [*ax.get_xticklabels(), *ax.get_yticklabels()]:
        assert not label.get_parse_math()
        assert not label.get_usetex()
    figure_of(ax).savefig(io.BytesIO(), format="png")  # broken mathtext fails only when drawn


def test_control_characters_are_written_out() -> None:
    odd = tokens(("a\nb", "c\x07", "d"))
    one = replace(array(), tokens={"query": odd, "key": tokens(SOURCE)})
    assert names(heatmap(one, layer=2).get_yticklabels()) == ["a\\nb", "c\\x07", "d"]


def test_heads() -> None:
    one = array("attn_w", heads=3)
    ax = heatmap(one, layer=2, head=1)
    assert np.array_equal(drawn(ax).get_array(), one.values[0, 1])
    assert ax.get_title() == r"attention weight  $\alpha$, layer 2, head 1"
    assert "mean over heads" in heatmap(array("attn_w"), layer=2).get_title()
    assert r"\Vert\alpha f(x)\Vert" in heatmap(array(heads=3), layer=2, head=1).get_title()
    assert r"\Vert\Sigma_h" in heatmap(array(), layer=2).get_title()


def test_a_selected_array_needs_no_layer() -> None:
    one = array()
    assert np.array_equal(drawn(heatmap(one.sel(layer=5))).get_array(), one.values[1])
    # An axis with one entry leaves no choice.
    assert np.array_equal(drawn(heatmap(one.sel(layer=[5]))).get_array(), one.values[1])


def test_normalise_divides_each_row_by_its_sum() -> None:
    one = array()
    shown = drawn(heatmap(one, layer=2, normalise=True)).get_array()
    rows = one.values[0]
    assert np.allclose(shown, [row / row.sum() for row in rows], rtol=1e-15)


def test_compare_draws_both_maps_of_the_layer() -> None:
    both = result()
    axes = compare(both, 5)
    assert axes.shape == (2,)
    assert axes[0].figure is axes[1].figure
    for ax, name in zip(axes, ("attn_w", "attn_n"), strict=True):
        assert np.array_equal(drawn(ax).get_array(), both[name].values[1])
        assert drawn(ax).colorbar is not None
    assert [drawn(ax).colorbar.ax.get_ylabel() for ax in axes] == ["weight", "norm"]
    assert "attention weight" in axes[0].get_title()
    assert "norm" in axes[1].get_title()
    flipped = compare(both, 5, maps=("attn_n", "attn_w"))
    assert np.array_equal(drawn(flipped[0]).get_array(), both["attn_n"].values[1])


def test_compare_draws_into_given_axes() -> None:
    mine = Figure().subplots(2, 1)
    axes = compare(result(heads=2), 2, axes=mine, head=0, normalise=True)
    assert axes.tolist() == mine.tolist()
    assert drawn(mine[1]).colorbar.ax.get_ylabel() == "share of the row"
    one = compare(result(), 2, maps="attn_n", axes=Figure().subplots())
    assert one.shape == (1,)
    with pytest.raises(InputError, match=r"2 maps need 2 axes, but 1"):
        compare(result(), 2, axes=Figure().subplots())


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match=r"has 2 layers; choose one with layer="):
        heatmap(array())
    with pytest.raises(InputError, match=r"has 3 heads; choose one with head="):
        heatmap(array(heads=3), layer=2)
    with pytest.raises(InputError, match=r"no layer 0.*valid: 2, 5"):
        heatmap(array(), layer=0)
    with pytest.raises(InputError, match=r"no axis 'head'"):
        heatmap(array(), layer=2, head=0)
    with pytest.raises(InputError, match=r"needs the axes query and key"):
        heatmap(array().sel(query=0), layer=2)
    with pytest.raises(InputError, match=r"no map was named.*attn_w, attn_n"):
        compare(result(), 2, maps=())
    with pytest.raises(InputError, match=r"choose a part: result.encoder"):
        compare(Contributions(parts={"encoder": result()}), 2)


def test_long_texts_stay_on_the_page_and_keep_their_labels() -> None:
    many = tokens(tuple(f"piece{i}" for i in range(400)))
    values = DRAWN.random((400, 400))
    ax = heatmap(
        LabelledArray(values, ("query", "key"), {"query": many, "key": many}, name="attn_n")
    )
    assert figure_of(ax).get_size_inches().max() <= 24
    sizes = {float(label.get_fontsize()) for label in ax.get_xticklabels()}
    assert len(ax.get_xticklabels()) == 400
    few = heatmap(array(), layer=2).get_xticklabels()
    assert max(sizes) < float(few[0].get_fontsize())


def test_a_map_of_nothing_has_the_colour_of_zero() -> None:
    nothing = of_shape(3, 5, ["attn_w", "attn_n"], 0.0)
    axes = [
        *compare(nothing, 11),
        *scopes(nothing, 11),
        heatmap(nothing["attn_n"], layer=11, normalise=True),
    ]
    zero = colormaps[COLOURS](0.0, bytes=True)
    for ax in axes:
        image = drawn(ax)
        assert image.get_clim() == (0, 1)
        assert (image.to_rgba(image.get_array(), bytes=True) == zero).all()


def test_colours_differ_in_lightness_alone() -> None:
    colours = colormaps[COLOURS](np.linspace(0, 1, 64))[:, :3]
    luminance = colours @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(luminance) < 0).all()


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"needs matplotlib.*normscope\[plots\]"):
        compare(result(), 2)


def test_pyplot_is_left_alone(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np, normscope.plots as plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from normscope import LabelledArray, Tokens\n"
        "t = Tokens(('a',), None, (False,), ('a',))\n"
        "a = LabelledArray(np.ones((1, 1)), ('query', 'key'), {'query': t, 'key': t}, name='x')\n"
        "plots.heatmap(a).figure.savefig(sys.argv[1])\n"
        "assert 'matplotlib.figure' in sys.modules\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "one.png")], check=True)
    assert (tmp_path / "one.png").stat().st_size > 0


def of_shape(queries: int, keys: int, names: Sequence[str], value: float = 1.0) -> Contributions:
    rows, columns = (tokens(tuple(f"t{i}" for i in range(n))) for n in (queries, keys))
    both = {"query": rows, "key": columns}
    values = np.full((12, queries, keys), value)
    maps = {
        name: LabelledArray(values, ("layer", "query", "key"), both, name=name) for name in names
    }
    return Contributions(maps, None, rows, columns)


SQUARES = [(2, 2), (4, 4), (12, 12), (30, 30)]
FEW_KEYS = [(10, 4), (15, 5), (20, 6), (60, 3), (4, 1)]


@pytest.mark.parametrize("draw", [compare, scopes])
@pytest.mark.parametrize("shape", SQUARES + FEW_KEYS)
@pytest.mark.parametrize(
    "names", [("attn_w", "attn_n", "attn_res_w"), ("atb_ln", "atb_ff_res", "attn_res_ln_n")]
)
def test_what_is_above_and_below_maps_does_not_touch(
    draw: Any, shape: tuple[int, int], names: tuple[str, ...]
) -> None:
    axes = draw(of_shape(*shape, names), 11, list(names))
    figure = axes[0].figure
    figure.draw_without_rendering()
    for texts in ([ax.title for ax in axes], [ax.xaxis.label for ax in axes]):
        boxes = [text.get_window_extent() for text in texts if text.get_text()]
        for left, right in itertools.pairwise(boxes):
            assert left.x1 + 0.05 * figure.dpi < right.x0
        for box in boxes:
            assert 0 < box.x0 < box.x1 < figure.bbox.width
            assert 0 < box.y0 < box.y1 < figure.bbox.height


WORD = "Donaudampfschifffahrtsgesellschaftskapitänsmütze"
SENTENCE = tokens(("[CLS]", "Die", WORD, "ist", "blau", ".", "[SEP]"))


def test_long_words_are_shown_by_their_ends() -> None:
    assert brief("a" * 24) == "a" * 24
    assert brief(WORD) == "Donaudampfs…pitänsmütze"
    assert brief("日本語" * 4) == "日本語" * 4  # twelve characters as wide as 24 letters
    assert brief("日本語" * 10) == "日本語日本…本語日本語"
    assert brief("ab\n" * 9, 9) == "ab\\n…ab\\n"
    assert letters("a日ｘ\u0301") == 6


@pytest.mark.parametrize("draw", [compare, scopes, heatmap])
def test_a_long_word_leaves_room_for_the_map_and_its_titles(draw: Any) -> None:
    both = {"query": SENTENCE, "key": SENTENCE}
    values = DRAWN.random((1, 7, 7))
    maps = {
        name: LabelledArray(values, ("layer", "query", "key"), both, name=name)
        for name in ("attn_w", "attn_n")
    }
    if draw is heatmap:
        axes = [heatmap(maps["attn_n"], layer=0)]
    else:
        axes = list(draw(Contributions(maps, None, SENTENCE), 0))
    figure = figure_of(axes[0])
    figure.draw_without_rendering()
    assert names(axes[0].get_yticklabels())[2] == names(axes[0].get_xticklabels())[2] == brief(WORD)
    for ax in axes:
        assert ax.get_window_extent().width > 1.2 * figure.dpi
        texts = [ax.title, ax.xaxis.label, ax.yaxis.label]
        for text in [*texts, *ax.get_xticklabels(), *ax.get_yticklabels()]:
            box = text.get_window_extent()
            assert not text.get_text() or (box.x0 >= 0 and box.x1 <= figure.bbox.width)
            assert not text.get_text() or (box.y0 >= 0 and box.y1 <= figure.bbox.height)


def test_titles_are_broken_between_words_only() -> None:
    (ax,) = compare(of_shape(20, 4, ["attn_w"]), 11, "attn_w")
    assert ax.get_title().splitlines() == [
        r"attention weight $\alpha$",
        "(mean over heads), layer 11",
    ]
    (ax,) = compare(of_shape(12, 12, ["attn_w"]), 11, "attn_w")
    assert "\n" not in ax.get_title()


def test_plots_come_with_the_package_when_they_are_asked_for() -> None:
    code = (
        "import sys, normscope\n"
        "assert 'normscope.plots' not in sys.modules\n"
        "print(normscope.plots.compare.__name__, normscope.testing.check_architecture.__name__)\n"
        "try:\n"
        "    normscope.plotz\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = "compare check_architecture\nmodule 'normscope' has no attribute 'plotz'\n"
    assert done.stdout == told
