"""A model and a small corpus, and a stand-in for measuring where only the run is tested."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.corpora import mixed_corpus, quick_measuring


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a corpus of 59 sequences and three bad rows; not to be changed."""
    return mixed_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def quick() -> Iterator[None]:
    """Replace the statistics' measuring, which takes time, by one of the embeddings."""
    with quick_measuring():
        yield
