"""Words for what is shown: maps, categories of tokens, layers, the proof of an attribution."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from normscope.decomposition.scopes import Scope, scope_of
from normscope.foundation.texts import printable
from normscope.results.attribution import Attribution

# Words for the categories of tokens that statistics name themselves.
_CATEGORIES = {
    "comma_period": "comma and period",
    "others": "other tokens",
    "normal": "ordinary tokens",
    "all": "all tokens",
}


def category_name(name: str) -> str:
    """Return the words for a category of tokens: "comma and period" for "comma_period"."""
    return _CATEGORIES.get(name, name)


def describe(name: str, *, per_head: bool = False, residual_column: bool = False) -> Scope:
    """Return the scope of a map, with the words and the formula that fit how it was computed.

    A map that is not in the table is described by its name.

    Args:
        name: The name of the map.
        per_head: Whether the map is one of single heads.
        residual_column: Whether the residual is a column of its own, as in cross-attention, where
            no key is the query itself.
    """
    scope = scope_of(name)
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


def short_signature(signature: str, hint: str, width: int = 80) -> str:
    """Return a signature in one line: the model, its weights, the version, where to see the rest.

    Args:
        signature: The whole signature.
        hint: How to see it whole, such as "--signature".
        width: The number of columns.
    """
    if len(signature) <= width:
        return printable(signature)
    entries = (entry.partition(":") for entry in signature.split("|"))
    fields = {name: value for name, _, value in entries}
    weights = fields.get("weights", "").removeprefix("sha256=")[:8]
    rest = f", weights {weights}" if weights else ""
    rest += f", normscope {fields.get('normscope', '?')} … ({hint})"
    name = printable(fields.get("model", "?")).rpartition("/")[2]
    room = max(8, width - len(rest))
    return (name if len(name) <= room else f"{name[: room - 1]}…") + rest


def shown_error(error: float) -> str:
    """Format an error: "2e-07"; an error of exactly zero is "0"."""
    return "0" if error == 0 else f"{error:.0e}"


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


APPROXIMATE = 1e-2  # relative gap from which shares do not add up to the digits shown


def proof(result: Attribution, step: int | None = None) -> str:
    """Say in one sentence that the shares add up to the model's own value, or that they do not.

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
    baseline = result.settings.get("baseline") if result.complete else None
    if bias or not baseline:
        total += f" + bias {amount(bias, decimals)}"
    whose = "the model's own value"
    if baseline:
        whose += f" minus that of the baseline {printable(baseline)}"
    units = printable(result.units)
    if not result.signed:
        return (
            f"scores of {result.method} are sizes ({printable(result.unit)}), without a sign or a "
            f"sum; {whose}: {amount(value, decimals)} ({units})"
        )
    if not result.complete:
        return (
            f"scores of {result.method} add up to {amount(shares, decimals)}, and need not add up "
            f"to {whose}, {amount(value, decimals)} ({units})"
        )
    return (
        f"{total} {'=' if result.error < APPROXIMATE else '≈'} {amount(value, decimals)}, {whose} "
        f"({units}); gap {shown_error(result.error)}"
    )
