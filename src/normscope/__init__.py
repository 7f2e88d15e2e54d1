"""Show what contributes to what inside a Transformer.

An attention head outputs Σ_j α_j f(x_j). normscope measures the vectors α_j f(x_j) themselves,
exactly, in any unmodified transformers model.

The public names are imported when they are first used, so that ``import normscope`` costs nothing.
"""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscope.alignment.api import align, translate_align
    from normscope.attribution.api import attribute
    from normscope.attribution.inputs import attribute_inputs
    from normscope.attribution.methods.table import methods
    from normscope.capture import capture
    from normscope.corpus import corpus
    from normscope.errors import (
        ExactnessError,
        InputError,
        MissingExtraError,
        ModelNotFoundError,
        NormscopeError,
        UnsupportedModelError,
    )
    from normscope.faithfulness.api import faithfulness
    from normscope.faithfulness.comparison import compare
    from normscope.faithfulness.evidence import evidence
    from normscope.measures.analysis import analyze, analyze_inputs
    from normscope.measures.rollout import flow, rollout
    from normscope.results.arrays import LabelledArray
    from normscope.results.attribution import Attribution
    from normscope.results.contributions import Contributions, load
    from normscope.show.widget import widget

__version__ = "0.1.0"

__all__ = [
    "Attribution",
    "Contributions",
    "ExactnessError",
    "InputError",
    "LabelledArray",
    "MissingExtraError",
    "ModelNotFoundError",
    "NormscopeError",
    "UnsupportedModelError",
    "align",
    "analyze",
    "analyze_inputs",
    "attribute",
    "attribute_inputs",
    "capture",
    "compare",
    "corpus",
    "evidence",
    "faithfulness",
    "flow",
    "load",
    "methods",
    "rollout",
    "translate_align",
    "widget",
]

# Where each public name is defined.
_HOMES = {
    **dict.fromkeys(("align", "translate_align"), "alignment.api"),
    **dict.fromkeys(("analyze", "analyze_inputs"), "measures.analysis"),
    **dict.fromkeys(("flow", "rollout"), "measures.rollout"),
    "attribute": "attribution.api",
    "attribute_inputs": "attribution.inputs",
    "methods": "attribution.methods.table",
    **dict.fromkeys(("Contributions", "load"), "results.contributions"),
    "Attribution": "results.attribution",
    "LabelledArray": "results.arrays",
    "capture": "capture",
    "compare": "faithfulness.comparison",
    "corpus": "corpus",
    "evidence": "faithfulness.evidence",
    "faithfulness": "faithfulness.api",
    "widget": "show.widget",
    **dict.fromkeys((name for name in __all__ if name.endswith("Error")), "errors"),
}

# Documented modules that live deeper in the tree: both paths give the same module.
_ALIASES = {
    "normscope.architectures": "normscope.models.architectures",
    "normscope.comparison": "normscope.measures.comparison",
    "normscope.layouts": "normscope.models.layouts",
    "normscope.plots": "normscope.show.plots",
    "normscope.properties": "normscope.measures.properties",
    "normscope.statistics": "normscope.measures.statistics",
}
_SUBMODULES = ("alignment", "models", "testing")  # `import normscope` is enough for these

# Names that were public before they moved into submodules.
_MOVED = {
    **dict.fromkeys(("Amplification", "amplification", "contextualization_change"), "comparison"),
    **dict.fromkeys(("expansion_rate", "layernorm_scale", "singular_values"), "properties"),
    "Capture": "capture",
    "CorpusResult": "corpus",
    "Tokens": "text.tokens",
}


class _AliasFinder(MetaPathFinder, Loader):
    """Import the modules of ``_ALIASES``, and those below them, under their documented names."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        real = _real_name(fullname)
        return None if real is None or find_spec(real) is None else ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_real_name(spec.name) or spec.name)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:  # the import system has just replaced it
            module.__spec__ = module.__spec__.loader_state


def _real_name(name: str) -> str | None:
    """Return where a module with an alias, or below one, really is."""
    for alias, real in _ALIASES.items():
        if name == alias or name.startswith(f"{alias}."):
            return real + name.removeprefix(alias)
    return None


class _Package(ModuleType):
    """A package with functions that have the names of folders, such as ``corpus``, and win."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.meta_path.insert(0, _AliasFinder())  # before the finder of the real packages' files
sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _HOMES:
        value = getattr(import_module(f"normscope.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES or f"normscope.{name}" in _ALIASES:
        return import_module(f"normscope.{name}")
    if name in _MOVED:
        home = f"normscope.{_MOVED[name]}"
        message = f"normscope.{name} has moved: use `from {home} import {name}`"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(import_module(home), name)
    hint = "; reduced results are Contributions now" if name == "Reductions" else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
