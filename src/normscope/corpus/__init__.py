"""Statistics over a corpus, in one pass that can be interrupted.

Names are imported when they are first used, so that `options` can be loaded without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscope.corpus.options import CorpusOptions
    from normscope.corpus.output import CorpusResult
    from normscope.corpus.run import corpus, run_corpus

__all__ = ["CorpusOptions", "CorpusResult", "corpus", "run_corpus"]

_HOMES = {
    "CorpusOptions": "options",
    "CorpusResult": "output",
    "corpus": "run",
    "run_corpus": "run",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
