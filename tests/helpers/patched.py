"""Results about patches of an image and frames of a recording, made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from normscope import Contributions, LabelledArray
from normscope.results.attribution import Attribution
from normscope.text.pictures import Picture, small_copy, wide_copy
from normscope.text.tokens import Tokens


def striped(high: int = 12, wide: int = 18) -> bytes:
    """A small image, dark on the left and bright on the right."""
    return small_copy(np.broadcast_to(np.linspace(0, 1, wide)[None, :, None], (high, wide, 3)))


def patches(rows: int = 2, columns: int = 3, words: tuple[str, ...] = ("a", "cat")) -> Tokens:
    """[CLS], the patches of one image line by line, and words after them."""
    places = [(0, row, column) for row in range(rows) for column in range(columns)]
    strings = ("[CLS]", *(f"patch {row},{column}" for _, row, column in places), *words)
    special = (True, *[False] * (len(strings) - 1))
    tokens = Tokens(strings, None, special, strings)
    picture = Picture("image 0", rows, columns, striped(4 * rows, 6 * columns))
    where = (None, *places, *[None] * len(words))
    return replace(tokens, places=where, pictures=(picture,))


def frames(count: int = 8, seconds: float | None = 0.5) -> Tokens:
    """The frames of one recording."""
    strings = tuple(f"frame {at}" for at in range(count))
    copy = wide_copy(np.random.default_rng(0).random((10, 40)))
    picture = Picture("recording", 1, count, copy, seconds, recording=True)
    places = tuple((0, 0, at) for at in range(count))
    return replace(
        Tokens(strings, None, (False,) * count, strings), places=places, pictures=(picture,)
    )


def mapped(tokens: Tokens, seed: int = 0) -> Contributions:
    """Weights and norms of two layers."""
    random, size = np.random.default_rng(seed), len(tokens)
    axes, both = ("layer", "query", "key"), {"query": tokens, "key": tokens}
    arrays = {
        name: LabelledArray(
            random.random((2, size, size)).astype(np.float32), axes, both, name=name
        )
        for name in ("attn_w", "attn_n")
    }
    return Contributions(arrays, None, tokens, signature="by hand")


def shared(tokens: Tokens, scores: Any, **more: Any) -> Attribution:
    """An attribution with these shares, (token,) or (step, token), and no bias."""
    values = np.asarray(scores, dtype=np.float64)
    return Attribution(tokens=tokens, scores=values, value=values.sum(axis=-1), **more)
