"""Fast exact kernels: norms of sums of vectors, without building the vectors of every cell."""

from normscope.kernels.backend import Kernels, triton_for
from normscope.kernels.gram import (
    Grams,
    Linear,
    cholesky,
    factor_norms,
    flash_norms,
    gram_matrices,
    head_vectors,
    quadratic_norms,
)
from normscope.kernels.inputs import (
    Attended,
    CellLinear,
    CellMap,
    CellSums,
    GapInputs,
    RowInputs,
    RowLengths,
    ScoreInputs,
)
from normscope.kernels.products import product_grams, products_of
from normscope.kernels.scratch import Scratch
from normscope.kernels.vectors import cell_lengths, scaled_sums, sum_over_keys

__all__ = [
    "Attended",
    "CellLinear",
    "CellMap",
    "CellSums",
    "GapInputs",
    "Grams",
    "Kernels",
    "Linear",
    "RowInputs",
    "RowLengths",
    "ScoreInputs",
    "Scratch",
    "cell_lengths",
    "cholesky",
    "factor_norms",
    "flash_norms",
    "gram_matrices",
    "head_vectors",
    "product_grams",
    "products_of",
    "quadratic_norms",
    "scaled_sums",
    "sum_over_keys",
    "triton_for",
]
