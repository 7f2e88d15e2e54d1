"""The papers' mathematics: exact, factored decompositions that know their own error."""

from normscope.decomposition.attention import AttentionDecomposition

__all__ = ["AttentionDecomposition"]
