"""Sentence pairs as tensors, entry by entry."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from normscope.alignment.batches import BUDGETS, SentencePair, batch_of, batches, budget_of, pair_of
from normscope.alignment.words import FRAME, Side
from normscope.errors import InputError

MODEL: Any = SimpleNamespace(device=torch.device("cpu"), config=SimpleNamespace())
FILLER = 99


def side(word_of: list[int], words: int | None = None, first: int = 10) -> Side:
    ids = [first + at for at in range(len(word_of))]
    return Side(ids, word_of, max(word_of) + 1 if words is None else words)


PAIRS = [
    SentencePair(side([0, 0, 1, FRAME]), side([0, 1, 1, 1, FRAME], first=30), 7),
    SentencePair(
        side([FRAME, 0, 2, FRAME], words=4), side([0, 1], first=50), 8
    ),  # words 1 and 3 dropped
    SentencePair(side([0, FRAME]), side([1, FRAME], first=70), 9),
]


def test_a_batch_entry_by_entry() -> None:
    rows = [2, 0, 1]
    batch = batch_of(MODEL, PAIRS, rows, ("awi", "awo"), FILLER)
    assert (batch.rows, batch.sources, batch.targets) == (rows, [1, 2, 4], [2, 2, 2])
    assert batch.keys is not None
    assert batch.to_source is not None
    read = {2: [9, 70], 0: [7, 30, 31, 32, 33], 1: [8, 50, 51]}
    for b, row in enumerate(rows):
        pair = PAIRS[row]
        assert isinstance(pair.source, Side)
        for name, mask, ids, size in (
            ("input_ids", "attention_mask", pair.source.ids, 4),
            ("decoder_input_ids", "decoder_attention_mask", read[row], 5),
        ):
            empty = size - len(ids)
            assert batch.inputs[name][b].tolist() == ids + [FILLER] * empty
            assert batch.inputs[mask][b].tolist() == [1] * len(ids) + [0] * empty
        assert batch.keys[b].tolist() == batch.inputs["attention_mask"][b].bool().tolist()
        assert (
            batch.queries[b].tolist() == batch.inputs["decoder_attention_mask"][b].bool().tolist()
        )
        for key in range(4):
            word = pair.source.word_of[key] if key < len(pair.source.ids) else None
            column = 4 if word == FRAME else word
            assert batch.to_source[b, key].tolist() == [float(w == column) for w in range(5)]
        for reading, later in (("awo", 0), ("awi", 1)):
            for word in range(2):
                steps = [at + later for at, of in enumerate(pair.target.word_of) if of == word]
                expected = [(step in steps) / max(len(steps), 1) for step in range(5)]
                assert batch.to_target[reading][b, word].tolist() == pytest.approx(expected)
    absent = batch.absent()
    assert absent is not None
    assert absent.tolist() == [
        [False, True, True, True, False],
        [False, False, True, True, False],
        [False, True, False, True, False],
    ]
    assert batch.written().tolist() == [[False, True], [True, True], [True, True]]
    values = torch.from_numpy(np.random.default_rng(0).random((3, 2, 5, 4)))
    for reading in ("awi", "awo"):
        whole = torch.einsum(
            "btq,bcqk,bks->bcts", batch.to_target[reading], values, batch.to_source
        )
        torch.testing.assert_close(batch.words(values, reading), whole, rtol=1e-14, atol=0)


@pytest.mark.parametrize("budget", [1, 30, 61, 200, 10**6])
def test_batches_are_as_large_as_the_budget_allows(budget: int) -> None:
    draw = np.random.default_rng(1)
    pairs = [
        SentencePair(
            side([0] * int(draw.integers(1, 12))), side([0] * int(draw.integers(1, 12))), 0
        )
        for _ in range(30)
    ]
    lengths = [(len(p.target.ids) + 1, p.keys) for p in pairs]

    def cost(rows: list[int]) -> int:
        return len(rows) * (max(lengths[r][0] for r in rows) + max(lengths[r][1] for r in rows))

    row_groups = [batch.rows for batch in batches(MODEL, pairs, ("awi",), padding=0, budget=budget)]
    order = [row for rows in row_groups for row in rows]
    assert order == sorted(range(30), key=lambda row: lengths[row], reverse=True)
    for rows, following in zip(row_groups, [*row_groups[1:], None], strict=True):
        assert len(rows) == 1 or cost(rows) <= budget
        if following is not None:
            assert cost([*rows, following[0]]) > budget
    some = [
        batch.rows for batch in batches(MODEL, pairs, ("awi",), padding=0, budget=9**9, rows=[4, 2])
    ]
    assert [sorted(rows) for rows in some] == [[2, 4]]
    assert list(batches(MODEL, pairs, ("awi",), padding=0, budget=1, rows=[])) == []


def test_budgets() -> None:
    assert budget_of(MODEL, None) == BUDGETS["cpu"]
    assert budget_of(SimpleNamespace(device=torch.device("cuda")), None) == BUDGETS["cuda"]
    assert budget_of(SimpleNamespace(device=torch.device("meta")), None) == BUDGETS["cpu"]
    assert budget_of(MODEL, 1) == 1
    with pytest.raises(InputError, match="at least 1, not 0"):
        budget_of(MODEL, 0)


def test_what_the_decoder_reads_first() -> None:
    """What the model's own training gives it, else its configuration, else the last token."""
    target = side([0, 1, FRAME], first=20)
    asked: list[Any] = []

    def prepare(labels: torch.Tensor) -> torch.Tensor:
        asked.append(labels.tolist())
        return torch.tensor([[5, 6]])

    config = SimpleNamespace(decoder_start_token_id=3)
    trained: Any = SimpleNamespace(
        device="cpu", config=config, prepare_decoder_input_ids_from_labels=prepare
    )
    starts: dict[int, int] = {}
    assert [pair_of(trained, target, target, starts).start for _ in range(2)] == [5, 5]
    assert asked == [[target.ids]]  # asked once for a last token
    assert pair_of(SimpleNamespace(config=config), target, target).start == 3
    assert pair_of(SimpleNamespace(config=SimpleNamespace()), target, target).start == 22
    # A text that begins with what the decoder reads first anyway.
    whisper = side([FRAME, 0, FRAME], first=3)
    pair = pair_of(SimpleNamespace(config=config), target, whisper)
    assert (pair.target.ids, pair.target.word_of, pair.read) == ([4, 5], [0, FRAME], [3, 4])
    kept = pair_of(SimpleNamespace(config=config), target, side([0, FRAME], first=3))
    assert kept.target.ids == [3, 4]  # a word that is so called


def test_audio_has_no_words() -> None:
    """Whisper's encoder makes one position of two frames."""
    model: Any = torch.nn.Linear(1, 1, dtype=torch.float64)
    model.device = torch.device("cpu")
    pairs = [SentencePair(torch.ones(3, 8) * at, side([0, 1]), 0) for at in range(2)]
    assert pairs[0].keys == 4
    batch = batch_of(model, pairs, [0, 1], ("awo",), 0)
    assert batch.keys is batch.to_source is batch.absent() is None
    assert batch.sources == []
    assert batch.inputs["input_features"].dtype == torch.float64
    sizes = [len(cut.rows) for cut in batches(model, pairs, ("awo",), padding=0, budget=13)]
    assert sizes == [1, 1]  # 2 · (3 + 4) are more
    assert len(list(batches(model, pairs, ("awo",), padding=0, budget=14))) == 1
