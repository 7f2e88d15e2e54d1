"""Heat maps, comparisons and scopes: what is drawn, not how its pixels come out."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose

from normscope import Contributions, InputError, LabelledArray
from normscope.decomposition.scopes import NAMES, SCOPES
from normscope.show import plots
from normscope.show.headline import headline, row_shares
from normscope.show.plots import compare, heatmap, scopes
from normscope.show.plots.style import brief, sequential
from normscope.text.tokens import Tokens
from tests.helpers import figures
from tests.helpers.figures import figure_of, names, saved

SOURCE = ("[CLS]", "cats", r"$x_1$", r"\alpha", "_a_")
TARGET = ("▁Katzen", "50%", "</s>")
DRAWN = np.random.default_rng(0)
SQUARES = [(2, 2), (4, 4), (12, 12), (30, 30)]
FEW_KEYS = [(10, 4), (15, 5), (20, 6), (60, 3), (4, 1)]
WORD = "Donaudampfschifffahrtsgesellschaftskapitänsmütze"


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


def bar_label(ax: Any) -> str:
    return str(drawn(ax).colorbar.ax.get_ylabel())


def test_a_heat_map_shows_queries_down_and_keys_across() -> None:
    maps = array()
    ax = heatmap(maps, layer=5)
    image = drawn(ax)
    assert np.array_equal(image.get_array(), maps.values[1])
    assert image.origin == "upper"
    assert image.get_clim() == (0, maps.values[1].max())
    assert names(ax.get_yticklabels()) == list(TARGET)
    assert names(ax.get_xticklabels()) == list(SOURCE)
    assert ax.get_yticks().tolist() == [0, 1, 2]
    assert ax.get_xticks().tolist() == [0, 1, 2, 3, 4]
    assert ax.get_ylabel() == "To these tokens (queries)"
    assert ax.get_xlabel() == "From these tokens (keys)"
    assert "layer 5" in ax.get_title()


def test_tokens_are_no_formulas() -> None:
    ax = heatmap(array(), layer=2)
    for label in [*ax.get_xticklabels(), *ax.get_yticklabels()]:
        assert not label.get_parse_math()
        assert not label.get_usetex()
    figure_of(ax).savefig(io.BytesIO(), format="png")  # broken mathtext fails only when drawn


def test_marks_of_spaces_are_not_drawn() -> None:
    shown = Tokens(("The", "Ġcat", "Ġ", "Ċ"), None, (False,) * 4, ("The", "cat", " ", "\n"))
    both = {"query": shown, "key": shown}
    maps = LabelledArray(np.ones((4, 4)), ("query", "key"), both, {}, "attn_n")
    assert names(plots.heatmap(maps).get_xticklabels()) == ["The", "cat", "Ġ", "Ċ"]


def test_control_characters_are_written_out() -> None:
    odd = tokens(("a\nb", "c\x07", "d"))
    odd_maps = replace(array(), tokens={"query": odd, "key": tokens(SOURCE)})
    assert names(heatmap(odd_maps, layer=2).get_yticklabels()) == ["a\\nb", "c\\x07", "d"]


def test_heads() -> None:
    maps = array("attn_w", heads=3)
    ax = heatmap(maps, layer=2, head=1)
    assert np.array_equal(drawn(ax).get_array(), maps.values[0, 1])
    assert ax.get_title() == "Attention weights, layer 2, head 1"
    assert bar_label(ax) == "weight α"
    together = heatmap(array("attn_w"), layer=2)
    assert together.get_title() == "Attention weights (mean over heads), layer 2"
    ax = heatmap(array(heads=3), layer=2, head=1)
    assert ax.get_title() == "Attention norms, layer 2, head 1"
    assert bar_label(ax) == "norm ‖αf(x)‖"
    assert heatmap(array(), layer=2).get_title() == "Attention norms (heads summed), layer 2"


@pytest.mark.parametrize("name", NAMES)
def test_every_map_has_the_title_of_the_table(name: str) -> None:
    ax = heatmap(array(name), layer=5)
    assert ax.get_title().replace("\n", " ").startswith(SCOPES[name].title)
    assert bar_label(ax).startswith(SCOPES[name].unit)
    assert "layer 5" in ax.get_title().replace("\n", " ")


def test_a_selected_array_needs_no_layer() -> None:
    maps = array()
    assert np.array_equal(drawn(heatmap(maps.sel(layer=5))).get_array(), maps.values[1])
    # An axis with one entry leaves no choice.
    assert np.array_equal(drawn(heatmap(maps.sel(layer=[5]))).get_array(), maps.values[1])


def test_normalise_divides_each_row_by_its_sum() -> None:
    maps = array()
    shown = drawn(heatmap(maps, layer=2, normalise=True)).get_array()
    rows = maps.values[0]
    assert np.allclose(shown, [row / row.sum() for row in rows], rtol=1e-15)


def test_compare_draws_both_maps_of_the_layer() -> None:
    both = result()
    axes = compare(both, 5)
    assert axes.shape == (2,)
    assert axes[0].figure is axes[1].figure
    shares = [row_shares(both[name].values[1]) for name in ("attn_w", "attn_n")]
    for ax, share in zip(axes, shares, strict=True):
        assert_allclose(drawn(ax).get_array(), share, rtol=1e-15)
        assert drawn(ax).get_clim() == (0, np.max(shares))  # equal colours are equal shares
    assert drawn(axes[0]).colorbar is None  # one bar for both
    assert bar_label(axes[1]) == "share of each query's total"
    assert axes[0].get_title().startswith("Attention weights")
    assert axes[1].get_title().startswith("Attention norms")
    assert names(axes[0].get_yticklabels()) == list(TARGET)
    assert names(axes[1].get_yticklabels()) == []  # the rows are those of the first panel
    said = figure_of(axes).get_suptitle().replace("\n", " ")
    assert said == headline(both, 5)
    flipped = compare(both, 5, maps=("attn_n", "attn_w"))
    assert_allclose(drawn(flipped[0]).get_array(), shares[1], rtol=1e-15)


def test_compare_with_a_scale_for_each_map() -> None:
    both = result()
    axes = compare(both, 5, normalise=False)
    for ax, name in zip(axes, ("attn_w", "attn_n"), strict=True):
        assert np.array_equal(drawn(ax).get_array(), both[name].values[1])
        assert drawn(ax).get_clim() == (0, both[name].values[1].max())
    assert [bar_label(ax) for ax in axes] == ["weight α", "norm ‖αf(x)‖"]


def test_compare_draws_into_given_axes() -> None:
    mine = Figure().subplots(2, 1)
    axes = compare(result(heads=2), 2, axes=mine, head=0)
    assert axes.tolist() == mine.tolist()
    assert bar_label(mine[1]) == "share of each query's total"
    assert all("layer 2, head 0" in ax.get_title() for ax in mine)  # the figure has no headline
    single = compare(result(), 2, maps="attn_n", axes=Figure().subplots())
    assert single.shape == (1,)
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


def of_shape(queries: int, keys: int, names: Sequence[str], value: float = 1.0) -> Contributions:
    rows, columns = (tokens(tuple(f"t{i}" for i in range(n))) for n in (queries, keys))
    both = {"query": rows, "key": columns}
    values = np.full((12, queries, keys), value)
    maps = {
        name: LabelledArray(values, ("layer", "query", "key"), both, name=name) for name in names
    }
    return Contributions(maps, None, rows, columns)


def test_a_map_of_nothing_has_the_colour_of_zero() -> None:
    nothing = of_shape(3, 5, ["attn_w", "attn_n"], 0.0)
    axes = [
        *compare(nothing, 11),
        *scopes(nothing, 11),
        heatmap(nothing["attn_n"], layer=11, normalise=True),
    ]
    zero = sequential()(0.0, bytes=True)
    for ax in axes:
        image = drawn(ax)
        assert image.get_clim() == (0, 1)
        assert (image.to_rgba(image.get_array(), bytes=True) == zero).all()


def test_colours_differ_in_lightness_alone() -> None:
    colours = sequential()(np.linspace(0, 1, 64))[:, :3]
    luminance = colours @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(luminance) < 0).all()


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


@pytest.mark.parametrize("draw", [compare, scopes, heatmap])
def test_a_long_word_leaves_room_for_the_map_and_its_titles(draw: Any) -> None:
    sentence = tokens(("[CLS]", "Die", WORD, "ist", "blau", ".", "[SEP]"))
    both = {"query": sentence, "key": sentence}
    values = DRAWN.random((1, 7, 7))
    maps = {
        name: LabelledArray(values, ("layer", "query", "key"), both, name=name)
        for name in ("attn_w", "attn_n")
    }
    if draw is heatmap:
        axes = [heatmap(maps["attn_n"], layer=0)]
    else:
        axes = list(draw(Contributions(maps, None, sentence), 0))
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
        "Attention weights",
        "(mean over heads)",
    ]
    (ax,) = compare(of_shape(12, 12, ["attn_w"]), 11, "attn_w")
    assert "\n" not in ax.get_title()


def test_scopes_share_one_scale_of_row_shares() -> None:
    both = figures.result()
    axes = plots.scopes(both, 5)
    assert [ax.get_title().replace("\n", " ") for ax in axes] == [
        SCOPES[name].title for name in ("attn_w", "attn_n", "atb")
    ]
    shares = [row_shares(both[name].values[1]) for name in both]
    for ax, share in zip(axes, shares, strict=True):
        (image,) = ax.get_images()
        assert_allclose(image.get_array(), share, rtol=1e-15)
        assert image.get_clim() == (0, max(values.max() for values in shares))
        assert names(ax.get_xticklabels()) == list(both.tokens.strings)
        assert not any(label.get_parse_math() for label in ax.get_xticklabels())
    assert names(axes[0].get_yticklabels()) == list(both.tokens.strings)
    assert names(axes[1].get_yticklabels()) == []  # the rows are those of the first panel
    assert figure_of(axes).get_suptitle().endswith("layer 5")
    some = plots.scopes(both, 2, ["atb"], columns=1)
    assert_allclose(some[0].get_images()[0].get_array(), row_shares(both["atb"].values[0]))


def test_scopes_stay_on_the_page_and_their_tokens_can_be_read() -> None:
    for count in (40, 128):
        axes = plots.scopes(figures.result(count), 2)
        figure = figure_of(axes)
        assert figure.get_size_inches().max() <= 27
        labels = axes[0].get_yticklabels()
        sizes = {label.get_fontsize() for label in labels}
        assert min(sizes) >= 4.5  # points
        if count == 40:
            assert len(labels) == 40
        # Labels do not run into each other.
        figure.canvas.draw()
        boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: box.y0)
        gaps = [above.y0 - below.y0 for below, above in itertools.pairwise(boxes)]
        assert min(gaps) > 0.9 * min(sizes) * figure.dpi / 72


def test_scopes_refuse_what_they_cannot_draw() -> None:
    with pytest.raises(InputError, match="no map was named"):
        plots.scopes(figures.result(), 2, [])
    with pytest.raises(InputError, match="3 panels need 3 axes, but 2"):
        plots.scopes(figures.result(), 2, axes=Figure().subplots(1, 2))
    with pytest.raises(InputError, match="no layer 0"):
        plots.scopes(figures.result(), 0)
    heads = LabelledArray(
        DRAWN.random((1, 2, 3, 3)),
        ("layer", "head", "query", "key"),
        {"query": figures.tokens(3), "key": figures.tokens(3)},
        name="attn_n",
    )
    each = Contributions({"attn_n": heads}, None, figures.tokens(3))
    with pytest.raises(InputError, match="has 2 heads; choose one with head="):
        plots.scopes(each, 0)
    (ax,) = plots.scopes(each, 0, head=1)
    assert_allclose(ax.get_images()[0].get_array(), row_shares(heads.values[0, 1]))


def test_cells_are_an_image_in_vector_files() -> None:
    svg = saved(plots.scopes(figures.result(60), 2), "svg").decode()
    # The maps and the colour bar are pictures; 3 × 3,600 cells are not 10,800 paths.
    assert svg.count("<image") >= 3
    assert svg.count("<path") < 2000
    assert saved(plots.scopes(figures.result(), 2), "pdf").startswith(b"%PDF")


def test_signed_maps_have_the_diverging_colours_and_a_bar_of_their_own() -> None:
    signed = replace(array("effective"), values=DRAWN.normal(size=(2, 3, 5)), signed=True)
    whole = np.abs(signed.sel(layer=2).values).max()
    image = drawn(heatmap(signed, layer=2))
    assert image.get_cmap().name == plots.style.diverging().name
    assert (image.norm.vmin, image.norm.vmax) == (-whole, whole)
    maps = {"attn_w": array("attn_w"), "effective": signed}
    both = Contributions(maps, None, tokens(TARGET), tokens(SOURCE))
    for axes in (compare(both, 2, ["attn_w", "effective"]), scopes(both, 2)):
        first, second = (drawn(ax) for ax in axes)
        assert first.norm.vmin == 0
        assert second.norm.vmin == -second.norm.vmax
        assert second.get_cmap().name != first.get_cmap().name
        assert second.colorbar is not first.colorbar
        shares = np.abs(second.get_array()).sum(axis=-1)
        assert_allclose(shares, 1)
