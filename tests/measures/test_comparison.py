"""Comparing two maps: Spearman by hand and by SciPy, masked cells, top pairs."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import spearmanr

from normscope.errors import InputError, MissingExtraError
from normscope.measures.comparison import Pair, amplification, contextualization_change
from normscope.results.arrays import LabelledArray
from normscope.text.tokens import Tokens

CATS = Tokens(
    strings=("[CLS]", "cat", "##s"),
    ids=(101, 4937, 2015),
    special=(True, False, False),
    texts=("[CLS]", "cat", "s"),
    word_of=(0, 1, 1),
    words=("[CLS]", "cats"),
)
DOGS = Tokens(("[CLS]", "dog", "##s"), None, CATS.special, ("[CLS]", "dog", "s"))


def made(values: Any, name: str = "atb", tokens: Tokens = CATS, **labels: Any) -> LabelledArray:
    both = {"query": tokens, "key": tokens}
    array = np.asarray(values, dtype=np.float64)
    return LabelledArray(array, ("layer", "query", "key"), both, labels, name=name)


def drawn(seed: int, layers: int = 2, steps: int = 1000) -> np.ndarray[Any, Any]:
    """Numbers from 1/steps to 1; with few steps, many ties."""
    whole = np.random.default_rng(seed).integers(1, steps + 1, (layers, 3, 3))
    return whole / steps


# ---- contextualization_change


def test_change_by_hand() -> None:
    a = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    b = [[1, 2, 3], [4, 5, 6], [7, 9, 8]]  # the last two ranks exchanged: Σd² = 2
    change = contextualization_change(made([a, a, a]), made([a, b, np.negative(a)]))
    # ρ = 1 − 6·Σd² / (n(n² − 1)) with n = 9
    assert_allclose(change, [0, 6 * 2 / (9 * 80), 2], atol=1e-15)
    assert change[0] == 0


def test_only_the_order_matters() -> None:
    a = drawn(0)
    assert_array_equal(contextualization_change(made(a), made(np.exp(5 * a))), [0, 0])


def test_cells_that_are_zero_in_both_are_left_out() -> None:
    # A causal map: six cells count, ranks 1..6 against 6 5 4 3 2 1.
    a = [[1, 0, 0], [2, 3, 0], [4, 5, 6]]
    b = [[6, 0, 0], [5, 4, 0], [3, 2, 1]]
    assert_allclose(contextualization_change(made([a]), made([b])), [2], atol=1e-15)
    with_zeros = 1 - spearmanr(np.ravel(a), np.ravel(b)).statistic
    assert with_zeros < 1.5  # what counting the masked cells would have given


def test_a_zero_in_one_map_alone_counts() -> None:
    a = [[1, 0, 0], [2, 3, 0], [4, 5, 6]]
    b = [[0, 0, 7], [5, 4, 0], [3, 2, 1]]
    x, y = [1, 0, 2, 3, 4, 5, 6], [0, 7, 5, 4, 3, 2, 1]  # seven cells, row by row
    expected = 1 - spearmanr(x, y).statistic
    assert_allclose(contextualization_change(made([a]), made([b])), [expected], rtol=1e-14)


@pytest.mark.parametrize("steps", [1000, 4, 2])
def test_change_is_that_of_scipy_with_and_without_ties(steps: int) -> None:
    a, b = drawn(1, layers=5, steps=steps), drawn(2, layers=5, steps=steps)
    pairs = zip(a, b, strict=True)
    expected = [1 - spearmanr(one.ravel(), other.ravel()).statistic for one, other in pairs]
    assert_allclose(contextualization_change(made(a), made(b)), expected, rtol=1e-13)


def test_layers_are_not_pooled() -> None:
    a, b = drawn(3), drawn(4)
    both = contextualization_change(made(a), made(b))
    alone = [contextualization_change(made(a[k : k + 1]), made(b[k : k + 1]))[0] for k in (0, 1)]
    assert_array_equal(both, alone)
    assert both[0] != both[1]


def test_float32_maps_are_ranked_as_they_are() -> None:
    a = drawn(5).astype(np.float32)
    narrow = LabelledArray(a, ("layer", "query", "key"), {"query": CATS, "key": CATS}, name="atb")
    wide = contextualization_change(made(a), made(drawn(6)))
    assert_array_equal(contextualization_change(narrow, made(drawn(6))), wide)


@pytest.mark.parametrize("compare", [contextualization_change, amplification])
def test_maps_that_do_not_fit_are_refused_by_axis(compare: Any) -> None:
    ours = made(drawn(0), "atb")
    other_layers = made(drawn(0), "atb_ff", layer=(1, 2))
    with pytest.raises(InputError, match=r"'atb' and 'atb_ff' .* same layer labels: 0 1 and 1 2"):
        compare(ours, other_layers)
    with pytest.raises(InputError, match=r"same query tokens: \[CLS\] cat ##s and \[CLS\] dog ##s"):
        compare(ours, made(drawn(0), "atb_ff", DOGS))
    with pytest.raises(InputError, match=r"same query labels: 0 1 2 and 0 2"):
        compare(ours, ours.sel(query=[0, 2]))
    with pytest.raises(InputError, match=r"same key labels: 0 1 2 and 1 2"):
        compare(ours, ours.sel(key=[1, 2]))
    keys = LabelledArray(drawn(0), ours.axes, {"query": CATS, "key": DOGS}, name="cross")
    with pytest.raises(InputError, match="same key tokens"):
        compare(ours, keys)
    with pytest.raises(InputError, match=r"'atb' has the axes \('query', 'key'\)"):
        compare(ours, ours.sel(layer=0))
    holed = drawn(0)
    holed[1, 0, 2] = np.nan
    with pytest.raises(InputError, match="'holed' has cells that are NaN"):
        compare(ours, made(holed, "holed"))


def test_a_correlation_that_is_not_defined_is_refused() -> None:
    a, flat = drawn(0), drawn(0)
    flat[1] = 0.25
    with pytest.raises(InputError, match=r"layer 7 of 'atb' and 'flat': one of them is the same"):
        contextualization_change(made(a, layer=(5, 7)), made(flat, "flat", layer=(5, 7)))
    lone = np.zeros((1, 3, 3))
    lone[0, 1, 1] = 1
    with pytest.raises(InputError, match="have 1 cells that are not zero"):
        contextualization_change(made(lone), made(lone))


# ---- amplification

BEFORE = [[[1, 1, 1], [1, 1, 1], [1, 1, 1]], [[2, 2, 2], [2, 2, 2], [2, 2, 2]]]
AFTER = [[[9, 1, 1], [1, 4, 1], [1, 1, 0]], [[2, 2, 2], [8, 2, 7], [2, 3, 2]]]


def test_difference_and_top_pairs_by_hand() -> None:
    grown = amplification(made(BEFORE, "atb", layer=(3, 5)), made(AFTER, "atb_ff", layer=(3, 5)))
    assert grown.difference.name == "atb_ff − atb"
    assert grown.difference.labels["layer"] == (3, 5)
    assert_array_equal(grown.difference.values, np.subtract(AFTER, BEFORE))
    assert grown.top(5) == [
        Pair(3, 0, "[CLS]", 0, "[CLS]", 1.0, 9.0, 8.0),
        Pair(5, 1, "cat", 0, "[CLS]", 2.0, 8.0, 6.0),
        Pair(5, 1, "cat", 2, "##s", 2.0, 7.0, 5.0),
        Pair(3, 1, "cat", 1, "cat", 1.0, 4.0, 3.0),
        Pair(5, 2, "##s", 1, "cat", 2.0, 3.0, 1.0),
    ]


def test_top_of_one_layer_and_without_special_tokens() -> None:
    grown = amplification(made(BEFORE, layer=(3, 5)), made(AFTER, layer=(3, 5)))
    of_five = grown.top(2, layer=5)
    assert [(p.layer, p.query, p.key) for p in of_five] == [(5, 1, 0), (5, 1, 2)]
    # [CLS] is the query of the largest and the key of the second.
    plain = grown.top(3, special=False)
    assert [(p.layer, p.query, p.key) for p in plain] == [(5, 1, 2), (3, 1, 1), (5, 2, 1)]
    everything = grown.top(None)
    assert len(everything) == 18
    assert len(grown.top()) == 10
    assert len(grown.top(None, special=False)) == 8
    assert everything[-1] == Pair(3, 2, "##s", 2, "##s", 1.0, 0.0, -1.0)
    ties = [(p.layer, p.query, p.key) for p in everything if p.difference == 0]
    assert ties == sorted(ties)


@pytest.mark.parametrize("n", [0, -1, True])
def test_a_wrong_number_of_pairs_is_refused(n: int) -> None:
    with pytest.raises(InputError, match=f"n is {n}; give at least 1 pair"):
        amplification(made(BEFORE), made(AFTER)).top(n)


def test_an_unknown_layer_is_refused() -> None:
    with pytest.raises(InputError, match=r"no layer 4; valid: 3, 5"):
        amplification(made(BEFORE, layer=(3, 5)), made(AFTER, layer=(3, 5))).top(layer=4)


def test_labels_of_a_selection_are_kept() -> None:
    before, after = (made(v).sel(query=[1, 2], key=[2, 0]) for v in (BEFORE, AFTER))
    best = amplification(before, after).top(1)
    assert best == [Pair(1, 1, "cat", 0, "[CLS]", 2.0, 8.0, 6.0)]


def test_the_table_has_the_same_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = amplification(made(BEFORE), made(AFTER))
    table = grown.to_pandas(3, special=False)
    assert list(table.columns) == [
        "layer", "query", "query_token", "key", "key_token", "before", "after", "difference",
    ]  # fmt: skip
    assert [Pair(*row) for row in table.itertuples(index=False)] == grown.top(3, special=False)
    assert len(grown.to_pandas()) == 18
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pandas"):
        grown.to_pandas()
