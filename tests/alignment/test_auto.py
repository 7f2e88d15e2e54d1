"""The choice without gold: every feature by its definition, and a good candidate is found."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from normscope import InputError, align
from normscope.alignment import auto
from normscope.alignment.auto import FEATURES, Survey, links_of, posteriors, rank, rank_audio
from normscope.alignment.extract import Choice
from normscope.models.architectures import tiny_model
from tests.helpers.tiny import tokenizer

Words = list[list[str]]
CHOICES = tuple(Choice(at, None, "awi") for at in range(3))


def model_1(read: Words, written: Words) -> list[dict[tuple[int, int], float]]:
    """p(a_j = i) for each word made, by EM over dictionaries; the first table knows equal words."""

    def stem(word: str) -> str:
        return word[: auto.STEM]

    table: dict[tuple[str, str], float] = {}
    posteriors: list[dict[tuple[int, int], float]] = []
    for step in range(auto.ITERATIONS + 1):
        posteriors = []
        for a, b in zip(read, written, strict=True):
            cells = {}
            for j, y in enumerate(b):
                if step == 0:
                    weights = [1 + auto.SAME * (x == y) for x in a]
                else:
                    weights = [table[stem(x), stem(y)] for x in a]
                for i, weight in enumerate(weights):
                    cells[j, i] = weight / sum(weights)
            posteriors.append(cells)
        counts: dict[tuple[str, str], float] = {}
        totals: dict[str, float] = {}
        for a, b, cells in zip(read, written, posteriors, strict=True):
            for (j, i), chance in cells.items():
                counts[stem(a[i]), stem(b[j])] = counts.get((stem(a[i]), stem(b[j])), 0) + chance
                totals[stem(a[i])] = totals.get(stem(a[i]), 0) + chance
        table = {(x, y): count / totals[x] for (x, y), count in counts.items()}
    return posteriors


def corpus(seed: int = 0, size: int = 6) -> tuple[Words, Words]:
    draw = np.random.default_rng(seed)
    source = [
        [f"wort{draw.integers(5)}" for _ in range(draw.integers(1, 6))] + ["."] for _ in range(size)
    ]
    target = [
        [f"word{draw.integers(5)}" for _ in range(draw.integers(1, 6))] + ["."] for _ in range(size)
    ]
    return source, target


def test_posteriors_equal_em_in_loops() -> None:
    source, target = corpus()
    ahead, back = model_1(source, target), model_1(target, source)
    for table, forward, reverse in zip(posteriors(source, target), ahead, back, strict=True):
        for (j, i), chance in forward.items():
            assert table[j, i] == pytest.approx(chance * reverse[i, j], rel=1e-12)
    assert posteriors([], []) == []


def test_features_by_their_definitions() -> None:
    source = [["Das", "Haus", "12", "."], ["ja", "ja"]]
    target = [["the", "house", "12", "."], ["yes", "ja", "ja"]]
    links = [
        np.array([[0, 1, 2, 3], [0, 0, -1, 3], [3, 2, 1, 0]]),
        np.array([[0, 0, 1], [-1, -1, -1], [1, 0, 1]]),
    ]
    seen = Survey(CHOICES, (0, 1), links, np.array([3.0, 2.0, 1.0]), np.array([0.5, 0.6, 0.7]))
    features = {
        candidate.choice.layer: candidate.features for candidate in rank(seen, source, target)
    }
    assert [features[at]["norm"] for at in range(3)] == [3, 2, 1]
    assert [features[at]["concentration"] for at in range(3)] == [0.5, 0.6, 0.7]
    assert features[0]["linked"] == 1
    assert features[1]["linked"] == 3 / 7
    assert features[0]["coverage"] == 1
    assert features[1]["coverage"] == 2 / 6
    # Anchors: 12 and . in the first; ja stands twice in the second.
    assert [features[at]["anchors"] for at in range(3)] == [1, 1 / 2, 0]
    apart = [abs((i + 0.5) / 4 - (j + 0.5) / 4) for j, i in enumerate([3, 2, 1, 0])]
    apart += [abs((i + 0.5) / 2 - (j + 0.5) / 3) for j, i in enumerate([1, 0, 1])]
    assert features[2]["diagonal"] == pytest.approx(sum(1 - distance for distance in apart) / 7)
    # With whom it agrees: words 0 and 3 of the first with candidate 1; the last of the second
    # with candidate 2, and its middle one too.
    assert features[0]["agreement"] == pytest.approx((2 / 2 + 2 / 2) / 7)
    table = posteriors([[word.lower() for word in line] for line in source], target)
    likely = table[0][0, 0] + table[0][1, 0] + table[0][3, 3]
    assert features[1]["lexical"] == pytest.approx(2 * likely / (3 + 7))
    with pytest.raises(InputError, match=r"unknown criterion 'aer'; valid: norm, concentration"):
        rank(seen, source, target, by="aer")


def test_links_of_a_batch_by_their_definition() -> None:
    """The largest of the words that are there, −1 for the column of no word and unwritten rows."""
    absent = torch.tensor([[True, False, False, False, False], [False, False, True, True, False]])
    written = torch.tensor([[True, True, True], [True, True, False]])
    batch: Any = SimpleNamespace(absent=lambda: absent, written=lambda: written)
    values = torch.tensor(
        [
            [[0.0, 0.25, 0.5, 0.125, 0.125], [0, 0, 0, 0.25, 0.75], [0, 0, 0, 0.5, 0.25]],
            [[0.5, 0.25, 0, 0, 0.25], [0.125, 0.5, 0, 0, 0.25], [1, 0, 0, 0, 0]],
        ],
        dtype=torch.float64,
    )[:, None]  # of one candidate
    unchecked = inspect.unwrap(links_of)  # of the types
    best, share = unchecked(batch, values)
    assert best[:, 0].tolist() == [[2, -1, 3], [0, 1, -1]]
    assert share[:, 0].tolist() == [[0.5, 0.75, 0.5 / 0.75], [0.5, 0.5 / 0.875, 1]]
    plain: Any = SimpleNamespace(absent=lambda: None, written=lambda: written)
    assert unchecked(plain, values)[0][:, 0].tolist() == [[2, 4, 3], [0, 1, -1]]


@pytest.mark.parametrize("by", FEATURES)
def test_the_ranking_is_sorted_by_the_criterion(by: str) -> None:
    source, target = corpus()
    draw = np.random.default_rng(1)
    links = [draw.integers(-1, len(s), (3, len(t))) for s, t in zip(source, target, strict=True)]
    seen = Survey(CHOICES, tuple(range(6)), links, draw.random(3), draw.random(3))
    values = [candidate.features[by] for candidate in rank(seen, source, target, by)]
    assert values == sorted(values, reverse=True)


def test_the_true_alignment_is_found_among_worse_ones() -> None:
    """A dictionary language in another order, and candidates that are right to some degree."""
    draw = np.random.default_rng(2)
    source, target, truth = [], [], []
    for _ in range(200):
        words = draw.integers(0, 40, draw.integers(3, 9))
        order = draw.permutation(len(words))
        source.append([f"w{word}" for word in words])
        target.append([f"v{words[i]}" for i in order])
        truth.append(order)
    kept = [0.3, 1.0, 0.6, 0.9, 0.0]
    links = []
    for order in truth:
        rows = []
        for share in kept:
            noise = draw.integers(0, len(order), len(order))
            rows.append(np.where(draw.random(len(order)) < share, order, noise))
        links.append(np.stack(rows))
    choices = tuple(Choice(at, None, "awi") for at in range(5))
    seen = Survey(choices, tuple(range(200)), links, np.zeros(5), np.zeros(5))
    ranking = rank(seen, source, target)
    assert [kept[candidate.choice.layer] for candidate in ranking] == sorted(kept, reverse=True)


def test_the_survey_makes_the_links_that_align_makes() -> None:
    source = ["the cats sat .", "a dog", "raining in the garden , never"]
    target = ["cats looked at it", "the dogs jumped over it .", "rain"]
    model, mine = tiny_model("marian"), tokenizer(pair=False)
    whole = align(source, target, model, mine)
    assert len(whole.ranking) == 30
    for candidate in whole.ranking[::7]:
        choice = candidate.choice
        head = "sum" if choice.head is None else choice.head
        how = {"layer": choice.layer, "head": head, "reading": choice.reading, "soft": True}
        alignments = align(source, target, model, mine, **how)  # type: ignore[arg-type]
        sums = np.concatenate([row.soft.sum(axis=1) for row in alignments if row.soft is not None])
        assert candidate.features["norm"] == pytest.approx(sums.mean(), rel=1e-5)
        total = sum(len(row.links) for row in alignments)
        assert candidate.features["linked"] == pytest.approx(total / 11)
    # By the paper's choice instead.
    by_norm = align(source, target, model, mine, criterion="norm", combine=1)
    most = max(by_norm.ranking, key=lambda candidate: candidate.features["norm"])
    assert by_norm.choices == (most.choice,)
    assert "|criterion:norm|" in by_norm.signature


def test_a_sample_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    model, mine = tiny_model("marian"), tokenizer(pair=False)
    seen = []
    real = auto.survey

    def watched(*args: object, **how: object) -> Survey:
        surveyed = real(*args, **how)  # type: ignore[arg-type]
        seen.append(surveyed.rows)
        return surveyed

    monkeypatch.setattr("normscope.alignment.aligner.survey", watched)
    source, target = ["the cat sat"] * 12, ["a dog"] * 12
    align(source, target, model, mine, sample=5)
    align(source, target, model, mine, sample=5)
    assert len(set(seen[0])) == 5  # no pair twice
    assert seen[0] == seen[1]


def test_speech_is_spoken_in_order() -> None:
    links = [np.array([[1, 4, 9], [5, 5, 5], [9, 4, 1]]), np.array([[0], [3], [2]])]
    seen = Survey(CHOICES, (0, 1), links, np.zeros(3), np.zeros(3))
    ranking = rank_audio(seen)
    assert [candidate.choice.layer for candidate in ranking] == [0, 1, 2]
    expected = np.corrcoef([1, 4, 9], [0, 1, 2])[0, 1]
    assert [candidate.features["order"] for candidate in ranking] == pytest.approx(
        [expected, 0, -expected]
    )
