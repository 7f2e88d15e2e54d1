"""Models: loading them, the default models, and the families as tables."""

from normscope.models.loading import identity, load, resolve

__all__ = ["identity", "load", "resolve"]
