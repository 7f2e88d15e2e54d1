"""The widget for notebooks."""

from __future__ import annotations

import json
import sys

import pytest

import normscope
from normscope.show.page import payload
from tests.helpers import pages


def test_the_widget_carries_its_code_and_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pages.results()
    widget = normscope.widget(made)
    assert json.loads(widget.data) == json.loads(json.dumps(payload(made)))
    assert "export default" in widget._esm
    assert ".normscope" in widget._css
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(normscope.MissingExtraError, match=r"normscope\[notebook\]"):
        normscope.widget(made)
