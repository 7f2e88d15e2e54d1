"""Europarl as distributed, made into lower-cased, tokenised lines."""

from __future__ import annotations

import gzip
import lzma
import unicodedata
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path
from typing import IO

# What differs between printings of the same text. The gold alignments keep the German spelling
# of before 1996 (daß) and the proceedings mostly the one after it (dass): both become "ss".
QUOTES = {
    **dict.fromkeys("„“”‟«»", '"'),
    **dict.fromkeys("’‘‚‛´`", "'"),
    **dict.fromkeys("–—−―‑", "-"),
    "…": "...",
}
AFTER_LOWER = {"ß": "ss"}

_QUOTES = str.maketrans(QUOTES)


def straighten(text: str) -> str:
    """NFC, straight quotes, one dash, single spaces; the case is kept."""
    return " ".join(unicodedata.normalize("NFC", text).translate(_QUOTES).split())


def lower(text: str) -> str:
    """Lower case without ß."""
    return text.lower().replace("ß", "ss")


def normalize(text: str) -> str:
    """All of it, for text that is tokenised already."""
    return lower(straighten(text))


def open_text(path: Path) -> IO[str]:
    """A text file, by its ending plain, gzip or xz."""
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def read_pairs(paths: list[Path], *, two_files: bool) -> Iterator[tuple[str, str]]:
    """Sentence pairs from TSV files, or from files that go in twos: source, then target."""
    if not two_files:
        for path in paths:
            with open_text(path) as lines:
                for number, line in enumerate(lines, 1):
                    cells = line.rstrip("\r\n").split("\t")
                    if len(cells) != 2:
                        raise ValueError(f"{path}, line {number}: {len(cells)} columns, not 2")
                    yield cells[0], cells[1]
        return
    if len(paths) % 2:
        raise ValueError(f"{len(paths)} files: give a source and a target file for each part")
    for source_path, target_path in zip(paths[::2], paths[1::2], strict=True):
        with open_text(source_path) as source, open_text(target_path) as target:
            try:
                for one, other in zip(source, target, strict=True):
                    yield one.strip(), other.strip()
            except ValueError as error:
                message = f"{source_path} and {target_path} differ in their number of lines"
                raise ValueError(message) from error


def _tokenize(job: tuple[str, list[str]]) -> list[str]:
    from sacremoses import MosesTokenizer

    language, lines = job
    moses = MosesTokenizer(language)
    # The case is lost last: Moses knows abbreviations by their capitals.
    return [
        lower(
            " ".join(moses.tokenize(straighten(line), escape=False, aggressive_dash_splits=False))
        )
        for line in lines
    ]


def tokenize(lines: list[str], language: str, *, processes: int = 2) -> list[str]:
    """Lines tokenised as Moses does it, normalised, words parted by single spaces."""
    size = 20_000
    jobs = [(language, lines[start : start + size]) for start in range(0, len(lines), size)]
    if len(jobs) < 2 or processes < 2:
        return [line for job in jobs for line in _tokenize(job)]
    with Pool(processes) as pool:
        return [line for part in pool.imap(_tokenize, jobs) for line in part]
