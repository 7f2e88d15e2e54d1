"""Fixtures for the tests of attribution."""

from __future__ import annotations

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture
def unchecked_types() -> Iterator[None]:
    """Leave types to the other tests: a model calls thousands of small functions."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
