"""The equations as loops, one vector at a time, in float64: slow, obvious, and the referee."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def transformed(x: Array, w_v: Array, b_v: Array, w_o: Array) -> Array:
    """f_h(x_j) = (x_j W_V^h + b_V^h) W_O^h. x (key, hidden), weights of one head (in, out)."""
    return np.stack([(x_j @ w_v + b_v) @ w_o for x_j in x])


def vectors_from_values(value: Array, weight: Array) -> Array:
    """f_h(x_j) (head, key, out) from values (kv_head, key, e) and W_O (head, e, out)."""
    heads, groups = len(weight), len(value)
    f = np.zeros((heads, value.shape[1], weight.shape[2]))
    for h in range(heads):
        g = h // (heads // groups)  # neighbouring heads share a value head
        for j in range(value.shape[1]):
            f[h, j] = value[g, j] @ weight[h]
    return f


def norms(alpha: Array, f: Array) -> dict[str, Array]:
    """All maps of the 2020 paper from α (head, query, key) and f (head, key, out)."""
    heads, queries, keys = alpha.shape
    each = np.zeros((heads, queries, keys))
    summed = np.zeros((queries, keys))
    mean = np.zeros((queries, keys))
    for i in range(queries):
        for j in range(keys):
            total = np.zeros(f.shape[-1])
            for h in range(heads):
                weighted = alpha[h, i, j] * f[h, j]
                each[h, i, j] = np.sqrt(np.sum(weighted**2))
                total = total + weighted
                mean[i, j] += alpha[h, i, j] / heads
            summed[i, j] = np.sqrt(np.sum(total**2))
    return {
        "attn_w sum": mean,
        "attn_w each": alpha,
        "attn_n sum": summed,
        "attn_n each": each,
        "transformed_norm": np.sqrt((f**2).sum(axis=-1)),
    }


def output(alpha: Array, f: Array, b_o: Array) -> Array:
    """y_i = Σ_h Σ_j α_ij^h f_h(x_j) + b_O."""
    heads, queries, keys = alpha.shape
    y = np.zeros((queries, f.shape[-1]))
    for i in range(queries):
        for h in range(heads):
            for j in range(keys):
                y[i] += alpha[h, i, j] * f[h, j]
        y[i] += b_o
    return y
