"""A result as compact data for the page: numbers rounded to a grid, packed, in base64.

A map is cut into slices, one a layer or one a head. What is kept of a cell is the root of its
share of the slice's largest value, as one of so many levels: a value is off by the largest / levels
at most, and small values by less, so that the many small ones of a long text still add up. Where
the maps are small there are 65,535 levels; of large ones fewer, so that the page stays small, and
the page says how fine its numbers are.
What follows from other data (α‖f(x)‖ from α, the mean over heads) is left out and computed when
it is shown.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import NAMES
from normscope.errors import InputError
from normscope.results.arrays import LabelledArray, merge_words
from normscope.results.contributions import Contributions
from normscope.show.page.formulas import about
from normscope.text.tokens import Tokens

FORMAT, VERSION = "normscope.page", 2
BUDGET = 2_800_000  # characters of base64 that all maps together aim at
LEVELS = (65535, 16383, 8191, 4095, 2047, 1023, 511, 255, 127)
LONG = 255  # levels of what is too large for the budget on any grid
SAMPLE = 500_000  # cells of one map that are packed to see how well it packs
LEAST_TOGETHER = 1023  # heads together: few cells, and with a residual a large diagonal

Results = Contributions | Sequence[Contributions]


def payload(result: Results) -> dict[str, Any]:
    """Everything the page shows, in plain JSON types.

    `result` is one result, or several of the same text, which are shown as one.
    """
    results = [result] if isinstance(result, Contributions) else list(result)
    if not results or not all(isinstance(one, Contributions) for one in results):
        kinds = ", ".join(type(one).__name__ for one in results) or "nothing"
        raise InputError(
            f"a page shows the result of analyze(), or several of them, but was given {kinds}; "
            "results of analyze(…, reduce=…) have no maps to show"
        )
    tokens: dict[Tokens, int] = {}
    slabs = _Slabs()
    parts = []
    signatures = list(dict.fromkeys(_clean(one.signature) for one in results))
    names = list(dict.fromkeys(name for one in results for name in (one.parts or {"": one})))
    for name in names:
        owners = [
            (part, signatures.index(_clean(one.signature)))
            for one in results
            if (part := (one.parts or {"": one}).get(name))
        ]
        parts.append(_part(name, owners, tokens, slabs))
    if any("" in (one.parts or {"": one}) for one in results) and len(names) > 1:
        raise InputError("these results have different parts; give results of one model and text")
    return {
        "format": FORMAT,
        "version": VERSION,
        "signatures": signatures,
        "tokens": [_tokens(one) for one in tokens],
        "parts": parts,
        "slabs": slabs.encoded(),
    }


def _clean(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _tokens(tokens: Tokens) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "pieces": list(tokens.strings),
        "texts": list(tokens.texts),
        "special": [int(one) for one in tokens.special],
    }
    if tokens.word_of is not None:
        groups, words = merge_words(tokens)
        word = [0] * len(tokens)
        for number, group in enumerate(groups):
            for position in group:
                word[position] = number
        plain |= {"word": word, "words": list(words.strings)}
    return plain


def _part(
    name: str,
    owners: Sequence[tuple[Contributions, int]],  # with the number of its signature
    tokens: dict[Tokens, int],
    slabs: _Slabs,
) -> dict[str, Any]:
    first = owners[0][0]
    layers = first[next(iter(first))].labels["layer"]
    maps: dict[str, dict[str, Any]] = {}
    mixing: dict[str, int] = {}
    for owner, signature in owners:
        if owner.tokens != first.tokens or owner.key_tokens != first.key_tokens:
            raise InputError("these results are of different texts; give results of one text")
        for map_name in owner:
            array = owner[map_name]
            if array.labels["layer"] != layers:
                raise InputError("these results have different layers; give results of the same")
            kind = "each" if "head" in array.axes else "sum"
            one = maps.setdefault(map_name, {"name": map_name})
            if kind in one:
                continue
            one[kind] = {
                "slab": slabs.add(name, map_name, array, owner),
                "keys": tokens.setdefault(array.tokens["key"], len(tokens)),
                "error": owner.error.get(map_name),
                "signature": signature,
                **asdict(about(map_name, each=kind == "each", column=_has_column(array, owner))),
            }
            if kind == "each":
                one["heads"] = list(array.labels["head"])
        for map_name, array in owner.mixing_ratio.items():
            # A cross-attention without the residual takes all from the source: nothing to show.
            shown = array.axes == ("layer", "query") and (array.values < 1 - 1e-6).any()
            if map_name not in mixing and shown:
                mixing[map_name] = slabs.add_plain(array)
    _add_means(maps, slabs)
    order = {known: place for place, known in enumerate(NAMES)}
    return {
        "name": name,
        "tokens": tokens.setdefault(first.tokens, len(tokens)),
        "keys": tokens.setdefault(first.key_tokens, len(tokens)),
        "layers": list(layers),
        "maps": sorted(maps.values(), key=lambda one: order.get(one["name"], len(order))),
        "mixing": mixing,
    }


def _has_column(array: LabelledArray, owner: Contributions) -> bool:
    """Whether the residual is a column of its own, beside the keys of the attention."""
    return len(array.tokens["key"]) > len(owner.key_tokens)


def _add_means(maps: dict[str, dict[str, Any]], slabs: _Slabs) -> None:
    """The mean of the heads' weights is known wherever the heads' are; of norms it is not."""
    weights = maps.get("attn_w")
    if weights is not None and "each" in weights and "sum" not in weights:
        each = weights["each"]
        weights["sum"] = {
            "slab": slabs.mean_of(each["slab"]),
            "keys": each["keys"],
            "error": each["error"],
            "signature": each["signature"],
            **asdict(about("attn_w", each=False)),
        }


class _Slabs:
    """The arrays of the page by number, each stored once."""

    def __init__(self) -> None:
        self._kept: list[dict[str, Any]] = []
        self._arrays: list[NDArray[np.float64] | None] = []
        self._weights: dict[str, int] = {}  # by part: the weights of its heads

    def add(self, part: str, name: str, array: LabelledArray, owner: Contributions) -> int:
        values = _checked(name, array)
        if "head" in array.axes:
            if name == "attn_n" and (found := self._weighted(part, values, owner)) is not None:
                return found
            number = self._store(values)
            if name == "attn_w":
                self._weights[part] = number
            return number
        each = self._weights.get(part)
        if name == "attn_w" and each is not None:
            weights = self._arrays[each]
            assert weights is not None
            if weights[:, 0].shape == values.shape and _close(weights.mean(axis=1), values):
                return self.mean_of(each)
        return self._store(values)

    def add_plain(self, array: LabelledArray) -> int:
        return self._store(_checked("mixing_ratio", array))

    def mean_of(self, number: int) -> int:
        return self._append({"mean": number}, None)

    def _weighted(self, part: str, values: NDArray[np.float64], owner: Contributions) -> int | None:
        """‖αf‖ = α‖f‖, if both are here and it is so."""
        number, norm = self._weights.get(part), owner.transformed_norm
        weights = None if number is None else self._arrays[number]
        if weights is None or norm is None or weights.shape != values.shape:
            return None
        factor = norm.values.astype(np.float64)
        if factor.shape != (*values.shape[:2], values.shape[3]):
            return None
        if not _close(weights * factor[:, :, None, :], values):
            return None
        return self._append({"times": number, "factor": _base64(factor.astype("<f4"))}, None)

    def _store(self, values: NDArray[np.float64]) -> int:
        for number, known in enumerate(self._arrays):
            if known is not None and known.shape == values.shape and np.array_equal(known, values):
                return number
        return self._append({"shape": list(values.shape)}, values)

    def _append(self, kept: dict[str, Any], values: NDArray[np.float64] | None) -> int:
        self._kept.append(kept)
        self._arrays.append(values)
        return len(self._kept) - 1

    def encoded(self) -> list[dict[str, Any]]:
        """All of them, on the finest grid that keeps the page small."""
        arrays = [values for values in self._arrays if values is not None]
        levels = next(
            (one for one in LEVELS if sum(_estimate(v, one) for v in arrays) <= BUDGET), LONG
        )
        for kept, values in zip(self._kept, self._arrays, strict=True):
            if values is not None:
                kept |= _encode(values, levels)
        return self._kept


def _checked(name: str, array: LabelledArray) -> NDArray[np.float64]:
    values = array.values.astype(np.float64)
    if not np.isfinite(values).all() or (values < 0).any():
        raise InputError(
            f"{name!r} has cells that are negative or not finite; a page shows weights and norms"
        )
    return values


def _close(made: NDArray[np.float64], given: NDArray[np.float64]) -> bool:
    """Equal as far as the page can show it, in the precision that results come in."""
    largest = float(np.abs(given).max(initial=0.0))
    return bool(np.allclose(made, given, rtol=1e-4, atol=1e-6 * largest))


def _grid(values: NDArray[np.float64], levels: int) -> tuple[NDArray[np.uint16], list[float], int]:
    """Cells as levels, the largest value of each slice, and how many levels there are."""
    if values.ndim < 4:
        levels = max(levels, LEAST_TOGETHER)
    axes = tuple(range(values.ndim - (1 if values.ndim == 2 else 2), values.ndim))
    largest = values.max(axis=axes, keepdims=True, initial=0.0)
    scaled = np.divide(values, largest, out=np.zeros_like(values), where=largest > 0)
    cells = np.rint(np.sqrt(scaled) * levels).astype(np.uint16)
    return cells, [float(f"{one:.8g}") for one in largest.ravel()], levels


def _estimate(values: NDArray[np.float64], levels: int) -> float:
    """About how many characters `_encode` will need; of a large array some slices are tried."""
    slices = values.reshape(-1, *values.shape[-2:])
    step = max(1, values.size // SAMPLE)
    some = slices[::step] if values.ndim > 2 else values
    sample = some.reshape(len(some), 1, *some.shape[1:]) if values.ndim == 4 else some
    cells, _, levels = _grid(sample, levels)
    packed = sum(len(zlib.compress(plane.tobytes(), 1)) for plane in _planes(cells, levels))
    return packed * (values.size / sample.size) * 4 / 3


def _planes(cells: NDArray[np.uint16], levels: int) -> list[NDArray[np.uint8]]:
    """The low bytes of all cells, then the high bytes: alike bytes together pack better."""
    low = (cells & 0xFF).astype(np.uint8)
    return [low] if levels <= 255 else [low, (cells >> 8).astype(np.uint8)]


def _encode(values: NDArray[np.float64], levels: int) -> dict[str, Any]:
    cells, largest, levels = _grid(values, levels)
    raw = b"".join(plane.tobytes() for plane in _planes(cells, levels))
    data = base64.b64encode(zlib.compress(raw, 6)).decode()
    return {"levels": levels, "largest": largest, "data": data}


def _base64(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def texts_of(data: dict[str, Any]) -> Iterable[str]:
    """The words of the first tokens, for a title."""
    first = data["tokens"][data["parts"][0]["tokens"]]
    return first.get("words", first["texts"])
