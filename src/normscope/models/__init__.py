"""Load models; the default model; the families and the layouts of their layers as tables."""

from normscope.models.loading import load, resolve
from normscope.models.sources import identity

__all__ = ["identity", "load", "resolve"]
