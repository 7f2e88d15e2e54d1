"""A sketch of the joint distribution of α and ‖f‖, from which Spearman's ρ is had with a bound.

Both numbers are sorted into bins by the leading bits of their float32 pattern, which order as the
numbers do: coarse bins (16 to a doubling of α, 64 of ‖f‖) for the pairs, 2,048 fine ones to a
doubling for each of the two alone. A coarse cell keeps its count and the sums of the fine positions
of its pairs within it. All are whole numbers, so sketches are merged by adding, exactly.

The fine bins give each value its rank U (tied with its fine bin). In a coarse bin U is nearly a
straight line in the fine position; so a cell's mean rank follows from its mean position, and

    Σ U V = Σ_cells count · mean(U) · mean(V)   and three things that are not known:

1. covariance of the two lines within a cell: at most the product of their deviations there, and
   positions in [0, s] with mean m deviate by at most (m(s − m))^½ (Bhatia and Davis);
2. what U deviates from its line, ε: by Cauchy and Schwarz at most rms(ε) · rms(V);
3. ranks within a fine bin: with shares p of the pairs, rms ≤ (Σ p³ / 12)^½ of the number of pairs.

Their sum over rms(U) · rms(V) is the bound that goes with every ρ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.shapes import Bool, Float, Int

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

    def bins(self, values: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The fine bin of each number, int32; shifted, its coarse one."""
        patterns = values.float().contiguous().view(torch.int32) >> (23 - self.FINE)
        first = ((127 + self.lowest) << self.FINE) - (1 << self.within)
        return patterns.sub_(first).clamp_(0, self.fine - 1)


ALPHA = Axis(bits=4, lowest=-64, octaves=65)
NORM = Axis(bits=6, lowest=-32, octaves=64)
MOST = 2**22  # pairs looked at at once


def count_pairs(
    alpha: Float[Tensor, "row head query key"],
    norm: Float[Tensor, "row head key"],
    category: Int[Tensor, "row key"],
    real: Bool[Tensor, "row key"],
    admitted: Bool[Tensor, "row one query key"] | None,
    categories: int,
) -> dict[str, Tensor]:
    """The sketch of some pairs: codes of what occurs, with counts and sums."""
    fine = NORM.bins(norm)  # row head key
    coarse, position = fine >> NORM.within, fine & ((1 << NORM.within) - 1)
    seen = coarse[real.unsqueeze(1).expand_as(coarse)]
    first, last = (int(bound) for bound in seen.aminmax()) if len(seen) else (0, 0)
    width = last - first + 1
    of = category.to(torch.int32).masked_fill(~real, categories)[:, None]  # row 1 key
    outside = categories * width * ALPHA.coarse
    column = torch.where(
        real[:, None], (of * width + coarse - first) * ALPHA.coarse, outside
    )  # row head key
    cells = categories * width * ALPHA.coarse + ALPHA.coarse
    found: dict[str, Tensor] = {}
    step = max(1, MOST // alpha[0].numel())
    for start in range(0, len(alpha), step):
        here = slice(start, start + step)
        bins = ALPHA.bins(alpha[here])
        alone = bins + of[here, :, None] * ALPHA.fine
        index = (bins >> ALPHA.within).add_(column[here].unsqueeze(2))
        if admitted is not None:
            together = admitted[here] if len(admitted) > 1 else admitted
            alone = torch.where(together, alone, categories * ALPHA.fine)
            index = torch.where(together, index, outside)
        across = position[here].unsqueeze(2).expand(index.shape)
        index = index.flatten()
        made = {
            "n": torch.bincount(index, minlength=cells),
            "alpha": _sum(index, bins & ((1 << ALPHA.within) - 1), cells),
            "norm": _sum(index, across, cells),
            "fine": torch.bincount(alone.flatten(), minlength=(categories + 1) * ALPHA.fine),
        }
        found = {k: v if not found else found[k].add_(v) for k, v in made.items()}
    code = found["n"][:outside].nonzero().squeeze(1)
    row, a = code // ALPHA.coarse, code % ALPHA.coarse
    c, b = row // width, row % width + first
    marginal = found["fine"][: categories * ALPHA.fine]
    times = real[:, None, :] & real[:, :, None] if admitted is None else admitted[:, 0]
    queries = times.sum(dim=1).unsqueeze(1).expand(norm.shape)  # of each key
    by_norm = _sum(
        (of.clamp_max(categories - 1) * NORM.fine + fine).flatten(),
        queries * real[:, None],
        categories * NORM.fine,
    )
    alphas, norms = (m.nonzero().squeeze(1) for m in (marginal, by_norm))
    return {
        "code": (c * ALPHA.coarse + a) * NORM.coarse + b,
        "n": found["n"][code],
        "alpha": found["alpha"][code],
        "norm": found["norm"][code],
        "alpha_code": alphas,
        "alpha_n": marginal[alphas],
        "norm_code": norms,
        "norm_n": by_norm[norms],
    }


def _sum(index: Tensor, numbers: Tensor, length: int) -> Tensor:
    """Sums of whole numbers by index; exact, as they stay far below 2^53."""
    return torch.bincount(index, weights=numbers.flatten().double(), minlength=length).long()


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
    unknown = float((n * deviation_u * deviation_v).sum() / scale)
    bound = unknown + sum(one.bent / one.size + one.ties / one.size for one in (u, v))
    return int(u.total), float(np.clip(rho, -1, 1)), float(bound)


@dataclass(frozen=True, eq=False)
class _Ranks:
    """Ranks along one axis, as shares of the pairs from −½ to ½, and their line in each bin."""

    total: float
    size: float  # rms of the ranks
    bent: float  # rms of what they deviate from the lines
    ties: float  # rms, at most, within fine bins
    middle: NDArray[np.float64]  # of each coarse bin: mean fine position,
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
        return np.bincount(bins, weights=values, minlength=axis.coarse)

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
    return _Ranks(
        total,
        float(np.sqrt((n * rank * rank).sum() / total)),
        float(np.sqrt((n * bent * bent).sum() / total)),
        float(np.sqrt(((n / total) ** 3).sum() / 12)),
        middle,
        height,
        slope,
        low,
        high,
    )
