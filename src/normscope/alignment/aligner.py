"""Align one direction: choose soft alignments and turn them into links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.alignment.auto import (
    Candidate,
    check_criterion,
    choices_of,
    heads_and_readings,
    links_of,
    rank,
    rank_audio,
    survey,
)
from normscope.alignment.batches import READINGS, PairBatch, SentencePair
from normscope.alignment.extract import Choice, Extractor, Head, cross_shape
from normscope.alignment.gradients import gradient_maps
from normscope.alignment.links import Links
from normscope.alignment.options import ATTENTION, AUTO, CRITERION, SUM, AlignOptions
from normscope.alignment.translator import Translator
from normscope.alignment.words import Sentences
from normscope.decomposition.scopes import PER_HEAD
from normscope.errors import InputError

COMBINED = 3  # candidates that are averaged by default, but no more than a tenth of them
FEW = 100  # with fewer pairs, the choices stored with a model are better than new ones


@dataclass(eq=False)
class Direction:
    """The alignments of one direction; entries of pairs that were not aligned are empty."""

    links: list[Links]
    soft: list[NDArray[np.float32] | None]
    choices: tuple[Choice, ...] = ()
    ranking: list[Candidate] = field(default_factory=list)
    error: float = 0.0


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """The pairs that can be aligned, with their words."""

    rows: list[int]  # indices in the corpus
    pairs: list[SentencePair]
    source: Sentences | None  # None for audio
    target: Sentences


def candidates(translator: Translator, options: AlignOptions) -> tuple[Choice, ...]:
    """List the soft alignments of a model that agree with the options."""
    layer_count, head_count = cross_shape(translator.model)
    layers = range(layer_count)
    if options.layer != AUTO:
        layers = _only(options.layer, layer_count, "layer")
    heads: list[Head] = [None, *range(head_count)]
    if options.map not in PER_HEAD:
        if options.head not in (AUTO, SUM):
            raise InputError(
                f"{options.map} has no single heads: the head must be sum, not {options.head!r}"
            )
        heads = [None]
    elif options.head == SUM:
        heads = [None]
    elif options.head != AUTO:
        heads = list(_only(options.head, head_count, "head"))
    if options.reading not in (AUTO, *READINGS):
        raise InputError(f"unknown reading {options.reading!r}; valid: auto, {', '.join(READINGS)}")
    readings = READINGS if options.reading == AUTO else (options.reading,)
    return choices_of(layers, heads, readings)


def _only(index: int | str, count: int, name: str) -> range:
    """Return the range that holds just this index of a layer or a head."""
    text = str(index)
    if not text.isdecimal() or int(text) >= count:
        names = "auto" if name == "layer" else "auto, sum"
        raise InputError(
            f"there is no {name} {index!r} in the model's cross-attention; valid: {names}, "
            f"0 to {count - 1}"
        )
    return range(int(text), int(text) + 1)


def align_direction(
    translator: Translator,
    pairs: Sequence[SentencePair | None],
    source: Sentences | None,
    target: Sentences,
    options: AlignOptions,
) -> Direction:
    """Align every pair that is not None.

    Args:
        translator: the model with its tokenizers.
        pairs: the encoded pairs.
        source: the words of each source sentence; None for audio.
        target: the words of each target sentence.
        options: how to align.
    """
    rows = [row for row, pair in enumerate(pairs) if pair is not None]
    encoded = EncodedPairs(
        rows,
        [pair for pair in pairs if pair is not None],
        None if source is None else [source[row] for row in rows],
        [target[row] for row in rows],
    )
    direction = Direction([Links()] * len(pairs), [None] * len(pairs))
    if options.method == ATTENTION:
        _align_by_attention(translator, encoded, options, direction)
    elif rows:
        writer = LinkWriter(direction, rows, (Choice(0, None, "awo"),), soft=options.soft)
        gradient_maps(translator.model, encoded.pairs, writer, options, padding=translator.padding)
    return direction


def _align_by_attention(
    translator: Translator, encoded: EncodedPairs, options: AlignOptions, direction: Direction
) -> None:
    """Choose soft alignments, and store links and choices in ``direction``."""
    choices = candidates(translator, options)
    extractor = Extractor(
        translator.model, options.map, padding=translator.padding, budget=options.budget
    )
    check_criterion(options.criterion)
    if not encoded.rows:
        return
    count = options.combine or max(1, min(COMBINED, len(choices) // 10))
    if len(choices) > count:
        stored = _stored_choices(translator, choices, count, len(encoded.rows), options)
        if not stored:
            direction.ranking = _rank(extractor, encoded, choices, options)
        choices = stored or tuple(ranked.choice for ranked in direction.ranking[:count])
    direction.choices = choices
    heads, readings = heads_and_readings(choices)
    writer = LinkWriter(direction, encoded.rows, choices, soft=options.soft)
    extractor.run(encoded.pairs, heads, readings, writer)
    direction.error = extractor.error


def _stored_choices(
    translator: Translator,
    choices: tuple[Choice, ...],
    count: int,
    pairs: int,
    options: AlignOptions,
) -> tuple[Choice, ...]:
    """Return the best choices stored with the model, or nothing if they do not apply.

    They apply to texts too short for a choice of their own, if enough of them agree with the
    options; they were made by the default criterion.
    """
    stored = tuple(choice for choice in translator.choices if choice in choices)
    if pairs >= FEW or options.criterion != CRITERION or len(stored) < count:
        return ()
    return stored[:count]


def _rank(
    extractor: Extractor,
    encoded: EncodedPairs,
    choices: tuple[Choice, ...],
    options: AlignOptions,
) -> list[Candidate]:
    """Rank the candidates on a sample of the pairs, the best first."""
    surveyed = survey(extractor, encoded.pairs, choices, sample=options.sample)
    if encoded.source is None:
        return rank_audio(surveyed)
    return rank(surveyed, encoded.source, encoded.target, options.criterion)


class LinkWriter:
    """Consume the chosen matrices of each batch, and store their links in a `Direction`.

    Several choices are averaged, each row as shares of its sum.
    """

    def __init__(
        self,
        direction: Direction,
        rows: Sequence[int],
        choices: tuple[Choice, ...],
        *,
        soft: bool,
    ) -> None:
        self.direction, self.rows, self.choices, self.soft = direction, rows, choices, soft
        _, self.readings = heads_and_readings(choices)
        self.matrices: list[Tensor] = []  # of the current batch

    def __call__(
        self, batch: PairBatch, layer: int, heads: tuple[Head, ...], values: Tensor
    ) -> None:
        for choice in self.choices:
            if choice.layer != layer:
                continue
            reading, head = self.readings.index(choice.reading), heads.index(choice.head)
            matrix = values[reading, :, head]
            if len(self.choices) > 1:
                matrix = matrix / matrix.sum(dim=-1, keepdim=True).clamp_min(1e-300)
            self.matrices.append(matrix)
        if len(self.matrices) == len(self.choices):
            single = len(self.matrices) == 1
            mean = self.matrices[0] if single else torch.stack(self.matrices).mean(dim=0)
            self.matrices.clear()
            self._store(batch, mean)

    def _store(self, batch: PairBatch, matrix: Tensor) -> None:
        best, share = links_of(batch, matrix[None, :, None])
        sources, shares = best[0, :, 0].tolist(), share[0, :, 0].tolist()
        soft = matrix.float().cpu().numpy() if self.soft else None
        for index, pair in enumerate(batch.rows):
            row, words = self.rows[pair], batch.targets[index]
            scores = {
                (source, target): score
                for target, (source, score) in enumerate(
                    zip(sources[index][:words], shares[index][:words], strict=True)
                )
                if source >= 0
            }
            links = frozenset(scores)
            self.direction.links[row] = Links(links, links, scores)
            if soft is not None:
                cut = soft[index, :words]
                if batch.sources:
                    count = batch.sources[index]
                    cut = np.concatenate([cut[:, :count], cut[:, -1:]], axis=1)
                self.direction.soft[row] = cut.copy()
