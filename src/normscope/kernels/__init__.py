"""The fast exact forms: norms of sums of vectors without a grid of vectors being built."""

from normscope.kernels.backend import Kernels, fused
from normscope.kernels.gram import (
    Grams,
    Linear,
    cholesky,
    flash_norms,
    gram_matrices,
    head_vectors,
    quadratic_norms,
)
from normscope.kernels.products import product_grams, products_of
from normscope.kernels.scratch import Scratch

__all__ = [
    "Grams",
    "Kernels",
    "Linear",
    "Scratch",
    "cholesky",
    "flash_norms",
    "fused",
    "gram_matrices",
    "head_vectors",
    "product_grams",
    "products_of",
    "quadratic_norms",
]
