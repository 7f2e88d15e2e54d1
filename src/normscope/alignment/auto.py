"""Which layer, head and reading to take, without gold data.

Every soft alignment that a model offers makes links on a sample of the corpus itself, and what can
be seen of them without gold is measured:

- ``norm``: mean of the row sums, the 2020 paper's choice (meaningful for norms, not for weights)
- ``concentration``: mean share of the row that its largest word has
- ``linked``: share of the target words that point at a word rather than at ``</s>``
- ``coverage``: share of the source words that some target word points at
- ``diagonal``: 1 − mean distance from the diagonal
- ``agreement``: share of the other candidates that make the same link
- ``anchors``: share of the words that are equal on both sides, once each, and linked so
- ``lexical``: 2 Σ p / (links + target words), with p the posterior of a link by IBM Model 1 (Brown
  et al. 1993), trained on the sample in both directions: an F1 with Model 1 in the gold's place
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from normscope.alignment.batches import READINGS, Batch, Pair
from normscope.alignment.extract import Choice, Extractor, Head
from normscope.errors import InputError

SAMPLE = 1000  # sentence pairs that are looked at
FEATURES = (
    *("norm", "concentration", "linked", "coverage", "diagonal", "agreement", "anchors"),
    "lexical",
)
DEFAULT = "lexical"
STEM = 4  # characters of a word that Model 1 looks at: a sample is small
ITERATIONS = 6
SAME = 9.0  # how much likelier equal words are, before anything is counted


@dataclass(frozen=True)
class Candidate:
    """A soft alignment and what was seen of it."""

    choice: Choice
    features: dict[str, float]


@dataclass(frozen=True, eq=False)
class Survey:
    """The links of every candidate on a sample."""

    choices: tuple[Choice, ...]
    rows: tuple[int, ...]  # which pairs of the corpus
    links: list[NDArray[np.int64]]  # (choice, target word): a source word, or −1
    norm: NDArray[np.float64]  # (choice,)
    concentration: NDArray[np.float64]


def choices_of(
    layers: Sequence[int], heads: Sequence[Head], readings: Sequence[str] = READINGS
) -> tuple[Choice, ...]:
    """Every combination, layer by layer."""
    return tuple(Choice(layer, head, one) for layer in layers for head in heads for one in readings)


def survey(
    extractor: Extractor,
    pairs: Sequence[Pair],
    choices: Sequence[Choice],
    *,
    sample: int = SAMPLE,
    seed: int = 0,
) -> Survey:
    """Run the model over a sample of the pairs and keep every candidate's links."""
    count = len(pairs)
    if count > sample:
        drawn = np.random.default_rng(seed).choice(count, sample, replace=False)
        rows = tuple(sorted(int(row) for row in drawn))
    else:
        rows = tuple(range(count))
    place = {choice: at for at, choice in enumerate(choices)}
    wanted: dict[int, list[Head]] = {}
    for choice in choices:
        heads = wanted.setdefault(choice.layer, [])
        if choice.head not in heads:
            heads.append(choice.head)
    readings = [one for one in READINGS if any(choice.reading == one for choice in choices)]
    where = {row: at for at, row in enumerate(rows)}
    links = [np.full((len(choices), pairs[row].target.words), -1) for row in rows]
    norm, top = np.zeros(len(choices)), np.zeros(len(choices))
    total = 0

    def consume(batch: Batch, layer: int, heads: tuple[Head, ...], values: Tensor) -> None:
        nonlocal total
        best, share = links_of(batch, values)
        sums = values.sum(dim=-1)
        written = batch.written()[:, None, :]
        mass = (sums * written).sum(dim=(1, 3)).cpu().numpy()  # (reading, head)
        sharpness = (share * written).sum(dim=(1, 3)).cpu().numpy()
        if layer == min(wanted):
            total += int(batch.written().sum())
        found = best.cpu().numpy()
        for r, reading in enumerate(readings):
            for h, head in enumerate(heads):
                at = place.get(Choice(layer, head, reading))
                if at is None:
                    continue
                norm[at] += mass[r, h]
                top[at] += sharpness[r, h]
                for b, row in enumerate(batch.rows):
                    links[where[row]][at] = found[r, b, h, : batch.targets[b]]

    extractor.run(pairs, wanted, readings, consume, rows)
    return Survey(tuple(choices), rows, links, norm / max(total, 1), top / max(total, 1))


def links_of(batch: Batch, values: Tensor) -> tuple[Tensor, Tensor]:
    """The source word of each target word, −1 for none, and its share of the row."""
    absent, written = batch.absent(), batch.written()
    sums = values.sum(dim=-1)
    if absent is not None:
        values = values.masked_fill(absent[:, None, None, :], -1)
    most = values.max(dim=-1)
    best = most.indices
    if absent is not None:
        best = best.masked_fill(best == values.shape[-1] - 1, -1)
    best = best.masked_fill(~written[:, None, :], -1)
    return best, (most.values / sums.clamp_min(1e-300)).clamp(0, 1)


def rank(
    seen: Survey,
    source: Sequence[Sequence[str]],
    target: Sequence[Sequence[str]],
    by: str = DEFAULT,
) -> list[Candidate]:
    """Candidates with all that was seen of them, best first by one feature.

    Args:
        seen: the links of every candidate.
        source: the words of every pair of the corpus.
        target: the same for the other side.
        by: the feature that decides; a tie goes to the first.
    """
    if by not in FEATURES:
        raise InputError(f"unknown criterion {by!r}; valid: {', '.join(FEATURES)}")
    sources = [[word.lower() for word in source[row]] for row in seen.rows]
    targets = [[word.lower() for word in target[row]] for row in seen.rows]
    count = len(seen.choices)
    sums = {name: np.zeros(count) for name in FEATURES[2:-1]}
    likely = np.zeros(count)
    weight = dict.fromkeys(sums, 0.0)
    each = np.arange(count)
    for s, t, links, posterior in zip(
        sources, targets, seen.links, posteriors(sources, targets), strict=True
    ):
        there = links >= 0
        steps = np.arange(len(t))
        padded = np.concatenate([posterior, np.zeros((len(t), 1))], axis=1)  # −1: nothing
        likely += padded[steps, links].sum(axis=1)
        _add(sums, weight, "linked", there.sum(axis=1), len(t))
        used = np.zeros((count, len(s) + 1), dtype=bool)
        used[each[:, None], links] = True
        _add(sums, weight, "coverage", used[:, :-1].sum(axis=1), len(s))
        apart = np.abs((links + 0.5) / len(s) - (steps + 0.5) / len(t))
        _add(sums, weight, "diagonal", ((1 - apart) * there).sum(axis=1), len(t))
        votes = np.zeros((len(t), len(s) + 1))
        np.add.at(votes, (np.broadcast_to(steps, links.shape), links), 1)
        same = (votes[steps, links] - 1) * there
        _add(sums, weight, "agreement", same.sum(axis=1) / max(count - 1, 1), len(t))
        for i, j in _anchors(s, t):
            _add(sums, weight, "anchors", links[:, j] == i, 1)
    made = {name: sums[name] / max(weight[name], 1) for name in sums}
    lexical = 2 * likely / np.maximum(sums["linked"] + weight["linked"], 1)
    made |= {"norm": seen.norm, "concentration": seen.concentration, "lexical": lexical}
    order = np.argsort(-made[by], kind="stable")
    return [
        Candidate(seen.choices[at], {name: float(made[name][at]) for name in FEATURES})
        for at in order.tolist()
    ]


def _add(
    sums: dict[str, NDArray[np.float64]],
    weight: dict[str, float],
    name: str,
    value: NDArray[Any],
    size: int,
) -> None:
    sums[name] = sums[name] + value
    weight[name] += size


def _anchors(source: Sequence[str], target: Sequence[str]) -> list[tuple[int, int]]:
    """Words that stand once on each side: names, numbers, punctuation."""
    return [
        (source.index(word), target.index(word))
        for word in set(source) & set(target)
        if source.count(word) == 1 and target.count(word) == 1
    ]


def posteriors(
    source: Sequence[Sequence[str]], target: Sequence[Sequence[str]]
) -> list[NDArray[np.float64]]:
    """(target, source) of each pair: the product of both directions' posteriors by Model 1."""
    first, second = _ids(source), _ids(target)
    cells = [(len(t), len(s)) for s, t in zip(first, second, strict=True)]
    if not cells:
        return []
    s = np.concatenate([np.tile(one, len(two)) for one, two in zip(first, second, strict=True)])
    t = np.concatenate([np.repeat(two, len(one)) for one, two in zip(first, second, strict=True)])
    same = np.concatenate(
        [
            np.array([[a == b for a in one] for b in two], dtype=float).ravel()
            for one, two in zip(source, target, strict=True)
        ]
    )
    # Every cell's row (its target word) and column (its source word), numbered over the corpus.
    starts = np.cumsum([0, *(rows for rows, _ in cells)])[:-1]
    row = np.concatenate(
        [a + np.repeat(np.arange(n), m) for a, (n, m) in zip(starts, cells, strict=True)]
    )
    starts = np.cumsum([0, *(columns for _, columns in cells)])[:-1]
    column = np.concatenate(
        [a + np.tile(np.arange(m), n) for a, (n, m) in zip(starts, cells, strict=True)]
    )
    both = _model_1(s, t, row, same) * _model_1(t, s, column, same)
    ends = np.cumsum([n * m for n, m in cells])[:-1]
    return [one.reshape(shape) for one, shape in zip(np.split(both, ends), cells, strict=True)]


def _model_1(
    given: NDArray[np.int64],
    made: NDArray[np.int64],
    row: NDArray[np.int64],
    same: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Posterior of each cell within its row, after some rounds of EM on p(made | given)."""
    keys = given * (int(made.max()) + 1) + made
    _, first, pair = np.unique(keys, return_index=True, return_inverse=True)
    weight = 1 + SAME * same
    posterior = weight / np.bincount(row, weight)[row]
    for _ in range(ITERATIONS):
        counts = np.bincount(pair, posterior)
        table = counts / np.bincount(given[first], counts)[given[first]]
        weight = table[pair]
        posterior = weight / np.bincount(row, weight)[row]
    return posterior


def _ids(sentences: Sequence[Sequence[str]]) -> list[NDArray[np.int64]]:
    known: dict[str, int] = {}
    return [
        np.array([known.setdefault(word[:STEM], len(known)) for word in words], dtype=np.int64)
        for words in sentences
    ]


def rank_audio(seen: Survey) -> list[Candidate]:
    """Candidates for speech, best first: words are spoken in their order, so frames must rise.

    ``order`` is the mean correlation of the word's index with its frame; 0 where all words have
    the same frame.
    """
    count = len(seen.choices)
    order, pairs = np.zeros(count), 0
    for links in seen.links:
        if links.shape[1] < 2:
            continue
        pairs += 1
        frames = links - links.mean(axis=1, keepdims=True)
        steps = np.arange(links.shape[1]) - (links.shape[1] - 1) / 2
        size = np.sqrt((frames**2).sum(axis=1) * (steps**2).sum())
        order += np.divide(frames @ steps, size, out=np.zeros(count), where=size > 0)
    order /= max(pairs, 1)
    made = {"order": order, "norm": seen.norm, "concentration": seen.concentration}
    return [
        Candidate(seen.choices[at], {name: float(value[at]) for name, value in made.items()})
        for at in np.argsort(-order, kind="stable").tolist()
    ]
