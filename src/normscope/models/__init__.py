"""Load models; the default model; the families and the layouts of their layers as tables."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscope.models.loading import load, resolve
    from normscope.models.sources import identity

__all__ = ["identity", "load", "resolve"]

_HOMES = {"identity": "sources", "load": "loading", "resolve": "loading"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a name can be checked without torch."""
    if name in _HOMES:
        return getattr(import_module(f"normscope.models.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
