"""The data of a page that shows an attribution, in plain JSON types with its numbers packed."""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError
from normscope.results.arrays import LabelledArray, merge_words
from normscope.results.attribution import Attribution
from normscope.results.passages import piece_texts
from normscope.text.tokens import Tokens

FORMAT, VERSION = "normscope.shares", 1
MOST_TOKENS = 20_000
MOST_TRACED = 4_000_000  # numbers of the trace: about ten megabytes on the page
TRACED = ("layers", "layer_bias", "layer_error", "heads", "feed_forward")


def shares_payload(result: Attribution) -> dict[str, Any]:
    """Return everything that the page shows of an attribution.

    Every array has the axis "step" first, also with one answer. A trace that is too large for a
    page is left out, which the page says.

    Raises:
        InputError: If the text is longer than `MOST_TOKENS`.
    """
    if len(result.tokens) > MOST_TOKENS:
        raise InputError(
            f"a page shows up to {MOST_TOKENS} tokens, and this attribution has "
            f"{len(result.tokens)}; see by_sentence() and spans(), or save(), to_json(), to_csv()"
        )
    arrays = {"scores": result.scores, "parts": result.parts}
    if result.spread is not None:
        arrays["spread"] = result.spread
    traced = {name: array for name, array in result._trace_arrays().items() if name in TRACED}
    fits = sum(array.values.size for array in traced.values()) <= MOST_TRACED
    several = result.steps is not None
    return {
        "format": FORMAT,
        "version": VERSION,
        "question": clean(result.question),
        "units": clean(result.units),
        "unit": clean(result.unit),
        "signed": result.signed,
        "complete": result.complete,
        "settings": {clean(name): clean(text) for name, text in result.settings.items()},
        "signatures": [clean(result.signature)],
        "tokens": plain_tokens(result.tokens) | _spelling(result.tokens),
        "sides": list(result.sides),
        "steps": list(result.steps.texts) if result.steps is not None else None,
        "value": np.atleast_1d(result.value).tolist(),
        "bias": np.atleast_1d(result.bias).tolist(),
        "error": None if math.isnan(result.error) else result.error,
        "parts": list(result.part_names),
        "cuts": list(result.layers.labels["layer"]) if traced and fits else [],
        "trace_left_out": not fits,
        "arrays": {
            name: _packed(array, several=several)
            for name, array in (arrays | (traced if fits else {})).items()
        },
    }


def _spelling(tokens: Tokens) -> dict[str, Any]:
    """Return what each token adds to the text: its letters, and whether a space is before it."""
    pieces = piece_texts(tokens)
    return {
        "texts": [text for _, text in pieces],
        "spaces": [int(bool(space)) for space, _ in pieces],
    }


def _packed(array: LabelledArray, *, several: bool) -> dict[str, Any]:
    """Return an array as compressed float32 in base64, with an axis for steps."""
    values: NDArray[Any] = array.values if several else array.values[None]
    data = zlib.compress(np.ascontiguousarray(values.astype("<f4")).tobytes(), 6)
    return {"shape": list(values.shape), "data": base64.b64encode(data).decode()}


def clean(text: str) -> str:
    """Write out lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()


def plain_tokens(tokens: Tokens) -> dict[str, Any]:
    """Return tokens in plain types, with the word that each piece belongs to."""
    plain: dict[str, Any] = {
        "pieces": list(tokens.strings),
        "texts": list(tokens.texts),
        "special": [int(special) for special in tokens.special],
    }
    if tokens.word_of is not None:
        groups, words = merge_words(tokens)
        word = [0] * len(tokens)
        for number, group in enumerate(groups):
            for position in group:
                word[position] = number
        plain |= {"word": word, "words": list(words.strings)}
    if tokens.places is not None:
        plain["places"] = [None if place is None else list(place) for place in tokens.places]
        plain["pictures"] = [
            {
                "name": picture.name,
                "rows": picture.rows,
                "columns": picture.columns,
                "address": picture.address,
                "seconds": picture.seconds,
                "recording": picture.recording,
            }
            for picture in tokens.pictures
        ]
    return plain
