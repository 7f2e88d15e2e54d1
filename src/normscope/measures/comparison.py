"""Two maps side by side: how much the context changes, and which pairs grow most (ICLR 2024).

A map is (layer, query, key), as `result["atb"]` gives it. Both maps must be of the same layers and
tokens; merge words in both or in neither.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.foundation.shapes import Float
from normscope.results.arrays import LabelledArray, import_tables, is_int

MAP_AXES = ("layer", "query", "key")


def contextualization_change(a: LabelledArray, b: LabelledArray) -> Float[np.ndarray, " layer"]:
    """1 − Spearman ρ of two maps, per layer: 0 if both order the pairs alike, 2 if oppositely.

    Cells that are exactly zero in both maps are those that a mask (causal, sliding window) makes
    zero; they are left out, as they would inflate ρ. Ties get the average of their ranks.
    """
    _check_alike(a, b)
    return np.array(
        [
            1 - _spearman(one, other, f"layer {layer} of {a.name!r} and {b.name!r}")
            for one, other, layer in zip(a.values, b.values, a.labels["layer"], strict=True)
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
    """What a step of the layer, such as the feed-forward, adds to a map or takes from it."""

    before: LabelledArray
    after: LabelledArray
    difference: LabelledArray  # after − before

    def top(
        self, n: int | None = 10, layer: int | None = None, *, special: bool = True
    ) -> list[Pair]:
        """The ``n`` pairs that grow most (None: all), of one layer or of all, largest first.

        Nothing is left out unless ``special`` is False: then pairs with a special token are, on
        either side. Equal differences keep the order of layer, query, key.
        """
        if n is not None and (not is_int(n) or n < 1):
            raise InputError(f"n is {n!r}; give a number of pairs from 1 on, or None for all")
        chosen = np.ones(self.difference.shape, dtype=bool)
        if layer is not None:
            self.difference.sel(layer=[layer])  # complains of a layer that is not there
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
        """The same pairs as a table, one row each; all of them unless ``n`` is given."""
        pandas = import_tables("pandas")
        rows = [astuple(pair) for pair in self.top(n, layer, special=special)]
        return pandas.DataFrame(rows, columns=[field.name for field in fields(Pair)])


def amplification(before: LabelledArray, after: LabelledArray) -> Amplification:
    """The map of differences, after − before, and its top pairs."""
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
    """Refuse what cannot be compared cell by cell, and say why."""
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


def _spearman(a: NDArray[Any], b: NDArray[Any], what: str) -> float:
    """Pearson's correlation of the ranks, over the cells that are not zero in both."""
    seen = (a != 0) | (b != 0)
    if np.count_nonzero(seen) < 2:
        raise InputError(
            f"{what} have {np.count_nonzero(seen)} cells that are not zero in both; a rank "
            "correlation needs two"
        )
    x, y = (_ranks(values[seen]) for values in (a, b))
    if not x.any() or not y.any():
        raise InputError(
            f"{what}: one of them is the same in all cells, so the rank correlation is not defined"
        )
    # The root of the product: equal ranks then give exactly 1.
    return float(np.clip((x @ y) / np.sqrt((x @ x) * (y @ y)), -1, 1))


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """Ranks less their mean; equal values share the average of the ranks that they take up."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    centred: NDArray[np.float64] = middle[where] - (len(values) + 1) / 2
    return centred
