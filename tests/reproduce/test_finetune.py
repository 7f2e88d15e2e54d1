"""Fine-tuning a classifier on sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from normscope.errors import InputError
from normscope.reproduce.finetune import (
    FineTuning,
    accuracy,
    batches,
    new_classifier,
    read_split,
    token_ids,
    train,
)
from tests.helpers.sentiment import save_encoder, split


def test_split_files_and_batches(tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    for header in ("", "sentence\tlabel\n"):
        file.write_text(f"{header}a fine film\t1\nno\t0", encoding="utf-8")
        sentences, labels = read_split(file)
        assert sentences == ["a fine film", "no"]
        assert labels.tolist() == [1, 0]
    lengths = np.random.default_rng(1).integers(3, 60, 100).tolist()
    parts = batches(lengths, np.random.default_rng(0), 32)
    assert sorted(np.concatenate(parts).tolist()) == list(range(100))
    assert max(np.ptp([lengths[i] for i in part]) for part in parts) < 30


@pytest.mark.parametrize(
    ("text", "message"),
    [("a film\t2\n", "line 1"), ("a\t1\nb 0\n", "line 2"), ("", "no sentences")],
)
def test_wrong_files(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_split(file)


def test_a_classifier_learns_and_is_the_same_for_a_seed(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "model")
    sentences, labels = read_split(split(tmp_path / "train.tsv", 32, seed=1))
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        model, tokenizer = new_classifier(str(folder))
        rows = token_ids(tokenizer, sentences)
        tuning = FineTuning(steps=25, batch=16, rate=5e-3, seed=seed)
        before = accuracy(model, rows, labels, tokenizer.pad_token_id)
        train(model, tokenizer, sentences, labels, tuning)
        assert not model.training
        after = accuracy(model, rows, labels, tokenizer.pad_token_id)
        assert after > max(0.85, before)
        found.append(model.classifier.weight.detach().clone())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_updates() -> None:
    assert FineTuning(epochs=2, batch=32).updates(65) == 6
    assert FineTuning(steps=7).updates(65) == 7
