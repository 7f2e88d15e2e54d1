"""docs/promises.md names tests that exist, and counts of kinds that the record has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.deep import record

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[^`]*\.py)(?:::(\w+))?`", PAGE)))


def test_the_page_names_tests() -> None:
    assert len(NAMED) > 20


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_named_test_exists(path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert any(function.startswith("test_") for function in functions)
    if name:
        assert name in functions


def test_every_promise_has_limits_and_tests() -> None:
    sections = PAGE.split("\n## ")[1:]
    assert len(sections) == 8
    for section in sections:
        assert "\n> " in section
        assert "\nLimits:" in section
        assert "\n| `tests/" in section


def test_the_page_is_linked() -> None:
    for page in ("README.md", "docs/testing.md", "mkdocs.yml"):
        assert "promises.md" in (ROOT / page).read_text(encoding="utf-8")
    assert record.RUNS.name in PAGE
