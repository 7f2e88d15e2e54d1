"""The garbage collection pauses, and goes on afterwards."""

from __future__ import annotations

import gc

import pytest

from normscope.foundation.garbage import collection_paused


def test_collection_pauses_inside_the_context_only() -> None:
    assert gc.isenabled()
    with collection_paused(), collection_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), collection_paused():
        _ = 1 // 0
    assert gc.isenabled()


def test_a_collection_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
