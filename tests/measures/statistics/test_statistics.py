"""What surrounds the numbers: rows, settings, categories, masks, families, errors, checks."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import poisson, spearmanr

import normscope
from normscope.errors import ExactnessError, InputError
from normscope.measures.statistics import (
    NAMES,
    Measurer,
    Row,
    Settings,
    Table,
    choose,
    frequency,
    merge,
)
from normscope.measures.statistics.frequency import Frequency
from normscope.measures.statistics.hashing import masked_positions, resampling_weights
from normscope.measures.statistics.joint import add_up, correlation, count_pairs
from normscope.measures.statistics.moments import merge_moments, moments, spread
from normscope.models.architectures import tiny_model
from tests.helpers import tiny
from tests.helpers.slow_statistics import (
    COMMA,
    PERIOD,
    bert,
    column,
    corpus,
    measured,
    slow_corpus,
    tokenizer,
)

ROWS = corpus()


# ---- chance


def test_replicates_are_poisson_and_depend_on_the_sequence_alone() -> None:
    keys = np.arange(2000)
    drawn = resampling_weights(keys, 0, 50)
    assert (drawn[0] == 1).all()
    for times in range(5):
        share = (drawn[1:] == times).mean()
        assert abs(share - poisson.pmf(times, 1)) < 0.005
    assert abs(np.corrcoef(drawn[1:])[np.triu_indices(50, 1)]).max() < 0.12
    some = keys[[17, 3, 1999]]
    assert (resampling_weights(some, 0, 50) == drawn[:, [17, 3, 1999]]).all()
    assert (resampling_weights(keys, 1, 50) != drawn).any()
    # The same on every machine and in every release: interrupted runs go on with them.
    assert resampling_weights(np.arange(6), 0, 3)[1:].astype(int).tolist() == PINNED


PINNED = [[0, 1, 3, 1, 0, 1], [0, 1, 0, 1, 0, 3], [1, 1, 1, 1, 3, 0]]


def test_masking_takes_a_share_of_what_is_not_special() -> None:
    free = np.arange(1, 101)
    chosen = masked_positions(5, free, 0.12, 0)
    assert len(chosen) == 12
    assert set(chosen) <= set(free)
    assert (masked_positions(5, free, 0.12, 0) == chosen).all()
    others = [masked_positions(key, free, 0.12, 0) for key in range(200)]
    often = np.bincount(np.concatenate(others), minlength=101)[1:]
    assert often.min() > 8  # of 24 expected
    assert often.max() < 45
    assert len(masked_positions(5, np.array([3, 4]), 0.12, 0)) == 1
    assert len(masked_positions(5, free[:0], 0.12, 0)) == 0
    assert (masked_positions(5, free, 0.12, 1) != chosen).any()


def test_the_model_reads_masks() -> None:
    model, read = bert(), []
    model.register_forward_pre_hook(
        lambda m, a, k: read.append(k["input_ids"].numpy()), with_kwargs=True
    )
    Measurer(model, tokenizer(), choose(["mixing", "dispersion"]), Settings()).measure(ROWS)
    plain, masked = read
    for row, before, after in zip(ROWS, plain, masked, strict=True):
        assert before[: len(row.ids)].tolist() == list(row.ids)
        changed = np.flatnonzero(before != after)
        assert (after[changed] == 3).all()
        assert not np.array(row.special)[changed].any()
        assert len(changed) == max(1, round(0.12 * (len(row.ids) - sum(row.special))))


# ---- sums


def test_deviations_do_not_cancel() -> None:
    """A mean a million times the deviation, in float64, merged one by one."""
    values = 1e8 + np.random.default_rng(0).normal(size=(50, 7))
    real = np.ones((50, 7))
    state: Any = None
    for row in np.random.default_rng(1).permutation(50):
        one = moments(values[[row]], real[[row]], np.ones((1, 1)))
        state = one if state is None else merge_moments(state, one)
    assert_allclose(spread(state)[1], values.std(), rtol=1e-7)
    whole = moments(values, real, np.ones((1, 50)))
    assert_allclose(spread(whole)[1], values.std(), rtol=1e-7)


def softmax(scores: Any) -> Any:
    made = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return made / made.sum(axis=-1, keepdims=True)


def sketch(alpha: Any, norm: Any) -> dict[str, Any]:
    keys = alpha.shape[-1]
    real = torch.ones(1, keys, dtype=torch.bool)
    category = torch.zeros(1, keys, dtype=torch.long)
    found = count_pairs(
        torch.tensor(alpha)[None],
        torch.tensor(norm)[None],
        category,
        real,
        torch.ones(1, 1, alpha.shape[1], keys, dtype=torch.bool),
        1,
    )
    made = {name: tensor.numpy() for name, tensor in found.items()}
    return {
        "cells": add_up(made["code"], {name: made[name] for name in ("n", "alpha", "norm")}),
        "alpha": add_up(made["alpha_code"], {"n": made["alpha_n"]}),
        "norm": add_up(made["norm_code"], {"n": made["norm_n"]}),
    }


DRAW = np.random.default_rng(0)
SHAPE = (4, 150, 150)
NORMS = np.exp(DRAW.normal(0, 0.4, (4, 150)))
TALL = np.log(NORMS)[:, None]
NORMAL = DRAW.normal(size=SHAPE)
STEPS = np.round(NORMS, 1) + 0.1
SMOOTH = {
    "independent": (softmax(2 * NORMAL), NORMS),
    "opposed": (softmax(NORMAL - 2 * TALL), NORMS),
    "weak": (softmax(2 * NORMAL - 0.3 * TALL), NORMS),
    "long tails": (softmax(1.5 * DRAW.standard_t(3, SHAPE) + TALL), NORMS**3),
    "two kinds of heads": (softmax(NORMAL * np.array([0.3, 1, 3, 5])[:, None, None]), NORMS),
    "monotone": (np.broadcast_to((NORMS / NORMS.max())[:, None], SHAPE).copy(), NORMS),
    "small": (softmax(2 * NORMAL - TALL) * 1e-9, NORMS * 1e-4),
    "float32": (softmax(8 * NORMAL - 4 * TALL).astype(np.float32), NORMS),
}
TIED = {
    "zeros": (np.where(DRAW.random(SHAPE) < 0.5, 0, softmax(NORMAL - TALL)), NORMS),
    "equal weights": (np.round(softmax(NORMAL - TALL), 3), NORMS),
    "equal norms": (softmax(NORMAL - np.log(STEPS)[:, None]), STEPS),
    "both": (np.round(softmax(NORMAL - np.log(STEPS)[:, None]), 3), STEPS),
}


@pytest.mark.parametrize("name", [*SMOOTH, *TIED])
def test_the_sketch_is_near_and_knows_how_near(name: str) -> None:
    alpha, norm = (SMOOTH | TIED)[name]
    pairs, rho, bound = correlation(sketch(alpha, norm), 0)
    exact = spearmanr(alpha.ravel(), np.broadcast_to(norm[:, None], SHAPE).ravel()).statistic
    assert pairs == alpha.size
    assert abs(rho - exact) <= min(bound, 2e-4)
    if name in SMOOTH:
        assert bound <= 0.004  # of 90,000 pairs; more pairs have a smoother distribution


def test_the_bound_holds_where_the_sketch_is_too_coarse() -> None:
    narrow = 1 + 0.01 * DRAW.normal(size=(4, 150))
    for alpha in (softmax(0.01 * NORMAL + np.log(narrow)[:, None]), softmax(0.01 * NORMAL)):
        _, rho, bound = correlation(sketch(alpha, narrow), 0)
        exact = spearmanr(alpha.ravel(), np.broadcast_to(narrow[:, None], SHAPE).ravel()).statistic
        assert abs(rho - exact) <= bound


def test_no_correlation_of_what_is_the_same() -> None:
    pairs, rho, _ = correlation(sketch(np.full(SHAPE, 0.1), NORMS), 0)
    assert pairs == 90000
    assert np.isnan(rho)


def test_many_tokens_lose_bits_and_not_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the numbers are the same in any order, and still near."""
    monkeypatch.setattr("normscope.measures.statistics.frequency.LIMIT", 1000)
    draw = np.random.default_rng(0)
    rank, value = draw.integers(1, 40, 4000), draw.normal(size=4000)
    value = np.exp(value - 0.03 * rank)
    statistic = Frequency(Settings())

    def part(here: Any) -> Any:
        count = np.ones(len(here), dtype=np.int64)
        group = (2 * rank[here]).astype(np.int32)
        return {"alpha": {"dropped": 0, "group": group, "value": value[here], "count": count}}

    found = []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(4000)
        cuts = np.sort(np.random.default_rng(seed).choice(np.arange(1, 4000), 9 + 20 * seed))
        state: Any = None
        for here in np.split(order, cuts):
            state = part(here) if state is None else statistic.merge(state, part(here))
        assert len(state["alpha"]["value"]) <= 2000
        found.append(statistic.result(state)["frequency"].columns["spearman"][0])
    assert_allclose(found, found[0], rtol=0, atol=1e-14)
    exact = spearmanr(rank, value).statistic
    assert 0 < abs(found[0] - exact) < 0.02


@pytest.mark.parametrize(("distinct", "dropped"), [(9, 0), (10, 0), (11, 1)])
def test_no_bit_is_lost_up_to_the_limit(
    distinct: int, dropped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours of 1, each twice: beyond the limit the last bit goes, and with it half of them."""
    monkeypatch.setattr(frequency, "LIMIT", 10)
    value = np.repeat(1 + np.arange(distinct) * 2.0**-52, 2)
    ones = np.ones(2 * distinct, dtype=np.int64)
    part = {"dropped": 0, "group": 4 * ones.astype(np.int32), "value": value, "count": ones}
    made = frequency.compact(part, 12)
    assert made["dropped"] == dropped
    kept = np.unique(value) if not dropped else 1 + np.arange(0, distinct, 2) * 2.0**-52
    assert made["value"].tolist() == kept.tolist()
    assert made["count"].sum() == 2 * distinct
    assert frequency.compact(part, 2 * distinct) is part  # few enough to be left as they are


@pytest.mark.parametrize(("points", "kept"), [(20, 20), (21, 7)])
def test_equal_points_are_counted_together_beyond_twice_the_limit(
    points: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frequency, "LIMIT", 10)

    def part(here: Any) -> Any:
        ones = np.ones(len(here), dtype=np.int64)
        group = 4 * ones.astype(np.int32)
        return {"alpha": {"dropped": 0, "group": group, "value": here % 7 * 1.0, "count": ones}}

    one, other = part(np.arange(8)), part(np.arange(8, points))
    merged = Frequency(Settings()).merge(one, other)["alpha"]
    assert len(merged["value"]) == kept
    assert merged["count"].sum() == points
    assert merged["dropped"] == 0


# ---- categories


def is_long(token: str) -> bool:
    return len(token) > 5


@pytest.mark.parametrize(
    ("what", "ids"),
    [
        ([",", "."], [COMMA, PERIOD]),
        ([COMMA, 40], [COMMA, 40]),
        ([0, 56], [0, 56]),  # the first and the last there is
        (r"b.*|the", None),
        (re.compile("b.*|the"), None),
        (is_long, None),
    ],
)
def test_categories_of_every_kind(what: Any, ids: list[int] | None) -> None:
    tokens = tokenizer().convert_ids_to_tokens(list(range(57)))
    if ids is None:
        long = callable(what)
        ids = [i for i, t in enumerate(tokens)
               if (len(t) > 5 if long else t == "the" or t[0] == "b")]  # fmt: skip
        assert len(ids) > 3
    made = measured("categories", ROWS, Settings(categories={"mine": what}))["categories"]
    assert made["categories"].columns["category"].tolist() == ["mine", "others"]
    expected = sum(np.isin(row.ids, ids).sum() for row in ROWS)
    assert column(made["categories"], "tokens", category="mine") == expected
    alpha = made["categories"].columns["alpha"]
    assert 0 < alpha[0] < 1


def test_the_first_category_that_names_a_token_has_it() -> None:
    categories = {"comma": [","], "marks": [",", "."]}
    table = measured("categories", ROWS, Settings(categories=categories))["categories"]
    tokens = table["categories"].columns["tokens"]
    assert tokens[0] == tokens[1] == sum(COMMA in row.ids for row in ROWS)


def test_a_category_that_never_occurs_has_no_mean() -> None:
    rows = [row for row in ROWS if COMMA not in row.ids]
    assert len(rows) > 2
    made = measured(["categories", "alpha_vs_norm"], rows)
    for name in ("categories", "layers", "heads"):
        table = made["categories"][name]
        assert np.isnan(column(table, "alpha", category="comma_period")).all()
        assert np.isfinite(column(table, "alpha", category="others")).all()
    assert column(made["categories"]["categories"], "sequences", category="comma_period") == 0
    assert column(made["alpha_vs_norm"]["spearman"], "pairs", category="comma_period") == 0


def test_weights_of_all_categories_add_up() -> None:
    rows = [row for row in ROWS if COMMA in row.ids]
    made = measured("categories", rows)["categories"]["categories"]
    assert_allclose(made.columns["alpha"].sum(), 1, rtol=1e-12)


def test_mixing_by_own_categories() -> None:
    settings = Settings(categories={"marks": [",", "."]})
    made = measured("mixing", ROWS, settings)["mixing"]["layers"]
    assert list(dict.fromkeys(made.columns["category"])) == ["marks", "others", "<unk>", "all"]
    # Of the sequences that have them, each with the mean of its own.
    plain = measured("mixing", ROWS, Settings(categories={"marks": [",", "."]}, masking=0))
    by_layer = column(plain["mixing"]["layers"], "mean", category="marks", analysis="attn_n")
    expected = []
    for one in slow_corpus(ROWS):
        marks = np.isin(one.ids, (COMMA, PERIOD))
        if marks.any():
            expected.append(100 * one.ratios()["attn_n"][:, marks].mean(axis=1))
    assert_allclose(by_layer, np.mean(expected, axis=0), rtol=1e-9)


@pytest.mark.parametrize(
    ("categories", "message"),
    [
        ({"x": ["nowhere"]}, "'nowhere' is not in the tokenizer's vocabulary of 57 tokens"),
        ({"x": [99]}, "99 is not in the tokenizer's vocabulary"),
        ({"x": "("}, "no regular expression"),
        ({"others": [","]}, "may not be called 'others'"),
        ({"all": [","]}, "may not be called 'all'"),
        ({}, "one at least"),
    ],
)
def test_bad_categories(categories: Any, message: str) -> None:
    settings = Settings(categories=categories)
    with pytest.raises(InputError, match=re.escape(message)):
        Measurer(bert(), tokenizer(), choose("categories", settings), settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("1 2\n", "line 1: '1 2' is not `rank count token_id`"),
        ("1 5 4\n2 5 77\n", "line 2: rank 2 of token 77"),
        ("\n", "has no ranks"),
    ],
)
def test_bad_rank_files(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "ranks.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=re.escape(message)):
        measured("frequency", ROWS, Settings(ranks=str(path)))


# ---- models


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
    settings = Settings(masking=0, replicates=0)
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
    settings = Settings(masking=0)
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


def test_encoder_decoders_are_refused() -> None:
    with pytest.raises(InputError, match="get_encoder"):
        Measurer(tiny_model("bart"), tokenizer(), choose("dispersion"), Settings())


def test_no_mask_token() -> None:
    with pytest.raises(InputError, match="masking=0"):
        Measurer(bert(), tiny.tokenizer(), choose("mixing"), Settings())


def test_no_feed_forward_to_take_apart() -> None:
    measurer = Measurer(tiny_model("mixtral"), tiny.tokenizer(), choose("change"), Settings())
    with pytest.raises(InputError, match="no feed-forward that is taken apart"):
        measurer.measure(ROWS[:1])


# ---- checks


@pytest.mark.parametrize("what", ["transformed_norm", "lengths"])
def test_a_wrong_number_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sequence, numbered 0, is always computed a second time."""
    from normscope.measures.statistics import batch

    right = vars(batch.Layer)[what].func

    def wrong(layer: Any) -> Any:
        made = right(layer)
        if what == "transformed_norm":
            return made * (1 + 1e-9)
        return {name: (own, others * (1 + 1e-9)) for name, (own, others) in made.items()}

    monkeypatch.setattr(batch.Layer, what, property(wrong))
    with pytest.raises(ExactnessError, match=r"row \d+: the statistics of layer 0 differ"):
        measured("mixing", ROWS)
    measured("mixing", [row for row in ROWS if row.key != 0])  # drawn by its key: here none


def test_the_row_of_a_wrong_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from normscope.measures.statistics import batch

    right = vars(batch.Layer)["transformed_norm"].func

    def wrong(layer: Any) -> Any:
        made = right(layer).clone()
        made[2] *= 1 + 1e-9
        return made

    monkeypatch.setattr(batch.Layer, "transformed_norm", property(wrong))
    rows = sorted(ROWS, key=lambda row: row.key)[:4]
    assert rows[0].key == 0  # which has the whole batch computed a second time
    with pytest.raises(ExactnessError, match=rf"^row {rows[2].key}: the statistics of layer 0"):
        Measurer(bert(), tokenizer(), choose("mixing"), Settings()).measure(rows)


@pytest.mark.parametrize("name", NAMES)
def test_nan_is_refused_with_the_row(name: str) -> None:
    model = bert()
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[59] = torch.nan
    rows = [ROWS[0], Row(77, (0, 5, 59, 2), None, (True, False, False, True))]
    measurer = Measurer(model, tokenizer(), choose(name), Settings())
    with pytest.raises(ExactnessError, match=r"row 77: .*(NaN|nan)"):
        measurer.measure(rows)


def test_an_output_that_is_no_number_is_refused_whatever_is_measured() -> None:
    """Of the last layer's output no later layer tells, and these statistics do not read it."""
    model: Any = bert()
    with torch.no_grad():
        model.encoder.layer[2].attention.output.dense.bias[0] = torch.nan
    rows = [row for row in ROWS if row.key != 0]  # none of them is computed a second time
    measurer = Measurer(model, tokenizer(), choose("dispersion"), Settings())
    with pytest.raises(ExactnessError, match=r"(NaN|nan)"):
        measurer.measure(rows)


def test_the_model_is_left_as_it_was() -> None:
    model = bert().train()
    Measurer(model, tokenizer(), choose(NAMES), Settings()).measure(ROWS[:2])
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


# ---- plain data


def plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(k, str) and plain(v) for k, v in value.items())
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "fiubU"
    return type(value) in (int, float, str)


def test_states_are_plain_data() -> None:
    state = Measurer(bert(), tokenizer(), choose(NAMES), Settings()).measure(ROWS[:3])
    assert set(state) == set(NAMES)
    assert plain(state)
    file = io.BytesIO()
    np.savez(file, names=state["mixing"]["names"])
    file.seek(0)
    assert np.load(file, allow_pickle=False)["names"].tolist() == state["mixing"]["names"].tolist()


def test_merge_with_nothing() -> None:
    statistics = choose("dispersion")
    state = Measurer(bert(), tokenizer(), statistics, Settings()).measure(ROWS[:2])
    assert merge(statistics, {}, state) == state
    assert merge(statistics, state, {}) == state
    assert merge(statistics, {}, {}) == {}


def test_tables() -> None:
    table = Table({"a": [1, 2], "b": np.array([0.1, np.nan])}, "title", notes="notes")
    assert table.to_csv() == "a,b\n1,0.1\n2,nan\n"
    assert table.rows()[0] == {"a": 1, "b": 0.1}
    assert table.to_pandas().shape == (2, 2)
    assert table.to_arrow().column_names == ["a", "b"]
    with pytest.raises(InputError, match="equally long"):
        Table({"a": [1], "b": [1, 2]})


@pytest.mark.parametrize("names", [["dispersal"], [], "mixing,nothing"])
def test_unknown_statistics(names: Any) -> None:
    with pytest.raises(InputError, match="valid are: dispersion, categories"):
        choose(names)


@pytest.mark.parametrize(
    "wrong", [{"masking": 1.0}, {"masking": -0.1}, {"confidence": 1.0}, {"replicates": -1},
              {"scatter": 0}, {"top": 0}]
)  # fmt: skip
def test_bad_settings(wrong: Any) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Settings(**wrong)


def test_bad_rows() -> None:
    with pytest.raises(InputError, match="row 3 needs one entry a token"):
        Row(3, (1, 2), None, (True,))
    with pytest.raises(InputError, match="one token at least"):
        Row(3, (), None, ())
    with pytest.raises(InputError, match="one row at least"):
        Measurer(bert(), tokenizer(), choose("dispersion"), Settings()).measure([])
