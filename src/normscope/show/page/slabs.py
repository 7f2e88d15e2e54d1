"""Pack the numbers of a page: rounded to a grid, compressed, in base64.

A map is cut into slices, one for each layer or head. A cell is stored as the square root of its
share of the slice's largest value, rounded to one of a number of levels. So a value is off by at
most the largest value divided by the levels, and small values by less: the many small cells of a
long text still add up to the right sum. Where cells may be negative, the root keeps the sign, and
zero is the middle level. Small maps have 65,535 levels, large ones fewer, so that
the page stays small; the page says how fine its numbers are.

Arrays that follow from another (a mean over heads, weights times norms) are not stored but computed
by the page when they are shown.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

BUDGET = 2_800_000  # characters of base64 that all maps together should not exceed
LEVELS = (65535, 16383, 8191, 4095, 2047, 1023, 511, 255, 127)
FALLBACK_LEVELS = 255  # for maps that exceed the budget on any grid
MIN_LEVELS_SUMMED = 1023  # for maps of summed heads: few cells, and a residual's large diagonal
SAMPLE = 500_000  # cells of a map that are compressed to estimate its size


class Slabs:
    """The arrays of a page, referred to by number; equal arrays are stored once."""

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = []
        self._values: list[NDArray[np.float64] | None] = []  # None: computed by the page

    def add(self, values: NDArray[np.float64]) -> int:
        """Store an array: (layer, head, query, key), (layer, query, key) or (layer, query)."""
        for number, known in enumerate(self._values):
            if known is not None and known.shape == values.shape and np.array_equal(known, values):
                return number
        return self._append({"shape": list(values.shape)}, values)

    def add_mean(self, number: int) -> int:
        """Add the mean over heads of a stored array."""
        return self._append({"mean": number})

    def add_product(self, number: int, factor: NDArray[np.float64]) -> int:
        """Add a stored array times a factor for each layer, head and key."""
        packed = np.ascontiguousarray(factor.astype("<f4")).tobytes()
        return self._append({"times": number, "factor": base64.b64encode(packed).decode()})

    def values(self, number: int) -> NDArray[np.float64]:
        """Return a stored array."""
        values = self._values[number]
        assert values is not None
        return values

    def encoded(self) -> list[dict[str, Any]]:
        """Return all arrays on the finest grid that keeps the page small."""
        arrays = [values for values in self._values if values is not None]
        levels = next(
            (
                levels
                for levels in LEVELS
                if sum(_estimated_size(values, levels) for values in arrays) <= BUDGET
            ),
            FALLBACK_LEVELS,
        )
        return [
            entry if values is None else entry | _encoded(values, levels)
            for entry, values in zip(self._entries, self._values, strict=True)
        ]

    def _append(self, entry: dict[str, Any], values: NDArray[np.float64] | None = None) -> int:
        self._entries.append(entry)
        self._values.append(values)
        return len(self._entries) - 1


def _encoded(values: NDArray[np.float64], levels: int) -> dict[str, Any]:
    cells, largest, levels = _rounded(values, levels)
    raw = b"".join(plane.tobytes() for plane in _planes(cells, levels))
    packed = base64.b64encode(zlib.compress(raw, 6)).decode()
    signed = {"signed": True} if (values < 0).any() else {}
    return {"levels": levels, "largest": largest, "data": packed, **signed}


def _rounded(
    values: NDArray[np.float64], levels: int
) -> tuple[NDArray[np.uint16], list[float], int]:
    """Return the cells as levels, the largest value of each slice, and the number of levels."""
    if values.ndim < 4:
        levels = max(levels, MIN_LEVELS_SUMMED)
    axes = tuple(range(values.ndim - (1 if values.ndim == 2 else 2), values.ndim))
    largest = np.abs(values).max(axis=axes, keepdims=True, initial=0.0)
    scaled = np.divide(values, largest, out=np.zeros_like(values), where=largest > 0)
    roots = np.sqrt(np.abs(scaled))
    if (values < 0).any():
        half = levels // 2
        cells = (np.rint(np.copysign(roots, scaled) * half) + half).astype(np.uint16)
    else:
        cells = np.rint(roots * levels).astype(np.uint16)
    return cells, [float(f"{value:.8g}") for value in largest.ravel()], levels


def _planes(cells: NDArray[np.uint16], levels: int) -> list[NDArray[np.uint8]]:
    """Split cells into all low bytes and all high bytes: similar bytes compress better."""
    low = (cells & 0xFF).astype(np.uint8)
    return [low] if levels <= 255 else [low, (cells >> 8).astype(np.uint8)]


def _estimated_size(values: NDArray[np.float64], levels: int) -> float:
    """Estimate the characters that `_encoded` needs; of a large array, from some of its slices."""
    sample = values
    if values.ndim > 2:
        slices = values.reshape(-1, *values.shape[-2:])
        sample = slices[:: max(1, values.size // SAMPLE)]
    if values.ndim == 4:  # kept 4-dimensional, since the levels depend on it
        sample = sample[:, None]
    cells, _, levels = _rounded(sample, levels)
    packed = sum(len(zlib.compress(plane.tobytes(), 1)) for plane in _planes(cells, levels))
    return packed * (values.size / sample.size) * 4 / 3
