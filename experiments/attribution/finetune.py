"""Fine-tune the default encoder, MiniLM, as a sentence classifier on SST-2.

    python -m experiments.attribution.finetune --data SST2 --output MODELS [--seeds 0 1 2]
        [--model FOLDER] [--device cuda]

``SST2`` holds ``train.tsv`` and ``dev.tsv``: the Stanford Sentiment Treebank with two classes, one
line for each whole sentence, ``sentence<TAB>label``. Every seed draws its own classification head,
dropout and order of sentences; the rest of the model, the pooler included, starts from MiniLM's
weights. Each model becomes a folder ``MODELS/seed-0``, ….
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.models.sources import find_source

EPOCHS = 5
BATCH = 32
RATE = 5e-5
WARM_UP = 0.1  # of all steps; then down to zero in a straight line
LONGEST = 128  # tokens; the longest sentence of the three splits has fewer


def read_split(path: Path) -> tuple[list[str], NDArray[np.int64]]:
    """Return the sentences and labels of a file of SST-2."""
    rows = [line.rpartition("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return [sentence for sentence, _, _ in rows], np.array([int(label) for *_, label in rows])


def token_ids(tokenizer: Any, sentences: list[str]) -> list[list[int]]:
    """Return the token ids of each sentence, special tokens included."""
    ids: list[list[int]] = tokenizer(sentences, truncation=True, max_length=LONGEST)["input_ids"]
    return ids


def padded(rows: list[list[int]], pad: int, device: torch.device) -> dict[str, Tensor]:
    """Return a batch, padded on the right."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask.to(device)}


@torch.no_grad()
def accuracy(
    model: Any, rows: list[list[int]], labels: NDArray[np.int64], pad: int, batch: int = 64
) -> float:
    """Return the share of sentences that the model classifies as labelled."""
    model.eval()
    right = 0
    for start in range(0, len(rows), batch):
        logits = model(**padded(rows[start : start + batch], pad, model.device)).logits
        right += int((logits.argmax(-1).cpu().numpy() == labels[start : start + batch]).sum())
    return right / len(rows)


def batches(lengths: list[int], order: np.random.Generator) -> list[NDArray[np.int64]]:
    """Return the rows of each batch of an epoch, in random order, those of like length together."""
    shuffled = order.permutation(len(lengths))
    sizes = np.array(lengths)[shuffled]
    by_length = shuffled[np.argsort(sizes, kind="stable")]
    cuts = [by_length[start : start + BATCH] for start in range(0, len(lengths), BATCH)]
    return [cuts[i] for i in order.permutation(len(cuts))]


def finetune(
    data: Path, seed: int, device: torch.device, source: str | None = None, epochs: int = EPOCHS
) -> tuple[Any, Any]:
    """Return a model trained on SST-2, and its tokenizer."""
    from transformers import AutoTokenizer, BertForSequenceClassification

    torch.manual_seed(seed)
    source = source or find_source(None, None).location
    tokenizer = AutoTokenizer.from_pretrained(source)
    model: Any = BertForSequenceClassification.from_pretrained(source, num_labels=2)
    model.config.id2label = {0: "negative", 1: "positive"}
    model.config.label2id = {"negative": 0, "positive": 1}
    model.to(device)
    sentences, labels = read_split(data / "train.tsv")
    held_out, held_out_labels = read_split(data / "dev.tsv")
    rows, dev = token_ids(tokenizer, sentences), token_ids(tokenizer, held_out)
    order = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    steps = epochs * -(-len(rows) // BATCH)
    warm = WARM_UP * steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (steps - step) / (steps - warm))
    )
    for epoch in range(epochs):
        model.train()
        began, total = time.perf_counter(), 0.0
        for chosen in batches([len(row) for row in rows], order):
            batch = padded([rows[i] for i in chosen], tokenizer.pad_token_id, device)
            loss = model(**batch, labels=torch.tensor(labels[chosen], device=device)).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(chosen)
        print(
            f"seed {seed}, epoch {epoch + 1}: loss {total / len(rows):.3f}, "
            f"dev accuracy {accuracy(model, dev, held_out_labels, tokenizer.pad_token_id):.3f}, "
            f"{time.perf_counter() - began:.0f} s",
            flush=True,
        )
    return model.eval(), tokenizer


def main() -> None:
    """Train a model for each seed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--output", type=Path, required=True)
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--epochs", type=int, default=EPOCHS)
    options.add_argument("--model", help="a folder with another BERT; default: MiniLM")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = options.parse_args()
    for seed in given.seeds:
        model, tokenizer = finetune(
            given.data, seed, torch.device(given.device), given.model, given.epochs
        )
        folder = given.output / f"seed-{seed}"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
