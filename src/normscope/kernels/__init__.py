"""The fast exact forms: norms of sums of vectors without a grid of vectors being built."""

from normscope.kernels.gram import head_vectors, weighted_norm

__all__ = ["head_vectors", "weighted_norm"]
