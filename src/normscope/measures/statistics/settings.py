"""Settings that the statistics of a run share. This module loads neither numpy nor torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from normscope.errors import InputError

# Tokens, token ids, a regular expression that a whole token matches, or a function of the token.
Category = Sequence[str] | Sequence[int] | str | re.Pattern[str] | Callable[[str], bool]


def shown(text: str, metavar: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the metadata of a field that is an option of the command line.

    Args:
        text: The help text.
        metavar: What stands for the value in the help; None for a flag.
        more: `min` and `max` of a number, and `option`, the names if not that of the field.
    """
    return {"help": text, "metavar": metavar, **more}


@dataclass(frozen=True)
class StatisticSettings:
    """Settings that the statistics of a run share; equal settings give equal numbers.

    Attributes:
        categories: Categories of tokens by name, or None for [CLS], [SEP], comma and period. A
            category is a list of tokens or of ids, a regular expression that a whole token
            matches, or a function of the token.
        ranks: Where frequency ranks come from: "ids", "corpus", or the path of a file with lines
            `rank count token_id`.
        masking: The share of the tokens to mask for the mixing ratios, special tokens not
            counted; 0 measures plain text.
        seed: The seed of masking, sampling and resampling.
        replicates: The number of bootstrap replicates; 0 gives no intervals.
        confidence: The confidence level of the intervals.
        scatter: The largest number of pairs in each category's scatter sample.
        top: The number of amplified cells that are kept for each layer.
    """

    categories: Mapping[str, Category] | None = field(
        default=None,
        metadata=shown(
            "Use your own categories of tokens instead of the usual ones: NAME=TOKEN,TOKEN as the "
            "tokenizer writes them, or NAME=/REGEX/, which must match a whole token. May be given "
            "several times; a token belongs to the first category that contains it.",
            "NAME=TOKENS",
        ),
    )
    ranks: str = field(
        default="ids",
        metadata=shown(
            "Frequency ranks: the tokenizer's ids, counts in the corpus, or a file of lines "
            "`rank count token_id`.",
            "ids|corpus|FILE",
        ),
    )
    masking: float | int = field(
        default=0.12,
        metadata=shown(
            "Fraction of tokens to mask for the mixing ratios.", "SHARE", min=0.0, max=0.99
        ),
    )
    seed: int = 0
    replicates: int = field(
        default=200, metadata=shown("Bootstrap replicates; 0: no intervals.", "N", min=0)
    )
    confidence: float = 0.95
    scatter: int = 5000
    top: int = 1000

    def __post_init__(self) -> None:
        if not 0 <= self.masking < 1:
            raise InputError(
                f"masking must be a share from 0 to below 1, but is {self.masking!r}; for example "
                "masking=0.12"
            )
        if not 0 < self.confidence < 1:
            raise InputError(
                f"confidence must be between 0 and 1, but is {self.confidence!r}; for example "
                "confidence=0.95"
            )
        for name, least in (("replicates", 0), ("scatter", 1), ("top", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be an integer from {least}, but is {value!r}")
