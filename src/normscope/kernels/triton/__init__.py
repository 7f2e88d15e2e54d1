"""The kernels in Triton: for CUDA, and for a CPU under Triton's interpreter.

Imported only when used, because triton is not a requirement of the package. Tile sizes follow from
what has to stay in registers; they were chosen by timing on an H200. The kernels are source text
for Triton's compiler, so nothing may wrap them, not even a type checker: hence ``no_type_check``.
"""

from normscope.kernels.triton.attend import attend, own_vectors
from normscope.kernels.triton.backward import (
    product_cotangents,
    slope_cotangents,
    value_cotangents,
)
from normscope.kernels.triton.cells import quadratic_norms
from normscope.kernels.triton.factors import cell_norms, gram_factors, padded_products
from normscope.kernels.triton.flash import attention_lse, flash_norms
from normscope.kernels.triton.grams import gram_matrices
from normscope.kernels.triton.lengths import row_gaps, row_lengths
from normscope.kernels.triton.vectors import cell_lengths, scaled_sums

__all__ = [
    "attend",
    "attention_lse",
    "cell_lengths",
    "cell_norms",
    "flash_norms",
    "gram_factors",
    "gram_matrices",
    "own_vectors",
    "padded_products",
    "product_cotangents",
    "quadratic_norms",
    "row_gaps",
    "row_lengths",
    "scaled_sums",
    "slope_cotangents",
    "value_cotangents",
]
