"""Maps that compare vectors, as loops over cells written from their definitions, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from normscope.testing import FullPrecision

Array = NDArray[np.float64]


def closeness(whole: Array, part: Array, order: int) -> float:
    """max(0, ‖Y‖ − ‖Y − t‖)."""
    return max(0.0, float(np.linalg.norm(whole, order) - np.linalg.norm(whole - part, order)))


def shares(rows: Array) -> Array:
    """Every row divided by its sum."""
    return np.stack([row / row.sum() for row in rows])


def alti(vectors: Array, whole: Array, order: int) -> Array:
    """C_ij from the vectors (query, key, hidden) and the block's real output (query, hidden)."""
    queries, keys, _ = vectors.shape
    cells = np.zeros((queries, keys))
    for i in range(queries):
        for j in range(keys):
            cells[i, j] = closeness(whole[i], vectors[i, j], order)
    return shares(cells)


def routes(heads: Array, residual: Array, whole: Array, *, column: bool = False) -> Array:
    """Edges from the vectors of all heads (head, query, key, hidden) and the residual stream."""
    count, queries, keys, _ = heads.shape
    cells = np.zeros((queries, keys + column))
    for i in range(queries):
        for j in range(keys):
            for h in range(count):
                cells[i, j] += closeness(whole[i], heads[h, i, j], 1)
        cells[i, keys if column else i] += closeness(whole[i], residual[i], 1)
    return shares(cells)


def effective(alpha: Array, f: Array) -> Array:
    """α_⊥ of one head: every row projected on the column space of the keys it may attend to."""
    found = np.zeros_like(alpha)
    for i, row in enumerate(alpha):
        keys = np.flatnonzero(row)
        left, values, _ = np.linalg.svd(f[keys], full_matrices=False)
        basis = left[:, values > max(f[keys].shape) * 2.3e-16 * values.max()]
        found[i, keys] = row[keys] @ basis @ basis.T
    return found


# ------------------------------------------------------- value zeroing, by running the model again

Find = Callable[[Any], list[tuple[Any, Any, Callable[[Any, int, int], Any]]]]


def _rows(output: Any, row: int, key: int) -> Any:
    output[row, key] = 0
    return output


def _third(output: Any, row: int, key: int) -> Any:
    output[row, key, 2 * output.shape[-1] // 3 :] = 0
    return output


def _interleaved(output: Any, row: int, key: int) -> Any:
    by_head = output.unflatten(-1, (4, 3, -1))  # GPT-NeoX: heads first
    by_head[row, key, :, 2] = 0
    return by_head.flatten(-3)


def zeroed(
    model: Any, inputs: dict[str, Any], layer: Any, value: Any, zero: Any, row: int, size: Any
) -> Array:
    """c_it of one layer and row: the layer runs again with the values of key t set to zero."""
    queries, keys = size
    seen: list[Any] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        seen.append((output if isinstance(output, torch.Tensor) else output[0])[row].clone())

    hook = layer.register_forward_hook(keep)
    with torch.no_grad(), FullPrecision():
        model(**inputs)
        for key in range(keys):
            other = value.register_forward_hook(lambda m, a, o, key=key: zero(o.clone(), row, key))
            model(**inputs)
            other.remove()
    hook.remove()
    own, changed = seen[0], seen[1:]
    cells = np.zeros((queries, keys))
    for i in range(queries):
        for key in range(keys):
            cosine = torch.cosine_similarity(changed[key][i], own[i], dim=0, eps=0)
            cells[i, key] = 1 - float(cosine)
    return cells
