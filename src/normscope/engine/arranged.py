"""Positions of an attention that are more than those of the ids: windows, streams, global tokens.

Models with windows fill the text up to whole windows. ProphetNet attends over one stream of states
for the text and one for each of the next tokens that it predicts. Some encoders attend to global
tokens, which belong to no token of the text and come last here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.foundation.shapes import Bool
from normscope.text.tokens import Tokens


@dataclass(frozen=True)
class Arrangement:
    """How the positions of an attention are made of those of the ids."""

    streams: int  # how often the text is repeated
    padding: int  # positions after it, to fill the last window
    extra: int  # global tokens, after these

    @classmethod
    def of(cls, config: Any, length: int, ids: int, extra: int) -> Arrangement | None:
        """Return the arrangement of ``length`` positions, or None if it is not known."""
        body = length - extra
        ngram = getattr(config, "ngram", None)
        if isinstance(ngram, int) and body == (1 + ngram) * ids:
            return cls(1 + ngram, 0, extra)
        windows = getattr(config, "attention_window", None) or getattr(config, "block_size", None)
        size = max(windows) if isinstance(windows, list | tuple) else windows
        if isinstance(size, int) and size > 0 and body == -(-ids // size) * size:
            return cls(1, body - ids, extra)
        return cls(1, 0, extra) if body == ids else None

    def mask(self, mask: Bool[Tensor, "batch token"]) -> Bool[Tensor, "batch position"]:
        """Return which positions are real, from which tokens are."""
        padding = mask.new_zeros((len(mask), self.padding))
        extra = mask.new_ones((len(mask), self.extra))
        return torch.cat([*[mask] * self.streams, padding, extra], dim=1)

    def tokens(self, tokens: Tokens) -> Tokens:
        """Return the tokens of the real positions, from those of the text."""
        names = [f" +{number}" if number else "" for number in range(self.streams)]
        extra = tuple(f"global {number}" for number in range(self.extra))
        strings = tuple(f"{piece}{name}" for name in names for piece in tokens.strings) + extra
        words, word_of = tokens.words, tokens.word_of
        if words is not None and word_of is not None:
            count = len(words)
            word_of = tuple(at * count + k for at in range(self.streams) for k in word_of)
            word_of += tuple(range(self.streams * count, self.streams * count + self.extra))
            words = tuple(f"{word}{name}" for name in names for word in words) + extra
        return Tokens(
            strings=strings,
            ids=None,
            special=tokens.special * self.streams + (True,) * self.extra,
            texts=tuple(f"{text}{name}" for name in names for text in tokens.texts) + extra,
            word_of=word_of,
            words=words,
        )
