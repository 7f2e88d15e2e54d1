"""normscope: what really moves inside a Transformer.

An attention head outputs Σ_j α_j f(x_j). normscope measures the vectors α_j f(x_j) themselves,
exactly, in any unmodified transformers model.
"""

from typing import TYPE_CHECKING, Any

from normscope.analysis import analyze, analyze_inputs
from normscope.arrays import LabelledArray
from normscope.capture import Capture, capture
from normscope.comparison import Amplification, amplification, contextualization_change
from normscope.contributions import Contributions, load
from normscope.corpus import CorpusResult, corpus
from normscope.errors import (
    ExactnessError,
    InputError,
    MissingExtraError,
    ModelNotFoundError,
    NormscopeError,
    UnsupportedModelError,
)
from normscope.properties import expansion_rate, layernorm_scale, singular_values
from normscope.reductions import Reductions
from normscope.tokens import Tokens
from normscope.viewer.widget import widget

if TYPE_CHECKING:
    from normscope.alignment.api import align, translate_align

__version__ = "0.1.0"

__all__ = [
    "Amplification",
    "Capture",
    "Contributions",
    "CorpusResult",
    "ExactnessError",
    "InputError",
    "LabelledArray",
    "MissingExtraError",
    "ModelNotFoundError",
    "NormscopeError",
    "Reductions",
    "Tokens",
    "UnsupportedModelError",
    "align",
    "amplification",
    "analyze",
    "analyze_inputs",
    "capture",
    "contextualization_change",
    "corpus",
    "expansion_rate",
    "layernorm_scale",
    "load",
    "singular_values",
    "translate_align",
    "widget",
]


def __getattr__(name: str) -> Any:
    """Names whose modules are imported when they are first used."""
    if name in ("align", "translate_align"):
        from normscope.alignment import api

        return getattr(api, name)
    if name in ("alignment", "plots", "testing"):  # `import normscope` is enough for them
        from importlib import import_module

        return import_module(f"normscope.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
