# mypy: allow-untyped-defs, allow-untyped-decorators
"""The same norms as one Triton kernel each: for CUDA, and for the CPU under Triton's interpreter.

Imported only where it is used: triton is no requirement of the package. A kernel's tile sizes
follow from what has to stay in registers; they were chosen by timing on an H200. Kernels are
source text for Triton's compiler, so nothing may wrap them: hence no_type_check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import no_type_check

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from normscope.shapes import Float

LOG2E = tl.constexpr(1.4426950408889634)
ROWS = slice(None)
FEW = 12  # heads up to which a cell's weights fit into a thread's registers


# ---- norms from α and Gram matrices


@triton.jit
@no_type_check
def _quadratic_norms_few(
    alpha, grams, scales, out, mean,
    alpha_b, alpha_h, alpha_i, alpha_j, queries, keys, count,
    MEAN: tl.constexpr, COUNT: tl.constexpr, HEADS: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One tile of queries and keys, all maps; a cell's weights stay in its thread's registers."""
    batch = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(queries, BQ)
    i = tl.program_id(0) % tiles * BQ + tl.arange(0, BQ)  # neighbours read the same keys
    j = tl.program_id(0) // tiles * BK + tl.arange(0, BK)
    real = (i < queries)[:, None] & (j < keys)
    cells = (batch * queries + i)[:, None] * keys + j
    alpha += batch * alpha_b
    spots = (i.to(tl.int64) * alpha_i)[:, None] + j.to(tl.int64) * alpha_j
    known = tl.minimum(j, keys - 1)  # instead of masks, which would take more registers
    a = ()
    total = tl.zeros((BQ, BK), tl.float64)
    for h in tl.static_range(HEADS):
        weights = tl.load(alpha + tl.cast(h, tl.int64) * alpha_h + spots, real, other=0.0)
        a += (weights.to(tl.float64),)
        total += a[h]
    if MEAN:
        tl.store(mean + cells, (total / HEADS).to(tl.float32), real)
    for s in tl.static_range(COUNT):
        gram = grams[s] + batch * keys + known
        squares = tl.zeros((BQ, BK), tl.float64)
        for h in tl.static_range(HEADS):
            pairs = tl.zeros((BQ, BK), tl.float64)
            for c in tl.static_range(h):
                pairs += a[c] * tl.load(gram + (h * HEADS + c) * count)
            # Both halves of the symmetric matrix at once.
            squares += a[h] * (a[h] * tl.load(gram + (h * HEADS + h) * count) + 2 * pairs)
        lengths = tl.sqrt(tl.maximum(squares, 0.0))
        if scales[s] is not None:
            scale = tl.load(scales[s] + batch * queries + i, i < queries, other=0.0)
            lengths *= scale[:, None]
        tl.store(out[s] + cells, lengths.to(out[s].dtype.element_ty), real)


@triton.jit
@no_type_check
def _quadratic_norms(
    alpha, grams, scales, out, mean,
    alpha_b, alpha_h, alpha_i, alpha_j, heads, queries, keys,
    MEAN: tl.constexpr, COUNT: tl.constexpr, TILES: tl.constexpr, PARTS: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """Some keys and TILES tiles of queries, all maps.

    For each key a product of (queries, heads) and (heads, heads), in PARTS² blocks.
    """
    batch = tl.program_id(1).to(tl.int64)
    runs = tl.cdiv(queries, TILES * BQ)
    low = tl.program_id(0) % runs * (TILES * BQ)
    j = tl.program_id(0) // runs * BK + tl.arange(0, BK)
    h = tl.arange(0, H)
    known = (j < keys)[:, None, None]
    alpha += batch * alpha_b + (j.to(tl.int64) * alpha_j)[:, None, None]
    first = ((batch * keys + j) * heads * heads)[:, None, None] + h[:, None] * heads + h
    for s in tl.static_range(COUNT):
        inside = known & (h < heads)[:, None] & (h < heads)
        gram = tl.load(grams[s] + first, inside, other=0.0)  # BK H H, stays where PARTS is 1
        for tile in range(TILES):
            i = low + tile * BQ + tl.arange(0, BQ)
            real = (i < queries)[None, :] & (j < keys)[:, None]
            cells = (batch * queries + i[None, :]) * keys + j[:, None]
            rows = alpha + (i.to(tl.int64) * alpha_i)[:, None]
            squares = tl.zeros((BK, BQ), tl.float64)
            total = tl.zeros((BK, BQ), tl.float64)
            for o in range(PARTS):
                ho = o * H + h
                spots = rows + ho.to(tl.int64) * alpha_h
                left = tl.load(spots, real[:, :, None] & (ho < heads), other=0.0).to(tl.float64)
                if PARTS == 1:
                    product = tl.dot(left, gram, out_dtype=tl.float64)
                else:
                    product = tl.zeros((BK, BQ, H), tl.float64)
                    for c in range(PARTS):
                        hc = c * H + h
                        spots = rows + hc.to(tl.int64) * alpha_h
                        right = tl.load(spots, real[:, :, None] & (hc < heads), other=0.0)
                        inside = known & (hc < heads)[:, None] & (ho < heads)
                        block = grams[s] + first + c * H * heads + o * H
                        gram = tl.load(block, inside, other=0.0)
                        product = tl.dot(right.to(tl.float64), gram, product, out_dtype=tl.float64)
                squares += tl.sum(product * left, axis=2)
                total += tl.sum(left, axis=2)
            if MEAN and s == 0:
                tl.store(mean + cells, (total / heads).to(tl.float32), real)
            lengths = tl.sqrt(tl.maximum(squares, 0.0))
            if scales[s] is not None:
                scale = tl.load(scales[s] + batch * queries + i, i < queries, other=0.0)
                lengths *= scale[None, :]
            tl.store(out[s] + cells, lengths.to(out[s].dtype.element_ty), real)


def quadratic_norms(
    alpha: Float[Tensor, "batch head query key"],
    grams: Sequence[Float[Tensor, "batch key head head"]],
    scale: Sequence[Float[Tensor, "batch query"] | None] | None = None,
    *,
    mean: bool = False,
    dtype: torch.dtype = torch.float32,
) -> tuple[list[Float[Tensor, "batch query key"]], Float[Tensor, "batch query key"] | None]:
    """√(aᵀGa) of every cell, for several G, each times a number for each query; and the mean of α.

    ``grams`` and ``scale`` are float64, as is the arithmetic; the maps are ``dtype``, the mean over
    the heads is float32.
    """
    batch, heads, queries, keys = alpha.shape
    maps = [alpha.new_empty((batch, queries, keys), dtype=dtype) for _ in grams]
    average = alpha.new_empty((batch, queries, keys), dtype=torch.float32) if mean else None
    scales = [None] * len(maps) if scale is None else scale
    scales = [None if s is None else s.contiguous() for s in scales]
    if not alpha.numel():
        return maps, average
    if heads <= FEW:
        grams = [_keys_last(gram) for gram in grams]
        few = _few_tile()
        grid = (triton.cdiv(queries, few["BQ"]) * triton.cdiv(keys, few["BK"]), batch)
        _quadratic_norms_few[grid](
            alpha, tuple(grams), tuple(scales), tuple(maps), average, *alpha.stride(),
            queries, keys, batch * keys,
            MEAN=mean, COUNT=len(maps), HEADS=heads, **few,
        )  # fmt: skip
        return maps, average
    if alpha.element_size() == 2:  # Triton 3.6 cannot lower float64 products of 16-bit loads
        alpha = alpha.float()
    tile = _quadratic_tile(heads)
    runs = triton.cdiv(queries, tile["TILES"] * tile["BQ"])
    _quadratic_norms[(runs * triton.cdiv(keys, tile["BK"]), batch)](
        alpha, tuple(g.contiguous() for g in grams), tuple(scales), tuple(maps), average,
        *alpha.stride(), heads, queries, keys, MEAN=mean, COUNT=len(maps), **tile,
    )  # fmt: skip
    return maps, average


def _keys_last(gram: Tensor) -> Tensor:
    """The same matrices, in memory by (batch, head, head, key)."""
    batch, keys, heads, _ = gram.shape
    if gram.stride() == (keys, 1, heads * batch * keys, batch * keys):
        return gram  # as gram_matrices makes them
    new = gram.new_empty((heads, heads, batch, keys)).permute(2, 3, 0, 1)
    return new.copy_(gram)


def _few_tile() -> dict[str, int]:
    """Tile sizes: two cells for each thread."""
    return {"BQ": 8, "BK": 32, "num_warps": 4}


def _quadratic_tile(heads: int) -> dict[str, int]:
    """Tile sizes: (keys, queries, heads) sums in float64 stay in registers."""
    width = 16 if heads <= 16 else 32
    parts = triton.cdiv(heads, width)
    return {
        "BQ": 16, "BK": 4, "H": width, "PARTS": parts, "TILES": 8, "num_warps": 2,
        "num_stages": 2 if parts == 1 else 1,
    }  # fmt: skip


# ---- Gram matrices


@triton.jit
@no_type_check
def _gram_matrices(
    vectors, own, gamma, plain, normed, summed, heads, count, gram_n, gram_r, gram_c,
    D: tl.constexpr, STEP: tl.constexpr, CENTRED: tl.constexpr, OWN: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr, H: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Some keys, all heads: FFᵀ, its weighted and centred form, and a sum over the heads.

    Σ γ²(f_h − m_h)(f_k − m_k) = Σ γ²f_h f_k − m_h Σ γ²f_k − m_k Σ γ²f_h + m_h m_k Σ γ²
    """
    n = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    h = tl.arange(0, H)
    known = (h < heads)[:, None] & (n < count)  # H BN: so that a thread has all heads of a key
    rows = vectors + ((h * count)[:, None] + n)[:, :, None] * D
    if OWN:
        weights = tl.load(own + n * heads + h[:, None], known, other=0.0)
    squares = tl.zeros((BN, H, H), tl.float64)
    scaled = tl.zeros((BN, H, H), tl.float64)
    # Summed over chunks only; across threads at the end.
    means = tl.zeros((H, BN, BD), tl.float64)  # d·m_h
    sums = tl.zeros((H, BN, BD), tl.float64)  # Σ γ²f_h
    total = tl.zeros((BD,), tl.float64)  # Σ γ²
    for start in tl.range(0, D, BD, num_stages=STAGES):
        d = start + tl.arange(0, BD)
        f = tl.load(rows + d, known[:, :, None] & (d < D), other=0.0)
        left = f.permute(1, 0, 2)
        right = f.permute(1, 2, 0)
        squares = tl.dot(left, right, squares, out_dtype=tl.float64)
        if STEP:
            square = tl.full((BD,), 1.0, tl.float64)
            if gamma is not None:
                square = tl.load(gamma + d, d < D, other=0.0)
                square *= square
                scaled = tl.dot(left * square, right, scaled, out_dtype=tl.float64)
            if CENTRED:
                means += f
                sums += f * square
                total += tl.where(d < D, square, 0.0)
        if OWN:
            inside = (n < count)[:, None] & (d < D)
            made = tl.sum(f * weights[:, :, None], axis=0)
            tl.store(summed + n[:, None] * D + d, made, inside)
    pairs = n[:, None, None] * gram_n + h[:, None] * gram_r + h * gram_c
    inside = (n < count)[:, None, None] & (h < heads)[:, None] & (h < heads)
    tl.store(plain + pairs, squares, inside)
    if STEP:
        if gamma is None:
            scaled = squares
        if CENTRED:
            m = tl.trans(tl.sum(means, axis=2)) / D
            v = tl.trans(tl.sum(sums, axis=2))
            cross = m[:, :, None] * v[:, None, :] + v[:, :, None] * m[:, None, :]
            scaled += m[:, :, None] * m[:, None, :] * tl.sum(total, axis=0) - cross
        tl.store(normed + pairs, scaled, inside)


def gram_matrices(
    vectors: Float[Tensor, "head row out"],
    steps: Sequence[tuple[bool, Float[Tensor, " out"] | None]] = (),
    own: Float[Tensor, "row head"] | None = None,
) -> tuple[list[Float[Tensor, "row head head"]], Float[Tensor, "row out"] | None]:
    """Gram matrices of each row's vectors, plain and after each step; and Σ_h own_h f_h.

    A step is (whether the mean is taken off, what is multiplied by); it goes on where the one
    before it ended. All is float64; one pass over ``vectors`` for each two matrices.
    """
    heads, count, size = vectors.shape
    if heads > 32:  # large enough for the library's own product
        return _gram_products(vectors, steps, own)
    vectors = vectors.contiguous()
    # By key first or last in memory: as quadratic_norms reads them.
    new = (count, heads, heads) if heads > FEW else (heads, heads, count)
    grams = [vectors.new_empty(new) for _ in (None, *steps)]
    grams = grams if heads > FEW else [gram.permute(2, 0, 1) for gram in grams]
    summed = None if own is None else vectors.new_empty((count, size))
    tile = _gram_tile(heads)
    grid = (triton.cdiv(count, tile["BN"]),)
    for at in range(0, len(grams), 2):
        if at:
            vectors = _transformed(_transformed(vectors, *steps[at - 2]), *steps[at - 1])
        centred, gamma = steps[at] if at < len(steps) else (False, None)
        first = at == 0 and own is not None
        if vectors.numel():
            _gram_matrices[grid](
                vectors, own.contiguous() if first and own is not None else None,
                None if gamma is None else gamma.contiguous(),
                grams[at], grams[at + 1] if at < len(steps) else None, summed if first else None,
                heads, count, *grams[0].stride(),
                D=size, STEP=at < len(steps), CENTRED=centred, OWN=first, **tile,
            )  # fmt: skip
    return grams, summed


def _gram_products(
    vectors: Tensor, steps: Sequence[tuple[bool, Tensor | None]], own: Tensor | None
) -> tuple[list[Tensor], Tensor | None]:
    """The same by torch's products."""
    rows = vectors.transpose(0, 1)
    summed = None if own is None else torch.bmm(own.unsqueeze(1), rows).squeeze(1)
    grams = [torch.bmm(rows, rows.transpose(1, 2))]
    for step in steps:
        rows = _transformed(rows, *step)
        grams.append(torch.bmm(rows, rows.transpose(1, 2)))
    return grams, summed


def _transformed(vectors: Tensor, centred: bool, gamma: Tensor | None) -> Tensor:
    """γ ⊙ (v − mean v)."""
    vectors = vectors - vectors.mean(dim=-1, keepdim=True) if centred else vectors
    return vectors if gamma is None else vectors * gamma


def _gram_tile(heads: int) -> dict[str, int]:
    """Tile sizes: a warp for each key."""
    if heads <= 16:
        return {"BN": 1, "BD": 64, "H": 16, "STAGES": 3, "num_warps": 1}
    return {"BN": 4, "BD": 32, "H": 32, "STAGES": 3, "num_warps": 4}


# ---- vectors of the diagonal and of the sums


@dataclass(frozen=True, eq=False)
class RowLengths:
    """What :func:`row_lengths` gives, a number for each row, in float64."""

    own: Float[Tensor, " row"]  # ‖own‖
    others: Float[Tensor, " row"]  # ‖total − b_O − own‖
    gap: Float[Tensor, " row"]  # ‖total − output‖
    # With the residual x
    own_residual: Float[Tensor, " row"] | None = None  # ‖own + x‖
    gap_residual: Float[Tensor, " row"] | None = None  # ‖total + x − after_residual‖
    # After the norm: L v = γ ⊙ (v − mean v)
    sigma: Float[Tensor, " row"] | None = None
    own_norm: Float[Tensor, " row"] | None = None  # ‖L(own + x)‖/σ
    others_norm: Float[Tensor, " row"] | None = None  # ‖L others‖/σ
    bias_norm: Float[Tensor, " row"] | None = None  # ‖L b_O/σ + β‖
    gap_norm: Float[Tensor, " row"] | None = None  # ‖L(total + x)/σ + β − after_norm‖


@triton.jit
@no_type_check
def _row(source, spots, inside):
    """A row in float64; zero where there is none."""
    row = tl.where(inside, 0.0, 0.0).to(tl.float64)
    if source is not None:
        row = tl.load(source + spots, inside, other=0.0).to(tl.float64)
    return row


@triton.jit
@no_type_check
def _length(row):
    return tl.sqrt(tl.sum(row * row, axis=0))


@triton.jit
@no_type_check
def _linear(row, gamma, inside, size, CENTRED: tl.constexpr):
    """γ ⊙ (v − mean v)."""
    if CENTRED:
        row = tl.where(inside, row - tl.sum(row, axis=0) / size, 0.0)
    return row * gamma


@triton.jit
@no_type_check
def _row_lengths(
    total, bias, output, own, residual, after_residual, gamma, beta, after_norm, out,
    count, size, RESIDUAL: tl.constexpr, NORM: tl.constexpr, CENTRED: tl.constexpr,
    EPS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One row of each array."""
    n = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D)
    inside = d < size
    spots = n * size + d
    whole = _row(total, spots, inside)
    constant = _row(bias, d, inside)
    mine = _row(own, spots, inside)
    others = whole - constant - mine
    out += n
    tl.store(out, _length(mine))
    tl.store(out + count, _length(others))
    tl.store(out + 2 * count, _length(whole - _row(output, spots, inside)))
    if RESIDUAL:
        x = _row(residual, spots, inside)
        mine += x
        whole += x
        given = _row(after_residual, spots, inside)
        tl.store(out + 3 * count, _length(mine))
        tl.store(out + 4 * count, _length(whole - given))
        if NORM:
            scale = tl.full((D,), 1.0, tl.float64)
            if gamma is not None:
                scale = _row(gamma, d, inside)
            shift = _row(beta, d, inside)
            given = _linear(given, 1.0, inside, size, CENTRED)
            sigma = tl.sqrt(tl.sum(given * given, axis=0) / size + EPS)
            tl.store(out + 5 * count, sigma)
            scale /= sigma
            tl.store(out + 6 * count, _length(_linear(mine, scale, inside, size, CENTRED)))
            tl.store(out + 7 * count, _length(_linear(others, scale, inside, size, CENTRED)))
            made = _linear(constant, scale, inside, size, CENTRED) + shift
            tl.store(out + 8 * count, _length(made))
            made = _linear(whole, scale, inside, size, CENTRED) + shift
            tl.store(out + 9 * count, _length(made - _row(after_norm, spots, inside)))


def row_lengths(
    total: Float[Tensor, "row out"],
    output: Float[Tensor, "row out"],
    *,
    bias: Float[Tensor, " out"] | None = None,
    own: Float[Tensor, "row out"] | None = None,
    residual: Float[Tensor, "row out"] | None = None,
    after_residual: Float[Tensor, "row out"] | None = None,
    gamma: Float[Tensor, " out"] | None = None,
    beta: Float[Tensor, " out"] | None = None,
    centred: bool = True,
    eps: float = 0.0,
    after_norm: Float[Tensor, "row out"] | None = None,
) -> RowLengths:
    """Lengths of a query's own part, of the others' and of what is left unexplained.

    ``total`` is Σ αf + b_O, ``output`` the model's own; ``own`` is Σ_h α_ii f_h(x_i). With
    ``residual`` and ``after_residual`` also after the residual connection; with ``after_norm`` also
    after the norm that follows it, whose σ is that of ``after_residual``. The arithmetic is
    float64, whatever the dtypes.
    """
    count, size = total.shape
    given = [total, bias, output, own, residual, after_residual, gamma, beta, after_norm]
    arrays = [None if array is None else array.contiguous() for array in given]
    parts = 3 if residual is None else 5 if after_norm is None else 10
    out = total.new_empty((parts, count), dtype=torch.float64)
    width = triton.next_power_of_2(size)
    if count:
        _row_lengths[(count,)](
            *arrays, out, count, size, RESIDUAL=parts > 3, NORM=parts > 5, CENTRED=centred, EPS=eps,
            D=width, num_warps=min(max(width // 256, 1), 16),
        )  # fmt: skip
    return RowLengths(*out)


# ---- long contexts: α is made again from queries and keys, and never kept


@triton.jit
@no_type_check
def _visible(i, j, keys, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Whether the query that stands at key ``i`` sees key ``j``."""
    seen = j < keys
    if CAUSAL:
        seen &= j <= i
    if WINDOW:
        seen &= j > i - window
    return seen


@triton.jit
@no_type_check
def _masked(scores, mask, cells, inside, ADDED: tl.constexpr):
    """Scores, to base 2, with a mask: added to them, or false where a key is hidden."""
    if ADDED:
        return scores + tl.load(mask + cells, inside, other=0).to(tl.float32) * LOG2E
    return tl.where(tl.load(mask + cells, inside, other=0) != 0, scores, float("-inf"))


@triton.jit
@no_type_check
def _with_head(made, alpha, factors, exists):
    """Add one head: α of (Q1, BK, Q2) times its row of the factors of (R, BK)."""
    f = tl.load(factors, exists, other=0.0)
    return made + alpha[:, None, :, :] * f[None, :, :, None]


@triton.jit
@no_type_check
def _flash_norms(
    query, key, lse, factors, mask, out,
    query_b, query_h, query_i, key_b, key_h, key_j, lse_b, lse_h,
    factor_b, factor_j, factor_h, mask_b, mask_h, mask_i, mask_j, out_b, out_i,
    queries, keys, first, rows, size, rank, window, scaling,
    HEADS: tl.constexpr, GROUP: tl.constexpr, STACK: tl.constexpr,
    BQ: tl.constexpr, Q2: tl.constexpr, BK: tl.constexpr, E: tl.constexpr, R: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASK: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of queries and keys, all heads; STACK heads of a group share one product.

    The sums Σ_h α Φ are (Q1, R, BK, Q2): the last axes are what Triton lays across the threads of
    a warp, so each thread has all of Q1 and some of R for one key, and reads little for each
    multiplication; threads that read shared memory at once read the same key's factors.
    """
    Q1: tl.constexpr = BQ // Q2
    batch = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(rows, BQ)
    low_i = tl.program_id(0) % tiles * BQ  # neighbours read the same keys
    low_j = tl.program_id(0) // tiles * BK
    offset = first + keys - queries  # the first of these rows stands at this key

    i = low_i + tl.arange(0, BQ)
    j = low_j + tl.arange(0, BK)
    cells = batch * out_b + i.to(tl.int64)[:, None] * out_i + j[None, :]
    real = (i < rows)[:, None] & (j < keys)[None, :]
    nothing = False
    if CAUSAL:
        nothing |= low_j > low_i + BQ - 1 + offset
    if WINDOW:
        nothing |= low_j + BK - 1 <= low_i + offset - window
    if nothing:
        tl.store(out + cells, tl.zeros((BQ, BK), tl.float32), real)
        return

    e = tl.arange(0, E)
    n = tl.arange(0, STACK * BQ)
    row = first + low_i + n % BQ
    here = row < first + rows
    query += batch * query_b + (n // BQ * query_h + row.to(tl.int64) * query_i)[:, None] + e
    wanted = here[:, None] & (e < size)
    key += batch * key_b + (j.to(tl.int64) * key_j)[:, None] + e
    known = (j < keys)[:, None] & (e < size)
    lse += batch * lse_b + n // BQ * lse_h + row
    if MASK > 0:
        mask += batch * mask_b
        spots = (n // BQ * mask_h + row.to(tl.int64) * mask_i)[:, None] + j * mask_j
        inside = here[:, None] & (j < keys)
    r = tl.arange(0, R)[:, None]
    factors += batch * factor_b + j.to(tl.int64) * factor_j + r
    exists = (j < keys) & (r < rank)
    made = tl.zeros((Q1, R, BK, Q2), tl.float32)
    for h in tl.range(0, HEADS, STACK, num_stages=STAGES):
        q = tl.load(query + tl.cast(h, tl.int64) * query_h, wanted, other=0.0)
        k = tl.load(key + tl.cast(h // GROUP, tl.int64) * key_h, known, other=0.0)
        norm = tl.load(lse + h * lse_h, here, other=0.0) * LOG2E
        norm = tl.where(norm == float("-inf"), float("inf"), norm)  # a row that sees nothing
        scores = tl.dot(q, k.T, input_precision=PRECISION) * (scaling * LOG2E)
        if MASK > 0:
            scores = _masked(scores, mask, tl.cast(h, tl.int64) * mask_h + spots, inside, MASK == 2)
        # Above 0 only where the key is hidden, which is seen to at the end.
        alpha = tl.exp2(tl.minimum(scores - norm[:, None], 0.0))
        f = factors + h * factor_h
        if STACK == 1:
            made = _with_head(made, alpha.reshape(Q1, Q2, BK).permute(0, 2, 1), f, exists)
        elif STACK == 2:
            one, two = alpha.reshape(2, Q1, Q2, BK).permute(1, 3, 2, 0).split()
            made = _with_head(made, one, f, exists)
            made = _with_head(made, two, f + factor_h, exists)
        else:
            low, high = alpha.reshape(2, 2, Q1, Q2, BK).permute(2, 4, 3, 1, 0).split()
            one, two = low.split()
            made = _with_head(made, one, f, exists)
            made = _with_head(made, two, f + factor_h, exists)
            one, two = high.split()
            made = _with_head(made, one, f + 2 * factor_h, exists)
            made = _with_head(made, two, f + 3 * factor_h, exists)
    norms = tl.sqrt(tl.sum(made * made, axis=1)).permute(0, 2, 1).reshape(BQ, BK)
    seen = _visible((i + offset)[:, None], j[None, :], keys, window, CAUSAL, WINDOW)
    tl.store(out + cells, tl.where(seen, norms, 0.0), real)


@triton.jit
@no_type_check
def _attention_lse(
    query, key, mask, out,
    query_b, query_h, query_i, key_b, key_h, key_j, mask_b, mask_h, mask_i, mask_j,
    heads, queries, keys, size, window, scaling,
    GROUP: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, E: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One head of a tile of queries, over all keys that they may see."""
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    offset = keys - queries
    low_i = tl.program_id(0) * BQ
    i = low_i + tl.arange(0, BQ)
    e = tl.arange(0, E)
    query += batch * query_b + head * query_h
    query += (i.to(tl.int64) * query_i)[:, None] + e
    q = tl.load(query, (i < queries)[:, None] & (e < size), other=0.0)
    key += batch * key_b + head // GROUP * key_h
    if MASK > 0:
        mask += batch * mask_b + head * mask_h
    low_j = 0
    high_j = keys
    if CAUSAL:
        high_j = tl.minimum(keys, low_i + BQ + offset)
    if WINDOW:
        low_j = tl.maximum(0, low_i + offset - window + 1) // BK * BK
    most = tl.full((BQ,), float("-inf"), tl.float32)
    total = tl.zeros((BQ,), tl.float32)
    for start in range(low_j, high_j, BK):
        j = start + tl.arange(0, BK)
        known = (j < keys)[:, None] & (e < size)
        k = tl.load(key + (j.to(tl.int64) * key_j)[:, None] + e, known, other=0.0)
        scores = tl.dot(q, k.T, input_precision=PRECISION) * (scaling * LOG2E)
        if MASK > 0:
            cells = (i.to(tl.int64) * mask_i)[:, None] + j * mask_j
            inside = (i < queries)[:, None] & (j < keys)
            scores = _masked(scores, mask, cells, inside, MASK == 2)
        seen = _visible((i + offset)[:, None], j[None, :], keys, window, CAUSAL, WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, axis=1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)  # −inf − −inf is no number
        total = total * tl.exp2(most - shift)
        total += tl.sum(tl.exp2(scores - shift[:, None]), axis=1)
        most = higher
    made = (most + tl.log2(tl.where(total == 0, 1.0, total))) / LOG2E
    tl.store(out + (batch * heads + head) * queries + i, made, i < queries)


def attention_lse(
    query: Float[Tensor, "batch head query size"],
    key: Float[Tensor, "batch kv_head key size"],
    *,
    scaling: float,
    causal: bool,
    window: int | None = None,
    mask: Tensor | None = None,
) -> Float[Tensor, "batch head query"]:
    """The logarithm of each softmax's denominator, in float32; −inf for a row that sees nothing.

    Queries are the last of the keys: with ``causal``, query i sees the keys up to i + keys −
    queries, and the last ``window`` of these. ``mask`` is boolean (true: seen) or added to the
    scores, and is broadcast to (batch, head, query, key).
    """
    query, key = _factor(query), _factor(key)
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    mask, kind, strides = _mask(mask, (batch, heads, queries, keys))
    out = query.new_empty((batch, heads, queries), dtype=torch.float32)
    wide = query.element_size() > 2
    tile = min(32 if wide else 128, max(16, triton.next_power_of_2(queries)))
    _attention_lse[(triton.cdiv(queries, tile), batch * heads)](
        query, key, mask, out, *query.stride()[:3], *key.stride()[:3], *strides,
        heads, queries, keys, size, window or 0, scaling,
        GROUP=heads // key.shape[1], BQ=tile, BK=32 if wide else 64, E=_width(size),
        CAUSAL=causal, WINDOW=window is not None, MASK=kind,
        PRECISION="ieee" if wide else "tf32", num_warps=4 if wide else 8,
    )  # fmt: skip
    return out


def flash_norms(
    query: Float[Tensor, "batch head query size"],
    key: Float[Tensor, "batch kv_head key size"],
    lse: Float[Tensor, "batch head query"],
    factors: Float[Tensor, "batch key head rank"],
    *,
    scaling: float,
    causal: bool,
    window: int | None = None,
    mask: Tensor | None = None,
    rows: slice = ROWS,
) -> Float[Tensor, "batch row key"]:
    """‖Σ_h α f_h(x_j)‖ of some rows in float32, without α: it is made again tile by tile.

    ``factors`` are Φ_j with Φ_j Φ_jᵀ = G_j, such as Cholesky's, so that a length is a sum of
    squares and float32 is enough; ``lse`` is the log-sum-exp of the scaled and masked scores. The
    rest is as for :func:`attention_lse`. Cells that are not seen are 0.
    """
    query, key = _factor(query), _factor(key)
    lse, factors = lse.contiguous(), _rowwise(factors)
    batch, heads, queries, size = query.shape
    keys, group, rank = key.shape[2], heads // key.shape[1], factors.shape[3]
    first, stop, _ = rows.indices(queries)
    count = max(stop - first, 0)
    out = query.new_empty((batch, count, keys), dtype=torch.float32)
    mask, kind, strides = _mask(mask, (batch, heads, queries, keys))
    tile = _flash_tile(rank, size, query.element_size(), group)
    grid = (triton.cdiv(count, tile["BQ"]) * triton.cdiv(keys, tile["BK"]), batch)
    if out.numel():
        _flash_norms[grid](
            query, key, lse, factors, mask, out, *query.stride()[:3], *key.stride()[:3],
            *lse.stride()[:2], *factors.stride()[:3], *strides, *out.stride()[:2],
            queries, keys, first, count, size, rank, window or 0, scaling,
            HEADS=heads, GROUP=group, CAUSAL=causal, WINDOW=window is not None, MASK=kind,
            PRECISION="ieee" if query.element_size() > 2 else "tf32", **tile,
        )  # fmt: skip
    return out


def _flash_tile(rank: int, size: int, bytes_each: int, group: int) -> dict[str, int]:
    """Tile sizes: (queries, keys, rank) sums stay in registers."""
    rank, size = max(2, triton.next_power_of_2(rank)), _width(size)
    cells = min(32768 // rank, 1024)
    bq = 32 if cells >= 512 else 16
    stack = 4 if group % 4 == 0 else 2 if group % 2 == 0 else 1
    stage = (stack * bq + cells // bq) * size * bytes_each  # of shared memory
    return {
        "BQ": bq, "Q2": 8, "BK": cells // bq, "E": size, "R": rank, "STACK": stack,
        "STAGES": 3 if stage <= 2**16 else 1, "num_warps": 8,
    }  # fmt: skip


def _mask(mask: Tensor | None, shape: tuple[int, ...]) -> tuple[Tensor | None, int, list[int]]:
    """A mask for each cell, without a copy; 0: none, 1: boolean, 2: added; its strides."""
    if mask is None:
        return None, 0, [0, 0, 0, 0]
    whole = mask.expand(shape)
    kind = 1 if mask.dtype == torch.bool else 2
    return (whole.view(torch.uint8) if kind == 1 else whole), kind, list(whole.stride())


def _rowwise(tensor: Tensor) -> Tensor:
    """With the last axis contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _factor(tensor: Tensor) -> Tensor:
    """Of a product that a kernel makes: the interpreter's products know no bfloat16."""
    return _rowwise(tensor if tensor.is_cuda else tensor.float())


def _width(size: int) -> int:
    """A head's size as a kernel's tile has it."""
    return max(16, triton.next_power_of_2(size))
