"""A corpus at a time: rows in, statistics out, in one pass that can be interrupted."""

from normscope.corpus.output import CorpusResult
from normscope.corpus.run import corpus

__all__ = ["CorpusResult", "corpus"]
