"""The sequences of the experiments: Clark et al.'s file, or pairs of paragraphs of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.errors import InputError
from normscope.models.default import sha256_of
from normscope.reproduce.options import SEQUENCES

LONGEST = 128  # tokens
PICKLES = (".pkl", ".pickle")
LEAST_WORDS = 4  # a shorter line is not a paragraph but, say, a caption or a table cell

WHERE = (
    "give --data: Clark et al.'s unlabeled_attn.pkl (the papers' 992 Wikipedia sequences, linked "
    "from github.com/clarkkev/attention-analysis), or text files with one paragraph per line, such "
    "as wiki.test.raw of WikiText-2"
)


@dataclass(frozen=True)
class Sequences:
    """What the model reads."""

    rows: Any  # data for `normscope.corpus`: pairs of texts, or the path of Clark et al.'s file
    limit: int | None
    names: tuple[str, ...]  # file names without their folders
    sha256: tuple[str, ...]
    description: str
    clark: bool = False


def read_sequences(files: Sequence[Path], count: int = SEQUENCES) -> Sequences:
    """Return the first `count` sequences of the files; equal files give equal sequences."""
    if count < 1:
        raise InputError(f"the number of sequences must be at least 1, not {count!r}")
    if not files:
        raise InputError(f"no data was given; {WHERE}")
    for file in files:
        if not file.is_file():
            raise InputError(f"there is no file {str(file)!r}; {WHERE}")
    names = tuple(file.name for file in files)
    hashes = tuple(map(sha256_of, files))
    if any(file.suffix.lower() in PICKLES for file in files):
        if len(files) > 1:
            raise InputError("Clark et al.'s file cannot be combined with other files")
        description = f"the first {count} sequences of the file, with the tokens given there"
        return Sequences(files[0], count, names, hashes, description, clark=True)
    description = (
        f"pairs of consecutive paragraphs (lines of at least {LEAST_WORDS} words, without "
        f"headings), [CLS] a [SEP] b [SEP], truncated to {LONGEST} tokens"
    )
    return Sequences(read_pairs(files, count), None, names, hashes, description)


def read_pairs(files: Sequence[Path], count: int) -> list[tuple[str, str]]:
    """Return the first `count` pairs of consecutive paragraphs; no paragraph is in two pairs."""
    pairs: list[tuple[str, str]] = []
    for file in files:
        paragraphs = read_paragraphs(file)
        pairs += zip(paragraphs[::2], paragraphs[1::2], strict=False)
        if len(pairs) >= count:
            break
    if not pairs:
        raise InputError(
            f"no pair of paragraphs in {', '.join(file.name for file in files)}; a paragraph is a "
            f"line of at least {LEAST_WORDS} words that is not a heading (= … =)"
        )
    return pairs[:count]


def read_paragraphs(file: Path) -> list[str]:
    """Return the lines of a text that are paragraphs."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file.name} is not a text in UTF-8 (byte {error.start}); {WHERE}"
        ) from error
    lines = (line.strip() for line in text.split("\n"))
    return [line for line in lines if len(line.split()) >= LEAST_WORDS and not _is_heading(line)]


def _is_heading(line: str) -> bool:
    return line.startswith("=") and line.endswith("=")
