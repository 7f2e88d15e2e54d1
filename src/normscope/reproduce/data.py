"""The sequences of the experiments: Clark et al.'s file, or pairs of paragraphs of any text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.errors import InputError

SEQUENCES = 992  # as many as the papers have
LONGEST = 128  # tokens
PICKLES = (".pkl", ".pickle")
LEAST_WORDS = 4  # a shorter line is a caption or a cell of a table, no paragraph

WHERE = (
    "give --data: Clark et al.'s unlabeled_attn.pkl (the papers' 992 Wikipedia sequences, linked "
    "from github.com/clarkkev/attention-analysis), or text files with one paragraph a line, such "
    "as wiki.test.raw of WikiText-2"
)


@dataclass(frozen=True)
class Sequences:
    """What the model is to read."""

    rows: Any  # for `normscope.corpus`: pairs of texts, or the path of Clark's file
    limit: int | None
    names: tuple[str, ...]  # of the files, without the folders they lie in
    sha256: tuple[str, ...]
    made: str  # how the rows came about, in words
    clark: bool = False


def sequences(files: Sequence[Path] | None, count: int = SEQUENCES) -> Sequences:
    """The first `count` sequences of the files; the same for the same files, always."""
    if count < 1:
        raise InputError(f"sequences is a number from 1 on, but was given {count!r}")
    if not files:
        raise InputError(f"no data was given; {WHERE}")
    for file in files:
        if not file.is_file():
            raise InputError(f"there is no file {str(file)!r}; {WHERE}")
    names = tuple(file.name for file in files)
    pickled = [file.suffix.lower() in PICKLES for file in files]
    if any(pickled):
        if len(files) > 1:
            raise InputError("Clark et al.'s file is given alone, not beside others")
        made = f"the first {count} sequences of the file, as they were cut into tokens there"
        return Sequences(files[0], count, names, (_sha256(files[0]),), made, clark=True)
    found = pairs(files, count)
    made = (
        "pairs of paragraphs that follow each other (a paragraph is a line of at least "
        f"{LEAST_WORDS} words; headings are left out), [CLS] a [SEP] b [SEP], cut at {LONGEST} "
        "tokens"
    )
    return Sequences(found, None, names, tuple(map(_sha256, files)), made)


def pairs(files: Sequence[Path], count: int) -> list[tuple[str, str]]:
    """Paragraphs by twos, in the order in which they come, none twice."""
    made: list[tuple[str, str]] = []
    for file in files:
        found = paragraphs(file)
        made += zip(found[::2], found[1::2], strict=False)
        if len(made) >= count:
            break
    if not made:
        raise InputError(
            f"no pair of paragraphs in {', '.join(file.name for file in files)}: a paragraph is a "
            f"line of at least {LEAST_WORDS} words that is no heading (= … =), and a pair needs two"
        )
    return made[:count]


def paragraphs(file: Path) -> list[str]:
    """The lines of a text that are paragraphs."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise InputError(
            f"{file.name} is no text in UTF-8 (byte {problem.start}); {WHERE}"
        ) from problem
    lines = (line.strip() for line in text.split("\n"))
    return [line for line in lines if len(line.split()) >= LEAST_WORDS and not _heading(line)]


def _heading(line: str) -> bool:
    return line.startswith("=") and line.endswith("=")


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
