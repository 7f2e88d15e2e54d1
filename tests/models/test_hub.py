"""A hub that cannot be reached is told at once; cached models are read without it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from normscope import ModelNotFoundError
from normscope.models import hub
from normscope.models.sources import check_source


class Session:
    """A session that does with each request what it was made for."""

    def __init__(self, act: Any) -> None:
        self.act, self.asked = act, 0

    def head(self, address: str, timeout: float) -> None:
        self.asked += 1
        self.act()


def online(monkeypatch: pytest.MonkeyPatch, act: Any) -> Session:
    session = Session(act)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: session)
    monkeypatch.setattr(hub, "_last", None)
    return session


def fail() -> None:
    raise OSError("Name or service not known")


def test_without_a_network_a_wrong_name_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    session = online(monkeypatch, fail)
    message = "it is neither a folder nor in the local cache, and huggingface.co cannot be reached"
    for _ in range(3):
        with pytest.raises(ModelNotFoundError, match=message):
            check_source("nobody/bert-base-uncasd")
    assert session.asked == 1  # the answer is remembered


def test_a_short_name_with_a_mistake_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    online(monkeypatch, fail)
    with pytest.raises(ModelNotFoundError, match=r"did you mean 'smollm2'\? Otherwise, check the"):
        check_source("SmolM2")


def test_a_network_that_does_not_answer_costs_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    online(monkeypatch, lambda: time.sleep(20))
    monkeypatch.setattr(hub, "SECONDS", 0.1)
    began = time.monotonic()
    with pytest.raises(ModelNotFoundError, match=r"no response within 0.1 s"):
        hub.only_cached("nobody/nothing", None)
    assert time.monotonic() - began < 5


def test_a_cached_model_is_read_without_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    online(monkeypatch, fail)
    file = tmp_path / "config.json"
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: str(file))
    assert hub.only_cached("owner/name", None)
    online(monkeypatch, lambda: None)
    assert not hub.only_cached("owner/name", None)


def test_other_sources_are_not_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = online(monkeypatch, fail)
    for name in (None, "minilm", "smollm2"):
        check_source(name)
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        check_source(tmp_path)
    assert session.asked == 0
