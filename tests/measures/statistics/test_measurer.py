"""Every statistic equals the papers' equations, computed slowly, whatever the batches."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import spearmanr

import normscope
from normscope.measures.statistics import NAMES, Settings, Table
from normscope.measures.statistics.hashing import resampling_weights
from tests.helpers.slow_statistics import (
    COMMA,
    PERIOD,
    Slow,
    bert,
    column,
    corpus,
    measured,
    slow_corpus,
    tokenizer,
)

EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
ROWS = corpus()
CATEGORIES = {"<s>": [0], "</s>": [2], "comma_period": [COMMA, PERIOD]}


@pytest.fixture(scope="module")
def slow() -> list[Slow]:
    return slow_corpus(ROWS)


@pytest.fixture(scope="module")
def masked() -> list[Slow]:
    return slow_corpus(ROWS, 0.12)


@pytest.fixture(scope="module")
def tables() -> dict[str, dict[str, Table]]:
    return measured(NAMES, ROWS)


def of_category(one: Slow, name: str) -> Any:
    if name != "others":
        return np.isin(one.ids, CATEGORIES[name])
    return ~np.isin(one.ids, [0, 2, COMMA, PERIOD])


def test_dispersion(slow: list[Slow], tables: dict[str, dict[str, Table]]) -> None:
    table = tables["dispersion"]["transformed_norm"]
    cvs = []
    for layer in range(3):
        for head in range(4):
            pooled = np.concatenate([one.norm[layer, head] for one in slow])
            for name, value in {
                "mean": pooled.mean(),
                "std": pooled.std(),
                "cv": pooled.std() / pooled.mean(),
                "max": pooled.max(),
                "min": pooled.min(),
            }.items():
                assert_allclose(column(table, name, layer=layer, head=head), value, **EXACT)
            cvs.append(pooled.std() / pooled.mean())
    average = tables["dispersion"]["average"]
    assert_allclose(column(average, "cv", of="transformed_norm"), np.mean(cvs), **EXACT)
    for layer in range(3):
        lengths = np.concatenate([np.linalg.norm(one.x[layer], axis=-1) for one in slow])
        row = tables["dispersion"]["input_norm"]
        assert_allclose(column(row, "mean", layer=layer), lengths.mean(), **EXACT)
        assert_allclose(column(row, "std", layer=layer), lengths.std(), **EXACT)
        assert_allclose(column(row, "max", layer=layer), lengths.max(), **EXACT)
        assert_allclose(column(row, "min", layer=layer), lengths.min(), **EXACT)


def in_categories(one: Slow, name: str) -> Any:
    """(what, layer, head) of one sequence; None where it has no such token."""
    where = of_category(one, name)
    if not where.any():
        return None
    weighted = one.alpha * one.norm[:, :, None]
    return np.stack(
        [
            one.alpha[..., where].sum(axis=-1).mean(axis=-1),
            weighted[..., where].sum(axis=-1).mean(axis=-1),
            one.norm[..., where].mean(axis=-1),
        ]
    )


def test_categories(slow: list[Slow], tables: dict[str, dict[str, Table]]) -> None:
    made = tables["categories"]
    for name in (*CATEGORIES, "others"):
        found = [in_categories(one, name) for one in slow]
        there = [one for one in found if one is not None]
        mean = np.mean(there, axis=0)
        assert (name == "comma_period") == (len(there) < len(slow))
        assert column(made["categories"], "sequences", category=name) == len(there)
        for what, values in zip(("alpha", "weighted_norm", "transformed_norm"), mean, strict=True):
            assert_allclose(column(made["heads"], what, category=name), values.ravel(), **EXACT)
            by_layer = column(made["layers"], what, category=name)
            assert_allclose(by_layer, values.mean(axis=1), **EXACT)
            assert_allclose(column(made["categories"], what, category=name), values.mean(), **EXACT)


def pairs(slow: list[Slow], name: str) -> tuple[Any, Any]:
    alpha, norm = [], []
    for one in slow:
        where = of_category(one, name)
        cells = one.alpha[..., where]
        alpha.append(cells.ravel())
        norm.append(np.broadcast_to(one.norm[:, :, None, where], cells.shape).ravel())
    return np.concatenate(alpha), np.concatenate(norm)


def test_alpha_against_norm(
    slow: list[Slow], tables: dict[str, dict[str, Table]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normscope.measures.statistics.alpha_vs_norm.FEW", 100)
    sketched = measured("alpha_vs_norm", ROWS)["alpha_vs_norm"]["spearman"]
    exact = tables["alpha_vs_norm"]["spearman"]
    for name in (*CATEGORIES, "others"):
        alpha, norm = pairs(slow, name)
        rho = spearmanr(alpha, norm).statistic
        assert column(exact, "pairs", category=name) == len(alpha)
        assert_allclose(column(exact, "spearman", category=name), rho, rtol=1e-12)
        assert column(exact, "bound", category=name) == 0
        assert column(sketched, "pairs", category=name) == len(alpha)
        gap = abs(column(sketched, "spearman", category=name) - rho)
        assert 0 < gap <= min(0.002, column(sketched, "bound", category=name)[0])


def test_the_scatter_sample_is_of_true_pairs(slow: list[Slow]) -> None:
    by_key = {one.row.key: one for one in slow}
    table = measured("alpha_vs_norm", ROWS, Settings(scatter=7))["alpha_vs_norm"]["scatter"]
    assert len(table) > 10
    for pair in table.rows():
        one = by_key[pair["sequence"]]
        place = pair["layer"], pair["head"]
        assert_allclose(pair["alpha"], one.alpha[(*place, pair["query"], pair["key"])], rtol=1e-12)
        assert_allclose(pair["transformed_norm"], one.norm[(*place, pair["key"])], rtol=1e-12)
        assert of_category(one, pair["category"])[pair["key"]]
    cells = [tuple(p[n] for n in ("sequence", "layer", "head", "query", "key"))
             for p in table.rows()]  # fmt: skip
    assert len(set(cells)) == len(cells)
    counts = [len(column(table, "alpha", category=name)) for name in (*CATEGORIES, "others")]
    assert max(counts) == 7


def strings_of_ids() -> list[str]:
    """The model has three ids more than its tokenizer."""
    found = tokenizer().convert_ids_to_tokens(list(range(60)))
    assert found[57:] == [None] * 3
    return [f"id {i}" if one is None else one for i, one in enumerate(found)]


def points(slow: list[Slow]) -> dict[str, Any]:
    """Per token of the corpus, in order."""
    ratios = [one.ratios() for one in slow]
    return {
        "alpha": np.concatenate([one.alpha.mean(axis=(0, 1, 2)) for one in slow]),
        "transformed_norm": np.concatenate([one.norm.mean(axis=(0, 1)) for one in slow]),
        **{name: np.concatenate([r[name].mean(axis=0) for r in ratios]) for name in ratios[0]},
    }


@pytest.mark.parametrize("ranks", ["ids", "corpus", "file"])
def test_frequency(slow: list[Slow], ranks: str, tmp_path: Path) -> None:
    ids = np.concatenate([one.ids for one in slow])
    special = np.concatenate([one.row.special for one in slow])
    if ranks == "ids":
        # Comma, period, </s>, <s>; then the ids of more than one letter that are not special.
        strings = strings_of_ids()
        order = [COMMA, PERIOD, 2, 0]
        order += [i for i in range(4, 60) if len(strings[i].strip("#")) > 1 and i not in order]
        order = [i for i in order if not strings[i].startswith("id ")]
        assert strings[5] == "a"
        rank = np.array([order.index(i) if i in order else -1 for i in ids], dtype=float)
        source = "ids"
    elif ranks == "corpus":
        counts = np.bincount(ids)
        rank, source = -counts[ids].astype(float), "corpus"
    else:
        draw = np.random.default_rng(5).permutation(60) + 1
        lines = [f"{draw[i]} {1000 - draw[i]} {i}" for i in range(50)]
        (tmp_path / "ranks.txt").write_text("\n".join(lines) + "\n")
        rank = np.where(ids < 50, draw[ids], -1).astype(float)
        source = str(tmp_path / "ranks.txt")
    table = measured("frequency", ROWS, Settings(ranks=source))["frequency"]["frequency"]
    ranked = rank >= 0 if ranks != "corpus" else np.ones(len(ids), dtype=bool)
    assert ranked.sum() > 40
    for name, values in points(slow).items():
        for chosen, suffix in ((ranked, ""), (ranked & ~special, "_without_special")):
            rho = spearmanr(rank[chosen], values[chosen]).statistic
            assert_allclose(column(table, f"spearman{suffix}", of=name), rho, rtol=1e-9, atol=1e-12)
            assert column(table, f"tokens{suffix}", of=name) == chosen.sum()


def test_mixing(masked: list[Slow], tables: dict[str, dict[str, Table]]) -> None:
    made = tables["mixing"]
    ratios = [one.ratios() for one in masked]
    wheres = {
        "normal": lambda one: ~np.array(one.row.special) & ~one.masked,
        "<s>": lambda one: one.ids == 0,
        "</s>": lambda one: one.ids == 2,
        "<unk>": lambda one: one.masked,
        "all": lambda one: np.ones(len(one.ids), dtype=bool),
    }
    assert list(dict.fromkeys(made["layers"].columns["category"])) == list(wheres)
    for name in ratios[0]:
        pooled = 100 * np.concatenate([r[name].ravel() for r in ratios])
        for what, value in (("mean", pooled.mean()), ("max", pooled.max()), ("min", pooled.min())):
            assert_allclose(column(made["mixing"], what, analysis=name), value, rtol=1e-9)
        for category, where in wheres.items():
            rows = [(r[name], where(one)) for r, one in zip(ratios, masked, strict=True)]
            by_layer = np.mean([100 * r[:, w].mean(axis=1) for r, w in rows if w.any()], axis=0)
            found = column(made["layers"], "mean", category=category, analysis=name)
            assert_allclose(found, by_layer, rtol=1e-9)
        depth = spearmanr(range(3), column(made["layers"], "mean", category="all", analysis=name))
        assert_allclose(column(made["depth"], "spearman", analysis=name), depth.statistic)


def test_mixing_without_masks(slow: list[Slow]) -> None:
    made = measured("mixing", ROWS, Settings(masking=0))["mixing"]
    pooled = np.concatenate([one.ratios()["attn_res_ln_n"].ravel() for one in slow])
    found = column(made["mixing"], "mean", analysis="attn_res_ln_n")
    assert_allclose(found, 100 * pooled.mean(), rtol=1e-9)
    assert "<unk>" not in made["layers"].columns["category"]


def test_preserve_mix(slow: list[Slow], tables: dict[str, dict[str, Table]]) -> None:
    table = tables["preserve_mix"]["preserve_mix"]
    vectors = {"attn_n": "s", "attn_res_n": "z", "attn_res_ln_n": "p"}
    for layer in range(3):
        expected = {
            "input_norm": np.concatenate([np.linalg.norm(o.x[layer], axis=-1) for o in slow]),
            "total_norm": np.concatenate(
                [np.linalg.norm(o.s[layer].sum(axis=1), axis=-1) for o in slow]
            ),
            "norm_scale": np.concatenate(
                [np.abs(o.gamma[layer]).mean() / o.sigma[layer] for o in slow]
            ),
        }
        for name, letter in vectors.items():
            kept, mixed = [], []
            for one in slow:
                v = getattr(one, letter)[layer]
                for i in range(len(v)):
                    kept.append(np.linalg.norm(v[i, i]))
                    mixed.append(np.linalg.norm(v[i].sum(axis=0) - v[i, i]))
            expected |= {f"{name}_preserved": np.array(kept), f"{name}_mixed": np.array(mixed)}
        for name, values in expected.items():
            assert_allclose(column(table, name, layer=layer), values.mean(), rtol=1e-9)


def analysed(maps: list[str]) -> list[Any]:
    model, results = bert(), []
    for row in ROWS:
        inputs = {"input_ids": torch.tensor([row.ids]), "token_type_ids": torch.tensor([row.types])}
        results += normscope.analyze_inputs(model, inputs, maps=maps)
    return results


def test_change_and_amplification(tables: dict[str, dict[str, Table]]) -> None:
    scopes = ["atb", "atb_ff", "atb_ff_res", "atb_ff_res_ln"]
    results = analysed(scopes)
    table = tables["change"]["change"]
    for before, after in pairwise(scopes):
        each = [normscope.comparison.contextualization_change(r[before], r[after]) for r in results]
        found = column(table, "change", step=f"{before} → {after}")
        assert_allclose(found, np.mean(each, axis=0), rtol=1e-9)
    for layer in range(3):
        cells = []
        for row, result in zip(ROWS, results, strict=True):
            grown = normscope.comparison.amplification(result["atb"], result["atb_ff"]).top(
                None, layer
            )
            cells += [(-pair.difference, row.key, pair.query, pair.key) for pair in grown]
        top = sorted(cells)[:20]
        few = measured("amplification", ROWS, Settings(top=20))["amplification"]
        assert_allclose(-column(few["cells"], "difference", layer=layer), [c[0] for c in top])
        for name, place in (("sequence", 1), ("query", 2), ("key", 3)):
            assert column(few["cells"], name, layer=layer).tolist() == [c[place] for c in top]
        ids = {row.key: row.ids for row in ROWS}
        strings = strings_of_ids()
        named = [(strings[ids[k][i]], strings[ids[k][j]]) for _, k, i, j in top]
        for pair in few["pairs"].rows():
            if pair["layer"] == layer:
                alike = [c for c, n in zip(top, named, strict=True)
                         if n == (pair["query_token"], pair["key_token"])]  # fmt: skip
                assert pair["count"] == len(alike)
                assert_allclose(pair["max_difference"], -alike[0][0])
                assert_allclose(pair["mean_difference"], np.mean([-c[0] for c in alike]))
        assert column(few["pairs"], "count", layer=layer).sum() == 20


def equal(one: dict[str, dict[str, Table]], other: dict[str, dict[str, Table]]) -> None:
    for statistic, made in one.items():
        for name, table in made.items():
            for what, values in table.columns.items():
                again = np.asarray(other[statistic][name].columns[what])
                if again.dtype.kind == "f":
                    assert_allclose(again, values, rtol=1e-9, atol=1e-12, err_msg=f"{name} {what}")
                else:
                    assert_array_equal(again, values, err_msg=f"{statistic} {name} {what}")


def shuffled(seed: int) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(ROWS)).tolist()
    cuts = sorted(draw.choice(range(1, len(ROWS)), seed, replace=False).tolist())
    return [order[a:b] for a, b in pairwise([0, *cuts, len(ROWS)])]


SOME = Settings(replicates=20, scatter=9, top=25)


@pytest.fixture(scope="module")
def whole() -> dict[str, dict[str, Table]]:
    return measured(NAMES, ROWS, SOME)


@pytest.mark.parametrize("seed", [1, 4, 8])
def test_batches_and_their_order_change_nothing(
    whole: dict[str, dict[str, Table]], seed: int
) -> None:
    equal(whole, measured(NAMES, ROWS, SOME, shuffled(seed)))


def test_a_sketch_is_the_same_in_any_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.measures.statistics.alpha_vs_norm.FEW", 100)
    split = [[5, 0], [8, 7, 1], [2], [6, 4, 3]]
    one, other = (measured("alpha_vs_norm", ROWS, split=s) for s in (None, split))
    equal(one, other)


def test_intervals_are_those_of_resampled_sequences(slow: list[Slow]) -> None:
    """Each replicate counts each sequence so often, in every mean."""
    some = Settings(replicates=40, confidence=0.9, seed=3)
    keys = np.array([row.key for row in ROWS])
    times = resampling_weights(keys, 3, 40)[1:].astype(int)
    assert not (times == 1).all(axis=1).any()
    made = measured(["dispersion", "preserve_mix", "categories"], ROWS, some)
    cvs, lengths, commas = [], [], []
    for often in times:
        again = [one for one, n in zip(slow, often, strict=True) for _ in range(n)]
        pooled = np.concatenate([one.norm[1, 2] for one in again])
        cvs.append(pooled.std() / pooled.mean())
        x = np.concatenate([np.linalg.norm(one.x[2], axis=-1) for one in again])
        lengths.append(x.mean())
        found = [in_categories(one, "comma_period") for one in again]
        commas.append(np.mean([one[0].mean() for one in found if one is not None]))
    row = {"layer": 1, "head": 2}
    table = made["dispersion"]["transformed_norm"]
    for bound, share in (("low", 0.05), ("high", 0.95)):
        assert_allclose(column(table, f"cv_{bound}", **row), np.quantile(cvs, share), rtol=1e-9)
        length = column(made["preserve_mix"]["preserve_mix"], f"input_norm_{bound}", layer=2)
        assert_allclose(length, np.quantile(lengths, share), rtol=1e-9)
        weight = column(made["categories"]["categories"], f"alpha_{bound}", category="comma_period")
        assert_allclose(weight, np.quantile(commas, share), rtol=1e-9)
    none = measured("dispersion", ROWS, Settings(replicates=0))["dispersion"]
    assert not any("_low" in name for name in none["transformed_norm"].columns)
