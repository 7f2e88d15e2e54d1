"""What a result says, in one sentence.

    headline(result)                 "In layer 2, [CLS] gets 53% of the attention weight but 6% of
                                     what is added."
    most_different(result)           the layer, and the head, where weights and norms differ most
    shares_headline(attribution)     which tokens support the answer most or count against it

Figures, tables and the page use the same sentences; the page computes them anew for what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.decomposition.scopes import NORMS, SCOPES, WEIGHTS, scope_of
from normscope.errors import InputError
from normscope.foundation.texts import printable
from normscope.results.arrays import LabelledArray
from normscope.results.attribution import Attribution
from normscope.results.contributions import Contributions
from normscope.results.passages import piece_texts
from normscope.show.wording import decimals_for, signed
from normscope.text.tokens import Tokens

PLACES = {"encoder": "the encoder", "decoder": "the decoder", "cross": "the cross-attention"}
AGREE = 0.01  # shares that differ by less than a point are said to agree
LONGEST = 24  # characters of a token


@dataclass(frozen=True)
class Opening:
    """A layer of a part of the model, and one of its heads or None for the heads together."""

    part: str
    layer: int
    head: int | None = None


def row_shares(values: Any) -> NDArray[np.float64]:
    """Divide every row of (…, query, key) by its sum of absolute values; zeros stay zeros."""
    wide = np.asarray(values, dtype=np.float64)
    total = np.abs(wide).sum(axis=-1, keepdims=True)
    return np.divide(wide, total, out=np.zeros_like(wide), where=total > 0)


def difference(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the total variation distance of two maps' row shares, averaged over the queries."""
    return np.asarray(np.abs(first - second).sum(axis=-1).mean(axis=-1) / 2)


def whole(name: str) -> str:
    """Return what the rows of a map are shares of, as in "the attention weight"."""
    scope = scope_of(name)
    return f"the sum of {name}" if scope is None else scope.whole


def most_different(result: Contributions | Sequence[Contributions]) -> Opening:
    """Return where weights and norms differ most, or the last layer of a result without both.

    The difference is the total variation of the row shares, averaged over the queries. An
    encoder-decoder model is represented by its cross-attention. The head is None where heads are
    summed.
    """
    view = _view(result)
    if len(view.names) < 2:
        return Opening(view.part, view.layers[-1], view.heads[0] if view.heads else None)
    gaps = np.stack([view.gaps(layer) for layer in range(len(view.layers))])
    place = np.unravel_index(int(gaps.argmax()), gaps.shape)
    return Opening(view.part, view.layers[place[0]], view.heads[place[1]] if view.heads else None)


def headline(
    result: Contributions | Sequence[Contributions],
    layer: int | None = None,
    *,
    head: int | None = None,
    query: int | None = None,
) -> str:
    """Say in one sentence what the weights of a layer hide.

    Args:
        result: A result of `analyze`, or several of the same text.
        layer: The label of the layer; by default the one where weights and norms differ most.
        head: The label of the head, of a result with single heads; by default the one where they
            differ most in that layer.
        query: The position of a token: the sentence is about its row instead of the mean over all.

    Returns:
        A sentence about the token whose share of the attention weight differs most from its share
        of what is added. For a result with one of the two maps it names the largest contributor.
    """
    view = _view(result)
    if layer is None:
        layer = most_different(result).layer
    if layer not in view.layers:
        raise InputError(f"there is no layer {layer}; there are: {view.layers}")
    at = view.layers.index(layer)
    rows = view.shares(at)
    if view.heads:
        if head is None:
            head = view.heads[int(view.gaps(at).argmax())] if len(rows) > 1 else view.heads[0]
        if head not in view.heads:
            raise InputError(f"there is no head {head}; there are: {view.heads}")
        rows = [values[view.heads.index(head)] for values in rows]
    start = _where(Opening(view.part, layer, head if view.heads else None))
    if query is not None:
        if not 0 <= query < len(view.queries):
            raise InputError(f"there is no token {query}; there are {len(view.queries)}")
        return start + _about_row(view, [values[query] for values in rows], query)
    return start + _about_mean(view, [values.mean(axis=0) for values in rows])


@dataclass(frozen=True)
class _View:
    """The maps that a headline is about: (layer, query, key), or (layer, head, query, key)."""

    part: str
    names: tuple[str, ...]
    values: tuple[NDArray[Any], ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]  # empty where heads are summed
    queries: Tokens
    keys: Tokens

    def shares(self, layer: int) -> list[NDArray[np.float64]]:
        """Return the row shares of each map in one layer."""
        return [row_shares(values[layer]) for values in self.values]

    def gaps(self, layer: int) -> NDArray[np.float64]:
        """Return how much the two maps differ in one layer, for each head if there are heads."""
        return difference(*self.shares(layer))


def telling_part(parts: Mapping[str, Contributions]) -> str:
    """Return the part that a result is shown by: cross-attention, or the last that reads patches.

    Without either, it is the last one.
    """
    seen = [name for name, part in parts.items() if part.key_tokens.pictures]
    return "cross" if "cross" in parts else [*parts, *seen][-1]


def _view(result: Contributions | Sequence[Contributions]) -> _View:
    """Choose weights and norms: with heads summed if both are there, else of single heads."""
    results = [result] if isinstance(result, Contributions) else list(result)
    if not results:
        raise InputError("there is no result to describe")
    part = ""
    if results[0].parts:
        part = telling_part(results[0].parts)
    owners = [each.parts.get(part) if part else each for each in results]
    summed: dict[str, NDArray[Any]] = {}
    single: dict[str, NDArray[Any]] = {}
    arrays: dict[str, LabelledArray] = {}
    for owner in filter(None, owners):
        for name in owner:
            kind = single if "head" in owner[name].axes else summed
            kind.setdefault(name, owner[name].values)
            if kind is single or name not in arrays:
                arrays[name] = owner[name]
    if WEIGHTS in single and WEIGHTS not in summed and NORMS in summed:
        summed[WEIGHTS] = single[WEIGHTS].mean(axis=1)
    names: tuple[str, ...] = (WEIGHTS, NORMS)
    kinds = [kind for kind in (summed, single) if kind.keys() >= set(names)]
    if not kinds:
        names = (next(iter(arrays)),)
        kinds = [kind for kind in (summed, single) if names[0] in kind]
    labelled = arrays[names[0]]
    return _View(
        part=part,
        names=names,
        values=tuple(kinds[0][name] for name in names),
        layers=labelled.labels["layer"],
        heads=labelled.labels["head"] if kinds[0] is single else (),
        queries=labelled.tokens["query"],
        keys=labelled.tokens["key"],
    )


def _about_mean(view: _View, shares: Sequence[NDArray[np.float64]]) -> str:
    name = view.names[0]
    verb = "gets" if name in SCOPES and SCOPES[name].weight else "contributes"
    if len(shares) == 1:
        key = int(shares[0].argmax())
        return (
            f"{token_name(view.keys, key)} {verb} the most: {percent(shares[0][key])} of "
            f"{whole(name)}."
        )
    key = int(np.abs(shares[0] - shares[1]).argmax())
    first, second = (float(values[key]) for values in shares)
    if abs(first - second) < AGREE:
        return _agreement(view)
    return (
        f"{token_name(view.keys, key)} {verb} {percent(first)} of {whole(name)} but "
        f"{percent(second)} of {whole(view.names[1])}."
    )


def _about_row(view: _View, shares: Sequence[NDArray[np.float64]], query: int) -> str:
    receiver = token_name(view.queries, query)
    key = int((shares[0] if len(shares) == 1 else np.abs(shares[0] - shares[1])).argmax())
    own = view.queries == view.keys and key == query
    giver = "itself" if own else token_name(view.keys, key)
    first, second = float(shares[0][key]), float(shares[-1][key])
    if len(shares) == 1:
        if view.names[0] == WEIGHTS:
            return f"{receiver} gives the most attention weight to {giver}: {percent(first)}."
        part = f"{percent(first)} of {whole(view.names[0])}"
        return f"the largest contributor to {receiver} is {giver}: {part}."
    if abs(first - second) < AGREE:
        return f"for {receiver}, {_agreement(view)}"
    only = "only " if second < first else ""
    return (
        f"{receiver} gives {percent(first)} of its attention weight to {giver}, but "
        f"{only}{percent(second)} of what is added to it comes from {'itself' if own else 'there'}."
    )


def _agreement(view: _View) -> str:
    first, second = map(whole, view.names)
    return f"the shares of {first} and of {second} agree to within 1 point."


def shares_headline(result: Attribution, step: int | None = None) -> str:
    """Say which tokens support an answer most, and which count most against it.

    Args:
        result: An attribution.
        step: Which answer; by default the only one, or the sum of all.
    """
    values = result.scores.values
    if result.steps is not None:
        values = values.sum(axis=0) if step is None else values[step]
    names = [text for _, text in piece_texts(result.tokens)]
    best, worst = int(values.argmax()), int(values.argmin())
    decimals = decimals_for(float(np.abs(values).max(initial=0.0)))

    def about(at: int) -> str:
        return f"{_named(names, result.tokens.special, at)} ({signed(float(values[at]), decimals)})"

    if values[best] <= 0 and values[worst] >= 0:
        return "No token supports it or counts against it."
    if values[best] <= 0:
        return f"{about(worst)} counts most against it; no token supports it."
    if values[worst] >= 0:
        return f"{about(best)} supports it most; no token counts against it."
    return f"{about(best)} supports it most, and {about(worst)} counts most against it."


def token_name(tokens: Tokens, at: int) -> str:
    """Return a token as it is named in a sentence: `"cat"`, `[CLS]`, `"the" at position 6`."""
    return _named(tokens.texts, tokens.special, at)


def percent(share: float) -> str:
    """Format a share for a sentence: "53%", "0.4%"."""
    hundredths = 100 * float(share)
    if hundredths < 0.05:
        return "0%"
    return f"{hundredths:.0f}%" if hundredths >= 0.95 else f"{hundredths:.1f}%"


def _named(texts: Sequence[str], special: Sequence[bool], at: int) -> str:
    text = texts[at]
    shown = text if len(text) <= LONGEST else text[:LONGEST] + "…"
    name = printable(shown) if special[at] else f'"{printable(shown)}"'
    return f"{name} at position {at}" if list(texts).count(text) > 1 else name


def _where(place: Opening) -> str:
    part = f" of {PLACES.get(place.part, place.part)}" if place.part else ""
    head = "" if place.head is None else f", head {place.head}"
    return f"In layer {place.layer}{part}{head}, "
