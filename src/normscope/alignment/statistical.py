"""Eflomal (Östling and Tiedemann 2016) behind the same interface; extra ``eflomal``."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from normscope.alignment.files import read_links
from normscope.alignment.links import Links
from normscope.errors import MissingExtraError


def eflomal(
    source: Sequence[Sequence[str]], target: Sequence[Sequence[str]]
) -> tuple[list[Links], list[Links]]:
    """The links of both directions, (source, target) each, learnt from the sentences given.

    It learns from these sentences alone: give it the training text and the sentences in question
    together, and keep the links of the latter.
    """
    try:
        from eflomal import Aligner
    except ImportError as error:
        raise MissingExtraError("eflomal", "eflomal") from error

    # A pair with an empty side cannot be read back, so it is kept out and put in again.
    rows = [row for row in range(len(source)) if len(source[row]) and len(target[row])]
    made: tuple[list[Links], list[Links]] = ([Links()] * len(source), [Links()] * len(source))
    if not rows:
        return made
    with tempfile.TemporaryDirectory(prefix="normscope-") as folder:
        files = [Path(folder) / name for name in ("forward", "reverse")]
        Aligner().align(
            [_line(source[row]) for row in rows],
            [_line(target[row]) for row in rows],
            links_filename_fwd=str(files[0]),
            links_filename_rev=str(files[1]),
        )
        for direction, file in zip(made, files, strict=True):
            found = read_links(file, "pharaoh")
            for row, links in zip(rows, found, strict=True):
                direction[row] = links
    return made


def _line(words: Sequence[str]) -> str:
    # It splits at every space that Unicode knows, also inside what is one word here.
    return " ".join("_".join(word.split()) or "_" for word in words) + "\n"
