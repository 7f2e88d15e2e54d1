"""Words and formulas for a map, from the table of scopes; the proof of an attribution in words."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from normscope.decomposition.scopes import SCOPES, Scope
from normscope.results.arrays import printable
from normscope.results.attribution import Attribution


def describe(name: str, *, per_head: bool = False, residual_column: bool = False) -> Scope:
    """Return the scope of a map, with the words and the formula that fit how it was computed.

    A map that is not in the table is described by its name.

    Args:
        name: The name of the map.
        per_head: Whether the map is one of single heads.
        residual_column: Whether the residual is a column of its own, as in cross-attention, where
            no key is the query itself.
    """
    scope = SCOPES.get(name)
    if scope is None:
        return Scope(
            name, "attention", short=name, label=name, title=name, formula=name, meaning=""
        )
    if per_head and scope.per_head:
        return replace(
            scope,
            title=scope.head_title,
            formula=scope.head_formula,
            meaning=scope.head_meaning,
        )
    if residual_column and scope.formula_with_column:
        return replace(scope, formula=scope.formula_with_column)
    return scope


def amount(value: float, decimals: int) -> str:
    """Format a number with a typographic minus: "−0.42"."""
    return f"{value:.{decimals}f}".replace("-", "−")


def signed(value: float, decimals: int) -> str:
    """Format a share with its sign: "+2.31", "−0.42"; zero has none."""
    text = amount(value, decimals)
    return f"+{text}" if value > 0 and float(f"{value:.{decimals}f}") else text


def decimals_for(*values: float) -> int:
    """Return how many decimals, from two to eight, give the largest of these three digits."""
    largest = max((abs(value) for value in values), default=0.0)
    return min(8, max(2, 2 - math.floor(math.log10(largest)))) if largest > 0 else 2


def proof(result: Attribution, step: int | None = None) -> str:
    """Say in one sentence that the shares add up to the model's own value.

    Args:
        result: An attribution.
        step: Which answer; by default the only one, or the sum of all.
    """
    value, bias = (
        float(np.sum(x) if step is None else np.atleast_1d(x)[step])
        for x in (result.value, result.bias)
    )
    shares = float(np.sum(result.scores.values if step is None else result.scores.values[step]))
    decimals = decimals_for(shares, bias, value)
    total = f"shares {amount(shares, decimals)}"
    baseline = result.settings.get("baseline")
    if bias or not baseline:
        total += f" + bias {amount(bias, decimals)}"
    whose = "the model's own value"
    if baseline:
        whose += f" less that of the baseline {printable(baseline)}"
    units = printable(result.units)
    gap = f"{result.error:.0e}" if result.error else "0"
    return f"{total} = {amount(value, decimals)}, {whose} ({units}); gap {gap}"
