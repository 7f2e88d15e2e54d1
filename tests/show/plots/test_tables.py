"""Heat maps of heads, scatters, frequency and amplified pairs: what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.testing import assert_array_equal

from normscope import InputError
from normscope.show import plots
from normscope.show.plots.style import label_of
from tests.helpers.figures import DRAWN, GROUPS, HEADS, LAYERS, by_head, lines, names, saved

LABELS = ["[CLS]", "$x_1$", "other tokens"]  # of GROUPS


def test_heads_draw_layers_down_and_heads_across_on_one_scale_a_row() -> None:
    table = by_head()
    axes = plots.heads(table)
    assert axes.shape == (3, 3)
    for row, measure in zip(axes, ("alpha", "transformed_norm", "weighted_norm"), strict=True):
        for number, (ax, group) in enumerate(zip(row, GROUPS, strict=True)):
            (image,) = ax.get_images()
            rows = table["category"] == group
            assert_array_equal(image.get_array(), table[measure][rows].reshape(LAYERS, HEADS))
            assert image.get_clim() == (0, table[measure].max())
            assert image.origin == "upper"
            assert ax.get_ylabel() == ("" if number else "layer")
        assert row[-1].get_images()[0].colorbar.ax.get_ylabel() == label_of(measure)
    assert [ax.get_title() for ax in axes.ravel()] == [*LABELS, *[""] * 6]
    assert [ax.get_xlabel() for ax in axes.ravel()] == [*[""] * 6, *["head"] * 3]
    saved(axes)
    single = plots.heads(table, "alpha", ["others"])
    assert single.shape == (1,)
    assert single[0].get_title() == "other tokens: weight α"
    mine = Figure().subplots(1, 3)
    assert plots.heads(table, "alpha", axes=mine).tolist() == mine.tolist()


def test_heads_of_a_table_without_categories_and_with_gaps() -> None:
    table = {"layer": [1, 0, 1], "head": [0, 1, 1], "cv": [1.0, 2.0, 3.0], "cv_low": [0, 0, 0]}
    (ax,) = plots.heads(table)
    shown = ax.get_images()[0].get_array()
    assert shown.mask.tolist() == [[True, False], [False, False]]
    assert shown[1].tolist() == [1.0, 3.0]
    assert ax.get_title() == "σ / mean of ‖f(x)‖"
    with pytest.raises(InputError, match="no measure 'alpha'"):
        plots.heads(table, "alpha")
    with pytest.raises(InputError, match="no column 'head'; it has: layer"):
        plots.heads({"layer": [1]})


def test_alpha_and_norm_scatter_by_category_with_their_correlation() -> None:
    count = 90
    table = {
        "category": np.repeat(GROUPS, count // 3),
        "alpha": DRAWN.random(count),
        "transformed_norm": DRAWN.random(count) * np.repeat([1, 5, 20], count // 3),
    }
    correlations = {"category": ["[CLS]", "$x_1$"], "spearman": [-0.5, -0.001]}
    axes = plots.alpha_and_norm(table, correlations=correlations)
    assert [ax.get_title() for ax in axes] == ["[CLS]   ρ = −0.50", "$x_1$   ρ = 0.00", LABELS[2]]
    for ax, group in zip(axes, GROUPS, strict=True):
        (points,) = ax.collections
        rows = table["category"] == group
        expected = np.column_stack([table["alpha"][rows], table["transformed_norm"][rows]])
        assert_array_equal(points.get_offsets(), expected)
        assert points.get_rasterized()
        assert ax.get_ylim()[1] >= table["transformed_norm"].max()  # none is cut off
    assert plots.alpha_and_norm(table, ["others"], log=True)[0].get_xscale() == "log"


def test_frequency_as_points_and_as_correlations() -> None:
    points = {
        "rank": np.arange(1, 41),
        "alpha": DRAWN.random(40),
        "transformed_norm": DRAWN.random(40),
        "special": np.arange(40) < 4,
    }
    axes = plots.frequency(points)
    assert [ax.get_ylabel() for ax in axes] == ["weight α", "norm ‖f(x)‖"]
    plain, special = axes[0].collections
    assert_array_equal(plain.get_offsets()[:, 0], range(5, 41))
    assert_array_equal(special.get_offsets()[:, 1], points["alpha"][:4])
    assert axes[0].get_xscale() == "log"
    summary = {
        "of": ["alpha", "attn_w"],
        "spearman": [0.1, -0.4],
        "spearman_without_special": [0.3, -0.2],
    }
    (ax,) = plots.frequency(summary)
    assert names(ax.get_yticklabels()) == ["weight α", "mixing ratio: weight α"]
    assert_array_equal(lines(ax)["all tokens"].get_xdata(), [0.1, -0.4])
    assert_array_equal(lines(ax)["without special"].get_xdata(), [0.3, -0.2])
    with pytest.raises(InputError, match="no column 'of', 'spearman'"):
        plots.frequency({"x": [1]})


def test_amplified_pairs_of_each_layer() -> None:
    table = {
        "layer": [0, 0, 0, 1],
        "query_token": ["a", "b", "$c$", "d"],
        "key_token": ["x", "y", "z\n", "w"],
        "count": [2, 9, 5, 1],
    }
    axes = plots.amplified(table, top=2)
    assert [ax.get_title() for ax in axes] == ["layer 0", "layer 1"]
    assert names(axes[0].get_yticklabels()) == ["“y” → “b”", "“z\\n” → “$c$”"]
    assert [ax.get_xlabel() for ax in axes] == ["occurrences"] * 2
    assert axes[0].get_xlim() == axes[1].get_xlim()  # bars can be compared
    assert [bar.get_width() for bar in axes[0].patches] == [9, 5]
    saved(axes)
    assert len(plots.amplified(table, layer=1)) == 1
    with pytest.raises(InputError, match="no layer 7; there is: 0, 1"):
        plots.amplified(table, layer=7)


@pytest.mark.parametrize(
    ("query", "key"),
    [("א" * 9, "ב"), ("א" * 9, "b"), ("a" * 9, "ב"), ("א" * 9, "1"), ("a" * 9, "b")],
)
def test_the_key_is_on_the_left_in_any_writing(query: str, key: str) -> None:
    pairs = {"layer": [0], "query_token": [query], "key_token": [key], "count": [1]}
    (label,) = plots.amplified(pairs)[0].get_yticklabels()
    assert label.get_text().replace("\u200e", "") == f"“{key}” → “{query}”"
    alone = Figure(figsize=(4, 1), dpi=200)
    alone.text(0.1, 0.5, label.get_text(), fontsize=20)
    canvas = FigureCanvasAgg(alone)
    canvas.draw()
    ink = np.asarray(canvas.buffer_rgba())[..., 0] < 128
    across = np.flatnonzero(ink.any(axis=0))
    # The arrow's shaft is the longest stroke; with a long query on its right it is on the left.
    runs = [
        (len(run), float(run.mean()))
        for row in ink
        for run in np.split(
            np.flatnonzero(row), np.flatnonzero(np.diff(np.flatnonzero(row)) > 1) + 1
        )
        if len(run)
    ]
    assert max(runs)[1] < (across[0] + across[-1]) / 2
