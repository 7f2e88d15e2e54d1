"""`attribution-lm` on a tiny language model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscope
from normscope.errors import InputError
from normscope.faithfulness.evaluation import FaithfulnessMeter
from normscope.models.loading import resolve
from normscope.reproduce import Report, ReproduceOptions, reproduce
from normscope.reproduce import attribution_lm as lm
from normscope.reproduce.comparisons import mean_over_sets
from normscope.reproduce.prompts import EvidencePrompt, read_passages, read_prompts, tell_apart
from tests.helpers.figures import assert_fit_for_print
from tests.helpers.reproductions import rows_of
from tests.helpers.sentiment import passages, prompts, save_language_model

METHODS = ("frozen", "alti_logit", "random")
ROWS = [
    ("the cat looked at the", "dog", "mat", "cat"),
    ("a dog ran , and the dog", "sat", "ran", "dog"),
    ("she never", "jumped", "slept", "she"),
    ("the cats sat", "on", "at", "cat"),  # not a whole word: left out
]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ReproduceOptions:
    folder = tmp_path_factory.mktemp("lm")
    sets = folder / "sets"
    sets.mkdir()
    prompts(sets / "first_set.csv", ROWS)
    prompts(sets / "second_set.csv", ROWS[1:])
    prompts(sets / "ioi_dataset.csv", ROWS[:2])
    passages(sets / "passages.json", 3)
    return ReproduceOptions(
        str(save_language_model(folder / "model")),
        (sets,),
        folder / "out",
        method=METHODS,
    )


@pytest.fixture(scope="module")
def report(options: ReproduceOptions) -> Report:
    return reproduce("attribution-lm", options)


def test_the_report(report: Report) -> None:
    names = ["ALTI-Logit Table", "Log-probability drops"]
    assert [exhibit.name for exhibit in report.exhibits] == names
    assert "first_set 3 (1 left out)" in report.facts["prompts"]
    assert report.facts["passages"] == "3"
    for exhibit in report.exhibits:
        assert exhibit.draw is not None
        assert_fit_for_print(exhibit.draw())
    statements = [finding.statement for finding in report.findings]
    assert statements == ["IOI: ALTI-Logit finds the name (at least 0.95)"]


def rank(options: ReproduceOptions, row: tuple[str, ...], method: str) -> float:
    """One over the rank of the deciding word, looked up in the tokens."""
    model, tokenizer = resolve(options.model, kind="language")
    text, good, bad, target = row
    result = normscope.attribute(
        model, tokenizer, text, answer=f" {good}", foil=f" {bad}", method=method
    )
    kept = [
        (float(score), token)
        for score, token, special in zip(
            np.atleast_2d(result.scores.values)[0],
            result.tokens.strings,
            result.tokens.special,
            strict=True,
        )
        if not special
    ]
    last = max(at for at, (_, token) in enumerate(kept) if token == target)
    return 1 / (1 + sum(score > kept[last][0] for score, _ in kept))


@pytest.mark.parametrize("method", ["frozen", "alti_logit"])
def test_ranks_by_hand(method: str, report: Report, options: ReproduceOptions) -> None:
    (row,) = [r for r in rows_of(report, "ALTI-Logit Table") if r["method"] == method]
    expected = [rank(options, each, method) for each in ROWS[:3]]
    assert row["first_set"] == pytest.approx(np.mean(expected))
    assert row["ioi_dataset measured"] == pytest.approx(np.mean(expected[:2]))
    mean = np.mean([np.mean(expected), np.mean(expected[1:])])
    assert row["BLiMP measured"] == pytest.approx(mean)
    low, high = map(float, row["BLiMP interval"].strip("[]").split(", "))
    assert low - 1e-3 <= mean <= high + 1e-3


def test_drops_are_those_of_faithfulness(report: Report, options: ReproduceOptions) -> None:
    texts = read_passages(options.data[0] / "passages.json")
    figures = normscope.faithfulness(
        *resolve(options.model, kind="language"),
        texts,
        methods=["frozen"],
        metrics="logprob_drop",
        conventions="jacobian",
        resamples=0,
    )
    (row,) = [r for r in rows_of(report, "Log-probability drops") if r["method"] == "frozen"]
    assert row["10% measured"] == pytest.approx(figures.mean("frozen", "logprob_drop@10%"))
    kept = figures.mean("frozen", "logprob_drop_without_first@20%")
    assert row["20% first token kept"] == pytest.approx(kept)


def test_the_mean_over_sets_is_not_that_of_all_rows() -> None:
    from normscope.faithfulness.result import MethodFigures

    groups = {
        "a": MethodFigures(lm.FIGURES, {"m": [[1.0, 0], [1.0, 0], [1.0, 0]]}),
        "b": MethodFigures(lm.FIGURES, {"m": [[0.0, 0], [0.5, 0]]}),
    }
    mean, low, high = mean_over_sets(groups, "m", "mrr")
    assert mean == 0.625
    assert (low, high) == (0.5, 0.75)  # all of "a" are equal


def test_a_finished_run_is_read(
    options: ReproduceOptions, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(lm, "attribute", fail)
    monkeypatch.setattr(FaithfulnessMeter, "records", fail)
    again = reproduce("attribution-lm", options)
    for exhibit in report.exhibits:
        assert rows_of(again, exhibit.name) == rows_of(report, exhibit.name)
    fewer = reproduce("attribution-lm", replace(options, sequences=1))
    assert fewer.facts["passages"] == "1"
    with pytest.raises(InputError, match="another run"):
        reproduce("attribution-lm", replace(options, seed=1))


def test_rows_of_sets(tmp_path: Path, options: ReproduceOptions) -> None:
    first, *_, last = read_prompts(options.data[0] / "first_set.csv")
    assert first == EvidencePrompt("the cat looked at the", "dog", "mat", (4, 7))
    assert last is None
    second = read_prompts(options.data[0] / "first_set.csv")[1]
    assert second is not None
    assert second.span == (20, 23)  # the last dog
    _, tokenizer = resolve(options.model, kind="language")
    assert tell_apart(tokenizer, second)
    assert not tell_apart(tokenizer, replace(second, good="dog", bad="dog sat"))
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(InputError, match="no column 'one_prefix_prefix'"):
        read_prompts(tmp_path / "a.csv")
    (tmp_path / "a.json").write_text('[{"words": 1}]')
    with pytest.raises(InputError, match='a "text"'):
        read_passages(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("data", "message"),
    [((), "no data was given"), ((Path("nowhere"),), "no file 'nowhere'")],
)
def test_wrong_data(data: tuple[Path, ...], message: str, options: ReproduceOptions) -> None:
    with pytest.raises(InputError, match=message):
        reproduce("attribution-lm", replace(options, data=data, output=None))
