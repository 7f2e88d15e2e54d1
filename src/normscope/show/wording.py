"""Words and formulas for a map, from the table of scopes."""

from __future__ import annotations

from dataclasses import replace

from normscope.decomposition.scopes import SCOPES, Scope


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
