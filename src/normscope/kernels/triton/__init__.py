"""The fast exact forms as Triton kernels: for CUDA, and for a CPU under Triton's interpreter.

Imported only where it is used: triton is no requirement of the package. A kernel's tile sizes
follow from what has to stay in registers; they were chosen by timing on an H200. Kernels are
source text for Triton's compiler, so nothing may wrap them: hence no_type_check.
"""

from normscope.kernels.triton.cells import quadratic_norms
from normscope.kernels.triton.flash import attention_lse, flash_norms
from normscope.kernels.triton.grams import gram_matrices
from normscope.kernels.triton.lengths import RowLengths, row_lengths

__all__ = [
    "RowLengths",
    "attention_lse",
    "flash_norms",
    "gram_matrices",
    "quadratic_norms",
    "row_lengths",
]
