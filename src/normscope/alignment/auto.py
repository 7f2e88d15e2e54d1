"""Choose layer, head and reading without gold links.

Every candidate links a sample of the corpus, and its links are measured by features that need no
gold:

- ``norm``: mean of the row sums, the criterion of the 2020 paper (useful for norms, not weights)
- ``concentration``: mean share of the largest word in its row
- ``linked``: share of the target words that are linked to a word rather than to ``</s>``
- ``coverage``: share of the source words that have a link
- ``diagonal``: 1 − mean distance from the diagonal
- ``agreement``: share of the other candidates that make the same link
- ``anchors``: share of the words that occur once on both sides and are linked to each other
- ``lexical``: 2 Σ p / (links + target words), where p is the posterior of a link under IBM Model 1
  (Brown et al. 1993), trained on the sample in both directions: an F1 with Model 1 instead of gold
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from normscope.alignment.batches import READINGS, PairBatch, SentencePair
from normscope.alignment.extract import Choice, Extractor, Head
from normscope.alignment.options import CRITERION, SAMPLE
from normscope.alignment.words import Sentences
from normscope.errors import InputError

FEATURES = (
    *("norm", "concentration", "linked", "coverage", "diagonal", "agreement", "anchors"),
    "lexical",
)
STEM = 4  # leading characters by which Model 1 identifies a word, because samples are small
ITERATIONS = 6  # of Model 1's EM training
SAME = 9.0  # extra initial weight of a link between equal words


@dataclass(frozen=True)
class Candidate:
    """A soft alignment with its features."""

    choice: Choice
    features: dict[str, float]


@dataclass(frozen=True, eq=False)
class Survey:
    """The links of every candidate on a sample."""

    choices: tuple[Choice, ...]
    rows: tuple[int, ...]  # indices of the sampled pairs
    links: list[NDArray[np.int64]]  # (choice, target word): a source word, or −1
    norm: NDArray[np.float64]  # (choice,)
    concentration: NDArray[np.float64]


def choices_of(
    layers: Sequence[int], heads: Sequence[Head], readings: Sequence[str] = READINGS
) -> tuple[Choice, ...]:
    """List every combination, layer by layer."""
    return tuple(
        Choice(layer, head, reading) for layer in layers for head in heads for reading in readings
    )


def heads_and_readings(choices: Sequence[Choice]) -> tuple[dict[int, list[Head]], list[str]]:
    """Return the heads of each layer, and the readings, that the choices need."""
    heads: dict[int, list[Head]] = {}
    for choice in choices:
        of_layer = heads.setdefault(choice.layer, [])
        if choice.head not in of_layer:
            of_layer.append(choice.head)
    used = {choice.reading for choice in choices}
    return heads, [reading for reading in READINGS if reading in used]


def survey(
    extractor: Extractor,
    pairs: Sequence[SentencePair],
    choices: Sequence[Choice],
    *,
    sample: int = SAMPLE,
    seed: int = 0,
) -> Survey:
    """Run the model on a sample of the pairs and collect every candidate's links."""
    count = len(pairs)
    rows = tuple(range(count))
    if count > sample:
        drawn = np.random.default_rng(seed).choice(count, sample, replace=False)
        rows = tuple(sorted(int(row) for row in drawn))
    place = {choice: index for index, choice in enumerate(choices)}
    wanted, readings = heads_and_readings(choices)
    in_sample = {row: index for index, row in enumerate(rows)}
    links = [np.full((len(choices), pairs[row].target.words), -1) for row in rows]
    norm, concentration = np.zeros(len(choices)), np.zeros(len(choices))
    total = 0  # target words

    def consume(batch: PairBatch, layer: int, heads: tuple[Head, ...], values: Tensor) -> None:
        nonlocal total
        best, share = links_of(batch, values)
        written = batch.written()[:, None, :]
        sums = (values.sum(dim=-1) * written).sum(dim=(1, 3)).cpu().numpy()  # (reading, head)
        shares = (share * written).sum(dim=(1, 3)).cpu().numpy()
        if layer == min(wanted):
            total += int(written.sum())
        sources = best.cpu().numpy()
        for r, reading in enumerate(readings):
            for h, head in enumerate(heads):
                candidate = place.get(Choice(layer, head, reading))
                if candidate is None:
                    continue
                norm[candidate] += sums[r, h]
                concentration[candidate] += shares[r, h]
                for b, row in enumerate(batch.rows):
                    links[in_sample[row]][candidate] = sources[r, b, h, : batch.targets[b]]

    extractor.run(pairs, wanted, readings, consume, rows)
    words = max(total, 1)
    return Survey(tuple(choices), rows, links, norm / words, concentration / words)


def links_of(batch: PairBatch, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the source word of each target word (−1 for none), and its share of the row."""
    absent, written = batch.absent(), batch.written()
    sums = values.sum(dim=-1)
    if absent is not None:
        values = values.masked_fill(absent[:, None, None, :], -1)
    largest = values.max(dim=-1)
    best = largest.indices
    if absent is not None:
        best = best.masked_fill(best == values.shape[-1] - 1, -1)
    best = best.masked_fill(~written[:, None, :], -1)
    return best, (largest.values / sums.clamp_min(1e-300)).clamp(0, 1)


# ---- ranking


def check_criterion(name: str) -> None:
    """Raise InputError for a criterion that is not a feature."""
    if name not in FEATURES:
        raise InputError(f"unknown criterion {name!r}; valid: {', '.join(FEATURES)}")


def rank(
    surveyed: Survey,
    source: Sentences,
    target: Sentences,
    by: str = CRITERION,
) -> list[Candidate]:
    """Return the candidates with all their features, best first by one of them.

    Args:
        surveyed: the links of every candidate.
        source: the words of every source sentence of the corpus.
        target: the words of every target sentence of the corpus.
        by: the feature to sort by. Ties keep the order of the choices.
    """
    check_criterion(by)
    sources = [[word.lower() for word in source[row]] for row in surveyed.rows]
    targets = [[word.lower() for word in target[row]] for row in surveyed.rows]
    sums = {name: np.zeros(len(surveyed.choices)) for name in FEATURES[2:-1]}
    counts = dict.fromkeys(sums, 0)
    likely = np.zeros(len(surveyed.choices))
    tables = posteriors(sources, targets)
    for s, t, links, table in zip(sources, targets, surveyed.links, tables, strict=True):
        for name, (values, count) in _features(s, t, links).items():
            sums[name] += values
            counts[name] += count
        padded = np.concatenate([table, np.zeros((len(t), 1))], axis=1)  # −1: no link, p = 0
        likely += padded[np.arange(len(t)), links].sum(axis=1)
    features = {name: sums[name] / max(counts[name], 1) for name in sums}
    features["norm"], features["concentration"] = surveyed.norm, surveyed.concentration
    features["lexical"] = 2 * likely / np.maximum(sums["linked"] + counts["linked"], 1)
    return _sorted(surveyed, {name: features[name] for name in FEATURES}, by)


def _features(
    source: list[str], target: list[str], links: NDArray[np.int64]
) -> dict[str, tuple[NDArray[Any], int]]:
    """Return the features of one pair as sums (candidate,) and how many words they are over.

    ``links`` is (candidate, target word).
    """
    candidates = len(links)
    linked = links >= 0
    words = np.arange(len(target))
    used = np.zeros((candidates, len(source) + 1), dtype=bool)  # the last column takes −1, no link
    used[np.arange(candidates)[:, None], links] = True
    distance = np.abs((links + 0.5) / len(source) - (words + 0.5) / len(target))
    votes = np.zeros((len(target), len(source) + 1))
    np.add.at(votes, (np.broadcast_to(words, links.shape), links), 1)
    same = (votes[words, links] - 1) * linked
    anchors = _anchors(source, target)
    hits = links[:, anchors[:, 1]] == anchors[:, 0]
    return {
        "linked": (linked.sum(axis=1), len(target)),
        "coverage": (used[:, :-1].sum(axis=1), len(source)),
        "diagonal": (((1 - distance) * linked).sum(axis=1), len(target)),
        "agreement": (same.sum(axis=1) / max(candidates - 1, 1), len(target)),
        "anchors": (hits.sum(axis=1), len(anchors)),
    }


def _anchors(source: Sequence[str], target: Sequence[str]) -> NDArray[np.int64]:
    """Return (anchor, 2): source and target index of words that occur once on each side."""
    anchors = [
        (source.index(word), target.index(word))
        for word in set(source) & set(target)
        if source.count(word) == 1 and target.count(word) == 1
    ]
    return np.array(anchors, dtype=np.int64).reshape(-1, 2)


def _sorted(surveyed: Survey, features: dict[str, NDArray[np.float64]], by: str) -> list[Candidate]:
    order = np.argsort(-features[by], kind="stable")
    return [
        Candidate(
            surveyed.choices[index],
            {name: float(values[index]) for name, values in features.items()},
        )
        for index in order.tolist()
    ]


def rank_audio(surveyed: Survey) -> list[Candidate]:
    """Return the candidates for speech, best first by ``order``.

    Words are spoken in their order, so frames must rise: ``order`` is the mean correlation of a
    word's index with its frame, 0 where all words have the same frame.
    """
    count = len(surveyed.choices)
    order, pairs = np.zeros(count), 0
    for links in surveyed.links:
        if links.shape[1] < 2:
            continue
        pairs += 1
        frames = links - links.mean(axis=1, keepdims=True)
        words = np.arange(links.shape[1]) - (links.shape[1] - 1) / 2
        size = np.sqrt((frames**2).sum(axis=1) * (words**2).sum())
        order += np.divide(frames @ words, size, out=np.zeros(count), where=size > 0)
    order /= max(pairs, 1)
    features = {"order": order, "norm": surveyed.norm, "concentration": surveyed.concentration}
    return _sorted(surveyed, features, "order")


# ---- IBM Model 1


def posteriors(source: Sentences, target: Sentences) -> list[NDArray[np.float64]]:
    """Return (target, source) of each pair: the product of Model 1's posteriors both ways."""
    pairs = list(zip(_ids(source), _ids(target), strict=True))
    shapes = [(len(t), len(s)) for s, t in pairs]
    if not shapes:
        return []
    # Every cell of every pair's matrix in one array, row by row.
    sources = np.concatenate([np.tile(s, len(t)) for s, t in pairs])
    targets = np.concatenate([np.repeat(t, len(s)) for s, t in pairs])
    same = np.concatenate(
        [
            np.array([[a == b for a in s] for b in t], dtype=float).ravel()
            for s, t in zip(source, target, strict=True)
        ]
    )
    # The row (target word) and the column (source word) of each cell, numbered over the corpus.
    starts = np.cumsum([0, *(rows for rows, _ in shapes)])[:-1]
    row = np.concatenate(
        [a + np.repeat(np.arange(n), m) for a, (n, m) in zip(starts, shapes, strict=True)]
    )
    starts = np.cumsum([0, *(columns for _, columns in shapes)])[:-1]
    column = np.concatenate(
        [a + np.tile(np.arange(m), n) for a, (n, m) in zip(starts, shapes, strict=True)]
    )
    product = _model_1(sources, targets, row, same) * _model_1(targets, sources, column, same)
    ends = np.cumsum([n * m for n, m in shapes])[:-1]
    cells = np.split(product, ends)
    return [values.reshape(shape) for values, shape in zip(cells, shapes, strict=True)]


def _model_1(
    read: NDArray[np.int64],
    written: NDArray[np.int64],
    row: NDArray[np.int64],
    same: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the posterior of each cell in its row after EM training of p(written | read)."""
    keys = read * (int(written.max()) + 1) + written
    _, first, pair = np.unique(keys, return_index=True, return_inverse=True)
    weight = 1 + SAME * same
    posterior = weight / np.bincount(row, weight)[row]
    for _ in range(ITERATIONS):
        counts = np.bincount(pair, posterior)
        table = counts / np.bincount(read[first], counts)[read[first]]
        weight = table[pair]
        posterior = weight / np.bincount(row, weight)[row]
    return posterior


def _ids(sentences: Sentences) -> list[NDArray[np.int64]]:
    """Number the words by their first characters."""
    numbers: dict[str, int] = {}
    return [
        np.array([numbers.setdefault(word[:STEM], len(numbers)) for word in words], dtype=np.int64)
        for words in sentences
    ]
