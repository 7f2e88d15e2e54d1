"""The fast exact forms: norms of sums of vectors without a grid of vectors being built."""

from normscope.kernels.gram import Lengths, Linear, head_vectors, weighted_norms
from normscope.kernels.scratch import Scratch

__all__ = ["Lengths", "Linear", "Scratch", "head_vectors", "weighted_norms"]
