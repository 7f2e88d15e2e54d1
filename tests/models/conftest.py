"""What the tests of loading share: a saved model, an empty hub cache, transformers' log."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import huggingface_hub
import pytest
from transformers import BertForMaskedLM

from tests.helpers.logs import messages  # noqa: F401 (a fixture)
from tests.helpers.saved_models import SMALL_BERT, save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole small model: what every test below spoils in its own way."""
    return save(BertForMaskedLM(SMALL_BERT), tmp_path / "tiny-model")


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache; the tests run offline, so it is all there is of the hub."""
    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    return cache


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", files)
