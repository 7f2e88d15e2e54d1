"""Show what contributes to what inside a Transformer.

An attention head outputs Σ_j α_j f(x_j). normscope measures the vectors α_j f(x_j) themselves,
exactly, in any unmodified transformers model.

The public names are imported when they are first used, so that ``import normscope`` costs nothing.
"""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscope.alignment.api import align, translate_align
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
    from normscope.measures.analysis import analyze, analyze_inputs
    from normscope.results.arrays import LabelledArray
    from normscope.results.contributions import Contributions, load
    from normscope.show.widget import widget

__version__ = "0.1.0"

__all__ = [
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
    "capture",
    "corpus",
    "load",
    "translate_align",
    "widget",
]

# Where each public name is defined.
_HOMES = {
    **dict.fromkeys(("align", "translate_align"), "alignment.api"),
    **dict.fromkeys(("analyze", "analyze_inputs"), "measures.analysis"),
    **dict.fromkeys(("Contributions", "load"), "results.contributions"),
    "LabelledArray": "results.arrays",
    "capture": "capture",
    "corpus": "corpus",
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
    """Import the modules of ``_ALIASES`` under their documented names."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in _ALIASES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_ALIASES[spec.name])
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has just replaced it


class _Package(ModuleType):
    """A package in which the functions ``capture`` and ``corpus`` win over the folders."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.meta_path.append(_AliasFinder())
sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name in _HOMES:
        value = getattr(import_module(f"normscope.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES or f"normscope.{name}" in _ALIASES:
        return import_module(f"normscope.{name}")
    hint = f"; use `from normscope.{_MOVED[name]} import {name}`" if name in _MOVED else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
