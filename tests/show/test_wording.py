"""Words and formulas: every map of the table has some, and an unknown one has its name."""

from __future__ import annotations

import pytest

from normscope.decomposition.scopes import NAMES, PER_HEAD, SCOPES
from normscope.measures.statistics.vocabulary import COMMA_PERIOD, RESERVED
from normscope.show.wording import category_name, describe


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("residual_column", [False, True])
def test_every_map_has_words_and_a_formula(per_head: bool, residual_column: bool) -> None:
    for name in NAMES:
        scope = describe(name, per_head=per_head, residual_column=residual_column)
        assert scope.formula
        assert scope.formula.count("{") == scope.formula.count("}")
        assert scope.short
        assert scope.title
        assert scope.meaning.endswith(".")


def test_what_a_single_head_has_of_its_own() -> None:
    for name in NAMES:
        summed, single = describe(name), describe(name, per_head=True)
        assert (summed.title != single.title) == (name in PER_HEAD)
        assert summed == SCOPES[name]
    assert describe("attn_n", per_head=True).formula.startswith("‖α_{ij}^{h} f_{h}")


def test_where_the_residual_is_a_column_the_formula_says_so() -> None:
    assert describe("attn_res_n", residual_column=True).formula.endswith("for the residual")
    assert describe("attn_n", residual_column=True) == SCOPES["attn_n"]


def test_an_unknown_map_is_called_by_its_name() -> None:
    scope = describe("mine", per_head=True)
    assert (scope.short, scope.title, scope.formula, scope.meaning) == ("mine", "mine", "mine", "")
    assert scope.unit == "norm"


def test_categories_of_tokens_have_words() -> None:
    assert category_name(COMMA_PERIOD) == "comma and period"
    for name in RESERVED:
        assert category_name(name).endswith(" tokens")
    assert category_name("[CLS]") == "[CLS]"
    assert category_name("my_own") == "my_own"
