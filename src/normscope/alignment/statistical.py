"""Alignment with eflomal (Östling and Tiedemann 2016), which uses no model (extra ``eflomal``)."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from normscope.alignment.files import read_links
from normscope.alignment.links import Links
from normscope.alignment.words import Sentences
from normscope.errors import MissingExtraError


def eflomal(source: Sentences, target: Sentences) -> tuple[list[Links], list[Links]]:
    """Return the links of both directions, (source, target) in each.

    Eflomal learns from these sentences only. Give it the training text and the sentences of
    interest together, and keep the links of the latter.
    """
    try:
        from eflomal import Aligner
    except ImportError as error:
        raise MissingExtraError("eflomal", "eflomal") from error

    # Eflomal's output cannot be read back if a pair has an empty side.
    rows = [row for row in range(len(source)) if len(source[row]) and len(target[row])]
    forward, reverse = [Links()] * len(source), [Links()] * len(source)
    if not rows:
        return forward, reverse
    with tempfile.TemporaryDirectory(prefix="normscope-") as folder:
        files = [Path(folder) / name for name in ("forward", "reverse")]
        Aligner().align(
            [_line(source[row]) for row in rows],
            [_line(target[row]) for row in rows],
            links_filename_fwd=str(files[0]),
            links_filename_rev=str(files[1]),
        )
        for direction, file in zip((forward, reverse), files, strict=True):
            for row, links in zip(rows, read_links(file, "pharaoh"), strict=True):
                direction[row] = links
    return forward, reverse


def _line(words: Sequence[str]) -> str:
    # Eflomal splits at every Unicode space, also within one of our words.
    return " ".join("_".join(word.split()) or "_" for word in words) + "\n"
