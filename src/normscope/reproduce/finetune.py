"""Fine-tune an encoder as a classifier of sentences, for experiments that need one.

All weights of the encoder are kept, the pooler's included; the classification head is new. Every
seed draws its own head, dropout and order of sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.errors import InputError
from normscope.foundation.progress import progress_bar, stage
from normscope.models.running import evaluating

LONGEST = 128  # tokens; no sentence of SST-2 has more
LABELS = ("negative", "positive")


@dataclass(frozen=True)
class FineTuning:
    """How a classifier is trained.

    Attributes:
        epochs: times the data, where `steps` is None.
        steps: updates.
        batch: sentences in an update.
        rate: the largest learning rate; from zero in the first tenth, then down to zero, straight.
        seed: of the head, of dropout and of the order.
    """

    epochs: int = 5
    steps: int | None = None
    batch: int = 32
    rate: float = 5e-5
    seed: int = 0

    def updates(self, rows: int) -> int:
        """Return the number of updates for so many sentences."""
        return self.epochs * -(-rows // self.batch) if self.steps is None else self.steps


def read_split(path: Path) -> tuple[list[str], NDArray[np.int64]]:
    """Return the sentences and labels of a file with lines "sentence<TAB>label".

    The first line may be a header, as in the files of GLUE.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as problem:
        raise InputError(f"cannot read {str(path)!r}: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise InputError(f"{str(path)!r} is not UTF-8: {problem}") from None
    rows = [line.rstrip("\r").rpartition("\t") for line in lines if line.strip()]
    if rows and rows[0][::2] == ("sentence", "label"):
        rows = rows[1:]
    for number, (sentence, _, label) in enumerate(rows, 1):
        if label not in ("0", "1") or not sentence.strip():
            raise InputError(
                f"{path.name}, line {number}: a line is a sentence, a tab and its label, 0 "
                f"(negative) or 1 (positive), not {lines[number - 1]!r:.80}"
            )
    if not rows:
        raise InputError(f"{str(path)!r} has no sentences")
    return [sentence.strip() for sentence, _, _ in rows], np.array([int(row[2]) for row in rows])


def token_ids(tokenizer: Any, sentences: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each sentence, special tokens included."""
    ids: list[list[int]] = tokenizer(list(sentences), truncation=True, max_length=LONGEST)[
        "input_ids"
    ]
    return ids


def padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> dict[str, Tensor]:
    """Return a batch, padded on the right."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask.to(device)}


@torch.no_grad()
def accuracy(
    model: Any,
    rows: Sequence[Sequence[int]],
    labels: NDArray[np.int64],
    pad: int,
    batch: int = 64,
) -> float:
    """Return the share of sentences that the model classifies as labelled."""
    right = 0
    with evaluating(model):
        for start in range(0, len(rows), batch):
            logits = model(**padded(rows[start : start + batch], pad, model.device)).logits
            right += int((logits.argmax(-1).cpu().numpy() == labels[start : start + batch]).sum())
    return right / len(rows)


def batches(
    lengths: Sequence[int], order: np.random.Generator, size: int
) -> list[NDArray[np.int64]]:
    """Return the rows of each batch of an epoch, in random order, those of like length together."""
    shuffled = order.permutation(len(lengths))
    by_length = shuffled[np.argsort(np.array(lengths)[shuffled], kind="stable")]
    cuts = [by_length[start : start + size] for start in range(0, len(lengths), size)]
    return [cuts[i] for i in order.permutation(len(cuts))]


def _endless(
    lengths: Sequence[int], order: np.random.Generator, size: int
) -> Iterator[NDArray[np.int64]]:
    while True:
        yield from batches(lengths, order, size)


def new_classifier(location: str, device: str | torch.device = "cpu") -> tuple[Any, Any]:
    """Return an encoder from a folder or the hub with a new head of two labels, and its tokenizer.

    The head depends on torch's seed.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(location)
    model: Any = AutoModelForSequenceClassification.from_pretrained(
        location, num_labels=2, dtype=torch.float32
    )
    model.config.id2label = dict(enumerate(LABELS))
    model.config.label2id = {label: number for number, label in enumerate(LABELS)}
    return model.to(device), tokenizer


def train(
    model: Any,
    tokenizer: Any,
    sentences: Sequence[str],
    labels: NDArray[np.int64],
    tuning: FineTuning,
) -> None:
    """Train a classifier in place."""
    rows = token_ids(tokenizer, sentences)
    optimizer = torch.optim.AdamW(model.parameters(), lr=tuning.rate, weight_decay=0.01)
    steps = tuning.updates(len(rows))
    warm = max(1.0, steps / 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm, (steps - step) / max(steps - warm, 1)),
    )
    order = np.random.default_rng(tuning.seed)
    chosen = _endless([len(row) for row in rows], order, tuning.batch)
    model.train()
    stage("fine-tuning")
    with progress_bar(steps, unit="update", description="fine-tune") as bar:
        for _ in range(steps):
            part = next(chosen)
            batch = padded([rows[i] for i in part], tokenizer.pad_token_id, model.device)
            loss = model(**batch, labels=torch.tensor(labels[part], device=model.device)).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            bar.update()
    model.eval()
