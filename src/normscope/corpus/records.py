"""What a corpus is made of: a row with its text, or what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

# Kinds of bad rows, with the words that a report uses for them.
KINDS = {
    "empty": "nothing but whitespace",
    "encoding": "not valid UTF-8 or Unicode",
    "json": "broken JSON",
    "missing": "a field is missing",
    "type": "not text",
    "line": "a line too long to be one sequence",
    "tokens": "the tokenizer has no tokens for it",
    "measure": "the model's numbers for it cannot be used",
}


@dataclass(frozen=True)
class Problem:
    """A row that cannot be used: where it is, which of `KINDS` it is, and what was found."""

    where: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True)
class Content:
    """The text of one row: one sequence, a pair of them, or tokens that are ready."""

    text: str = ""
    pair: str | None = None
    tokens: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Record:
    """A row of the corpus. Its key is its number, over all files, bad rows counted too."""

    key: int
    where: str
    content: Content


@dataclass(frozen=True, order=True)
class Position:
    """Where the next row begins: the file, the byte in it (text only), the rows before it."""

    source: int = 0
    offset: int = 0
    number: int = 0
