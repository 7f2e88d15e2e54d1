"""Tiny models and data for the reproductions of attribution methods."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import torch
import transformers

from normscope.models.architectures import FAMILIES, randomize_, tiny_model
from tests.helpers.corpora import sentences
from tests.helpers.tiny import tokenizer


def save_encoder(folder: Path) -> Path:
    """A random BERT without a head, whose tokenizer has a mask token."""
    tiny_model("bert", dtype=torch.float32).save_pretrained(folder)
    own = tokenizer()
    own.mask_token = "sun"
    own.save_pretrained(folder)
    return folder


def save_language_model(folder: Path) -> Path:
    """A random GPT-2 with a head."""
    tiny = FAMILIES["gpt2"]
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**tiny.tiny))
    randomize_(model, 0)
    model.save_pretrained(folder)
    tokenizer(pair=False).save_pretrained(folder)
    return folder


def split(path: Path, count: int, *, seed: int, header: bool = False) -> Path:
    """Sentences that are positive if they have the word "cat"."""
    lines = [
        f"{text} cat\t1" if number % 2 else f"{text} dog\t0"
        for number, text in enumerate(sentences(count, seed=seed, longest=8))
    ]
    path.write_text("\n".join(["sentence\tlabel"] * header + lines) + "\n", encoding="utf-8")
    return path


def prompts(path: Path, rows: list[tuple[str, str, str, str]]) -> Path:
    """Prompts as released with ALTI-Logit: prefix, good and bad next word, deciding word."""
    names = ["one_prefix_prefix", "one_prefix_word_good", "one_prefix_word_bad", "target"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["", *names])
        writer.writerows([number, *row] for number, row in enumerate(rows))
    return path


def passages(path: Path, count: int) -> Path:
    path.write_text(json.dumps([{"text": text} for text in sentences(count, seed=5)]))
    return path
