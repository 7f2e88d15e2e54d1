"""Comparison of two maps: change of contextualisation and amplified pairs (ICLR 2024).

A map is an array (layer, query, key), such as `result["atb"]`. Both maps must have the same layers
and tokens; merge words in both or in neither.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.foundation.ranks import midranks
from normscope.foundation.shapes import Float
from normscope.results.arrays import LabelledArray, import_tables, is_int

MAP_AXES = ("layer", "query", "key")


def contextualization_change(a: LabelledArray, b: LabelledArray) -> Float[np.ndarray, " layer"]:
    """Return 1 − Spearman ρ of two maps for each layer: 0 for equal orders, 2 for opposite ones.

    Cells that are exactly zero in both maps are left out: a causal or sliding-window mask makes
    them zero, and they would inflate ρ. Ties get their average rank.
    """
    _check_alike(a, b)
    return np.array(
        [
            1 - _rank_correlation(map_a, map_b, f"layer {layer} of {a.name!r} and {b.name!r}")
            for map_a, map_b, layer in zip(a.values, b.values, a.labels["layer"], strict=True)
        ]
    )


@dataclass(frozen=True)
class Pair:
    """One cell of two maps, with its tokens."""

    layer: int
    query: int
    query_token: str
    key: int
    key_token: str
    before: float
    after: float
    difference: float


@dataclass(frozen=True)
class Amplification:
    """The difference that a step of the layer, such as the feed-forward, makes to a map."""

    before: LabelledArray
    after: LabelledArray
    difference: LabelledArray  # after − before

    def top(
        self, n: int | None = 10, layer: int | None = None, *, special: bool = True
    ) -> list[Pair]:
        """Return the ``n`` pairs that grow most (None: all), of one layer or all, largest first.

        With ``special=False``, pairs whose query or key is a special token are left out. Equal
        differences keep the order of layer, query, key.
        """
        if n is not None and (not is_int(n) or n < 1):
            raise InputError(f"n is {n!r}; give at least 1 pair, or None for all")
        chosen = np.ones(self.difference.shape, dtype=bool)
        if layer is not None:
            self.difference.sel(layer=[layer])  # raises for a layer that does not exist
            chosen[np.array(self.difference.labels["layer"]) != layer] = False
        queries, keys = self.difference.tokens["query"], self.difference.tokens["key"]
        if not special:
            chosen[:, np.array(queries.special)] = False
            chosen[:, :, np.array(keys.special)] = False
        cells = np.argwhere(chosen)
        order = np.argsort(-self.difference.values[chosen], kind="stable")[:n]
        labels = self.difference.labels
        return [
            Pair(
                layer=labels["layer"][k],
                query=labels["query"][i],
                query_token=queries.strings[i],
                key=labels["key"][j],
                key_token=keys.strings[j],
                before=float(self.before.values[k, i, j]),
                after=float(self.after.values[k, i, j]),
                difference=float(self.difference.values[k, i, j]),
            )
            for k, i, j in cells[order].tolist()
        ]

    def to_pandas(
        self, n: int | None = None, layer: int | None = None, *, special: bool = True
    ) -> Any:
        """Return the pairs of `top` as a table, one row each; by default all pairs."""
        pandas = import_tables("pandas")
        rows = [astuple(pair) for pair in self.top(n, layer, special=special)]
        return pandas.DataFrame(rows, columns=[field.name for field in fields(Pair)])


def amplification(before: LabelledArray, after: LabelledArray) -> Amplification:
    """Return the map of differences, after − before, with its top pairs."""
    _check_alike(before, after)
    difference = LabelledArray(
        after.values - before.values,
        after.axes,
        after.tokens,
        after.labels,
        name=f"{after.name} − {before.name}",
    )
    return Amplification(before, after, difference)


def _check_alike(a: LabelledArray, b: LabelledArray) -> None:
    """Raise InputError for maps that cannot be compared cell by cell."""
    for array in (a, b):
        if array.axes != MAP_AXES:
            raise InputError(
                f"{array.name!r} has the axes {array.axes}; give maps with {MAP_AXES}: "
                'heads="sum", nothing selected by a single label'
            )
        if not np.isfinite(array.values).all():
            raise InputError(f"{array.name!r} has cells that are NaN or infinite")
    for axis in MAP_AXES:
        if a.labels[axis] != b.labels[axis]:
            raise InputError(
                f"{a.name!r} and {b.name!r} do not have the same {axis} labels: "
                f"{_short(a.labels[axis])} and {_short(b.labels[axis])}; compare maps of the same "
                "layers and tokens (choose with .sel)"
            )
    for axis in ("query", "key"):
        if a.tokens[axis] != b.tokens[axis]:
            raise InputError(
                f"{a.name!r} and {b.name!r} do not have the same {axis} tokens: "
                f"{_short(a.tokens[axis].strings)} and {_short(b.tokens[axis].strings)}; compare "
                "maps of the same text, words merged in both or in neither"
            )


def _short(entries: tuple[Any, ...], limit: int = 12) -> str:
    text = " ".join(map(str, entries[:limit]))
    return text + (f" … ({len(entries)})" if len(entries) > limit else "")


def _rank_correlation(a: NDArray[Any], b: NDArray[Any], what: str) -> float:
    """Return Spearman's ρ over the cells that are not zero in both maps; raise if undefined."""
    seen = (a != 0) | (b != 0)
    count = np.count_nonzero(seen)
    if count < 2:
        raise InputError(
            f"{what} have {count} cells that are not zero in both; a rank correlation needs two"
        )
    x, y = (midranks(values[seen]) - (count + 1) / 2 for values in (a, b))
    if not x.any() or not y.any():
        raise InputError(
            f"{what}: one of them is the same in all cells, so the rank correlation is not defined"
        )
    # The root of the product, not the product of roots, so that equal ranks give exactly 1.
    return float(np.clip((x @ y) / np.sqrt((x @ x) * (y @ y)), -1, 1))
