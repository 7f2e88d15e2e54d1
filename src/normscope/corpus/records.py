"""The rows of a corpus: a row with its text, or a row that cannot be used."""

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
    """A row that cannot be used.

    Attributes:
        where: The place of the row, such as "a.txt, line 3".
        kind: One of `KINDS`.
        message: What is wrong with the row.
    """

    where: str
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


@dataclass(frozen=True)
class Content:
    """The content of a row: a text, a pair of texts, or tokens."""

    text: str = ""
    pair: str | None = None
    tokens: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Record:
    """A row of the corpus.

    Attributes:
        key: The number of the row, over all sources, with bad rows counted.
        where: The place of the row, such as "a.txt, line 3".
        content: The text of the row.
    """

    key: int
    where: str
    content: Content


@dataclass(frozen=True, order=True)
class Position:
    """Where the next row begins.

    Attributes:
        source: The number of the source.
        offset: The byte offset in a file of lines; 0 in other sources.
        number: The number of rows before it in the source.
    """

    source: int = 0
    offset: int = 0
    number: int = 0
