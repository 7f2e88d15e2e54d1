"""What statistics.json holds, checked when it is read: anybody may have edited it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from normscope.errors import InputError
from normscope.foundation.texts import quoted, shortened

_COUNTS = ("rows", "sequences", "tokens", "cut")


def read_content(file: Path) -> dict[str, Any]:
    """Return the content of statistics.json; raise InputError that names what is not valid."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        _check_content(content)
    except (OSError, ValueError, RecursionError) as problem:
        why = getattr(problem, "strerror", None) or str(problem)
        raise InputError(
            f"{quoted(file)} was not written by normscope corpus, or is damaged: "
            f"{shortened(why, 300)}; give another folder, or start a new run with --restart "
            "(restart=True)"
        ) from problem
    return dict(content)


def _check_content(content: Any) -> None:
    _check(content, _mapping, "the content", "an object")
    for name in ("identity", "counts", "tables"):
        _check(content.get(name), _mapping, name, "an object")
    _check(content.get("signature"), _text, "signature", "a text")
    counts = content["counts"]
    for name in _COUNTS:
        _check(counts.get(name), _count, f"counts.{name}", "an integer from 0")
    _check(counts.get("bad"), _mapping, "counts.bad", "an object")
    for kind, number in counts["bad"].items():
        _check(number, _count, f"counts.bad.{kind}", "an integer from 0")
    _check(content.get("problems"), _list, "problems", "a list")
    for index, problem in enumerate(content["problems"]):
        field = f"problems[{index}]"
        _check(problem, _problem, field, "an object: where, kind, message")
        for name, text in problem.items():
            _check(text, _text, f"{field}.{name}", "a text")
    for name, table in content["tables"].items():
        _check_table(f"tables.{name}", table)


def _check_table(field: str, table: Any) -> None:
    _check(table, _mapping, field, "an object")
    for name in ("title", "notes"):
        _check(table.get(name), _text, f"{field}.{name}", "a text")
    columns = table.get("columns")
    _check(columns, _mapping, f"{field}.columns", "an object")
    for name, values in columns.items():
        _check(values, _list, f"{field}.columns.{name}", "a list")
        for value in values:
            _check(value, _cell, f"{field}.columns.{name}", "numbers, texts and null")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"{field}.columns have the lengths {lengths}; valid: all equal")


def _check(value: Any, valid: Callable[[Any], bool], field: str, what: str) -> None:
    if not valid(value):
        raise InputError(f"{field} is {shortened(repr(value), 60)}; valid: {what}")


def _mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _problem(value: Any) -> bool:
    return _mapping(value) and set(value) == {"where", "kind", "message"}


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _cell(value: Any) -> bool:
    return value is None or isinstance(value, str | bool | int | float)
