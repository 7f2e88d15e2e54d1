"""A sketch of the joint distribution of α and ‖f‖, from which Spearman's ρ is had with a bound.

Both numbers are sorted into bins by the leading bits of their float32 pattern, which order as the
numbers do: coarse bins (16 to a doubling of α, 128 of ‖f‖) for the pairs, 2,048 fine ones to a
doubling for each of the two alone. A coarse cell keeps its count and the sums of the fine positions
of its pairs within it. All are whole numbers, so sketches are merged by adding, exactly.

The fine bins give each value its rank U (tied with its fine bin). In a coarse bin U is nearly a
straight line in the fine position; so a cell's mean rank follows from its mean position, and

    Σ U V = Σ_cells count · mean(U) · mean(V)   and three things that are not known:

1. covariance of the two lines within a cell: at most the product of their deviations there, and
   positions from l to h with mean m deviate by at most ((m − l)(h − m))^½ (Bhatia and Davis);
2. what U deviates from its line, ε, in each coarse bin: at most rms(ε) times V's deviation there;
3. ranks within fine bins, with shares p of the pairs: the same, with rms at most (Σ p³ / 12)^½.

Their sum over rms(U) · rms(V) is the bound that goes with every ρ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.foundation.shapes import Bool, Float, Int
from normscope.kernels import Scratch

Counts = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Axis:
    """How numbers are sorted into bins: from 2^lowest on, and all below in the first."""

    bits: int  # a coarse bin is one of 2^bits to a doubling
    lowest: int
    octaves: int

    FINE = 11  # a fine bin is one of 2^11 to a doubling

    @property
    def within(self) -> int:
        """Fine bins in a coarse one, as bits."""
        return self.FINE - self.bits

    @property
    def coarse(self) -> int:
        """The number of coarse bins."""
        return (self.octaves << self.bits) + 1

    @property
    def fine(self) -> int:
        """The number of fine bins."""
        return self.coarse << self.within

    @property
    def first(self) -> int:
        """The leading bits of a number in the first fine bin; whole coarse bins come before it."""
        return ((127 + self.lowest) << self.FINE) - (1 << self.within)

    def leading(
        self, values: Float[Tensor, "*shape"], out: Tensor | None = None
    ) -> Int[Tensor, "*shape"]:
        """The fine bin of each number plus ``first``, int32."""
        bits = values.float().contiguous().view(torch.int32)
        leading = torch.bitwise_right_shift(bits, 23 - self.FINE, out=out)
        return leading.clamp_(self.first, self.first + self.fine - 1)

    def bins(self, values: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The fine bin of each number; shifted, its coarse one."""
        return self.leading(values).sub_(self.first)


ALPHA = Axis(bits=4, lowest=-126, octaves=127)
NORM = Axis(bits=7, lowest=-32, octaves=64)
MOST = 2**22  # pairs that are looked at at once
_BITS = 29
_UNIT = 2**_BITS  # a count's weight beside a sum of MOST fine positions; all are exact in float64


def count_pairs(
    alpha: Float[Tensor, "row head query key"],
    norm: Float[Tensor, "row head key"],
    category: Int[Tensor, "row key"],
    real: Bool[Tensor, "row key"],
    admitted: Bool[Tensor, "some one query key"] | None,
    categories: int,
    scratch: Scratch | None = None,
) -> dict[str, Tensor]:
    """The sketch of some pairs: codes of what occurs, maybe in several parts, counts and sums."""
    fine = NORM.bins(norm)  # row head key
    coarse, position = fine >> NORM.within, fine & ((1 << NORM.within) - 1)
    seen = coarse[real.unsqueeze(1).expand_as(coarse)]
    first, last = (int(bound) for bound in seen.aminmax()) if len(seen) else (0, 0)
    width = last - first + 1
    of = category.to(torch.int32).masked_fill(~real, categories)[:, None]  # row 1 key
    # The last row of cells is for keys that are not there.
    column = torch.where(real[:, None], of * width + coarse - first, categories * width)
    least = alpha.amin(dim=(1, 2)).masked_fill(~real, 2).amin()  # of padding it is 0
    low = int(ALPHA.bins(least)) >> ALPHA.within
    scratch = Scratch() if scratch is None else scratch
    rows = categories * width + 1
    place = _Place(column, position.double(), of, low, rows, categories, scratch)
    step = max(1, MOST // alpha[0].numel())
    found: list[dict[str, Tensor]] = []
    marginal: Tensor | None = None
    for start in range(0, len(alpha), step):
        here = slice(start, start + step)
        apart = None if admitted is None else ~(admitted[here] if len(admitted) > 1 else admitted)
        cells, alone = place.count(alpha[here], here, apart)
        found.append(cells)
        marginal = alone if marginal is None else marginal.add_(alone)
    assert marginal is not None
    cell = {name: torch.cat([cells[name] for cells in found]) for name in found[0]}
    c, b, a = cell["row"] // width, cell["row"] % width + first, cell["column"] + low
    times = real[:, None, :] & real[:, :, None] if admitted is None else admitted[:, 0]
    queries = times.sum(dim=1).unsqueeze(1).expand(norm.shape)  # of each key
    by_norm = torch.bincount(
        (of.clamp_max(categories - 1) * NORM.fine + fine).flatten(),
        weights=(queries * real[:, None]).flatten().double(),
        minlength=categories * NORM.fine,
    ).long()
    alphas, norms = (m.nonzero().squeeze(1) for m in (marginal, by_norm))
    return {
        "code": (c * ALPHA.coarse + a) * NORM.coarse + b,
        **{name: cell[name] for name in ("n", "alpha", "norm")},
        "alpha_code": alphas,
        "alpha_n": marginal[alphas],
        "norm_code": norms,
        "norm_n": by_norm[norms],
    }


@dataclass(frozen=True, eq=False)
class _Place:
    """Where the pairs of each key are counted."""

    column: Int[Tensor, "row head key"]
    position: Float[Tensor, "row head key"]
    of: Int[Tensor, "row one key"]
    low: int  # the first coarse bin of α that occurs
    rows: int
    categories: int
    scratch: Scratch

    def count(
        self,
        alpha: Float[Tensor, "some head query key"],
        here: slice,
        apart: Bool[Tensor, "rows one query key"] | None,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Counts and sums of the cells in which some rows' pairs are, and counts of fine bins of α.

        Masked pairs are in neither. Most cells are empty: only the others are looked at again.
        """
        take = partial(self.scratch.take, shape=alpha.shape, like=alpha)
        leading = ALPHA.leading(alpha, take("leading", dtype=torch.int32))
        if apart is not None:  # into one more bin, which is cut off again
            leading.masked_fill_(apart, ALPHA.first + ALPHA.fine)
        shape = self.categories + 1, ALPHA.fine + 1
        cells = self.rows, ALPHA.coarse + 1 - self.low
        before = self.of[here, :, None] * shape[1] - ALPHA.first
        alone = torch.add(leading, before, out=take("alone", dtype=torch.int32)).flatten()
        index = take("index", dtype=torch.int32)
        torch.bitwise_right_shift(leading, ALPHA.within, out=index)
        lowest = (ALPHA.first >> ALPHA.within) + self.low
        index = index.clamp_min_(lowest) if self.low else index  # of padding alone
        index = index.add_((self.column[here] * cells[1] - lowest).unsqueeze(2)).flatten()
        leading.bitwise_and_((1 << ALPHA.within) - 1).add_(_UNIT)
        within = take("within").copy_(leading).flatten()
        across = take("across").copy_(self.position[here].unsqueeze(2)).flatten()
        size = cells[0] * cells[1]
        both, other, fine = _in_turn(
            partial(torch.bincount, index, weights=within, minlength=size),
            partial(torch.bincount, index, weights=across, minlength=size),
            partial(torch.bincount, alone, minlength=shape[0] * shape[1]),
            at_once=alpha.device.type == "cpu" and torch.get_num_threads() > 1,
        )
        code = both.nonzero().squeeze(1)
        row, column = code // cells[1], code % cells[1]
        kept = ((row < cells[0] - 1) & (column < cells[1] - 1)).nonzero().squeeze(1)
        code, row, column = code[kept], row[kept], column[kept]
        packed = both[code].long()
        told = {"row": row, "column": column, "n": packed >> _BITS, "alpha": packed & (_UNIT - 1)}
        return told | {"norm": other[code].long()}, fine.view(shape)[:-1, :-1].flatten()


def _in_turn(*counts: Callable[[], Tensor], at_once: bool) -> list[Tensor]:
    """Each count; torch counts with one thread, so on a CPU with more they run side by side."""
    if not at_once:
        return [count() for count in counts]
    with ThreadPoolExecutor(len(counts) - 1) as others:
        started = [others.submit(count) for count in counts[1:]]
        return [counts[0](), *(one.result() for one in started)]


def add_up(code: NDArray[np.int64], sums: Counts) -> dict[str, NDArray[np.int64]]:
    """Equal codes once, in order, with their sums; codes that come in sorted runs are fastest."""
    order = np.argsort(code, kind="stable")
    code = code[order]
    first = np.ones(len(code), dtype=bool)
    first[1:] = code[1:] != code[:-1]
    starts = np.flatnonzero(first)
    totals = {
        name: np.add.reduceat(values[order], starts) if len(starts) else values[:0]
        for name, values in sums.items()
    }
    return {"code": code[first], **totals}


def correlation(state: Mapping[str, Any], category: int) -> tuple[int, float, float]:
    """Pairs of a category, their ρ, and how far it may be from the exact one."""
    ranks = [
        _ranks(axis, state[name], category) for axis, name in ((ALPHA, "alpha"), (NORM, "norm"))
    ]
    if any(one is None for one in ranks):
        return 0, float("nan"), float("nan")
    u, v = (one for one in ranks if one is not None)
    cells = state["cells"]
    size = ALPHA.coarse * NORM.coarse
    here = (cells["code"] >= category * size) & (cells["code"] < (category + 1) * size)
    code, n = cells["code"][here] % size, cells["n"][here].astype(float)
    rows, columns = code // NORM.coarse, code % NORM.coarse
    mean_u, deviation_u = u.within(rows, cells["alpha"][here] / n, n)
    mean_v, deviation_v = v.within(columns, cells["norm"][here] / n, n)
    scale = u.size * v.size * u.total
    if scale == 0:
        return int(u.total), float("nan"), float("nan")
    rho = float((n * mean_u * mean_v).sum() / scale)
    unknown = float((n * deviation_u * deviation_v).sum())
    unknown += float((u.astray * _spread(rows, n, mean_v, deviation_v, ALPHA)).sum())
    unknown += float((v.astray * _spread(columns, n, mean_u, deviation_u, NORM)).sum())
    unknown += u.total * u.wrong * v.wrong
    bound = unknown / scale + ((u.wrong / u.size) ** 2 + (v.wrong / v.size) ** 2) / 2
    return int(u.total), float(np.clip(rho, -1, 1)), float(bound)


def _spread(bins: Any, n: Any, mean: Any, deviation: Any, axis: Axis) -> NDArray[np.float64]:
    """How much the other axis' ranks deviate, at most, among the pairs of each coarse bin."""

    def by_bin(values: Any) -> NDArray[np.float64]:
        return np.bincount(bins, weights=n * values, minlength=axis.coarse).astype(float)

    mass = np.maximum(by_bin(np.ones_like(n)), 1)
    middle = by_bin(mean) / mass
    return np.sqrt((by_bin((mean - middle[bins]) ** 2) + by_bin(deviation**2)) / mass)


@dataclass(frozen=True, eq=False)
class _Ranks:
    """Ranks along one axis, as shares of the pairs from −½ to ½, and their line in each bin."""

    total: float
    size: float  # rms of the ranks
    wrong: float  # rms, at most, of what the true ranks deviate from the lines
    # Of each coarse bin:
    astray: NDArray[np.float64]  # its number of pairs times the same
    middle: NDArray[np.float64]  # mean fine position
    height: NDArray[np.float64]  # mean rank
    slope: NDArray[np.float64]
    low: NDArray[np.float64]  # first and last fine position that occurs
    high: NDArray[np.float64]

    def within(self, bins: Any, position: Any, n: Any) -> tuple[Any, Any]:
        """Mean rank of the pairs of a cell, and how much their ranks deviate at most."""
        slope, low, high = self.slope[bins], self.low[bins], self.high[bins]
        mean = self.height[bins] + slope * (position - self.middle[bins])
        spread = np.sqrt(np.maximum((position - low) * (high - position), 0))
        return mean, np.where(n > 1, np.abs(slope) * spread, 0)


def _ranks(axis: Axis, counts: Counts, category: int) -> _Ranks | None:
    here = (counts["code"] >= category * axis.fine) & (counts["code"] < (category + 1) * axis.fine)
    if not here.any():
        return None
    fine, n = counts["code"][here] % axis.fine, counts["n"][here].astype(float)
    total = n.sum()
    rank = (np.cumsum(n) - n / 2) / total - 0.5
    bins, position = fine >> axis.within, (fine & ((1 << axis.within) - 1)).astype(float)

    def by_bin(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(bins, weights=values, minlength=axis.coarse).astype(float)

    mass = np.maximum(by_bin(n), 1)
    middle, height = by_bin(n * position) / mass, by_bin(n * rank) / mass
    apart = position - middle[bins]
    width = by_bin(n * apart * apart)
    steep = by_bin(n * apart * (rank - height[bins]))
    slope = np.divide(steep, width, out=np.zeros_like(steep), where=width > 0)
    bent = rank - height[bins] - slope[bins] * apart
    low, high = np.full(axis.coarse, np.inf), np.full(axis.coarse, -np.inf)
    np.minimum.at(low, bins, position)
    np.maximum.at(high, bins, position)
    share = n / total
    # Both have a mean of zero in each bin and are apart: one of fine bins, one within them.
    squares = by_bin(n * bent * bent) + by_bin(n * share * share / 12)
    return _Ranks(
        total,
        float(np.sqrt((n * rank * rank).sum() / total)),
        float(np.sqrt(squares.sum() / total)),
        np.sqrt(mass * squares),
        middle,
        height,
        slope,
        low,
        high,
    )
