"""The browser that the tests in tests/browser drive, and what is said where there is none."""

from __future__ import annotations

import ast
import os
import shutil
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "browser"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """NORMSCOPE_CHROMIUM if it is set (empty: none), or a Chromium or Chrome that is installed."""
    given = os.environ.get("NORMSCOPE_CHROMIUM")
    if given is not None:
        return shutil.which(given) if given else None
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def tests() -> list[str]:
    """The tests that need a browser, by name."""
    return [
        f"{path.parent.name}/{path.name}::{node.name}"
        for path in sorted(FOLDER.glob("test_*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
