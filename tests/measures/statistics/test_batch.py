"""Padded batches of several families have the numbers of each sequence analysed alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import normscope
from normscope.measures.statistics import Measurer, Row, StatisticSettings, choose
from normscope.models.architectures import tiny_model
from tests.helpers import tiny
from tests.helpers.slow_statistics import column, corpus

ROWS = corpus()


@pytest.mark.parametrize(
    "name",
    [
        "distilbert",
        "albert",
        "modernbert",
        "gpt2",
        "llama",
        "gemma2",
        "gpt_neox",
        "olmo2",
        "granite",
    ],
)
def test_other_families(name: str) -> None:
    """Ratios and lengths of padded batches are those of each sequence analysed alone."""
    model, reader = tiny_model(name), tiny.tokenizer(pair=False)
    settings = StatisticSettings(masking=0, replicates=0)
    statistics = choose(["mixing", "categories", "alpha_vs_norm", "preserve_mix"], settings)
    measurer = Measurer(model, reader, statistics, settings)
    rows = [Row(row.key, row.ids, None, row.special) for row in ROWS[:4]]
    states = measurer.measure(rows)
    table = statistics[0].result(states["mixing"])["mixing"]
    pooled: dict[str, list[Any]] = {}
    pairs = 0
    for row in rows:
        inputs = {"input_ids": torch.tensor([row.ids])}
        maps = [n for n in table.columns["analysis"] if n != "attn_res_w"]
        (result,) = normscope.analyze_inputs(model, inputs, maps=maps)
        for analysis in maps:
            pooled.setdefault(analysis, []).append(result.mixing_ratio[analysis].values.ravel())
        (each,) = normscope.analyze_inputs(model, inputs, maps=["attn_w"], heads="each")
        pairs += int(np.count_nonzero(each["attn_w"].values))
    for analysis, ratios in pooled.items():
        expected = 100 * np.concatenate(ratios).mean()
        assert_allclose(column(table, "mean", analysis=analysis), expected, rtol=1e-6)
    spearman = statistics[2].result(states["alpha_vs_norm"])["spearman"]
    assert sum(spearman.columns["pairs"]) == pairs  # what a mask forbids is no pair


def test_minilm() -> None:
    """Real weights in float32: percent by percent what the maps say."""
    from normscope.models import load

    model, reader = load()
    assert reader is not None
    texts = ["Anna baked a cake, and Tom ate most of it.", "No comma here"]
    rows = []
    for key, text in enumerate(texts):
        made = reader(text, return_special_tokens_mask=True)
        special = tuple(map(bool, made["special_tokens_mask"]))
        rows.append(Row(key, tuple(made["input_ids"]), None, special))
    settings = StatisticSettings(masking=0)
    statistics = choose(["mixing", "dispersion"], settings)
    states = Measurer(model, reader, statistics, settings).measure(rows)
    maps = ["attn_w", "attn_n", "attn_res_n", "attn_res_ln_n"]
    results = normscope.analyze(model, reader, texts, maps=maps)
    table = statistics[0].result(states["mixing"])["mixing"]
    for name in maps:
        pooled = np.concatenate([r.mixing_ratio[name].values.ravel() for r in results])
        assert_allclose(column(table, "mean", analysis=name), 100 * pooled.mean(), rtol=1e-5)
        assert_allclose(column(table, "max", analysis=name), 100 * pooled.max(), rtol=1e-5)
    norms = np.concatenate([r.transformed_norm.values[3, 7] for r in results])
    spread = statistics[1].result(states["dispersion"])["transformed_norm"]
    assert_allclose(column(spread, "std", layer=3, head=7), norms.std(), rtol=1e-5)
