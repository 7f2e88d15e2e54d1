"""Lines by layer: what is drawn, not how its pixels come out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from normscope import Contributions, InputError
from normscope.measures.statistics import Table
from normscope.show import plots
from normscope.show.palette import CATEGORIES
from normscope.show.plots.style import DASHES, MARKERS
from tests.helpers.figures import (
    DRAWN,
    GROUPS,
    HEADS,
    LAYERS,
    by_layer,
    entries,
    figure_of,
    lines,
    long,
    result,
    saved,
)

LABELS = ["[CLS]", "$x_1$", "other tokens"]  # of GROUPS


@pytest.mark.parametrize("kind", ["mapping", "pandas", "statistics"])
def test_categories_draw_a_line_for_each(kind: str) -> None:
    columns = by_layer()
    made = {"mapping": columns, "pandas": pd.DataFrame(columns), "statistics": Table(columns)}
    axes = plots.categories(made[kind])
    assert len(axes) == 2
    for ax, measure in zip(axes, ("alpha", "weighted_norm"), strict=True):
        drawn = lines(ax)
        assert list(drawn) == LABELS
        bands = ax.collections
        for number, group in enumerate(GROUPS):
            rows = columns["category"] == group
            line = drawn[LABELS[number]]
            assert_array_equal(line.get_xdata(), range(LAYERS))
            assert_array_equal(line.get_ydata(), columns[measure][rows])
            heights = bands[number].get_paths()[0].vertices[:, 1]
            assert heights.min() == columns[f"{measure}_low"][rows].min()
            assert heights.max() == columns[f"{measure}_high"][rows].max()
        assert ax.get_ylim()[0] == 0
    assert entries(axes[-1]) == LABELS
    assert figure_of(axes).get_suptitle() == (
        "Weight α and norm ‖αf(x)‖ by layer and category of token"
    )
    saved(axes)  # $x_1$ is a token; as a formula it would fail or vanish here
    assert not any(text.get_parse_math() for text in axes[-1].get_legend().get_texts())


def test_lines_differ_without_colour_and_in_any_order_of_rows() -> None:
    columns = by_layer()
    order = DRAWN.permutation(len(columns["layer"]))
    shuffled = {name: values[order] for name, values in columns.items()}
    axes = plots.categories(shuffled, ["alpha"], names=GROUPS)
    styles = {(line.get_marker(), line.get_linestyle()) for line in axes[0].get_lines()}
    assert len(styles) == len(GROUPS)
    for group, line in zip(GROUPS, lines(axes[0]).values(), strict=True):
        assert_array_equal(line.get_ydata(), columns["alpha"][columns["category"] == group])
    assert len(set(MARKERS)) == len(set(CATEGORIES)) == 7
    assert math.gcd(len(DASHES), len(MARKERS)) == 1


def test_mixing_ratio_of_a_result_and_of_a_corpus() -> None:
    contributions = result()
    ax = plots.mixing_ratio(contributions)
    for name, label in (("attn_w", "weight α"), ("attn_n", "norm ‖αf(x)‖")):
        line = lines(ax)[label]
        assert_array_equal(line.get_xdata(), [2, 5])
        assert_allclose(
            line.get_ydata(), 100 * contributions.mixing_ratio[name].values.mean(axis=1)
        )
    assert ax.get_yticks().tolist() == [0, 20, 40, 60, 80, 100]
    assert ax.get_ylim()[0] == 0
    table = long(category=("normal", "all"), layer=range(LAYERS), analysis=("attn_w", "attn_n"))
    table["mean"] = 100 * DRAWN.random(len(table["layer"]))
    for category in ("all", "normal"):
        ax = plots.mixing_ratio(table, category=category)
        rows = (table["category"] == category) & (table["analysis"] == "attn_n")
        assert_array_equal(lines(ax)["norm ‖αf(x)‖"].get_ydata(), table["mean"][rows])
    assert entries(plots.mixing_ratio(table, ["attn_w"])) == ["weight α"]
    with pytest.raises(InputError, match=r"no category 'mask'; there is: normal, all"):
        plots.mixing_ratio(table, category="mask")
    bare = Contributions({"attn_w": contributions["attn_w"]}, None, contributions.tokens)
    with pytest.raises(InputError, match="no mixing ratios"):
        plots.mixing_ratio(bare)


def test_preserved_and_mixed_and_change() -> None:
    table: dict[str, Any] = {"layer": np.arange(LAYERS)}
    for name in ("attn_n", "attn_res_n"):
        table |= {f"{name}_{what}": DRAWN.random(LAYERS) for what in ("preserved", "mixed")}
    axes = plots.preserved_and_mixed(table)
    assert [ax.get_title() for ax in axes] == ["Attention norms", "Norms with the residual"]
    mixed = lines(axes[1])["from other tokens"]
    assert_array_equal(mixed.get_ydata(), table["attn_res_n_mixed"])
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
        with pytest.raises(InputError, match="singular values must have the shape"):
            plots.singular_values(wrong)
