"""The data of the page that shows alignments: sentence pairs with links, packed for one file."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.errors import InputError
from normscope.foundation.texts import to_json, utf8
from normscope.show.page.document import LINKS
from normscope.show.page.shares import clean

if TYPE_CHECKING:
    from normscope.alignment.result import Alignment

VERSION = 1


def links_payload(
    pairs: Sequence[Alignment], signature: str, *, error: float | None = None
) -> dict[str, Any]:
    """Return everything that the page shows, in plain JSON types.

    Raises:
        InputError: there are no pairs, or the source is audio.
    """
    if not pairs:
        raise InputError("a page needs at least one sentence pair")
    rows = [_row(pair) for pair in pairs]
    packed = zlib.compress(utf8(to_json(rows, compact=True)), 6)
    words = " ".join(pairs[0].target)
    return {
        "format": LINKS,
        "version": VERSION,
        "title": words if len(pairs) == 1 else f"{len(pairs)} aligned pairs",
        "signature": clean(signature),
        "error": error,
        "pairs": base64.b64encode(packed).decode(),
    }


def _row(pair: Alignment) -> list[Any]:
    """Return one pair: source, target, links, gold links, matrix in thousandths, why skipped."""
    if pair.source is None:
        raise InputError("a page shows two texts, and the source of this alignment is audio")
    scores = pair.links.scores
    links = [
        [*link, *([round(float(scores[link]), 6)] if link in scores else [])] for link in pair.links
    ]
    gold = None
    if pair.gold is not None:
        gold = [[*link, int(link in pair.gold.sure)] for link in pair.gold]
    soft = None
    if pair.soft is not None:
        values = pair.soft.astype(np.float64)
        shares = values / np.maximum(values.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        soft = np.rint(1000 * shares).astype(int).tolist()
    sides = [[clean(word) for word in words] for words in (pair.source, pair.target)]
    return [*sides, links, gold, soft, pair.skipped]
