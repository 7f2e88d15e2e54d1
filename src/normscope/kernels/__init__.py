"""The fast exact forms: norms of sums of vectors without a grid of vectors being built."""

from normscope.kernels.gram import Lengths, head_vectors, weighted_norms

__all__ = ["Lengths", "head_vectors", "weighted_norms"]
