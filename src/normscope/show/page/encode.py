"""The data of the page: results as plain JSON types, with their maps packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import NAMES, NORMS, WEIGHTS
from normscope.errors import InputError
from normscope.results.arrays import LabelledArray
from normscope.results.attribution import Attribution
from normscope.results.contributions import Contributions
from normscope.show.headline import PLACES, most_different, whole
from normscope.show.page.shares import clean, plain_tokens, shares_payload
from normscope.show.page.slabs import Slabs
from normscope.show.wording import describe
from normscope.text.tokens import Tokens

FORMAT, VERSION = "normscope.page", 4

# What a page can show: one result, or several of the same text, which are shown together.
Viewable = Contributions | Attribution | Sequence[Contributions | Attribution]


def payload(result: Viewable) -> dict[str, Any]:
    """Return everything that the page shows, in plain JSON types.

    Args:
        result: One result, or several of the same text, which are shown together; or one
            attribution.

    Raises:
        InputError: If there is no result, or results of different texts, layers or parts, or a map
            with negative or non-finite cells.
    """
    given = [result] if isinstance(result, Contributions | Attribution) else list(result)
    if len(given) == 1 and isinstance(given[0], Attribution):
        return shares_payload(given[0])
    results = _checked_results(given)
    signatures = list(dict.fromkeys(clean(each.signature) for each in results))
    numbers: dict[Tokens, int] = {}  # a token list is stored once and referred to by number
    slabs = Slabs()
    parts = []
    for name in dict.fromkeys(name for each in results for name in _parts(each)):
        owners = [
            (_parts(each)[name], signatures.index(clean(each.signature)))
            for each in results
            if name in _parts(each)
        ]
        parts.append(_part(name, owners, numbers, slabs))
    return {
        "format": FORMAT,
        "version": VERSION,
        "pair": [WEIGHTS, NORMS],  # the two maps that the page compares when it opens
        "opening": asdict(most_different(results)),  # where they differ most
        "signatures": signatures,
        "tokens": [plain_tokens(tokens) for tokens in numbers],
        "parts": parts,
        "slabs": slabs.encoded(),
    }


def _checked_results(given: Sequence[Contributions | Attribution]) -> list[Contributions]:
    results = [each for each in given if isinstance(each, Contributions)]
    if not results or len(results) < len(given):
        kinds = ", ".join(type(each).__name__ for each in given) or "nothing"
        raise InputError(
            "a page shows the result of analyze(), or several of them, or one result of "
            f"attribute(), but was given {kinds}; results of analyze(…, reduce=…) have no maps to "
            "show"
        )
    if len({bool(each.parts) for each in results}) > 1:
        raise InputError("these results have different parts; give results of one model and text")
    return results


def _parts(result: Contributions) -> dict[str, Contributions]:
    return dict(result.parts or {"": result})


def _part(
    name: str,
    owners: Sequence[tuple[Contributions, int]],
    numbers: dict[Tokens, int],
    slabs: Slabs,
) -> dict[str, Any]:
    """Encode one part of a model from its results, each with the number of its signature."""
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
                raise InputError(
                    "these results have different layers; give results of the same layers"
                )
            entry = maps.setdefault(map_name, {"name": map_name})
            kind = "each" if "head" in array.axes else "sum"
            if kind in entry:
                continue
            slab = _map_slab(map_name, array, owner, maps, slabs)
            keys = numbers.setdefault(array.tokens["key"], len(numbers))
            entry[kind] = _variant(map_name, array, owner, slab) | {
                "keys": keys,
                "signature": signature,
            }
            if kind == "each":
                entry["heads"] = list(array.labels["head"])
        for map_name, array in owner.mixing_ratio.items():
            if map_name not in mixing and _shows_mixing(array):
                mixing[map_name] = slabs.add(_checked_values("mixing_ratio", array))
    _add_mean_of_weights(maps, slabs)
    return {
        "name": name,
        "place": PLACES.get(name, name),
        "tokens": numbers.setdefault(first.tokens, len(numbers)),
        "keys": numbers.setdefault(first.key_tokens, len(numbers)),
        "layers": list(layers),
        "maps": sorted(maps.values(), key=_place),
        "mixing": mixing,
    }


def _place(entry: dict[str, Any]) -> int:
    """The place of a map in the table of scopes; unknown maps come last."""
    return NAMES.index(entry["name"]) if entry["name"] in NAMES else len(NAMES)


def _variant(name: str, array: LabelledArray, owner: Contributions, slab: int) -> dict[str, Any]:
    """A map with heads summed, or of each head: where its numbers are, and its description."""
    residual_column = len(array.tokens["key"]) > len(owner.key_tokens)
    words = _words(name, per_head="head" in array.axes, residual_column=residual_column)
    return {"slab": slab, "error": owner.error.get(name), **words}


def _words(name: str, **kind: bool) -> dict[str, str]:
    scope = describe(name, **kind)
    return {
        "short": scope.short,
        "title": scope.title,
        "formula": scope.formula,
        "meaning": scope.meaning,
        "unit": scope.unit,
        "whole": whole(name),
    }


def _map_slab(
    name: str,
    array: LabelledArray,
    owner: Contributions,
    maps: dict[str, dict[str, Any]],
    slabs: Slabs,
) -> int:
    """Store a map, or refer to the weights of the heads if it follows from them."""
    values = _checked_values(name, array)
    per_head = maps.get(WEIGHTS, {}).get("each")
    if per_head is None:
        return slabs.add(values)
    number = per_head["slab"]
    weights = slabs.values(number)
    if name == WEIGHTS and "head" not in array.axes and _close(weights.mean(axis=1), values):
        return slabs.add_mean(number)
    norm = owner._transformed_norm
    if name == NORMS and "head" in array.axes and norm is not None:
        factor = norm.values.astype(np.float64)
        fits = factor.shape == (*weights.shape[:2], weights.shape[3])
        if fits and _close(weights * factor[:, :, None, :], values):  # ‖αf(x)‖ = α‖f(x)‖
            return slabs.add_product(number, factor)
    return slabs.add(values)


def _add_mean_of_weights(maps: dict[str, dict[str, Any]], slabs: Slabs) -> None:
    """Add the mean over heads of the weights; the norm of summed heads does not follow so."""
    weights = maps.get(WEIGHTS)
    if weights is not None and "each" in weights and "sum" not in weights:
        mean = slabs.add_mean(weights["each"]["slab"])
        weights["sum"] = weights["each"] | {"slab": mean} | _words(WEIGHTS)


def _shows_mixing(array: LabelledArray) -> bool:
    """Whether there is something to see: cross-attention without residual mixes everything."""
    return array.axes == ("layer", "query") and bool((array.values < 1 - 1e-6).any())


def _checked_values(name: str, array: LabelledArray) -> NDArray[np.float64]:
    values = array.values.astype(np.float64)
    if not np.isfinite(values).all() or ((values < 0).any() and not array.signed):
        raise InputError(
            f"{name!r} has cells that are negative or not finite; a page shows weights, norms and "
            "signed maps"
        )
    return values


def _close(computed: NDArray[np.float64], values: NDArray[np.float64]) -> bool:
    """Whether two arrays are equal as far as the page shows, in the results' own precision."""
    if computed.shape != values.shape:
        return False
    largest = float(np.abs(values).max(initial=0.0))
    return bool(np.allclose(computed, values, rtol=1e-4, atol=1e-6 * largest))
