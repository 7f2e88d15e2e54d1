"""Pictures of statistics and of several scopes: what is drawn, not how its pixels come out."""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Mapping
from itertools import pairwise, product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal

from normscope import Contributions, InputError, LabelledArray, MissingExtraError
from normscope.measures.statistics import Table
from normscope.show import plots
from normscope.show.plots.lines import mixing_by_category
from normscope.show.plots.style import COLOUR_MAP, DASHES, MARKERS, PALETTE
from normscope.show.terminal import row_shares
from normscope.text.tokens import Tokens

DRAWN = np.random.default_rng(0)
GROUPS = ("[CLS]", "$x_1$", "others")
LAYERS, HEADS = 4, 3


def long(**axes: Any) -> dict[str, Any]:
    """Label columns for every combination."""
    rows = list(product(*axes.values()))
    return {name: np.array([row[at] for row in rows]) for at, name in enumerate(axes)}


def by_layer() -> dict[str, Any]:
    table = long(category=GROUPS, layer=range(LAYERS))
    for name in ("alpha", "weighted_norm", "transformed_norm"):
        values = DRAWN.random(len(table["layer"])) + 1
        table |= {name: values, f"{name}_low": values - 0.2, f"{name}_high": values + 0.3}
    return table


def by_head() -> dict[str, Any]:
    table = long(category=GROUPS, layer=range(LAYERS), head=range(HEADS))
    names = ("alpha", "transformed_norm", "weighted_norm")
    return table | {name: DRAWN.random(len(table["layer"])) for name in names}


def tokens(count: int) -> Tokens:
    strings = ("[CLS]", "$x_1$", *(f"piece{i}" for i in range(count - 2)))
    return Tokens(strings, None, (False,) * count, strings)


def result(count: int = 5, maps: tuple[str, ...] = ("attn_w", "attn_n", "atb")) -> Contributions:
    both = {"query": tokens(count), "key": tokens(count)}
    labels = {"layer": (2, 5)}
    made = {
        name: LabelledArray(
            DRAWN.random((2, count, count)), ("layer", "query", "key"), both, labels, name
        )
        for name in maps
    }
    ratios = {
        name: LabelledArray(
            DRAWN.random((2, count)), ("layer", "query"), {"query": tokens(count)}, labels, name
        )
        for name in maps
    }
    return Contributions(made, None, tokens(count), extras={"mixing_ratio": ratios})


def figure_of(axes: Any) -> Figure:
    figure = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()[0].figure
    assert isinstance(figure, Figure)
    return figure


def lines(ax: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in ax.get_lines()}


def entries(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def names(labels: Any) -> list[str]:
    return [label.get_text() for label in labels]


def saved(axes: Any, kind: str = "png") -> bytes:
    file = io.BytesIO()
    figure_of(axes).savefig(file, format=kind)
    return file.getvalue()


# ---- scopes


def test_scopes_share_one_scale_of_row_shares() -> None:
    both = result()
    axes = plots.scopes(both, 5)
    assert [ax.get_title() for ax in axes] == ["weight α", "norm ‖αf(x)‖", "attention block"]
    shares = [row_shares(both[name].values[1]) for name in both]
    for ax, share in zip(axes, shares, strict=True):
        (image,) = ax.get_images()
        assert_allclose(image.get_array(), share, rtol=1e-15)
        assert image.get_clim() == (0, max(one.max() for one in shares))
        assert names(ax.get_xticklabels()) == list(both.tokens.strings)
        assert not any(label.get_parse_math() for label in ax.get_xticklabels())
    assert names(axes[0].get_yticklabels()) == list(both.tokens.strings)
    assert names(axes[1].get_yticklabels()) == []  # the rows are those of the first panel
    assert figure_of(axes).get_suptitle() == "layer 5"
    some = plots.scopes(both, 2, ["atb"], columns=1)
    assert_allclose(some[0].get_images()[0].get_array(), row_shares(both["atb"].values[0]))


def test_scopes_stay_on_the_page_and_their_tokens_can_be_read() -> None:
    for count in (40, 128):
        axes = plots.scopes(result(count), 2)
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
        gaps = [above.y0 - below.y0 for below, above in pairwise(boxes)]
        assert min(gaps) > 0.9 * min(sizes) * figure.dpi / 72


def test_scopes_refuse_what_they_cannot_draw() -> None:
    with pytest.raises(InputError, match="no map was named"):
        plots.scopes(result(), 2, [])
    with pytest.raises(InputError, match="3 panels need 3 axes, but 2"):
        plots.scopes(result(), 2, axes=Figure().subplots(1, 2))
    with pytest.raises(InputError, match="no layer 0"):
        plots.scopes(result(), 0)
    heads = LabelledArray(
        DRAWN.random((1, 2, 3, 3)),
        ("layer", "head", "query", "key"),
        {"query": tokens(3), "key": tokens(3)},
        name="attn_n",
    )
    each = Contributions({"attn_n": heads}, None, tokens(3))
    with pytest.raises(InputError, match="has 2 heads; choose one with head="):
        plots.scopes(each, 0)
    (ax,) = plots.scopes(each, 0, head=1)
    assert_allclose(ax.get_images()[0].get_array(), row_shares(heads.values[0, 1]))


def test_cells_are_an_image_in_vector_files() -> None:
    svg = saved(plots.scopes(result(60), 2), "svg").decode()
    # The maps and the colour bar are pictures; 3 × 3,600 cells are not 10,800 paths.
    assert svg.count("<image") >= 3
    assert svg.count("<path") < 2000
    assert saved(plots.scopes(result(), 2), "pdf").startswith(b"%PDF")


# ---- lines


@pytest.mark.parametrize("kind", ["mapping", "pandas", "statistics"])
def test_categories_draw_a_line_for_each(kind: str) -> None:
    columns = by_layer()
    made = {"mapping": columns, "pandas": pd.DataFrame(columns), "statistics": Table(columns)}
    axes = plots.categories(made[kind])
    assert len(axes) == 2
    for ax, measure in zip(axes, ("alpha", "weighted_norm"), strict=True):
        drawn = lines(ax)
        assert list(drawn) == list(GROUPS)
        bands = ax.collections
        for number, group in enumerate(GROUPS):
            rows = columns["category"] == group
            assert_array_equal(drawn[group].get_xdata(), range(LAYERS))
            assert_array_equal(drawn[group].get_ydata(), columns[measure][rows])
            heights = bands[number].get_paths()[0].vertices[:, 1]
            assert heights.min() == columns[f"{measure}_low"][rows].min()
            assert heights.max() == columns[f"{measure}_high"][rows].max()
        assert ax.get_ylim()[0] == 0
    assert entries(axes[-1]) == list(GROUPS)
    saved(axes)  # $x_1$ is a token; as a formula it would fail or vanish here
    assert not any(text.get_parse_math() for text in axes[-1].get_legend().get_texts())


def test_lines_differ_without_colour_and_in_any_order_of_rows() -> None:
    columns = by_layer()
    order = DRAWN.permutation(len(columns["layer"]))
    shuffled = {name: values[order] for name, values in columns.items()}
    axes = plots.categories(shuffled, ["alpha"], names=GROUPS)
    styles = {(line.get_marker(), line.get_linestyle()) for line in axes[0].get_lines()}
    assert len(styles) == len(GROUPS)
    for group, line in lines(axes[0]).items():
        assert_array_equal(line.get_ydata(), columns["alpha"][columns["category"] == group])
    assert len(set(MARKERS)) == len(set(PALETTE)) == 7
    assert math.gcd(len(DASHES), len(MARKERS)) == 1


def test_mixing_ratio_of_a_result_and_of_a_corpus() -> None:
    one = result()
    ax = plots.mixing_ratio(one)
    for name, label in (("attn_w", "weight α"), ("attn_n", "norm ‖αf(x)‖")):
        line = lines(ax)[label]
        assert_array_equal(line.get_xdata(), [2, 5])
        assert_allclose(line.get_ydata(), 100 * one.mixing_ratio[name].values.mean(axis=1))
    assert ax.get_ylim() == (0, 100)
    table = long(category=("normal", "all"), layer=range(LAYERS), analysis=("attn_w", "attn_n"))
    table["mean"] = 100 * DRAWN.random(len(table["layer"]))
    for category in ("all", "normal"):
        ax = plots.mixing_ratio(table, category=category)
        rows = (table["category"] == category) & (table["analysis"] == "attn_n")
        assert_array_equal(lines(ax)["norm ‖αf(x)‖"].get_ydata(), table["mean"][rows])
    assert entries(plots.mixing_ratio(table, ["attn_w"])) == ["weight α"]
    with pytest.raises(InputError, match=r"no category 'mask'; there is: normal, all"):
        plots.mixing_ratio(table, category="mask")
    bare = Contributions({"attn_w": one["attn_w"]}, None, one.tokens)
    with pytest.raises(InputError, match="no mixing ratios"):
        plots.mixing_ratio(bare)


def test_preserved_and_mixed_and_change() -> None:
    table: dict[str, Any] = {"layer": np.arange(LAYERS)}
    for name in ("attn_n", "attn_res_n"):
        table |= {f"{name}_{what}": DRAWN.random(LAYERS) for what in ("preserved", "mixed")}
    axes = plots.preserved_and_mixed(table)
    assert [ax.get_title() for ax in axes] == ["norm ‖αf(x)‖", "norm, residual"]
    assert_array_equal(lines(axes[1])["mixed"].get_ydata(), table["attn_res_n_mixed"])
    with pytest.raises(InputError, match="no column 'attn_n_preserved'"):
        plots.preserved_and_mixed({"layer": [0]})
    steps = long(layer=range(LAYERS), step=("atb → atb_ff", "atb_ff → atb_ff_res"))
    steps["change"] = DRAWN.random(len(steps["layer"]))
    ax = plots.change(steps)
    assert list(lines(ax)) == [
        "attention block → feed-forward",
        "feed-forward → feed-forward, residual",
    ]
    first = lines(ax)["attention block → feed-forward"]
    assert_array_equal(first.get_ydata(), steps["change"][::2])


def test_singular_values_of_one_head_of_all_and_by_name() -> None:
    values = np.sort(DRAWN.random((LAYERS, HEADS, 6)))[..., ::-1]
    (line,) = plots.singular_values(values[0, 0]).get_lines()
    assert_array_equal(line.get_ydata(), values[0, 0])
    assert_array_equal(line.get_xdata(), range(1, 7))
    ax = plots.singular_values(values)
    drawn = ax.get_lines()
    assert len(drawn) == LAYERS * HEADS
    found = np.array([line.get_ydata() for line in drawn])
    assert_array_equal(found, values.reshape(-1, 6))
    assert len({str(line.get_color()) for line in drawn}) == LAYERS
    assert entries(ax) == [f"layer {n}" for n in range(LAYERS)]
    named = plots.singular_values({"bert": values[0], "gpt2": values[1, 0]})
    assert entries(named) == ["bert", "gpt2"]
    assert len(named.get_lines()) == HEADS + 1
    for wrong in (np.zeros((0,)), np.zeros((1, 1, 1, 1)), 3.0):
        with pytest.raises(InputError, match="singular values come as"):
            plots.singular_values(wrong)


# ---- heads, scatters, frequency


def test_heads_draw_layers_down_and_heads_across_on_one_scale_a_row() -> None:
    table = by_head()
    axes = plots.heads(table)
    assert axes.shape == (3, 3)
    for row, measure in zip(axes, ("alpha", "transformed_norm", "weighted_norm"), strict=True):
        for ax, group in zip(row, GROUPS, strict=True):
            (image,) = ax.get_images()
            rows = table["category"] == group
            assert_array_equal(image.get_array(), table[measure][rows].reshape(LAYERS, HEADS))
            assert image.get_clim() == (0, table[measure].max())
            assert image.origin == "upper"
            assert ax.get_title() == group
            assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")
    saved(axes)
    one = plots.heads(table, "alpha", ["others"])
    assert one.shape == (1,)
    assert one[0].get_title() == "others: weight α"
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
    assert [ax.get_title() for ax in axes] == ["[CLS]   ρ = −0.50", "$x_1$   ρ = 0.00", "others"]
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
    assert names(axes[0].get_yticklabels()) == ["b ← y", "$c$ ← z\\n"]
    assert [bar.get_width() for bar in axes[0].patches] == [9, 5]
    saved(axes)
    assert len(plots.amplified(table, layer=1)) == 1
    with pytest.raises(InputError, match="no layer 7; there is: 0, 1"):
        plots.amplified(table, layer=7)


@pytest.mark.parametrize(
    ("query", "key"),
    [("א" * 9, "ב"), ("א" * 9, "b"), ("a" * 9, "ב"), ("א" * 9, "1"), ("a" * 9, "b")],
)
def test_the_query_is_on_the_left_in_any_writing(query: str, key: str) -> None:
    pairs = {"layer": [0], "query_token": [query], "key_token": [key], "count": [1]}
    (label,) = plots.amplified(pairs)[0].get_yticklabels()
    assert label.get_text().replace("\u200e", "") == f"{query} ← {key}"
    alone = Figure(figsize=(4, 1), dpi=200)
    alone.text(0.1, 0.5, label.get_text(), fontsize=20)
    canvas = FigureCanvasAgg(alone)
    canvas.draw()
    ink = np.asarray(canvas.buffer_rgba())[..., 0] < 128
    across = np.flatnonzero(ink.any(axis=0))
    # The arrow's shaft is the longest stroke; with a long query on its left it is on the right.
    runs = [
        (len(run), float(run.mean()))
        for row in ink
        for run in np.split(
            np.flatnonzero(row), np.flatnonzero(np.diff(np.flatnonzero(row)) > 1) + 1
        )
        if len(run)
    ]
    assert max(runs)[1] > (across[0] + across[-1]) / 2


# ---- all figures of a corpus


def corpus() -> dict[str, Any]:
    steps = long(layer=range(LAYERS), step=("atb → atb_ff",))
    mixing = long(category=("all",), layer=range(LAYERS), analysis=("attn_w",))
    return {
        "dispersion_transformed_norm": {"layer": [0, 0], "head": [0, 1], "cv": [1.0, 2.0]},
        "categories": {"category": GROUPS, "alpha": [1, 2, 3]},
        "categories_layers": by_layer(),
        "categories_heads": by_head(),
        "alpha_vs_norm_spearman": {"category": GROUPS, "spearman": [0.0, 0.1, 0.2]},
        "alpha_vs_norm_scatter": {
            "category": GROUPS,
            "alpha": [0.1, 0.2, 0.3],
            "transformed_norm": [1.0, 2.0, 3.0],
        },
        "frequency": {"of": ["alpha"], "spearman": [0.1]},
        "mixing_layers": mixing | {"mean": np.full(LAYERS, 5.0)},
        "preserve_mix": {"layer": [0], "attn_n_preserved": [1.0], "attn_n_mixed": [2.0]},
        "change": steps | {"change": np.zeros(LAYERS)},
        "amplification_pairs": {
            "layer": [0], "query_token": ["a"], "key_token": ["b"], "count": [1],
        },
        "something_else": {"x": [1]},
    }  # fmt: skip


def test_all_figures_of_a_corpus() -> None:
    tables = corpus()
    figures = plots.statistics_figures({name: Table(table) for name, table in tables.items()})
    assert set(figures) == {
        *("dispersion_transformed_norm", "categories_layers", "categories_heads_alpha"),
        *("categories_heads_transformed_norm", "categories_heads_weighted_norm", "change"),
        *("alpha_vs_norm_scatter", "frequency", "mixing_layers", "preserve_mix"),
        "amplification_pairs",
    }
    for name, figure in figures.items():
        assert isinstance(figure, Figure)
        # So a report finds the table that a figure belongs to.
        assert any(name == table or name.startswith(f"{table}_") for table in tables)
        assert saved(figure.axes[0]).startswith(b"\x89PNG")
    titles = [ax.get_title() for ax in figures["alpha_vs_norm_scatter"].axes]
    assert titles[1] == "$x_1$   ρ = 0.10"


def test_figures_for_some_tables_only() -> None:
    assert plots.statistics_figures({}) == {}
    assert plots.statistics_figures({"something_else": {"x": [1]}}) == {}
    empty: dict[str, list[Any]] = {"layer": [], "step": [], "change": []}
    assert plots.statistics_figures({"change": empty}) == {}
    few = {name: table for name, table in corpus().items() if name.startswith("mixing")}
    assert list(plots.statistics_figures(few)) == ["mixing_layers"]


def test_the_real_statistics_can_be_drawn() -> None:
    """Tables as they come from a run, with their real columns."""
    from normscope.measures.statistics import NAMES, Measurer, Row, Settings, choose
    from normscope.models.architectures import tiny_model
    from tests.helpers.tiny import tokenizer

    settings = Settings(replicates=5, masking=0.0)
    statistics = choose(NAMES, settings)
    reader = tokenizer()
    measurer = Measurer(tiny_model("bert"), reader, statistics, settings)
    texts = ("the cat sat on the mat , and looked at it .", "a dog ran over the fence .")
    rows = []
    for key, text in enumerate(texts):
        ids = tuple(reader(text)["input_ids"])
        special = tuple(one in reader.all_special_ids for one in ids)
        rows.append(Row(key, ids, None, special))
    states: Mapping[str, Any] = measurer.measure(rows)
    tables = {}
    for one in statistics:
        for name, table in one.result(states[one.name]).items():
            tables[name if name.startswith(one.name) else f"{one.name}_{name}"] = table
    figures = plots.statistics_figures(tables)
    assert len(figures) == 11
    found = tables["mixing_layers"].columns
    panels = {ax.get_title(): ax for ax in figures["mixing_layers"].axes}
    assert list(panels) == ["normal", "<s>", "</s>", "all"]
    for category, ratios in panels.items():
        assert len(ratios.get_lines()) == 5
        rows_of = (found["category"] == category) & (found["analysis"] == "attn_n")
        assert_array_equal(lines(ratios)["norm ‖αf(x)‖"].get_ydata(), found["mean"][rows_of])


# ---- what all have in common


def test_what_is_no_table_is_refused() -> None:
    for wrong in (3, None, [1, 2], "table"):
        with pytest.raises(InputError, match="a table is a mapping of columns"):
            plots.change(wrong)
    with pytest.raises(InputError, match=re.escape("no category 'x'; there is: [CLS], $x_1$")):
        plots.categories(by_layer(), names=["x"])


LONG = ("Donaudampfschifffahrtsgesellschaftskapitän", "function words and particles of a language")


def test_long_names_stay_in_their_panels() -> None:
    scatter = long(category=LONG, alpha=(0.1, 0.2)) | {"transformed_norm": np.ones(4)}
    rho = {"category": LONG, "spearman": [-0.1, 0.2]}
    mixing = long(category=LONG, layer=range(2), analysis=("attn_w",)) | {"mean": np.ones(4)}
    grid = long(category=LONG, layer=range(2), head=range(2)) | {"alpha": np.ones(8)}
    for axes in (
        plots.alpha_and_norm(scatter, correlations=rho),
        mixing_by_category(mixing),
        plots.heads(grid, "alpha"),
        *(plots.heads(grid, "alpha", [name]) for name in LONG),
    ):
        figure = figure_of(axes)
        figure.draw_without_rendering()
        boxes = [ax.title.get_window_extent() for ax in axes]
        assert all(box.x0 > 0 and box.x1 < figure.bbox.width for box in boxes)
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    layers = long(category=LONG, layer=range(2)) | {"alpha": np.ones(4)}
    shown = ["Donaudampfs…aftskapitän", "function wo… a language"]
    assert entries(plots.categories(layers, ["alpha"])[0]) == shown
    assert entries(plots.singular_values({name: np.ones(3) for name in LONG})) == shown
    pairs = {"layer": [0], "query_token": [LONG[0]], "key_token": ["a"], "count": [1]}
    assert names(plots.amplified(pairs)[0].get_yticklabels()) == ["Donaud…apitän ← a"]


def test_colours_keep_their_order_in_grey() -> None:
    colours = colormaps[COLOUR_MAP](np.linspace(0, 1, 64))[:, :3]
    assert (np.diff(colours @ [0.2126, 0.7152, 0.0722]) > 0).all()


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"normscope\[plots\]"):
        plots.categories(by_layer())
