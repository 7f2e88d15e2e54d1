"""Sentence pairs as tensors: what the decoder reads, and how pieces become words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.alignment.words import FRAME, Side
from normscope.errors import InputError
from normscope.foundation.shapes import Bool, Float

READINGS = ("awi", "awo")
BUDGETS = {"cpu": 4096, "cuda": 32768}  # padded tokens of both sides that run at once


@dataclass(frozen=True, eq=False)
class Pair:
    """One sentence pair as the model sees it."""

    source: Side | Tensor  # the audio features of a model that listens
    target: Side
    start: int  # what the decoder reads first

    @property
    def keys(self) -> int:
        """How many positions the encoder reads."""
        return len(self.source.ids) if isinstance(self.source, Side) else self.source.shape[-1]

    @property
    def read(self) -> list[int]:
        """What the decoder reads: the step after the last word must be there for ``awi``."""
        ids, last = self.target.ids, self.target.word_of[-1] == FRAME
        return [self.start, *(ids[:-1] if last else ids)]


def pair_of(
    model: Any, source: Side | Tensor, target: Side, starts: dict[int, int] | None = None
) -> Pair:
    """A pair with the start token that the model's own training gives it.

    ``starts`` remembers it by the last token, on which it depends where it depends on any.
    """
    starts = {} if starts is None else starts
    if (last := target.ids[-1]) not in starts:
        prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        given = getattr(model.config, "decoder_start_token_id", None)
        if prepare is not None:
            given = int(prepare(torch.tensor([target.ids], device=model.device))[0, 0])
        starts[last] = last if given is None else given
    start = starts[last]
    if target.word_of[0] == FRAME and target.ids[0] == start:  # Whisper's text begins with it
        target = replace(target, ids=target.ids[1:], word_of=target.word_of[1:])
    return Pair(source, target, start)


@dataclass(frozen=True, eq=False)
class Batch:
    """Some pairs as tensors, and how pieces make words."""

    rows: list[int]  # which pairs these are
    inputs: dict[str, Tensor]
    queries: Bool[Tensor, "batch query"]
    keys: Bool[Tensor, "batch key"] | None  # None: all of them are real
    to_source: Float[Tensor, "batch key source"] | None  # None: every key is a word
    to_target: dict[str, Float[Tensor, "batch target query"]]  # by reading
    sources: list[int]  # words of each
    targets: list[int]

    def words(
        self, values: Float[Tensor, "batch channel query key"], reading: str
    ) -> Float[Tensor, "batch channel target source"]:
        """The same for words; the last source is the frame."""
        if self.to_source is not None:
            values = values @ self.to_source.unsqueeze(1).to(values.dtype)
        return self.to_target[reading].unsqueeze(1).to(values.dtype) @ values

    def absent(self) -> Bool[Tensor, "batch source"] | None:
        """Columns that are no word of a sentence, or one that its tokenizer dropped."""
        return None if self.to_source is None else self.to_source.sum(dim=1) == 0

    def written(self) -> Bool[Tensor, "batch target"]:
        """Rows that are words of which something was written."""
        return next(iter(self.to_target.values())).sum(dim=2) > 0


def budget_of(model: Any, given: int | None) -> int:
    """How many tokens go through a model at once: as given, or what suits its device."""
    if given is None:
        return BUDGETS.get(model.device.type, BUDGETS["cpu"])
    if given < 1:
        raise InputError(f"the token budget is a number from 1 on, but was given {given}")
    return given


def batches(
    model: Any,
    pairs: Sequence[Pair],
    readings: Sequence[str],
    *,
    padding: int,
    budget: int,
    rows: Sequence[int] | None = None,
) -> Iterator[Batch]:
    """Pairs of like lengths together, longest first, as many as the budget of tokens holds."""
    chosen = range(len(pairs)) if rows is None else rows
    lengths = {row: (len(pairs[row].read), _tokens(pairs[row].source)) for row in chosen}
    here: list[int] = []
    most = [0, 0]
    for row in sorted(chosen, key=lambda row: lengths[row], reverse=True):
        longest = [max(a, b) for a, b in zip(most, lengths[row], strict=True)]
        if here and (len(here) + 1) * sum(longest) > budget:
            yield batch_of(model, pairs, here, readings, padding)
            here, longest = [], list(lengths[row])
        here, most = [*here, row], longest
    if here:
        yield batch_of(model, pairs, here, readings, padding)


def batch_of(
    model: Any, pairs: Sequence[Pair], rows: list[int], readings: Sequence[str], padding: int
) -> Batch:
    """Some pairs together, padded on the right."""
    some, device = [pairs[row] for row in rows], model.device
    read, mask = _padded([pair.read for pair in some], padding)
    inputs = {"decoder_input_ids": read, "decoder_attention_mask": mask}
    keys = to_source = None
    sources = []
    sides = [pair.source for pair in some if isinstance(pair.source, Side)]
    if sides:
        ids, keys = _padded([side.ids for side in sides], padding)
        inputs |= {"input_ids": ids, "attention_mask": keys}
        sources = [side.words for side in sides]
        to_source = _to_source(sides, ids.shape[1], max(sources), device)
    else:
        features = [pair.source for pair in some if isinstance(pair.source, Tensor)]
        inputs["input_features"] = torch.stack(features).to(parameter_of(model).dtype)
    targets = [pair.target for pair in some]
    return Batch(
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
    """Any parameter: models here are of one dtype and on one device."""
    return next(model.parameters())


def _tokens(source: Side | Tensor) -> int:
    return len(source.ids) if isinstance(source, Side) else int(source.shape[-1]) // 2


def _flat(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """All numbers, and the row and the place in it of each."""
    lengths = np.array([len(row) for row in rows])
    values = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
    row = np.repeat(np.arange(len(rows)), lengths)
    place = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return torch.from_numpy(values), torch.from_numpy(row), torch.from_numpy(place)


def _padded(rows: Sequence[Sequence[int]], filler: int) -> tuple[Tensor, Tensor]:
    """Ids and their mask, padded on the right."""
    values, row, place = _flat(rows)
    ids = torch.full((len(rows), int(place.max()) + 1), filler)
    mask = torch.zeros_like(ids)
    ids[row, place], mask[row, place] = values, 1
    return ids, mask


def _to_source(
    sides: Sequence[Side], keys: int, words: int, device: torch.device
) -> Float[Tensor, "batch key source"]:
    """1 where a piece belongs to a word; the last word is the frame."""
    made = torch.zeros(len(sides), keys, words + 1, dtype=torch.float64, device=device)
    word, row, piece = _flat([side.word_of for side in sides])
    word = torch.where(word == FRAME, words, word)
    made[row.to(device), piece.to(device), word.to(device)] = 1
    return made


def _to_target(
    sides: Sequence[Side], queries: int, shifted: bool, device: torch.device
) -> Float[Tensor, "batch target query"]:
    """1/pieces at the steps of a word's pieces: those that write them, or those that read them."""
    shape = len(sides), max(side.words for side in sides), queries
    made = torch.zeros(shape, dtype=torch.float64, device=device)
    word, row, step = _flat([side.word_of for side in sides])
    real = word != FRAME
    made[row[real].to(device), word[real].to(device), (step + shifted)[real].to(device)] = 1
    return made / made.sum(dim=2, keepdim=True).clamp_min(1)
