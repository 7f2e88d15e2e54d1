"""normscope: what really moves inside a Transformer.

An attention head outputs Σ_j α_j f(x_j). normscope measures the vectors α_j f(x_j) themselves,
exactly, in any unmodified transformers model.
"""

from normscope.analysis import analyze, analyze_inputs
from normscope.arrays import LabelledArray
from normscope.capture import Capture, capture
from normscope.comparison import Amplification, amplification, contextualization_change
from normscope.contributions import Contributions, load
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

__version__ = "0.1.0"

__all__ = [
    "Amplification",
    "Capture",
    "Contributions",
    "ExactnessError",
    "InputError",
    "LabelledArray",
    "MissingExtraError",
    "ModelNotFoundError",
    "NormscopeError",
    "Reductions",
    "Tokens",
    "UnsupportedModelError",
    "amplification",
    "analyze",
    "analyze_inputs",
    "capture",
    "contextualization_change",
    "expansion_rate",
    "layernorm_scale",
    "load",
    "singular_values",
    "widget",
]
