"""Categories of every kind, ranks from files, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normscope.errors import InputError
from normscope.measures.statistics import Measurer, StatisticSettings, choose
from tests.helpers.slow_statistics import (
    COMMA,
    PERIOD,
    bert,
    column,
    corpus,
    measured,
    tokenizer,
)

ROWS = corpus()


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
    made = measured("categories", ROWS, StatisticSettings(categories={"mine": what}))["categories"]
    assert made["categories"].columns["category"].tolist() == ["mine", "others"]
    expected = sum(np.isin(row.ids, ids).sum() for row in ROWS)
    assert column(made["categories"], "tokens", category="mine") == expected
    alpha = made["categories"].columns["alpha"]
    assert 0 < alpha[0] < 1


def test_the_first_category_that_names_a_token_has_it() -> None:
    categories = {"comma": [","], "marks": [",", "."]}
    table = measured("categories", ROWS, StatisticSettings(categories=categories))["categories"]
    tokens = table["categories"].columns["tokens"]
    assert tokens[0] == tokens[1] == sum(COMMA in row.ids for row in ROWS)


@pytest.mark.parametrize(
    ("categories", "message"),
    [
        ({"x": ["nowhere"]}, "'nowhere' is not in the tokenizer's vocabulary of 57 tokens"),
        ({"x": [99]}, "99 is not in the tokenizer's vocabulary"),
        ({"x": "("}, "is not a regular expression"),
        ({"others": [","]}, "may not be called 'others'"),
        ({"all": [","]}, "may not be called 'all'"),
        ({}, "categories is empty; give at least one"),
    ],
)
def test_bad_categories(categories: Any, message: str) -> None:
    settings = StatisticSettings(categories=categories)
    with pytest.raises(InputError, match=re.escape(message)):
        Measurer(bert(), tokenizer(), choose("categories", settings), settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("1 2\n", "line 1: '1 2' is not `rank count token_id`"),
        ("1 5 4\n2 5 77\n", "line 2: rank 2 of token 77 is not valid"),
        ("\n", "has no ranks"),
    ],
)
def test_bad_rank_files(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "ranks.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=re.escape(message)):
        measured("frequency", ROWS, StatisticSettings(ranks=str(path)))
