"""Rollout and flow: the maps of all layers as one (Abnar and Zuidema, 2020).

A layer's map C^l says what each position takes from each position of the layer below. Rollout
multiplies the maps, R^l = C^l R^{l−1}; flow sends as much as they can carry from a position of the
last layer to one of the first. A map without the residual connection gets it first: (C + I),
divided by the sums of its rows. In an encoder–decoder model, the decoder's shares of the source and
of the target's prefix are followed together (ALTI+, Ferrando et al., 2022).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import ALTI, NAMES, SCOPES, WEIGHTS, Scope
from normscope.errors import InputError, MissingExtraError
from normscope.results.arrays import LabelledArray, take
from normscope.results.contributions import Contributions
from normscope.text.tokens import Tokens

Matrices = NDArray[np.float64]
CAPACITY = 10**9  # of a row that sums to 1, in the integers of the flow
LONG = 64  # positions, beyond which the flows of one row take minutes


def rollout(
    source: Any,
    tokenizer: Any = None,
    text: str | Sequence[str] | None = None,
    *,
    map: str = ALTI,
    normalize: bool | None = None,
    query: int | str | None = None,
    **options: Any,
) -> Any:
    """Multiply the maps of all layers: what each position takes from each input position.

        >>> result = rollout(model, tokenizer, "The cat sat.", map="alti")      # doctest: +SKIP
        >>> result["rollout_alti"].shape               # (layer, query, key)    # doctest: +SKIP
        (6, 6, 6)

    Args:
        source: a result of :func:`analyze` with the map, or a list of results; or a model, as for
            :func:`analyze`.
        tokenizer: the model's tokenizer, if a model was given.
        text: a text or a list of texts, if a model was given.
        map: the map to multiply. Weights and norms of attention alone get the residual connection,
            as half of each row.
        normalize: whether to divide each row by its sum. Default: as in the map's paper. Lengths of
            vectors with the residual (``globenc``, ``attn_res_n``, ``attn_res_ln_n`` and those
            behind the feed-forward) are not divided, and each layer is divided by its largest row
            sum, one number. All others are.
        query: only the row of this position of the last layer, by its number (from the end if
            negative) or token, by Horner's scheme: vectors times maps, and no product of maps.
        options: further arguments of :func:`analyze`, if a model was given.

    Returns:
        A :class:`Contributions` with one map, named ``rollout_`` and the map's name: (layer, query,
        key) with the product up to each layer, or with ``query`` one layer and one query. For an
        encoder–decoder model its parts are ``encoder``, ``cross`` (shares of the source) and
        ``decoder`` (shares of the target's prefix): a row of the last two together sums to 1. A
        list of results for a list.
    """
    scope = _scope_of(map)
    results = _results(source, tokenizer, text, map, options)
    rolled = [_rolled(result, scope, normalize, query) for result in _listed(results)]
    return rolled if isinstance(results, list) else rolled[0]


def flow(
    source: Any,
    tokenizer: Any = None,
    text: str | Sequence[str] | None = None,
    *,
    query: int | str | Sequence[int | str],
    map: str = WEIGHTS,
    **options: Any,
) -> Any:
    """Compute the maximum flow from positions of the last layer to every input position.

        >>> row = flow(model, tokenizer, "The cat sat.", query=0)               # doctest: +SKIP

    The maps of the layers, with the residual and rows that sum to 1, are the capacities. Each input
    position is a maximum-flow problem of its own, on a graph with layers · positions² edges, so a
    row takes seconds at 64 positions and minutes at 256; beyond 64 a warning says so. Capacities
    are integers, a row being 10⁹. Requires SciPy (``normscope[flow]``).

    Args:
        source: a result of :func:`analyze` with the map, a list of results, or a model, as for
            :func:`rollout`.
        tokenizer: the model's tokenizer, if a model was given.
        text: a text or a list of texts, if a model was given.
        query: the position, by its number (from the end if negative) or token, or a list of them.
        map: the map whose cells are capacities.
        options: further arguments of :func:`analyze`, if a model was given.

    Returns:
        A :class:`Contributions` with the map ``flow_`` and the map's name: (layer, query, key) with
        the last layer and the queries asked for. Each row is divided by its sum. A list of results
        for a list.
    """
    scope = _scope_of(map)
    results = _results(source, tokenizer, text, map, options)
    flows = [_flows(result, scope, query) for result in _listed(results)]
    return flows if isinstance(results, list) else flows[0]


# ---- what is given


def _scope_of(map: str) -> Scope:
    if map not in NAMES:
        raise InputError(f"unknown map: {map!r}; the maps are: {', '.join(NAMES)}")
    if SCOPES[map].signed:
        rest = ", ".join(name for name in NAMES if not SCOPES[name].signed)
        raise InputError(
            f"cells of {map} may be negative, so it has no rollout; use one of: {rest}"
        )
    return SCOPES[map]


def _results(source: Any, tokenizer: Any, text: Any, map: str, options: Mapping[str, Any]) -> Any:
    """Return the results that were given, or those of a model."""
    given = _listed(source)
    if given and all(isinstance(result, Contributions) for result in given):
        if tokenizer is not None or text is not None or options:
            raise InputError(
                "a result already has its text and options; give these with a model, or leave "
                f"them out: {', '.join(['tokenizer', 'text', *options])}"
            )
        return source
    from normscope.measures.analysis import analyze

    return analyze(source, tokenizer, text, maps=[map], **options)


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, list | tuple) else [results]


# ---- local maps


def _local(part: Contributions, scope: Scope, normalize: bool | None, *, square: bool) -> Matrices:
    """Return the maps of all layers with the residual in them, (layer, query, keys).

    ``square``: whether queries and keys are the same positions, so that the residual is on the
    diagonal; otherwise it is the last column.
    """
    array = part[scope.name]
    values = array.values.astype(np.float64)
    if "head" in array.axes:
        if not scope.weight:
            raise InputError(
                f"the lengths of {scope.name} of single heads do not give those of their sum: "
                'analyse with heads="sum"'
            )
        values = values.mean(axis=1)
    if scope.adds_residual and not square:
        values = np.concatenate([values, np.zeros_like(values[..., :1])], axis=-1)
    normalize = scope.rows_divided if normalize is None else normalize
    if scope.adds_residual:
        if normalize and not scope.weight:
            values = _divided(values, square)
        where = np.arange(values.shape[1])
        values[:, where, where if square else -1] += 1
    if normalize:
        return _divided(values, square)
    largest = values.sum(axis=-1, keepdims=True).max(axis=1, keepdims=True)
    return values / np.where(largest > 0, largest, 1)


def _divided(values: Matrices, square: bool) -> Matrices:
    """Divide each row by its sum; a row of zeros becomes that of the identity."""
    sums = values.sum(axis=-1, keepdims=True)
    shares = values / np.where(sums > 0, sums, 1)
    layers, rows = np.nonzero(sums[..., 0] <= 0)
    shares[layers, rows, rows if square else -1] = 1
    return shares


# ---- rollout


def _products(maps: Matrices) -> Matrices:
    """Return C^1, C^2 C^1, …."""
    products = [maps[0]]
    for local in maps[1:]:
        products.append(local @ products[-1])
    return np.stack(products)


def _row(row: Matrices, maps: Matrices) -> Matrices:
    """Return a row vector times C^L, …, C^1."""
    for local in maps[::-1]:
        row = row @ local
    return row


def _rolled(
    result: Contributions, scope: Scope, normalize: bool | None, query: int | str | None
) -> Contributions:
    """Roll out one result."""
    if result.parts and any("cross" in part for part in result.parts):
        return _both_stacks(result, scope, normalize, query)
    if result.parts:
        parts = {key: _rolled(part, scope, normalize, query) for key, part in result.parts.items()}
        return Contributions(parts=parts, signature=_Signature(result, _how(scope, normalize)))
    _check_square(result, scope.name)
    maps = _local(result, scope, normalize, square=True)
    at = None if query is None else [_position(result, query)]
    values = _products(maps) if at is None else _row(np.eye(maps.shape[1])[at], maps)[None]
    rolled = _Rolled(f"rollout_{scope.name}", scope, _how(scope, normalize), at)
    return _as_result(result, rolled, values)


def _how(scope: Scope, normalize: bool | None) -> str:
    """Return what belongs in the signature."""
    divided = scope.rows_divided if normalize is None else normalize
    return f"rollout:{scope.name}|normalize:{divided}"


@dataclass(frozen=True)
class _Rolled:
    """What the arrays of a rollout are called, and which queries of the last layer they are of."""

    name: str
    scope: Scope
    how: str
    queries: Sequence[int] | None  # None: all, of all layers


@dataclass(frozen=True)
class _Signature:
    """The signature of what was computed from a result; it is made when it is read."""

    result: Contributions
    how: str

    def text(self) -> str:
        """Return the result's signature and what was computed."""
        return f"{self.result.signature}|{self.how}"


def _as_result(part: Contributions, rolled: _Rolled, values: Matrices) -> Contributions:
    """Return the values as a result like the part of the model that they come from."""
    own = part[rolled.scope.name]
    layers = own.labels["layer"]
    queries: Tokens = part.tokens
    labels: dict[str, Sequence[int]] = {"layer": layers}
    if rolled.queries is not None:
        labels = {"layer": layers[-1:], "query": rolled.queries}
        queries = take(queries, rolled.queries)
    array = LabelledArray(
        values.astype(own.dtype),
        ("layer", "query", "key"),
        {"query": queries, "key": part.key_tokens},
        labels,
        name=rolled.name,
    )
    error = {rolled.name: part.error[rolled.scope.name]} if rolled.scope.name in part.error else {}
    signature = _Signature(part, rolled.how)
    return Contributions({rolled.name: array}, None, queries, part.key_tokens, error, signature)


def _both_stacks(
    result: Contributions, scope: Scope, normalize: bool | None, query: int | str | None
) -> Contributions:
    """Roll out an encoder–decoder model: ALTI+."""
    divided = normalize is None or normalize
    needed = ("encoder", "decoder", "cross")
    lacking = [part for part in needed if scope.name not in getattr(result, part, ())]
    if set(result.parts) != set(needed) or lacking or not divided:
        usable = [n for n in NAMES if SCOPES[n].end in ("attention", "residual", "block")]
        usable = [n for n in usable if not SCOPES[n].signed]
        raise InputError(
            "an encoder–decoder model is rolled out from maps that its encoder, decoder and "
            f"cross-attention have, with rows that sum to 1 (normalize=True): {scope.name} is in "
            f"{', '.join(p for p in result.parts if scope.name in result.parts[p]) or 'none'}; "
            f"use one of: {', '.join(usable)}"
        )
    encoder, own, cross = (
        _local(result.parts[part], scope, True, square=part != "cross") for part in needed
    )
    if len(own) != len(cross):
        raise InputError(
            f"the decoder has {len(own)} layers of self-attention and {len(cross)} of "
            "cross-attention: only a decoder whose layers all have both is rolled out"
        )
    source, kept, target = cross[..., :-1], cross[..., -1:] * own, result.parts["decoder"]
    parts: dict[str, Contributions] = {}
    how = _how(scope, True)
    if query is None:
        rolled = _Rolled(f"rollout_{scope.name}", scope, how, None)
        encoded = _products(encoder)
        parts["encoder"] = _as_result(result.parts["encoder"], rolled, encoded)
        from_source, from_target = joint_products(source, kept, encoded[-1])
    else:
        rolled = _Rolled(f"rollout_{scope.name}", scope, how, [_position(target, query)])
        row = np.eye(own.shape[1])[rolled.queries]
        gathered = np.zeros((1, source.shape[-1]))
        for across, below in zip(source[::-1], kept[::-1], strict=True):
            gathered, row = gathered + row @ across, row @ below
        from_source, from_target = _row(gathered, encoder)[None], row[None]
    parts["decoder"] = _as_result(target, rolled, from_target)
    parts["cross"] = _as_result(result.parts["cross"], rolled, from_source)
    return Contributions(parts=parts, signature=_Signature(result, how))


def joint_products(
    source: Matrices, kept: Matrices, encoder: Matrices
) -> tuple[Matrices, Matrices]:
    """Return each layer's shares of the source and of the target's prefix.

    Args:
        source: the cross-attention's shares of the source, (layer, query, source).
        kept: the residual's share times the self-attention's shares, (layer, query, query).
        encoder: the rollout of the whole encoder, (source, source).
    """
    from_source, from_target = [source[0] @ encoder], [kept[0]]
    for across, own in zip(source[1:], kept[1:], strict=True):
        from_source.append(own @ from_source[-1] + across @ encoder)
        from_target.append(own @ from_target[-1])
    return np.stack(from_source), np.stack(from_target)


def _check_square(result: Contributions, map: str) -> None:
    if result.tokens != result.key_tokens:
        raise InputError(
            f"{map} of this result is of cross-attention alone, whose layers do not follow each "
            "other: give the result of the whole encoder–decoder model"
        )


def _position(part: Contributions, query: int | str) -> int:
    """Return the number of a query, given by its number or its token."""
    count = len(part.tokens)
    if isinstance(query, int) and -count <= query < count:
        return query % count
    if isinstance(query, int):
        raise InputError(f"there is no query {query}; the queries are 0 to {count - 1}")
    array = part[next(iter(part))]
    return array.labels["query"].index(int(array.sel(query=[query]).labels["query"][0]))


# ---- flow


def _flows(
    result: Contributions, scope: Scope, query: int | str | Sequence[int | str]
) -> Contributions:
    """Return the flows of one result."""
    if result.parts:
        names = ", ".join(f"result.{part}" for part in result.parts)
        raise InputError(f"flow is of one stack of layers; give one of: {names}")
    _check_square(result, scope.name)
    maps = _local(result, scope, True, square=True)
    wanted = [query] if isinstance(query, int | str) else list(query)
    rows = list(dict.fromkeys(_position(result, position) for position in wanted))
    if not rows:
        raise InputError("no query was named: give the position of a token, or several")
    layers, count, _ = maps.shape
    if count > LONG:
        warnings.warn(
            f"flow solves {len(rows) * count:,} maximum-flow problems with up to "
            f"{layers * count**2:,} edges each; rollout takes no time in comparison",
            stacklevel=3,
        )
    values = np.stack([flow_row(maps, row) for row in rows])
    how = f"flow:{scope.name}"
    return _as_result(result, _Rolled(f"flow_{scope.name}", scope, how, rows), values[None])


def flow_row(maps: Matrices, query: int) -> Matrices:
    """Return the maximum flow from a query of the last layer to each input position, as shares.

    ``maps``: (layer, query, key), the capacities; each pair is a problem of its own.
    """
    try:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import maximum_flow
    except ImportError as error:
        raise MissingExtraError("scipy", "flow") from error
    layers, count, _ = maps.shape
    layer, upper, lower = np.nonzero(np.rint(maps * CAPACITY))
    capacities = np.rint(maps * CAPACITY)[layer, upper, lower].astype(np.int32)
    # Position i of layer l is node l · count + i; the inputs are those of layer 0.
    ends = (layer + 1) * count + upper, layer * count + lower
    size = (layers + 1) * count
    graph = coo_array((capacities, ends), shape=(size, size)).tocsr()
    flows = np.zeros(count)
    for key in range(count):
        flows[key] = maximum_flow(graph, layers * count + query, key).flow_value
    total = flows.sum()
    return flows / total if total else flows
