"""Folders with tiny models."""

from __future__ import annotations

import pytest

from tests.helpers.commands import save_tiny_model


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny encoder of three layers and four heads."""
    return save_tiny_model("bert", tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="session")
def bart(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny translator, two layers in its encoder and three in its decoder."""
    return save_tiny_model("bart", tmp_path_factory.mktemp("models") / "tiny-bart")
