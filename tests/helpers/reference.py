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


# ------------------------------------------------------------------ the block (EMNLP 2021)


def attention_vectors(alpha: Array, f: Array) -> Array:
    """s_ij = Σ_h α_ij^h f_h(x_j), (query, key, hidden)."""
    heads, queries, keys = alpha.shape
    s = np.zeros((queries, keys, f.shape[-1]))
    for i in range(queries):
        for j in range(keys):
            for h in range(heads):
                s[i, j] += alpha[h, i, j] * f[h, j]
    return s


def add_residual(s: Array, x: Array) -> Array:
    """z_ij = s_ij + δ_ij x_i."""
    z = s.copy()
    for i in range(len(x)):
        z[i, i] = z[i, i] + x[i]
    return z


def layer_norm(z: Array, whole: Array, gamma: Array, eps: float, centred: bool = True) -> Array:
    """γ ⊙ (z_ij − mean) / sqrt(Var(y_i) + ε), Var of the whole vector y_i that entered."""
    p = np.zeros_like(z)
    for i in range(z.shape[0]):
        y = whole[i]
        variance = np.mean((y - y.mean()) ** 2) if centred else np.mean(y**2)
        for j in range(z.shape[1]):
            centre = z[i, j].mean() if centred else 0.0
            p[i, j] = gamma * (z[i, j] - centre) / np.sqrt(variance + eps)
    return p


def mixing_ratio(v: Array) -> Array:
    """‖Σ_{j≠i} v_ij‖ / (‖Σ_{j≠i} v_ij‖ + ‖v_ii‖)."""
    ratios = np.zeros(v.shape[0])
    for i in range(v.shape[0]):
        others = sum((v[i, j] for j in range(v.shape[1]) if j != i), np.zeros(v.shape[-1]))
        mixed, kept = np.sqrt(np.sum(others**2)), np.sqrt(np.sum(v[i, i] ** 2))
        ratios[i] = mixed / (mixed + kept)
    return ratios


def lengths(v: Array) -> Array:
    """‖v_ij‖."""
    return np.array([[np.sqrt(np.sum(cell**2)) for cell in row] for row in v])
