"""Browser tests that are not run, because there is no browser, are named."""

from __future__ import annotations

import sys
import types

import pytest


def test_browser_tests_are_named_where_there_is_no_browser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.conftest import pytest_terminal_summary
    from tests.helpers import browsers

    said: list[str] = []
    terminal = types.SimpleNamespace(section=said.append, write_line=said.append)
    monkeypatch.setenv("NORMSCOPE_CHROMIUM", "")
    pytest_terminal_summary(terminal)
    names = browsers.tests()
    assert len(names) > 20
    assert said[0] == f"{len(names)} browser tests were not run: there is no Chromium"
    assert said[1:-1] == [f"not run: {name}" for name in names]
    assert "apt-get install chromium" in said[-1]
    said.clear()
    monkeypatch.setenv("NORMSCOPE_CHROMIUM", sys.executable)  # any program that is there
    pytest_terminal_summary(terminal)
    assert said == []
