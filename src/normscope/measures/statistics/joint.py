"""A sketch of the joint distribution of α and ‖f‖, and Spearman's ρ from it with an error bound.

Both numbers are sorted into bins by the leading bits of their float32 representation, which order
as the numbers do. Pairs are counted in coarse bins (16 to a doubling of α, 128 to a doubling of
‖f‖); each number alone is counted in fine bins, 2,048 to a doubling. A coarse cell keeps its count
and the sums of the fine positions of its pairs within the cell. All of these are integers, so that
sketches are merged exactly, by adding.

The fine bins give each value its rank U; values in one fine bin share a rank. Within a coarse bin,
U is nearly a linear function of the fine position. A cell's mean rank therefore follows from its
mean position, and

    Σ U V = Σ_cells count · mean(U) · mean(V)   plus three unknown terms, which are bounded:

1. The covariance of the two linear functions within a cell is at most the product of their
   standard deviations there; positions between l and h with mean m have a standard deviation of
   at most ((m − l)(h − m))^½ (Bhatia and Davis).
2. The residual ε of U from its linear function in a coarse bin contributes at most rms(ε) times
   the standard deviation of V in that bin.
3. The ranks within fine bins contribute in the same way, with an rms of at most (Σ p³ / 12)^½ for
   fine bins that hold shares p of the pairs.

The sum of the three over rms(U) · rms(V) is the bound that is returned with ρ.
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

CountArrays = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Axis:
    """The bins of one of the two numbers, from 2^lowest; the first bin takes all that is below."""

    bits: int  # there are 2^bits coarse bins to a doubling
    lowest: int
    octaves: int

    FINE = 11  # there are 2^11 fine bins to a doubling

    @property
    def within(self) -> int:
        """The number of fine bins in a coarse one, as a power of two."""
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
        """The leading bits of the numbers in the first fine bin."""
        return ((127 + self.lowest) << self.FINE) - (1 << self.within)

    def leading(
        self, values: Float[Tensor, "*shape"], out: Tensor | None = None
    ) -> Int[Tensor, "*shape"]:
        """Return the leading bits of each number as int32, which is its fine bin plus ``first``."""
        bits = values.float().contiguous().view(torch.int32)
        leading = torch.bitwise_right_shift(bits, 23 - self.FINE, out=out)
        return leading.clamp_(self.first, self.first + self.fine - 1)

    def bins(self, values: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Return the fine bin of each number; shifted by ``within``, it is the coarse bin."""
        return self.leading(values).sub_(self.first)


ALPHA = Axis(bits=4, lowest=-126, octaves=127)
NORM = Axis(bits=7, lowest=-32, octaves=64)
MOST = 2**22  # pairs that are counted at once
_BITS = 29
# A float64 holds a count times _UNIT plus a sum of MOST fine positions, exactly.
_UNIT = 2**_BITS


# ------------------------------------------------------------------------------- counting


def count_pairs(
    alpha: Float[Tensor, "row head query key"],
    norm: Float[Tensor, "row head key"],
    category: Int[Tensor, "row key"],
    real: Bool[Tensor, "row key"],
    admitted: Bool[Tensor, "some one query key"] | None,
    categories: int,
    scratch: Scratch | None = None,
) -> dict[str, Tensor]:
    """Return the sketch of the pairs of a batch: codes of cells and bins, with counts and sums.

    Args:
        alpha: The attention weights.
        norm: ‖f‖ of each key.
        category: The category of each key.
        real: Which tokens are not padding.
        admitted: The pairs that no mask keeps apart; None if all pairs count.
        categories: The number of categories.
        scratch: Working memory.

    A code may occur several times; `add_up` adds the counts and sums of equal codes.
    """
    fine = NORM.bins(norm)  # row head key
    cells = _PairCells.of(fine, alpha, category, real, categories, scratch or Scratch())
    step = max(1, MOST // alpha[0].numel())
    parts: list[dict[str, Tensor]] = []
    by_alpha: Tensor | None = None
    for start in range(0, len(alpha), step):
        rows = slice(start, start + step)
        apart = None if admitted is None else ~(admitted[rows] if len(admitted) > 1 else admitted)
        counts, fine_counts = cells.count(alpha[rows], rows, apart)
        parts.append(counts)
        by_alpha = fine_counts if by_alpha is None else by_alpha.add_(fine_counts)
    assert by_alpha is not None
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    by_norm = _norm_counts(fine, category, real, admitted, categories)
    alpha_codes, norm_codes = (counts.nonzero().squeeze(1) for counts in (by_alpha, by_norm))
    return {
        "code": cells.codes(joined.pop("row"), joined.pop("column")),
        **joined,
        "alpha_code": alpha_codes,
        "alpha_n": by_alpha[alpha_codes],
        "norm_code": norm_codes,
        "norm_n": by_norm[norm_codes],
    }


def _norm_counts(
    fine: Int[Tensor, "row head key"],
    category: Int[Tensor, "row key"],
    real: Bool[Tensor, "row key"],
    admitted: Bool[Tensor, "some one query key"] | None,
    categories: int,
) -> Int[Tensor, " code"]:
    """Return the number of pairs in each category and fine bin of ‖f‖."""
    pairs = real[:, None, :] & real[:, :, None] if admitted is None else admitted[:, 0]
    queries = pairs.sum(dim=1).unsqueeze(1).expand(fine.shape)  # of each key
    safe = category.to(torch.int32).masked_fill(~real, categories - 1)[:, None]  # row 1 key
    return torch.bincount(
        (safe * NORM.fine + fine).flatten(),
        weights=(queries * real[:, None]).flatten().double(),
        minlength=categories * NORM.fine,
    ).long()


@dataclass(frozen=True, eq=False)
class _PairCells:
    """A table of counters for the pairs of a batch, with only the bins that can occur.

    A row of the table is a category and a coarse bin of ‖f‖; the last row is for padding. A column
    is a coarse bin of α; the last column is for masked pairs.
    """

    row: Int[Tensor, "row head key"]  # of the table
    position: Float[Tensor, "row head key"]  # of ‖f‖ within its coarse bin
    category: Int[Tensor, "row one key"]
    first_norm: int  # the first coarse bin of ‖f‖ that occurs
    first_alpha: int  # the first coarse bin of α that occurs
    norms: int  # the number of coarse bins of ‖f‖
    categories: int
    scratch: Scratch

    @classmethod
    def of(
        cls,
        fine: Int[Tensor, "row head key"],
        alpha: Float[Tensor, "row head query key"],
        category: Int[Tensor, "row key"],
        real: Bool[Tensor, "row key"],
        categories: int,
        scratch: Scratch,
    ) -> _PairCells:
        """Return the table for a batch, given the fine bins of ‖f‖."""
        coarse, position = fine >> NORM.within, fine & ((1 << NORM.within) - 1)
        seen = coarse[real.unsqueeze(1).expand_as(coarse)]
        first, last = (int(bound) for bound in seen.aminmax()) if len(seen) else (0, 0)
        norms = last - first + 1
        padded = category.to(torch.int32).masked_fill(~real, categories)[:, None]  # row 1 key
        row = torch.where(real[:, None], padded * norms + coarse - first, categories * norms)
        least = alpha.amin(dim=(1, 2)).masked_fill(~real, 2).amin()  # α of padding is 0
        first_alpha = int(ALPHA.bins(least)) >> ALPHA.within
        return cls(row, position.double(), padded, first, first_alpha, norms, categories, scratch)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        return self.categories * self.norms + 1, ALPHA.coarse + 1 - self.first_alpha

    def codes(self, row: Tensor, column: Tensor) -> Int[Tensor, " cell"]:
        """Return the code of each cell: category, coarse bin of α, coarse bin of ‖f‖."""
        category, norm = row // self.norms, row % self.norms + self.first_norm
        return (category * ALPHA.coarse + column + self.first_alpha) * NORM.coarse + norm

    def count(
        self,
        alpha: Float[Tensor, "some head query key"],
        rows: slice,
        apart: Bool[Tensor, "rows one query key"] | None,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Count the pairs of some rows, without masked ones.

        Returns row, column, count and sums of positions of each cell that is not empty, and the
        number of pairs in each category and fine bin of α.
        """
        scratch = partial(self.scratch.take, shape=alpha.shape, like=alpha)
        leading = ALPHA.leading(alpha, scratch("leading", dtype=torch.int32))
        if apart is not None:  # an additional bin, which is dropped in the end
            leading.masked_fill_(apart, ALPHA.first + ALPHA.fine)
        bins = self.categories + 1, ALPHA.fine + 1
        offset = self.category[rows, :, None] * bins[1] - ALPHA.first
        alone = torch.add(leading, offset, out=scratch("alone", dtype=torch.int32)).flatten()
        cell = self._cells(leading, rows, scratch("index", dtype=torch.int32))
        leading.bitwise_and_((1 << ALPHA.within) - 1).add_(_UNIT)
        within = scratch("within").copy_(leading).flatten()
        across = scratch("across").copy_(self.position[rows].unsqueeze(2)).flatten()
        height, width = self.shape
        counts_and_alphas, norms, fine = _run_all(
            partial(torch.bincount, cell, weights=within, minlength=height * width),
            partial(torch.bincount, cell, weights=across, minlength=height * width),
            partial(torch.bincount, alone, minlength=bins[0] * bins[1]),
            at_once=alpha.device.type == "cpu" and torch.get_num_threads() > 1,
        )
        # Most cells are empty, so the rest is done for the others alone.
        cell = counts_and_alphas.nonzero().squeeze(1)
        row, column = cell // width, cell % width
        kept = ((row < height - 1) & (column < width - 1)).nonzero().squeeze(1)
        cell, row, column = cell[kept], row[kept], column[kept]
        packed = counts_and_alphas[cell].long()
        counts = {
            "row": row,
            "column": column,
            "n": packed >> _BITS,
            "alpha": packed & (_UNIT - 1),
            "norm": norms[cell].long(),
        }
        return counts, fine.view(bins)[:-1, :-1].flatten()

    def _cells(self, leading: Tensor, rows: slice, out: Tensor) -> Int[Tensor, " pair"]:
        """Return the cell of each pair, from the leading bits of α."""
        torch.bitwise_right_shift(leading, ALPHA.within, out=out)
        lowest = (ALPHA.first >> ALPHA.within) + self.first_alpha
        cell = out.clamp_min_(lowest) if self.first_alpha else out  # α of padding is below
        return cell.add_((self.row[rows] * self.shape[1] - lowest).unsqueeze(2)).flatten()


def _run_all(*counts: Callable[[], Tensor], at_once: bool) -> list[Tensor]:
    """Run each count, in parallel if asked: torch counts on the CPU with one thread each."""
    if not at_once:
        return [count() for count in counts]
    with ThreadPoolExecutor(len(counts) - 1) as others:
        futures = [others.submit(count) for count in counts[1:]]
        return [counts[0](), *(future.result() for future in futures)]


def add_up(code: NDArray[np.int64], sums: CountArrays) -> dict[str, NDArray[np.int64]]:
    """Add the sums of equal codes; the codes are returned sorted. Sorted runs are fastest."""
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


# ------------------------------------------------------------------------------- correlating


def correlation(state: Mapping[str, Any], category: int) -> tuple[int, float, float]:
    """Return the number of pairs of a category, their ρ, and a bound of its error."""
    u = _fitted_ranks(ALPHA, state["alpha"], category)
    v = _fitted_ranks(NORM, state["norm"], category)
    if u is None or v is None:
        return 0, float("nan"), float("nan")
    cells = state["cells"]
    size = ALPHA.coarse * NORM.coarse
    member = (cells["code"] >= category * size) & (cells["code"] < (category + 1) * size)
    code, n = cells["code"][member] % size, cells["n"][member].astype(float)
    rows, columns = code // NORM.coarse, code % NORM.coarse
    mean_u, deviation_u = u.within(rows, cells["alpha"][member] / n, n)
    mean_v, deviation_v = v.within(columns, cells["norm"][member] / n, n)
    scale = u.rms * v.rms * u.total
    if scale == 0:
        return int(u.total), float("nan"), float("nan")
    rho = float((n * mean_u * mean_v).sum() / scale)
    unknown = float((n * deviation_u * deviation_v).sum())
    unknown += float((u.residual * _deviation(rows, n, mean_v, deviation_v, ALPHA)).sum())
    unknown += float((v.residual * _deviation(columns, n, mean_u, deviation_u, NORM)).sum())
    unknown += u.total * u.residual_rms * v.residual_rms
    relative = (u.residual_rms / u.rms) ** 2 + (v.residual_rms / v.rms) ** 2
    bound = unknown / scale + relative / 2
    return int(u.total), float(np.clip(rho, -1, 1)), float(bound)


def _deviation(bins: Any, n: Any, mean: Any, deviation: Any, axis: Axis) -> NDArray[np.float64]:
    """Return the largest standard deviation of the other axis' ranks in each coarse bin."""

    def by_bin(values: Any) -> NDArray[np.float64]:
        return np.bincount(bins, weights=n * values, minlength=axis.coarse).astype(float)

    mass = np.maximum(by_bin(np.ones_like(n)), 1)
    middle = by_bin(mean) / mass
    return np.sqrt((by_bin((mean - middle[bins]) ** 2) + by_bin(deviation**2)) / mass)


@dataclass(frozen=True, eq=False)
class _FittedRanks:
    """Ranks along one axis, as shares from −½ to ½, with a line fitted in each coarse bin."""

    total: float  # the number of pairs
    rms: float  # of the ranks
    residual_rms: float  # of the ranks' difference from the lines, at most
    # In each coarse bin:
    residual: NDArray[np.float64]  # the number of pairs times the rms of the difference, at most
    middle: NDArray[np.float64]  # mean fine position
    height: NDArray[np.float64]  # mean rank
    slope: NDArray[np.float64]
    low: NDArray[np.float64]  # first and last fine position that occurs
    high: NDArray[np.float64]

    def within(self, bins: Any, position: Any, n: Any) -> tuple[Any, Any]:
        """Return the mean rank of each cell's pairs, and its largest standard deviation."""
        slope, low, high = self.slope[bins], self.low[bins], self.high[bins]
        mean = self.height[bins] + slope * (position - self.middle[bins])
        spread = np.sqrt(np.maximum((position - low) * (high - position), 0))
        return mean, np.where(n > 1, np.abs(slope) * spread, 0)


def _fitted_ranks(axis: Axis, counts: CountArrays, category: int) -> _FittedRanks | None:
    """Rank the fine bins of a category along one axis; None if the category has no pair."""
    codes = counts["code"]
    member = (codes >= category * axis.fine) & (codes < (category + 1) * axis.fine)
    if not member.any():
        return None
    fine, n = codes[member] % axis.fine, counts["n"][member].astype(float)
    total = n.sum()
    rank = (np.cumsum(n) - n / 2) / total - 0.5
    bins, position = fine >> axis.within, (fine & ((1 << axis.within) - 1)).astype(float)

    def by_bin(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(bins, weights=values, minlength=axis.coarse).astype(float)

    mass = np.maximum(by_bin(n), 1)
    middle, height = by_bin(n * position) / mass, by_bin(n * rank) / mass
    offset = position - middle[bins]
    width = by_bin(n * offset * offset)
    rise = by_bin(n * offset * (rank - height[bins]))
    slope = np.divide(rise, width, out=np.zeros_like(rise), where=width > 0)
    difference = rank - height[bins] - slope[bins] * offset
    low, high = np.full(axis.coarse, np.inf), np.full(axis.coarse, -np.inf)
    np.minimum.at(low, bins, position)
    np.maximum.at(high, bins, position)
    share = n / total
    # The two parts are orthogonal: one is between fine bins, the other within them.
    squares = by_bin(n * difference * difference) + by_bin(n * share * share / 12)
    return _FittedRanks(
        total=total,
        rms=float(np.sqrt((n * rank * rank).sum() / total)),
        residual_rms=float(np.sqrt(squares.sum() / total)),
        residual=np.sqrt(mass * squares),
        middle=middle,
        height=height,
        slope=slope,
        low=low,
        high=high,
    )
