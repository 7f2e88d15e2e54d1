"""Prompts with the word that decides between two next words, and passages of plain text."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.errors import InputError

COLUMNS = ("one_prefix_prefix", "one_prefix_word_good", "one_prefix_word_bad", "target")


@dataclass(frozen=True)
class EvidencePrompt:
    """A prompt, the good and the bad next word, and where the deciding word is.

    Attributes:
        text: the prompt.
        good: the good next word.
        bad: the bad next word.
        span: the first character of the deciding word, and the one behind its last.
    """

    text: str
    good: str
    bad: str
    span: tuple[int, int]


def read_prompts(path: Path, limit: int | None = None) -> list[EvidencePrompt | None]:
    """Return the first rows of a CSV file as released with ALTI-Logit.

    None stands for a row whose deciding word is not in the prompt as a whole word. Of several
    occurrences, the last one counts.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as problem:
        raise InputError(f"{path.name} is not a CSV file in UTF-8: {problem}") from None
    if not rows or (lacking := [name for name in COLUMNS if rows[0].get(name) is None]):
        what = f"has no column {lacking[0]!r}" if rows else "has no rows"
        raise InputError(f"{path.name} {what}; a set of prompts has {', '.join(COLUMNS)}")
    return [_prompt(row) for row in rows[:limit]]


def _prompt(row: dict[str, str]) -> EvidencePrompt | None:
    text, good, bad, target = (row[name] for name in COLUMNS)
    places = list(re.finditer(rf"(?<!\w){re.escape(target)}(?!\w)", text))
    return EvidencePrompt(text, good, bad, places[-1].span()) if places and target else None


def tell_apart(tokenizer: Any, prompt: EvidencePrompt) -> bool:
    """Return whether the two next words differ at some token: not if one continues the other."""
    ids = [
        tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        for word in (prompt.good, prompt.bad)
    ]
    return any(a != b for a, b in zip(*ids, strict=False))


def read_passages(path: Path, limit: int | None = None) -> list[str]:
    """Return the first texts of a JSON file with a list of objects that have a field "text"."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise InputError(f"{path.name} is not JSON in UTF-8: {problem}") from None
    valid = isinstance(rows, Sequence) and all(
        isinstance(row, dict) and isinstance(row.get("text"), str) and row["text"].strip()
        for row in rows
    )
    if not valid or not rows:
        raise InputError(f'{path.name} must be a list of objects with a "text" that is not empty')
    return [row["text"] for row in rows[:limit]]
