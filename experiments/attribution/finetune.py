"""Fine-tune the default encoder, MiniLM, as a sentence classifier on SST-2.

    python -m experiments.attribution.finetune --data SST2 --output MODELS [--seeds 0 1 2]
        [--model FOLDER] [--device cuda]

``SST2`` holds ``train.tsv`` and ``dev.tsv``: the Stanford Sentiment Treebank with two classes, one
line for each whole sentence, ``sentence<TAB>label``. Each model becomes a folder
``MODELS/seed-0``, …. How they are trained is in ``normscope.reproduce.finetune``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from normscope.models.sources import find_source
from normscope.reproduce.finetune import (
    FineTuning,
    accuracy,
    new_classifier,
    read_split,
    token_ids,
    train,
)


def finetune(
    data: Path, seed: int, device: torch.device, source: str | None = None, epochs: int = 5
) -> tuple[Any, Any]:
    """Return a model trained on SST-2, and its tokenizer."""
    torch.manual_seed(seed)
    model, tokenizer = new_classifier(source or find_source(None, None).location, device)
    began = time.perf_counter()
    train(model, tokenizer, *read_split(data / "train.tsv"), FineTuning(epochs, seed=seed))
    sentences, labels = read_split(data / "dev.tsv")
    right = accuracy(model, token_ids(tokenizer, sentences), labels, tokenizer.pad_token_id)
    print(f"seed {seed}: dev accuracy {right:.3f}, {time.perf_counter() - began:.0f} s", flush=True)
    return model, tokenizer


def main() -> None:
    """Train a model for each seed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--output", type=Path, required=True)
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--epochs", type=int, default=5)
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
