"""Pause Python's cyclic garbage collection while many objects are made that will be kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from normscope.foundation.interrupts import shielded


@shielded
def collection_paused() -> Iterator[None]:
    """Pause the collection inside the context, for all threads; nothing if it is off already.

    Python looks through all objects of a process (after importing transformers: for a quarter of
    a second) each time their number has grown by a quarter. Where new objects are kept, such as the
    results of a batch, nothing is found.
    """
    if not gc.isenabled():
        yield
        return
    try:
        gc.disable()
        yield
    finally:
        gc.enable()
