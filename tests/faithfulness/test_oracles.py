"""Metrics on models whose order of tokens is known, and by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import normscope
from normscope.errors import InputError
from normscope.faithfulness.conventions import PRESETS, REPLACEMENTS
from tests.helpers.heads import masked_tokenizer
from tests.helpers.tiny import tokenizer
from tests.helpers.toys import WEIGHTS, toy_classifier, toy_language_model, toy_scores

TEXT = "cat dog mat red sat"  # every weight once
TOK = masked_tokenizer()  # the mask token is "sun", of weight 0
REMOVED = [name for name in REPLACEMENTS if name != "auto"]


def probability(total: float) -> float:
    return 1 / (1 + math.exp(-total))


def measured(methods: Any, text: Any = TEXT, **how: Any) -> Any:
    options = {"metrics": ("aopc", "comprehensiveness", "sufficiency"), "resamples": 0, **how}
    return normscope.faithfulness(toy_classifier(), TOK, text, methods=methods, answer=0, **options)


def fixed(scores: Any) -> Any:
    """A method with these scores; the first and last token are special."""
    return lambda model, tok, texts: [np.array([0.0, *scores, 0.0]) for _ in texts]


def test_the_true_order_is_the_extreme_of_all_orders_and_the_reversed_one_the_other() -> None:
    orders = {str(at): fixed(order) for at, order in enumerate(itertools.permutations(range(5)))}
    result = measured({"oracle": toy_scores(), "reversed": toy_scores(-1.0), **orders})
    for figure in result.figures:
        values = [result.mean(name, figure.name) for name in orders]
        best, worst = (max, min) if figure.higher_is_better else (min, max)
        assert result.mean("oracle", figure.name) == pytest.approx(best(values), abs=1e-14)
        assert result.mean("reversed", figure.name) == pytest.approx(worst(values), abs=1e-14)
        assert best(values) != worst(values)


def test_figures_by_hand() -> None:
    """Of 5 tokens, floor(5·K) is 0 1 1 2 2 3 3 4 4; ceil(5·k) is 1 1 1 1 3."""
    result = measured({"oracle": toy_scores()})
    falling = sorted(WEIGHTS.values(), reverse=True)
    falling.remove(0.0)
    total, whole = sum(falling), probability(sum(falling))

    def without(count: int) -> float:
        return whole - probability(total - sum(falling[:count]))

    def least(count: int) -> float:
        return whole - probability(total - sum(falling[5 - count :]))

    def only(count: int) -> float:
        return whole - probability(sum(falling[:count]))

    steps = [0, 1, 1, 2, 2, 3, 3, 4, 4]
    expected = {
        "aopc": np.mean([without(count) for count in steps]),
        "aopc_least": np.mean([least(count) for count in steps]),
        "comprehensiveness": (4 * without(1) + without(3)) / 5,
        "sufficiency": (4 * only(1) + only(3)) / 5,
    }
    for name, value in expected.items():
        assert result.mean("oracle", name) == pytest.approx(value, abs=1e-14), name


def test_the_released_conventions_by_hand() -> None:
    """Monotone: the smallest probability so far (the largest, for sufficiency); sum over six."""
    how: dict[str, Any] = {"conventions": "alti-released"}
    how["metrics"] = ("comprehensiveness", "sufficiency")
    # The worst order first: the curve of sufficiency falls, and is held at its largest.
    result = measured({"reversed": toy_scores(-1.0), "oracle": toy_scores()}, **how)
    total, whole = sum(WEIGHTS.values()), probability(sum(WEIGHTS.values()))
    rising = sorted(WEIGHTS.values())
    rising.remove(0.0)
    without = [probability(total - rising[0]), probability(total - sum(rising[:3]))]
    lowest = [without[0], min(without)]
    expected = (4 * (whole - lowest[0]) + whole - lowest[1]) / 6
    assert result.mean("reversed", "comprehensiveness") == pytest.approx(expected, abs=1e-14)
    falling = rising[::-1]
    only = [probability(falling[0]), probability(sum(falling[:3]))]
    highest = [only[0], max(only)]
    expected = (4 * (whole - highest[0]) + whole - highest[1]) / 6
    assert result.mean("oracle", "sufficiency") == pytest.approx(expected, abs=1e-14)
    assert only[1] > only[0]


def test_log_probability_by_hand() -> None:
    """Specials are ranked: of 7 tokens floor(7·k) is 0 0 1, at least 1; "cat" is the first."""
    result = measured({"oracle": toy_scores()}, metrics="logprob_drop")
    total = sum(WEIGHTS.values())
    drop = math.log(probability(total)) - math.log(probability(total - WEIGHTS["cat"]))
    for percent in (5, 10, 20):
        for which in ("logprob_drop", "logprob_drop_without_first"):
            value = result.mean("oracle", f"{which}@{percent}%")
            assert value == pytest.approx(drop, abs=1e-14)


def without_specials() -> Any:
    from tokenizers import processors

    tok = tokenizer(pair=False)
    plain = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    tok.backend_tokenizer.post_processor = plain
    return tok


def test_without_the_first_token() -> None:
    """Without special tokens "cat" is the first; of the others, "mat" has the largest score."""
    result = normscope.faithfulness(
        toy_language_model(), without_specials(), TEXT, methods={"oracle": toy_scores()},
        metrics="logprob_drop", answer=7, resamples=0,
    )  # fmt: skip
    total = sum(WEIGHTS.values())

    def logprob(value: float) -> float:
        return value - math.log(math.exp(value) + 59)

    for name, word in (("logprob_drop", "cat"), ("logprob_drop_without_first", "mat")):
        drop = logprob(total) - logprob(total - WEIGHTS[word])
        for percent in (5, 10, 20):
            value = result.mean("oracle", f"{name}@{percent}%")
            assert value == pytest.approx(drop, abs=1e-13)


@pytest.mark.parametrize("model", ["classifier", "language model"])
def test_all_replacements_agree_where_a_token_adds_to_a_sum(model: str) -> None:
    """Deleted, masked, padded, zeroed or hidden tokens all leave the sum of the others."""
    toy = toy_classifier() if model == "classifier" else toy_language_model()
    metrics = ("aopc", "comprehensiveness", "sufficiency", "blank_out", "logprob_drop")
    answer = 0 if model == "classifier" else 7
    results = [
        normscope.faithfulness(
            toy, TOK, [TEXT, "the red cat", "dog"], methods={"oracle": toy_scores()},
            metrics=metrics, answer=answer, replacement=name, resamples=0,
        )
        for name in REMOVED
    ]  # fmt: skip
    assert np.isfinite(results[0].values["oracle"][0]).all()
    for result in results[1:]:
        np.testing.assert_allclose(result.values["oracle"], results[0].values["oracle"], atol=1e-13)
    drops = [figure.name.startswith("logprob") for figure in results[0].figures]
    assert (results[0].values["oracle"][0][drops] > 0).all()


def test_of_equal_scores_the_earlier_token_comes_first_from_either_end() -> None:
    how: dict[str, Any] = {"conventions": {"bins": [20], "replacement": "delete"}}
    result = measured({"equal": fixed([1.0] * 5)}, metrics="aopc", **how)
    total = sum(WEIGHTS.values())
    expected = probability(total) - probability(total - WEIGHTS["cat"])
    assert result.mean("equal", "aopc") == pytest.approx(expected, abs=1e-14)
    assert result.mean("equal", "aopc_least") == pytest.approx(expected, abs=1e-14)


def test_one_token_and_none() -> None:
    """One token: floor never reaches it, ceil does. None: no figure is defined."""
    result = measured({"oracle": toy_scores()}, "cat")
    gone = probability(1.5) - probability(0.0)
    figures = {figure.name: result.mean("oracle", figure.name) for figure in result.figures}
    expected = {"aopc": 0.0, "aopc_least": 0.0, "comprehensiveness": gone, "sufficiency": 0.0}
    assert figures == pytest.approx(expected)
    metrics = ("aopc", "comprehensiveness", "sufficiency", "blank_out", "logprob_drop")
    none = normscope.faithfulness(
        toy_language_model(), without_specials(), ["cat", "cat mat"], answer=7, resamples=50,
        methods={"oracle": toy_scores()}, metrics=metrics,
        conventions={"first_token": "kept", "specials": False},
    )  # fmt: skip
    assert np.isnan(none.values["oracle"][0]).all()
    defined = [figure.name != "blank_out_without_first" for figure in none.figures]
    np.testing.assert_array_equal(np.isfinite(none.values["oracle"][1]), defined)
    row = next(r for r in none.rows() if r["figure"] == "aopc_without_first")
    assert (row["texts"], row["mean"]) == (1, none.values["oracle"][1][0])
    assert (row["low"], row["high"]) == (row["mean"], row["mean"])
    assert "–" in none.table()
    assert None in none.to_dict()["values"]["oracle"][0]


def test_a_language_model_without_anything_to_read_begins_with_its_start_token() -> None:
    model, tok = toy_language_model(), tokenizer(pair=False)
    how: dict[str, Any] = {"metrics": "aopc", "resamples": 0, "answer": 7}
    how["conventions"] = {"bins": [100], "specials": True, "replacement": "delete"}
    methods = {"oracle": toy_scores()}
    result = normscope.faithfulness(model, tok, TEXT, methods=methods, **how)
    total = sum(WEIGHTS.values())
    expected = math.exp(total) / (math.exp(total) + 59) - 1 / 60
    assert result.mean("oracle", "aopc") == pytest.approx(expected, abs=1e-14)
    tok.bos_token = tok.eos_token = None
    with pytest.raises(InputError, match="no start or end token"):
        normscope.faithfulness(model, tok, TEXT, methods=methods, **how)


def test_a_foil_is_subtracted() -> None:
    result = normscope.faithfulness(
        toy_classifier(), TOK, TEXT, methods={"oracle": toy_scores()}, answer=0, foil=1,
        metrics=("comprehensiveness", "logprob_drop"), resamples=0,
    )  # fmt: skip
    total = sum(WEIGHTS.values())
    assert result.mean("oracle", "logprob_drop@5%") == pytest.approx(WEIGHTS["cat"], abs=1e-14)

    def difference(value: float) -> float:
        return 2 * probability(value) - 1

    one = difference(total) - difference(total - 1.5)
    three = difference(total) - difference(total - 1.5 - 0.5 - 0.125)
    expected = (4 * one + three) / 5
    assert result.mean("oracle", "comprehensiveness") == pytest.approx(expected, abs=1e-14)


def test_blank_out_is_a_rank_correlation() -> None:
    result = measured(
        {"oracle": toy_scores(), "reversed": toy_scores(-3.0), "ties": fixed([1, 0, 1, 0, 0])},
        metrics="blank_out",
    )
    assert result.mean("oracle", "blank_out") == pytest.approx(1.0)
    assert result.mean("reversed", "blank_out") == pytest.approx(-1.0)
    # Ranks of the drops: 5 1 4 2 3; average ranks of the scores: 4.5 2 4.5 2 2.
    own, drops = np.array([4.5, 2, 4.5, 2, 2]) - 3, np.array([5, 1, 4, 2, 3]) - 3.0
    expected = (own @ drops) / math.sqrt((own @ own) * (drops @ drops))
    assert result.mean("ties", "blank_out") == pytest.approx(expected)
    absolute = measured(
        {"reversed": toy_scores(-3.0)}, metrics="blank_out", conventions={"absolute": True}
    )
    assert absolute.mean("reversed", "blank_out") == pytest.approx(1.0)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_stand_in_the_signature(preset: str) -> None:
    result = measured({"oracle": toy_scores()}, metrics="aopc", conventions=preset)
    for name, value in PRESETS[preset].items():
        if name in ("rounding", "average", "replacement"):
            assert f"{name}={value}" in result.settings["aopc"]
    assert result.settings["aopc"].replace("|", "") in result.signature
    assert result.settings["aopc"] in result.conventions()
