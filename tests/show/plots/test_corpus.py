"""All figures of a corpus, from made-up tables and from those of a real run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.testing import assert_array_equal

from normscope.measures.statistics import Table
from normscope.show import plots
from tests.helpers.figures import GROUPS, LAYERS, by_head, by_layer, lines, long, saved


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
        special = tuple(token in reader.all_special_ids for token in ids)
        rows.append(Row(key, ids, None, special))
    states: Mapping[str, Any] = measurer.measure(rows)
    tables = {}
    for statistic in statistics:
        for name, table in statistic.result(states[statistic.name]).items():
            full = name if name.startswith(statistic.name) else f"{statistic.name}_{name}"
            tables[full] = table
    figures = plots.statistics_figures(tables)
    assert len(figures) == 11
    found = tables["mixing_layers"].columns
    panels = {ax.get_title(): ax for ax in figures["mixing_layers"].axes}
    assert list(panels) == ["ordinary tokens", "<s>", "</s>", "all tokens"]
    for category, ratios in zip(("normal", "<s>", "</s>", "all"), panels.values(), strict=True):
        assert len(ratios.get_lines()) == 5
        rows_of = (found["category"] == category) & (found["analysis"] == "attn_n")
        assert_array_equal(lines(ratios)["norm ‖αf(x)‖"].get_ydata(), found["mean"][rows_of])
