"""Sentence pairs as tensors: what encoder and decoder read, and how pieces become words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from normscope.alignment.words import FRAME, Side
from normscope.engine.batches import by_length
from normscope.errors import InputError
from normscope.foundation.shapes import Bool, Float
from normscope.text.targets import decoder_start

READINGS = ("awi", "awo")  # a target token's row is the step that reads it, or that writes it
BUDGETS = {"cpu": 4096, "cuda": 32768}  # padded tokens of both sides in a batch


@dataclass(frozen=True, eq=False)
class SentencePair:
    """One sentence pair, encoded."""

    source: Side | Tensor  # a tensor of audio features for speech models
    target: Side
    start: int  # the id that the decoder reads first

    @property
    def keys(self) -> int:
        """How many keys the cross-attention has; Whisper's encoder makes one of two frames."""
        if isinstance(self.source, Side):
            return len(self.source.ids)
        return int(self.source.shape[-1]) // 2

    @property
    def read(self) -> list[int]:
        """The ids that the decoder reads.

        The last token is read only if it belongs to a word: ``awi`` needs the step after it.
        """
        ids, framed = self.target.ids, self.target.word_of[-1] == FRAME
        return [self.start, *(ids[:-1] if framed else ids)]


def pair_of(
    model: Any, source: Side | Tensor, target: Side, starts: dict[int, int] | None = None
) -> SentencePair:
    """Make a pair with the start token that the model was trained with.

    ``starts`` caches start tokens by the last target token, the only one they may depend on.
    """
    starts = {} if starts is None else starts
    last = target.ids[-1]
    if last not in starts:
        starts[last] = decoder_start(model, target.ids)
    start = starts[last]
    if target.word_of[0] == FRAME and target.ids[0] == start:  # Whisper's text begins with it
        target = replace(target, ids=target.ids[1:], word_of=target.word_of[1:])
    return SentencePair(source, target, start)


@dataclass(frozen=True, eq=False)
class PairBatch:
    """Several pairs as padded tensors, with the matrices that turn pieces into words."""

    rows: list[int]  # indices of the pairs
    inputs: dict[str, Tensor]
    queries: Bool[Tensor, "batch query"]
    keys: Bool[Tensor, "batch key"] | None  # None: no key is padding
    to_source: Float[Tensor, "batch key source"] | None  # None: every key is a word
    to_target: dict[str, Float[Tensor, "batch target query"]]  # by reading
    sources: list[int]  # number of words in each source; empty for audio
    targets: list[int]

    def words(
        self, values: Float[Tensor, "batch channel query key"], reading: str
    ) -> Float[Tensor, "batch channel target source"]:
        """Sum values over the pieces of source words and average over those of target words.

        The last source column holds the special tokens.
        """
        if self.to_source is not None:
            values = values @ self.to_source.unsqueeze(1).to(values.dtype)
        return self.to_target[reading].unsqueeze(1).to(values.dtype) @ values

    def absent(self) -> Bool[Tensor, "batch source"] | None:
        """Columns without pieces: padding, and words that the tokenizer dropped."""
        return None if self.to_source is None else self.to_source.sum(dim=1) == 0

    def written(self) -> Bool[Tensor, "batch target"]:
        """Rows with pieces: neither padding nor words that the tokenizer dropped."""
        return next(iter(self.to_target.values())).sum(dim=2) > 0


def budget_of(model: Any, budget: int | None) -> int:
    """Return the maximum number of tokens in a batch: ``budget``, or a default for the device."""
    if budget is None:
        return BUDGETS.get(model.device.type, BUDGETS["cpu"])
    if budget < 1:
        raise InputError(f"the token budget must be at least 1, not {budget}")
    return budget


def batches(
    model: Any,
    pairs: Sequence[SentencePair],
    readings: Sequence[str],
    *,
    padding: int,
    budget: int,
    rows: Sequence[int] | None = None,
) -> Iterator[PairBatch]:
    """Group pairs of similar length into batches within the token budget, longest first."""
    chosen = range(len(pairs)) if rows is None else rows
    lengths = [(len(pairs[row].read), pairs[row].keys) for row in chosen]
    for batch in by_length(lengths, budget):
        yield batch_of(model, pairs, [chosen[index] for index in batch], readings, padding)


def batch_of(
    model: Any,
    pairs: Sequence[SentencePair],
    rows: list[int],
    readings: Sequence[str],
    padding: int,
) -> PairBatch:
    """Make a batch of the pairs in ``rows``, padded on the right."""
    chosen, device = [pairs[row] for row in rows], model.device
    read, mask = padded([pair.read for pair in chosen], padding)
    inputs = {"decoder_input_ids": read, "decoder_attention_mask": mask}
    keys = to_source = None
    sources = []
    sides = [pair.source for pair in chosen if isinstance(pair.source, Side)]
    if sides:
        ids, keys = padded([side.ids for side in sides], padding)
        inputs |= {"input_ids": ids, "attention_mask": keys}
        sources = [side.words for side in sides]
        to_source = _to_source(sides, ids.shape[1], max(sources), device)
    else:
        features = [pair.source for pair in chosen if isinstance(pair.source, Tensor)]
        inputs["input_features"] = torch.stack(features).to(parameter_of(model).dtype)
    targets = [pair.target for pair in chosen]
    return PairBatch(
        rows,
        {name: tensor.to(device) for name, tensor in inputs.items()},
        mask.bool().to(device),
        None if keys is None else keys.bool().to(device),
        to_source,
        {
            reading: _to_target(targets, read.shape[1], reading == "awi", device)
            for reading in readings
        },
        sources,
        [side.words for side in targets],
    )


def parameter_of(model: nn.Module) -> nn.Parameter:
    """Return any parameter; all have one dtype and one device in the models aligned here."""
    return next(model.parameters())


def padded(rows: Sequence[Sequence[int]], filler: int) -> tuple[Tensor, Tensor]:
    """Return ids as (row, position), padded on the right, and their attention mask."""
    lengths = torch.tensor([len(row) for row in rows])
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=filler)
    return ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long()


def _flat(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return all numbers in one tensor, with the row and the position in the row of each."""
    lengths = np.array([len(row) for row in rows])
    values = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
    row = np.repeat(np.arange(len(rows)), lengths)
    place = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return torch.from_numpy(values), torch.from_numpy(row), torch.from_numpy(place)


def _to_source(
    sides: Sequence[Side], keys: int, words: int, device: torch.device
) -> Float[Tensor, "batch key source"]:
    """1 where a piece belongs to a word; the last column is for special tokens."""
    matrix = torch.zeros(len(sides), keys, words + 1, dtype=torch.float64, device=device)
    word, row, piece = _flat([side.word_of for side in sides])
    word = torch.where(word == FRAME, words, word)
    matrix[row.to(device), piece.to(device), word.to(device)] = 1
    return matrix


def _to_target(
    sides: Sequence[Side], queries: int, shifted: bool, device: torch.device
) -> Float[Tensor, "batch target query"]:
    """1 / pieces at the steps that write a word's pieces or, shifted by one, that read them."""
    shape = len(sides), max(side.words for side in sides), queries
    matrix = torch.zeros(shape, dtype=torch.float64, device=device)
    word, row, step = _flat([side.word_of for side in sides])
    real = word != FRAME
    matrix[row[real].to(device), word[real].to(device), (step + shifted)[real].to(device)] = 1
    return matrix / matrix.sum(dim=2, keepdim=True).clamp_min(1)
