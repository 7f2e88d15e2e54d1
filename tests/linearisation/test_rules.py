"""The table of rules."""

from __future__ import annotations

import pytest

from normscope.errors import InputError
from normscope.linearisation.rules import GATES, RULES, rules_of


def test_rows_are_named_after_their_methods() -> None:
    assert {name: rules.name for name, rules in RULES.items()} == {name: name for name in RULES}
    assert [name for name, rules in RULES.items() if rules.difference] == ["secant"]


@pytest.mark.parametrize("gate", GATES)
def test_gate_rules(gate: str) -> None:
    assert rules_of("frozen", gate).product == gate
    assert rules_of("attn_lrp", gate).product == gate


def test_what_is_not_in_the_table() -> None:
    with pytest.raises(InputError, match="there is no method 'lime'; valid: frozen, secant"):
        rules_of("lime")
    with pytest.raises(InputError, match="there is no gate rule 'both'; valid: half, gate, up, ig"):
        rules_of("frozen", "both")
    with pytest.raises(InputError, match=r"gate=.up. applies only .*secant. has its own"):
        rules_of("secant", "up")
