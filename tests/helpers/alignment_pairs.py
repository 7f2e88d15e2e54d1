"""Sentence pairs for the tiny models, and their links."""

from __future__ import annotations

from typing import Any

from normscope import align
from tests.helpers.tiny import tokenizer

SOURCE = ["the cats sat .", "a dog", "raining in the garden , never"]
TARGET = ["cats looked at it", "the dogs jumped over it .", "rain"]
FIXED: dict[str, Any] = {"layer": 1, "head": "sum", "reading": "awi"}


def linked(source: Any, target: Any, model: Any, **options: Any) -> list[set[tuple[int, int]]]:
    """Return the links of each pair, by one fixed layer unless the options say otherwise."""
    alignments = align(source, target, model, tokenizer(pair=False), **{**FIXED, **options})
    return [set(pair.links) for pair in alignments]
