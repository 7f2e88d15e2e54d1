"""One direction: choose a soft alignment, and make links of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.alignment.auto import (
    DEFAULT,
    FEATURES,
    SAMPLE,
    Candidate,
    choices_of,
    links_of,
    rank,
    rank_audio,
    survey,
)
from normscope.alignment.batches import READINGS, Batch, Pair
from normscope.alignment.extract import Choice, Consume, Extractor, Head, cross_shape
from normscope.alignment.gradients import Gradients, gradient_maps
from normscope.alignment.links import Links
from normscope.alignment.translator import Translator
from normscope.decomposition.scopes import HEAD_MAPS as MAPS
from normscope.errors import InputError

AUTO = "auto"
SUM = "sum"
COMBINED = 3  # the most candidates that are averaged by default, and no more than a tenth of them
FEW = 100  # pairs, below which a choice made once for the model is better than one made from them


@dataclass(frozen=True)
class Settings:
    """How links are made from a model."""

    map: str = "attn_n"
    layer: int | str = AUTO
    head: int | str = AUTO
    reading: str = AUTO
    combine: int | None = None  # so many of the best are averaged, rows as shares; None: COMBINED
    criterion: str = DEFAULT
    sample: int = SAMPLE
    budget: int | None = None
    soft: bool = False
    gradients: Gradients | None = None  # instead of attention


@dataclass(eq=False)
class Direction:
    """What one direction found: entries for pairs that were not aligned are empty."""

    links: list[Links]
    soft: list[NDArray[np.float32] | None]
    choices: tuple[Choice, ...] = ()
    ranking: list[Candidate] = field(default_factory=list)
    error: float = 0.0


def candidates(translator: Translator, settings: Settings) -> tuple[Choice, ...]:
    """The soft alignments that the settings leave to choose from."""
    count, heads = cross_shape(translator.model)
    layers = range(count)
    if settings.layer != AUTO:
        layers = range(*_index(settings.layer, count, "layer"))
    among: list[Head] = [None, *range(heads)]
    if settings.map not in MAPS:
        if settings.head not in (AUTO, SUM):
            raise InputError(
                f"{settings.map} belongs to no single head: its head is sum, not {settings.head!r}"
            )
        among = [None]
    elif settings.head == SUM:
        among = [None]
    elif settings.head != AUTO:
        among = list(range(*_index(settings.head, heads, "head")))
    if settings.reading not in (AUTO, *READINGS):
        raise InputError(
            f"unknown reading {settings.reading!r}; valid: auto, {', '.join(READINGS)}"
        )
    readings = READINGS if settings.reading == AUTO else (settings.reading,)
    return choices_of(layers, among, readings)


def _index(given: int | str, count: int, name: str) -> tuple[int, int]:
    text = str(given)
    valid = "auto" if name == "layer" else "auto, sum"
    if not text.isdecimal() or int(text) >= count:
        raise InputError(
            f"there is no {name} {given!r} in the model's cross-attention; valid: {valid}, "
            f"0 to {count - 1}"
        )
    return int(text), int(text) + 1


def align_direction(
    translator: Translator,
    pairs: Sequence[Pair | None],
    source: Sequence[Sequence[str]] | None,
    target: Sequence[Sequence[str]],
    settings: Settings,
) -> Direction:
    """Links of every pair; ``source`` is None for audio."""
    rows = [row for row, pair in enumerate(pairs) if pair is not None]
    ready = [pair for pair in pairs if pair is not None]
    made = Direction([Links()] * len(pairs), [None] * len(pairs))
    if settings.gradients is None:
        choices = candidates(translator, settings)
        extractor = Extractor(
            translator.model,
            settings.map,
            padding=translator.padding,
            budget=settings.budget,
        )
        if settings.combine is not None and settings.combine < 1:
            raise InputError(f"combine is a number from 1 on, but was given {settings.combine}")
        if settings.criterion not in FEATURES:
            raise InputError(
                f"unknown criterion {settings.criterion!r}; valid: {', '.join(FEATURES)}"
            )
        if not ready:
            return made
        count = settings.combine or max(1, min(COMBINED, len(choices) // 10))
        known = [one for one in translator.choices if one in choices]
        # The model's own choice was made by the default criterion, and for so many only.
        trusted = settings.criterion == DEFAULT and len(known) >= count
        if len(choices) > count and len(ready) < FEW and trusted:
            choices = tuple(known[:count])
        elif len(choices) > count:
            seen = survey(extractor, ready, choices, sample=settings.sample)
            spoken = [target[row] for row in rows]
            if source is None:
                made.ranking = rank_audio(seen)
            else:
                made.ranking = rank(seen, [source[row] for row in rows], spoken, settings.criterion)
            choices = tuple(one.choice for one in made.ranking[:count])
        made.choices = choices
        wanted: dict[int, list[Head]] = {}
        for choice in choices:
            heads = wanted.setdefault(choice.layer, [])
            heads += [choice.head] if choice.head not in heads else []
        readings = [one for one in READINGS if any(c.reading == one for c in choices)]
        consume = _consumer(made, rows, choices, readings, settings.soft)
        extractor.run(ready, wanted, readings, consume)
        made.error = extractor.error
        return made
    if ready:
        only = (Choice(0, None, "awo"),)
        gradient_maps(
            translator.model,
            ready,
            _consumer(made, rows, only, ["awo"], settings.soft),
            settings.gradients,
            padding=translator.padding,
            budget=settings.budget,
        )
    return made


def _consumer(
    made: Direction,
    rows: Sequence[int],
    choices: Sequence[Choice],
    readings: Sequence[str],
    soft: bool,
) -> Consume:
    """What takes the chosen matrices of each batch, averages them, and keeps their links."""
    parts: list[Tensor] = []

    def consume(batch: Batch, layer: int, heads: tuple[Head, ...], values: Tensor) -> None:
        for choice in choices:
            if choice.layer == layer:
                one = values[readings.index(choice.reading), :, heads.index(choice.head)]
                if len(choices) > 1:
                    one = one / one.sum(dim=-1, keepdim=True).clamp_min(1e-300)
                parts.append(one)
        if len(parts) == len(choices):
            whole = parts[0] if len(parts) == 1 else torch.stack(parts).mean(dim=0)
            parts.clear()
            _keep(made, rows, batch, whole, soft)

    return consume


def _keep(made: Direction, rows: Sequence[int], batch: Batch, matrix: Tensor, soft: bool) -> None:
    best, share = links_of(batch, matrix[None, :, None])
    found, shares = best[0, :, 0].tolist(), share[0, :, 0].tolist()
    whole = matrix.float().cpu().numpy() if soft else None
    for b, at in enumerate(batch.rows):
        row, words = rows[at], batch.targets[b]
        scores = {(found[b][t], t): shares[b][t] for t in range(words) if found[b][t] >= 0}
        links = frozenset(scores)
        made.links[row] = Links(links, links, scores)
        if whole is not None:
            mine = whole[b, :words]
            if batch.sources:
                count = batch.sources[b]
                mine = np.concatenate([mine[:, :count], mine[:, -1:]], axis=1)
            made.soft[row] = mine.copy()
